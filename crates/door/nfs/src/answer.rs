// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a call to its reply: programs, procedures, and who asks.

use crate::caller::Callers;
use crate::duplicates::{Duplicates, Key, Seen, reply_of};
use crate::export::{Export, Outcome};
use crate::files::Used;
use crate::handle::Sealer;
use crate::stand_in::Root;
use crate::{mount, other};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Cx, Peer};
use outrigger_proto_nfs3::nfs::{self, Call};
use outrigger_proto_nfs3::results::{AttrsFailed, LinkFailed, RenameFailed, WccFailed};
use outrigger_proto_nfs3::types::{FileHandle, Status, Wcc as NfsWcc};
use outrigger_proto_nfs3::xdr::rpc::{
    self, AcceptStatus, AuthStatus, Body, Denied, Message, Messages, Versions, accepted,
};
use outrigger_proto_nfs3::xdr::{DecodeError, Decoder, Encoded, Xdr};
use outrigger_proto_nfs3::{mount as mount3, nlm, portmap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Notify, watch};

/// What all connections share.
pub(crate) struct Dispatch {
    pub(crate) exports: Vec<Export>,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) callers: Callers,
    pub(crate) port: u16,
    /// True once no more calls are taken.
    pub(crate) closing: watch::Sender<bool>,
    /// Whether handles of roots are given out.
    pub(crate) mounts: AtomicBool,
    /// What is answered for a tree that is no longer there.
    pub(crate) root: Option<Root>,
    /// Notified when somebody asks for more of it.
    pub(crate) wanted: Notify,
    duplicates: Duplicates,
    requests: AtomicU64,
}

/// A call and where it came from.
pub(crate) struct Caller {
    pub(crate) xid: u32,
    pub(crate) cx: Cx,
    /// Whether it may do more than ask what is exported.
    pub(crate) is_trusted: bool,
}

/// What a call that is not carried out is answered.
type Refused = rpc::Reply;

impl Dispatch {
    pub(crate) fn new(
        exports: Vec<Export>,
        root: Option<Root>,
        sealer: Arc<Sealer>,
        callers: Callers,
        port: u16,
    ) -> Self {
        Dispatch {
            exports,
            sealer,
            callers,
            port,
            closing: watch::Sender::new(false),
            mounts: AtomicBool::new(true),
            root,
            wanted: Notify::new(),
            duplicates: Duplicates::default(),
            requests: AtomicU64::new(1),
        }
    }

    /// The reply to a message; `None` where it is no call.
    pub(crate) async fn answer(&self, message: Bytes, peer: SocketAddr, session: u64) -> Option<Encoded> {
        let mut input = Decoder::new(message.clone());
        let Ok(Message { xid, body: Body::Call(header) }) = Message::decode(&mut input) else { return None };
        let reply = match self.caller(xid, &header, peer, session) {
            Ok(caller) => self.program(caller, &header, input, (peer, &message)).await,
            Err(refused) => Err(refused),
        };
        Some(reply.unwrap_or_else(|refused| rpc::reply(xid, refused).finish()))
    }

    fn caller(
        &self,
        xid: u32,
        header: &rpc::Call,
        peer: SocketAddr,
        session: u64,
    ) -> Result<Caller, Refused> {
        if header.rpc_version != rpc::RPC_VERSION {
            let (low, high) = (rpc::RPC_VERSION, rpc::RPC_VERSION);
            return Err(rpc::Reply::Denied(Denied::RpcMismatch(Versions { low, high })));
        }
        let cred = self.callers.credentials(&header.credential).map_err(denied)?;
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut cx = Cx { slot: Cx::NO_SLOT, ..Cx::new(id, cred, "nfs") };
        cx.origin.peer = Some(Arc::new(Peer { address: peer.to_string(), session }));
        Ok(Caller { xid, cx, is_trusted: self.callers.trusts(peer) })
    }

