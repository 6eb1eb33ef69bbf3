// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a call to its reply: programs, procedures, and who asks.

use crate::caller::user_of;
use crate::duplicates::{Duplicates, Key, Seen, reply_of};
use crate::export::{Export, Outcome};
use crate::files::Used;
use crate::handle::{FileId, Sealer};
use crate::notice::Refusals;
use crate::stand_in::Root;
use crate::{mount, other};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Credentials, Cx, Peer};
use outrigger_proto_nfs3::nfs::procedure::{
    Read as ReadCall, ReadDir as ReadDirCall, ReadDirPlus as ReadDirPlusCall,
};
use outrigger_proto_nfs3::nfs::{self, Call};
use outrigger_proto_nfs3::results::{AttrsFailed, LinkFailed, RenameFailed, WccFailed};
use outrigger_proto_nfs3::types::{FileHandle, Status, Wcc as NfsWcc};
use outrigger_proto_nfs3::xdr::portmap;
use outrigger_proto_nfs3::xdr::rpc::{
    self, AcceptStatus, AuthStatus, Body, Denied, Message, Messages, Versions, accepted,
};
use outrigger_proto_nfs3::xdr::{DecodeError, Decoder, Encoded, Procedure, Xdr};
use outrigger_proto_nfs3::{mount as mount3, nlm};
use outrigger_toolkit_serve::{Budget, Callers, Inside, User};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Notify, watch};

/// What all connections share.
pub(crate) struct Dispatch {
    pub(crate) exports: Vec<Export>,
    sealer: Arc<Sealer>,
    pub(crate) port: u16,
    pub(crate) refusals: Refusals,
    pub(crate) budget: Budget,
    pub(crate) inside: Arc<Inside>,
    /// True once no more calls are taken.
    pub(crate) closing: watch::Sender<bool>,
    /// Whether handles of roots are given out.
    pub(crate) mounts: AtomicBool,
    /// What is answered for a tree that is no longer there, and who may ask.
    root: Option<(Root, Callers)>,
    /// Notified when a client asks for more of it.
    pub(crate) wanted: Notify,
    duplicates: Duplicates,
    requests: AtomicU64,
}

/// A call and where it came from.
pub(crate) struct Caller {
    pub(crate) xid: u32,
    /// On behalf of the superuser until it is known which export is asked for, and who the user is there.
    cx: Cx,
    peer: SocketAddr,
    user: User,
    /// Whether it may do more than ask what is exported.
    is_trusted: bool,
}

impl Caller {
    /// Where it comes from.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }
}

/// What a call that is not carried out is answered.
type Refused = rpc::Reply;

impl Dispatch {
    /// With `root`, it stands in for the server of a tree, for those who could ask that one.
    pub(crate) fn new(
        exports: Vec<Export>,
        root: Option<(Root, Callers)>,
        sealer: Arc<Sealer>,
        port: u16,
    ) -> Self {
        Dispatch {
            exports,
            sealer,
            port,
            refusals: Refusals::default(),
            budget: Budget::default(),
            inside: Inside::new(),
            closing: watch::Sender::new(false),
            mounts: AtomicBool::new(true),
            root,
            wanted: Notify::new(),
            duplicates: Duplicates::default(),
            requests: AtomicU64::new(1),
        }
    }

    /// Whether a client at `peer` may connect.
    pub(crate) fn admits(&self, peer: SocketAddr) -> bool {
        self.callers().any(|callers| callers.admit(peer))
    }

    /// Whether a client at this port may do more than ask what is exported.
    pub(crate) fn trusts(&self, peer: SocketAddr) -> bool {
        self.callers().any(|callers| callers.trusts(peer))
    }

    fn callers(&self) -> impl Iterator<Item = &Callers> {
        let of_root = self.root.iter().map(|(_, callers)| callers);
        self.exports.iter().map(|export| &export.callers).chain(of_root)
    }

