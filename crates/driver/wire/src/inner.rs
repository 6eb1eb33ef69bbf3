// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree as it outlives connections: its nodes and open files, and the connection there is now.

use crate::creation::{OnWay, Refusal, Unmade};
use crate::options::Options;
use crate::place::Dial;
use crate::session::{Fault, Notices, Session, Start};
use outrigger_core::gate::Gate;
use outrigger_core::ops::OpenFlags;
use outrigger_core::order::Order;
use outrigger_core::reply::Attrs;
use outrigger_core::wire::peer;
use outrigger_core::{
    Abilities, Attr, Credentials, Cx, Errno, Error, FileKind, Handle, Keep, Node, Notice, OpCode, OpSet,
    Parallel, Reply, Result, Runtime, lock,
};
use outrigger_toolkit_remote::{HandleTable, KnownFile, OpenFiles, Outage, own_credentials};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// What is not asked for: locks would end with the connection; numbers of a connection mean nothing on the next; and directories are
/// listed without being opened.
const NOT_ASKED: OpSet = OpSet::of(&[
    OpCode::GetLock,
    OpCode::SetLock,
    OpCode::Poll,
    OpCode::Ioctl,
    OpCode::Resolve,
    OpCode::Parent,
    OpCode::OpenDir,
    OpCode::ReleaseDir,
]);

/// The other side works on 256 requests at once, so that a level of a tree takes one round trip.
const PARALLEL: Parallel = Parallel { reads: 64, listings: 240 };

/// An open file, and what it is called by the last connection that it was used by.
pub(crate) struct OpenFile {
    pub(crate) node: Node,
    pub(crate) flags: OpenFlags,
    pub(crate) by: Mutex<Option<(u64, Handle)>>,
    pub(crate) order: Arc<Order>,
    pub(crate) refusal: Refusal,
    /// It may have to be made, after another process has answered that it was.
    pub(crate) unmade: Mutex<Option<Unmade>>,
    /// Where reading found the end last.
    pub(crate) end: AtomicU64,
}

impl OpenFile {
    /// One that exists.
    pub(crate) fn new(node: Node, flags: OpenFlags, by: Option<(u64, Handle)>) -> Self {
        let (order, refusal, unmade) = (Arc::default(), Refusal::default(), Mutex::default());
        let end = AtomicU64::new(u64::MAX);
        OpenFile { node, flags, by: Mutex::new(by), order, refusal, unmade, end }
    }
}

/// What is known of the connection.
#[derive(Default)]
enum Present {
    #[default]
    None,
    /// It is being made.
    Dialing(watch::Receiver<Option<Result<Arc<Session>>>>),
    Open(Arc<Session>),
}

/// What making a connection needs.
struct Dialer {
    to: Box<dyn Dial>,
    options: Options,
    runtime: Arc<dyn Runtime>,
    outage: Outage,
    notices: Notices,
    sessions: AtomicU64,
    present: Mutex<Present>,
    /// What the root was first: another tree at the same place is none of ours.
    root: Mutex<Option<KnownFile>>,
}

/// A tree that another process serves.
pub(crate) struct Inner {
    dialer: Arc<Dialer>,
    pub(crate) files: HandleTable,
    pub(crate) open: OpenFiles<Arc<OpenFile>>,
    /// The names of new files that are on their way.
    pub(crate) on_way: Mutex<HashMap<Node, OnWay>>,
    /// Opens when one has arrived.
    pub(crate) named: Gate,
    pub(crate) abilities: Abilities,
}

/// A request of the driver itself.
pub(crate) fn own_cx() -> Cx {
    let (uid, gid) = (own_credentials().uid, own_credentials().gid);
    Cx { slot: Cx::NO_SLOT, ..Cx::new(0, Credentials::new(uid, gid), "wire") }
}

/// A file as it is recognised on any connection: number, device, time of birth.
///
/// # Errors
/// `EIO` for attributes that no file has.
pub(crate) fn identity(attr: &Attr) -> Result<KnownFile> {
    let kind = FileKind::of_mode(attr.mode);
    let kind = kind.ok_or_else(|| Errno::EIO.because("a file of a kind that there is not"))?;
    let (secs, nanos) = attr.btime.map_or((0, 0), |time| (time.secs, time.nanos));
    let parts =
        [&attr.dev.to_le_bytes()[..], &attr.ino.to_le_bytes(), &secs.to_le_bytes(), &nanos.to_le_bytes()];
    KnownFile::new(&parts.concat(), attr.ino, kind)
}

impl Inner {
    pub(crate) async fn connect(
        to: Box<dyn Dial>,
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        let keep = keep.as_deref();
        let files = HandleTable::open(keep)?;
        let open = OpenFiles::open(keep, |_, was, _| {
            let unmade = Mutex::new(Unmade::noted(&was.own));
            Arc::new(OpenFile { unmade, ..OpenFile::new(was.node, was.flags, None) })
        })?;
        let known = files.get(Node::ROOT);
        let outage = if known.is_some() { Outage::after_takeover() } else { Outage::new(false) };
        let dialer = Arc::new(Dialer {
            to,
            options,
            runtime,
            outage,
            notices: Notices::default(),
            sessions: AtomicU64::new(1),
            present: Mutex::default(),
            root: Mutex::new(known),
        });
        let session = dialer.session().await?;
        if let Some(root) = *lock(&dialer.root) {
            files.note(Node::ROOT, root)?;
        }
        let abilities = abilities(&*dialer.to, &session);
        Ok(Inner { dialer, files, open, on_way: Mutex::default(), named: Gate::default(), abilities })
    }