    async fn program(
        &self,
        caller: Caller,
        header: &rpc::Call,
        mut input: Decoder,
        (peer, message): (SocketAddr, &Bytes),
    ) -> Result<Encoded, Refused> {
        let (procedure, input) = (header.procedure, &mut input);
        match (header.program, header.version) {
            (nfs::PROGRAM, nfs::VERSION) => {
                let call = Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                tracing::trace!(%peer, %call);
                self.once(caller, call, Key::of(peer.ip(), message)).await
            }
            (mount3::PROGRAM, mount3::VERSION) => {
                let call = mount3::Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                Ok(mount::answer(self, &caller, call).await)
            }
            (portmap::PROGRAM, portmap::VERSION) => {
                let call = portmap::Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                Ok(other::ports(self.port, caller.xid, &call))
            }
            (nlm::PROGRAM, nlm::VERSION) => {
                let call = nlm::Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                other::locks(caller.xid, call).ok_or(accepted(AcceptStatus::ProcedureUnavailable))
            }
            (nfs::PROGRAM, _) | (mount3::PROGRAM, _) => Err(mismatch(nfs::VERSION)),
            (portmap::PROGRAM, _) => Err(mismatch(portmap::VERSION)),
            (nlm::PROGRAM, _) => Err(mismatch(nlm::VERSION)),
            _ => Err(accepted(AcceptStatus::ProgramUnavailable)),
        }
    }

    /// Carries a call out, but for a repetition of one that must not happen twice.
    async fn once(&self, mut caller: Caller, call: Call, key: Key) -> Result<Encoded, Refused> {
        if !caller.is_trusted && !matches!(call, Call::Null(())) {
            return Err(denied(AuthStatus::TOO_WEAK));
        }
        if !changes(&call) {
            return Ok(self.nfs(caller.xid, &caller.cx, call).await);
        }
        caller.cx.wcc = Some(Arc::default());
        // A slow write whose client has repeated it and gone on must not come after what that does next.
        let is_kept = must_not_repeat(&call);
        loop {
            match self.duplicates.see(key) {
                Seen::First(first) => {
                    let reply = self.nfs(caller.xid, &caller.cx, call).await.into_bytes();
                    first.replied(reply.clone(), is_kept);
                    return Ok(whole(&reply));
                }
                Seen::Again(first) => {
                    if let Some(reply) = reply_of(first).await {
                        return Ok(whole(&reply));
                    }
                }
            }
        }
    }

    /// The file that a handle names, in its export.
    async fn find(&self, cx: &Cx, handle: &FileHandle) -> Outcome<(&Export, Used<'_>)> {
        let id = self.sealer.open(handle).ok_or(Status::BADHANDLE)?;
        let export = self.exports.iter().find(|export| export.id == id.export).ok_or(Status::STALE)?;
        Ok((export, export.file(cx, id).await?))
    }

    /// Two files that an operation is about.
    async fn find_two(
        &self,
        cx: &Cx,
        one: &FileHandle,
        two: &FileHandle,
    ) -> Outcome<(&Export, Used<'_>, Used<'_>)> {
        let (export, first) = self.find(cx, one).await?;
        let (other, second) = self.find(cx, two).await?;
        if export.id == other.id { Ok((export, first, second)) } else { Err(Status::XDEV) }
    }

    async fn nfs(&self, xid: u32, cx: &Cx, call: Call) -> Encoded {
        if let Some(root) = &self.root {
            match root.answer(xid, &call) {
                Some(reply) => return reply,
                None => self.wanted.notify_one(),
            }
        }
        let failure = Failure::of(&call);
        macro_rules! on {
            ($handle:expr, |$export:ident, $file:ident| $work:expr) => {
                match self.find(cx, &$handle).await {
                    Ok(($export, $file)) => success(xid, &$work),
                    Err(status) => failed(xid, status, &failure),
                }
            };
        }
        match call {
            Call::Null(()) => success(xid, &()),
            Call::GetAttr(handle) => on!(handle, |export, file| export.get_attr(cx, &file).await),
            Call::SetAttr(args) => on!(args.object, |export, file| export.set_attr(cx, &file, args).await),
            Call::Lookup(at) => on!(at.dir, |export, dir| export.look_up(cx, &dir, &at.name).await),
            Call::Access(args) => on!(args.object, |export, file| export.access(cx, &file, &args).await),
            Call::ReadLink(handle) => on!(handle, |export, file| export.read_link(cx, &file).await),
            Call::Read(args) => on!(args.file, |export, file| export.read(cx, &file, &args).await),
            Call::Write(args) => on!(args.file, |export, file| export.write(cx, &file, args).await),
            Call::Create(args) => on!(args.at.dir, |export, dir| export.create(cx, &dir, args).await),
            Call::MkDir(args) => on!(args.at.dir, |export, dir| export.make_dir(cx, &dir, args).await),
            Call::SymLink(args) => on!(args.at.dir, |export, dir| export.make_symlink(cx, &dir, args).await),
            Call::MkNod(args) => on!(args.at.dir, |export, dir| export.make_node(cx, &dir, args).await),
            Call::Remove(at) => on!(at.dir, |export, dir| export.remove(cx, &dir, &at.name, false).await),
            Call::RmDir(at) => on!(at.dir, |export, dir| export.remove(cx, &dir, &at.name, true).await),
            Call::Rename(args) => match self.find_two(cx, &args.from.dir, &args.to.dir).await {
                Ok((export, from, to)) => {
                    let (from, to) = ((&from, &args.from.name), (&to, &args.to.name));
                    success(xid, &export.rename(cx, from, to).await)
                }
                Err(status) => failed(xid, status, &failure),
            },
            Call::Link(args) => match self.find_two(cx, &args.file, &args.link.dir).await {
                Ok((export, file, dir)) => success(xid, &export.link(cx, &file, &dir, &args.link.name).await),
                Err(status) => failed(xid, status, &failure),
            },
            Call::ReadDir(args) => {
                on!(args.dir, |export, dir| export.read_dir(cx, &dir, args.cookie, args.count).await)
            }
            Call::ReadDirPlus(args) => {
                on!(args.dir, |export, dir| export.read_dir_plus(cx, &dir, args.cookie, args.max_count).await)
            }
            Call::FsStat(handle) => on!(handle, |export, file| export.fs_stat(cx, &file).await),
            Call::FsInfo(handle) => {
                on!(handle, |export, file| Ok::<_, AttrsFailed>(export.fs_info(cx, &file).await))
            }
            Call::PathConf(handle) => on!(handle, |export, file| export.path_conf(cx, &file).await),
            Call::Commit(args) => on!(args.file, |export, file| export.commit(cx, &file, &args).await),
        }
    }
}