    /// The reply to a message; `None` where it is no call.
    pub(crate) async fn answer(&self, message: Bytes, peer: SocketAddr, session: u64) -> Option<Encoded> {
        let mut input = Decoder::new(message.clone());
        let Ok(Message { xid, body: Body::Call(header) }) = Message::decode(&mut input) else { return None };
        let reply = match self.caller(xid, &header, peer, session) {
            Ok(caller) => self.program(caller, &header, input, &message).await,
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
        let user = user_of(&header.credential).map_err(denied)?;
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut cx = Cx { slot: Cx::NO_SLOT, ..Cx::new(id, Credentials::ROOT, "nfs") };
        cx.origin.peer = Some(Arc::new(Peer { address: peer.to_string(), session }));
        Ok(Caller { xid, cx, peer, user, is_trusted: self.trusts(peer) })
    }

    async fn program(
        &self,
        mut caller: Caller,
        header: &rpc::Call,
        mut input: Decoder,
        message: &Bytes,
    ) -> Result<Encoded, Refused> {
        let (procedure, input, peer) = (header.procedure, &mut input, caller.peer);
        match (header.program, header.version) {
            (nfs::PROGRAM, nfs::VERSION) => {
                let call = Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                tracing::trace!(%peer, %call);
                self.once(caller, call, Key::of(peer.ip(), message)).await
            }
            (mount3::PROGRAM, mount3::VERSION) => {
                let call = mount3::Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                Ok(mount::answer(self, &mut caller, call).await)
            }
            (portmap::PROGRAM, portmap::VERSION) => {
                let call = portmap::Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                Ok(other::ports(self.port, caller.xid, &call))
            }
            (nlm::PROGRAM, nlm::VERSION) => {
                let call = nlm::Call::decode(procedure, input).map_err(|error| unreadable(&error))?;
                self.refuse_lock(&caller, &call);
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
            self.refuse_port(&caller);
            return Err(denied(AuthStatus::TOO_WEAK));
        }
        if !changes(&call) {
            return Ok(self.nfs(&mut caller, call).await);
        }
        caller.cx.wcc = Some(Arc::default());
        // A slow write whose client has repeated it and gone on must not come after what that does next.
        let is_kept = must_not_repeat(&call);
        loop {
            match self.duplicates.see(key) {
                Seen::First(first) => {
                    let reply = self.nfs(&mut caller, call).await.into_bytes();
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

    fn refuse_lock(&self, caller: &Caller, call: &nlm::Call) {
        if other::asks_for_lock(call)
            && let Some(more) = self.refusals.lock.due()
        {
            let peer = caller.peer;
            tracing::warn!(
                "{peer} was refused a lock: this server keeps none. Mount with the option nolock, and locks are kept at the client{more}"
            );
        }
    }

    fn refuse_port(&self, caller: &Caller) {
        if let Some(more) = self.refusals.port.due() {
            let peer = caller.peer;
            tracing::warn!("{peer} was refused: its port is not below 1024 (option insecure){more}");
        }
    }

    /// What a caller does in this export, on behalf of whom it is there.
    ///
    /// # Errors
    /// `ACCES` when it may do nothing there.
    pub(crate) fn enter<'a>(&self, caller: &'a mut Caller, export: &Export) -> Outcome<&'a Cx> {
        if !export.callers.trusts(caller.peer) {
            self.refuse_port(caller);
            return Err(Status::ACCES);
        }
        if !export.callers.admit(caller.peer) {
            if let Some(more) = self.refusals.network.due() {
                let (peer, name) = (caller.peer, &export.name);
                tracing::warn!(
                    "{peer} was refused: it is in no network that may use '/{name}' (option allow){more}"
                );
            }
            return Err(Status::ACCES);
        }
        caller.cx.cred = export.callers.credentials(&caller.user);
        Ok(&caller.cx)
    }

    /// The file that a handle names, in its export, and on whose behalf it is used.
    async fn find<'a>(
        &self,
        caller: &'a mut Caller,
        handle: &FileHandle,
    ) -> Outcome<(&'a Cx, &Export, Used<'_>)> {
        let (export, id) = self.named(handle)?;
        let cx = self.enter(caller, export)?;
        Ok((cx, export, export.file(cx, id).await?))
    }

    fn named(&self, handle: &FileHandle) -> Outcome<(&Export, FileId)> {
        let id = self.sealer.open(handle).ok_or(Status::BADHANDLE)?;
        let export = self.exports.iter().find(|export| export.id == id.export).ok_or(Status::STALE)?;
        Ok((export, id))
    }

    /// Two files that an operation is about.
    async fn find_two<'a>(
        &self,
        caller: &'a mut Caller,
        one: &FileHandle,
        two: &FileHandle,
    ) -> Outcome<(&'a Cx, &Export, Used<'_>, Used<'_>)> {
        let ((_, first), (other, second)) = (self.named(one)?, self.named(two)?);
        if first.export != second.export {
            return Err(Status::XDEV);
        }
        let cx = self.enter(caller, other)?;
        Ok((cx, other, other.file(cx, first).await?, other.file(cx, second).await?))
    }

    async fn nfs(&self, caller: &mut Caller, call: Call) -> Encoded {
        let (xid, failure) = (caller.xid, Failure::of(&call));
        if let Some((root, _)) = &self.root {
            match root.answer(xid, &call) {
                Some(reply) => return reply,
                None => self.wanted.notify_one(),
            }
        }
        macro_rules! on {
            ($handle:expr, |$cx:ident, $export:ident, $file:ident| $work:expr) => {
                match self.find(caller, &$handle).await {
                    Ok(($cx, $export, $file)) => success(xid, &$work),
                    Err(status) => failed(xid, status, &failure),
                }
            };
        }
        match call {
            Call::Null(()) => success(xid, &()),
            Call::GetAttr(handle) => on!(handle, |cx, export, file| export.get_attr(cx, &file).await),
            Call::SetAttr(args) => {
                on!(args.object, |cx, export, file| export.set_attr(cx, &file, args).await)
            }
            Call::Lookup(at) => on!(at.dir, |cx, export, dir| export.look_up(cx, &dir, &at.name).await),
            Call::Access(args) => on!(args.object, |cx, export, file| export.access(cx, &file, &args).await),
            Call::ReadLink(handle) => on!(handle, |cx, export, file| export.read_link(cx, &file).await),
            Call::Read(args) => on!(args.file, |cx, export, file| export.read(cx, &file, &args).await),
            Call::Write(args) => on!(args.file, |cx, export, file| export.write(cx, &file, args).await),
            Call::Create(args) => on!(args.at.dir, |cx, export, dir| export.create(cx, &dir, args).await),
            Call::MkDir(args) => on!(args.at.dir, |cx, export, dir| export.make_dir(cx, &dir, args).await),
            Call::SymLink(args) => {
                on!(args.at.dir, |cx, export, dir| export.make_symlink(cx, &dir, args).await)
            }
            Call::MkNod(args) => on!(args.at.dir, |cx, export, dir| export.make_node(cx, &dir, args).await),
            Call::Remove(at) => on!(at.dir, |cx, export, dir| export.remove(cx, &dir, &at.name, false).await),
            Call::RmDir(at) => on!(at.dir, |cx, export, dir| export.remove(cx, &dir, &at.name, true).await),
            Call::Rename(args) => match self.find_two(caller, &args.from.dir, &args.to.dir).await {
                Ok((cx, export, from, to)) => {
                    let (from, to) = ((&from, &args.from.name), (&to, &args.to.name));
                    success(xid, &export.rename(cx, from, to).await)
                }
                Err(status) => failed(xid, status, &failure),
            },
            Call::Link(args) => match self.find_two(caller, &args.file, &args.link.dir).await {
                Ok((cx, export, file, dir)) => {
                    success(xid, &export.link(cx, &file, &dir, &args.link.name).await)
                }
                Err(status) => failed(xid, status, &failure),
            },
            Call::ReadDir(args) => {
                on!(args.dir, |cx, export, dir| export.read_dir(cx, &dir, args.cookie, args.count).await)
            }
            Call::ReadDirPlus(args) => {
                on!(args.dir, |cx, export, dir| export
                    .read_dir_plus(cx, &dir, args.cookie, args.max_count)
                    .await)
            }
            Call::FsStat(handle) => on!(handle, |cx, export, file| export.fs_stat(cx, &file).await),
            Call::FsInfo(handle) => {
                on!(handle, |cx, export, file| Ok::<_, AttrsFailed>(export.fs_info(cx, &file).await))
            }
            Call::PathConf(handle) => on!(handle, |cx, export, file| export.path_conf(cx, &file).await),
            Call::Commit(args) => on!(args.file, |cx, export, file| export.commit(cx, &file, &args).await),
        }
    }
}

/// How much memory a call takes with its reply, in bytes, as far as that is known before it is carried out.
pub(crate) fn memory_of(message: &Bytes) -> usize {
    message.len() + reply_to(message).unwrap_or_default() as usize
}

/// The content of the reply, or a listing, that a call may have.
fn reply_to(message: &Bytes) -> Option<u32> {
    let mut input = Decoder::new(message.clone());
    let Message { body: Body::Call(header), .. } = Message::decode(&mut input).ok()? else { return None };
    let answers_much = [ReadCall::NUMBER, ReadDirCall::NUMBER, ReadDirPlusCall::NUMBER];
    if header.program != nfs::PROGRAM || !answers_much.contains(&header.procedure) {
        return None;
    }
    let count = match Call::decode(header.procedure, &mut input).ok()? {
        Call::Read(args) => args.count,
        Call::ReadDir(args) => args.count,
        Call::ReadDirPlus(args) => args.max_count,
        _ => 0,
    };
    Some(count.min(crate::IO_MAX))
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