    /// The connection.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Fault> {
        Ok(self.dialer.session().await?)
    }

    /// The connection, if there is one now.
    pub(crate) fn present(&self) -> Option<Arc<Session>> {
        match &*lock(&self.dialer.present) {
            Present::Open(session) if session.mux.is_open() => Some(Arc::clone(session)),
            _ => None,
        }
    }

    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.dialer.runtime
    }

    pub(crate) fn attach(&self, notify: Arc<dyn outrigger_core::Notify>) {
        // A door attaches once.
        let _ = self.dialer.notices.set(notify);
    }
}

/// What this tree is like.
fn abilities(to: &dyn Dial, session: &Session) -> Abilities {
    let mut abilities = Abilities {
        parallel: PARALLEL,
        ..Abilities::new("wire", to.shown(), session.spoken.union(OpSet::of(&[OpCode::Locate])))
    };
    peer::take_facts(&mut abilities, &session.offered.facts);
    let leases = abilities.leases && [OpCode::TmpFile, OpCode::Link].iter().all(|&op| abilities.ops.has(op));
    Abilities {
        // Files without a name are made ahead for those that get one.
        ops: abilities.ops.without(OpSet::of(&[OpCode::TmpFile])),
        async_create: leases,
        leases,
        identity: outrigger_core::Identity::ByPath,
        stateless_dirs: true,
        anonymous_io: false,
        ..abilities
    }
}

impl Dialer {
    /// The connection. Where there is none, a task of its own makes it, which goes on when the caller is cancelled.
    async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let mut dialed = {
            let mut present = lock(&self.present);
            match &*present {
                Present::Open(session) if session.mux.is_open() => return Ok(Arc::clone(session)),
                Present::Dialing(dialed) => dialed.clone(),
                _ => {
                    let (sender, dialed) = watch::channel(None);
                    *present = Present::Dialing(dialed.clone());
                    self.dial(sender);
                    dialed
                }
            }
        };
        let outcome = dialed.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(Errno::ENOTCONN.because("the program is ending")))
    }

    fn dial(self: &Arc<Self>, sender: watch::Sender<Option<Result<Arc<Session>>>>) {
        let dialer = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            let dialed = dialer.outage.connect(dialer.options.timeout, || dialer.once()).await;
            let present = dialed.as_ref().map_or(Present::None, |session| Present::Open(Arc::clone(session)));
            *lock(&dialer.present) = present;
            if dialed.is_ok()
                && let Some(notify) = dialer.notices.get()
            {
                // What changed in between was not told.
                notify.notify(Notice::InvalidateAll);
            }
            sender.send_replace(Some(dialed));
        }));
    }

    /// Tries once.
    async fn once(&self) -> Result<Arc<Session>> {
        let connected = self.to.dial().await?;
        let start = Start {
            number: self.sessions.fetch_add(1, Ordering::Relaxed),
            release: env!("CARGO_PKG_VERSION"),
            ops: OpSet::all().without(NOT_ASKED),
            notices: Arc::clone(&self.notices),
            limits: (self.options.connect_timeout, self.options.timeout),
        };
        let started = Session::start(connected, &start).await;
        let (session, connection, carrier) = started.map_err(|error| self.to.advised(error))?;
        let (session, ended) = (Arc::new(session), session_end);
        let (served, leases) = (session.mux.clone(), Arc::clone(&session.leases));
        self.runtime.spawn(Box::pin(async move {
            connection.await;
            leases.end();
            ended(&served, carrier).await;
        }));
        self.runtime.spawn(Box::pin(Inner::give_back(Arc::clone(&session), Arc::clone(&self.runtime))));
        self.check_root(&session).await.inspect_err(|error| session.mux.close(&error.why()))?;
        Ok(session)
    }

    async fn check_root(&self, session: &Session) -> Result<()> {
        let told = session.root(&own_cx(), &*self.runtime).await.map_err(|fault| match fault {
            Fault::Lost(error) | Fault::Known(error) => error,
            Fault::Refused(never) => match never {},
        })?;
        let attr = match told {
            Reply::Attrs(Attrs { attr, .. }) => attr,
            Reply::Error(error) => return Err(error),
            _ => return Err(Errno::EPROTO.because("no attributes of the root came")),
        };
        let now = identity(&attr)?;
        if now.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        match *lock(&self.root).get_or_insert(now) {
            before if before == now => Ok(()),
            _ => Err(Errno::ESTALE.because(format!("{} serves another tree now", self.to.shown()))),
        }
    }
}

/// A connection has ended: what carried it may say why.
async fn session_end(mux: &outrigger_mux::Mux, carrier: Box<dyn outrigger_toolkit_remote::Carrier>) {
    let error: Error = carrier.last_words(Errno::ENOTCONN.because(mux.ended().unwrap_or_default())).await;
    if !mux.is_finishing() {
        tracing::warn!(%error, "a connection was lost");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Present::Open(session) = &*lock(&self.dialer.present) {
            session.mux.finish();
        }
    }
}