/// What a failed procedure answers besides the code, where nothing is known of the file.
enum Failure {
    Code,
    Attrs,
    Wcc,
    Rename,
    Link,
}

impl Failure {
    fn of(call: &Call) -> Self {
        match call {
            Call::GetAttr(_) | Call::Null(()) => Failure::Code,
            Call::Rename(_) => Failure::Rename,
            Call::Link(_) => Failure::Link,
            call if changes(call) => Failure::Wcc,
            _ => Failure::Attrs,
        }
    }
}

fn failed(xid: u32, status: Status, failure: &Failure) -> Encoded {
    let (attrs, wcc) = (None, NfsWcc::UNKNOWN);
    match failure {
        Failure::Code => success(xid, &Err::<(), _>(status)),
        Failure::Attrs => success(xid, &Err::<(), _>(AttrsFailed { status, attrs })),
        Failure::Wcc => success(xid, &Err::<(), _>(WccFailed { status, wcc })),
        Failure::Rename => success(xid, &Err::<(), _>(RenameFailed { status, from_dir: wcc, to_dir: wcc })),
        Failure::Link => success(xid, &Err::<(), _>(LinkFailed { status, attrs, dir: wcc })),
    }
}

/// Whether a procedure changes a file or directory, and answers with its attributes before and after.
fn changes(call: &Call) -> bool {
    matches!(call, Call::SetAttr(_) | Call::Write(_) | Call::Commit(_)) || must_not_repeat(call)
}

/// Whether a repetition would fail or do something else (RFC 1813, section 4.5).
fn must_not_repeat(call: &Call) -> bool {
    match call {
        // It would find another ctime.
        Call::SetAttr(args) => args.guard.is_some(),
        Call::Create(_) | Call::MkDir(_) | Call::SymLink(_) | Call::MkNod(_) => true,
        Call::Remove(_) | Call::RmDir(_) | Call::Rename(_) | Call::Link(_) => true,
        _ => false,
    }
}

/// The reply to a call that was carried out.
pub(crate) fn success(xid: u32, results: &impl Xdr) -> Encoded {
    rpc::success(xid, results).finish()
}

fn whole(reply: &[u8]) -> Encoded {
    Encoded { head: BytesMut::from(reply), ..Encoded::default() }
}

fn denied(why: AuthStatus) -> Refused {
    rpc::Reply::Denied(Denied::AuthError(why))
}

fn mismatch(version: u32) -> Refused {
    accepted(AcceptStatus::ProgramMismatch(Versions { low: version, high: version }))
}

fn unreadable(error: &DecodeError) -> Refused {
    accepted(match error {
        DecodeError::Procedure(_) => AcceptStatus::ProcedureUnavailable,
        _ => AcceptStatus::GarbageArguments,
    })
}
