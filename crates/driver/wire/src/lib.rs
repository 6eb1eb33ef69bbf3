// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that another process of Outrigger serves (`outrigger serve wire`), at a socket of this machine, by way of ssh, or by TLS, by the
//! messages of the core.
//!
//! | file | what it does |
//! |---|---|
//! | `place.rs` | where a tree is served; connecting, and starting the other side by ssh |
//! | `tls.rs` | connections by TLS, and why they ended |
//! | `session.rs` | a connection: what is agreed, requests, notices |
//! | `numbers.rs` | what the other side of a connection calls nodes |
//! | `inner.rs` | what outlives connections; making a new one |
//! | `leases.rs` | directories whose names are ours for a while, and files without names for what is made there |
//! | `creation.rs` | files that are answered before they have their names |
//! | `pieces.rs` | content in pieces that suit the line |
//! | `requests.rs` | from our numbers to theirs and back |
//!
//! Requests cross as they are, side by side. So whatever the tree at the other side can do this one can, but for locks, poll, ioctl
//! and files without a name (`O_TMPFILE`).
//!
//! # When the connection is lost
//!
//! The next request makes a new one, on which files are found by their paths, and are the same when their number, device and time of birth
//! are; open files are opened again like that. Otherwise they are `ESTALE`: a file that was removed while it was open is. Requests
//! that change nothing are asked again. A change whose reply was lost is not made again: it fails with `EIO`, and may have been made. A
//! place that serves another tree by then is refused (`ESTALE`).
//!
//! # Notices
//!
//! The other side tells what others change of what this one has seen, and what is cached of it is dropped. Of what it has not noticed itself
//! (see `outrigger-door-wire`) TTLs decide, as with any other server. After a lost connection everything is asked again.
#![forbid(unsafe_code)]

mod creation;
mod inner;
mod leases;
mod numbers;
mod options;
mod pieces;
mod place;
mod requests;
mod session;
mod tls;

pub use options::{OPTIONS, Options};
pub use outrigger_toolkit_remote::Carrier;
pub use place::{Connected, Dial};

use crate::inner::Inner;
use crate::options::is_dangerous;
use crate::place::{Place, To};
use outrigger_core::ops::{Locate, Release};
use outrigger_core::registry::{DriverInfo, Follows, Given, Lasts, Scheme, Site};
use outrigger_core::{
    Abilities, Answer, Cx, Errno, Error, Handle, Keep, Notify, Reply, Request, Result, Runtime, Service,
};
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "wire",
    opens: "trees of another outrigger, at a socket of this machine, at a host with outrigger and ssh, or by TLS",
    location: "ssh://[USER@]HOST[:PORT]/PATH, wire://HOST[:PORT]/PATH, wire:unix:SOCKET/PATH",
    writable: true,
    options: &[&OPTIONS],
    others: "the options of ssh_config(5), as in IdentityFile=FILE",
    cached: true,
    schemes: &[
        Scheme { name: "wire", follows: Follows::Authority, lasts: Lasts::Stored, open: open_wire },
        Scheme { name: "ssh", follows: Follows::Authority, lasts: Lasts::Stored, open: open_ssh },
    ],
    is_dangerous,
    ..DriverInfo::NONE
};

fn open_wire(at: &str, given: &dyn Given, site: &Site<'_>) -> Result<Arc<dyn Service>, Error> {
    open(Place::wire, at, given, site)
}

fn open_ssh(at: &str, given: &dyn Given, site: &Site<'_>) -> Result<Arc<dyn Service>, Error> {
    open(Place::ssh, at, given, site)
}

fn open(
    parse: fn(&str) -> Result<Place>,
    at: &str,
    given: &dyn Given,
    site: &Site<'_>,
) -> Result<Arc<dyn Service>, Error> {
    let mut options = Options::default();
    options.timeout = site.limit(options.timeout);
    options.connect_timeout = site.limit(options.connect_timeout);
    given.apply(&mut |key, value| options.set(key, value))?;
    let place = parse(at.strip_suffix("//").unwrap_or(at))?;
    options.check(place.has_tls())?;
    let (runtime, keep) = (Arc::clone(site.runtime), site.keep.cloned());
    let to = Box::new(To { place, options: options.clone() });
    let opened = site.wait_for(async move { Inner::connect(to, options, runtime, keep).await })?;
    Ok(Arc::new(Wire(Arc::new(opened))))
}

/// A tree that another process serves.
#[derive(Clone)]
pub struct Wire(Arc<Inner>);

impl Wire {
    /// What is served at a LOCATION of one of the schemes. Tasks and processes run on `runtime`. With `keep`, the tree outlives this
    /// process.
    ///
    /// # Errors
    /// Why there is no connection, in ssh's words; `EPROTO` where releases do not understand each other; `EUCLEAN` when `keep` has
    /// something else.
    pub async fn connect(
        scheme: &str,
        at: &str,
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        let place = if scheme == "ssh" { Place::ssh(at)? } else { Place::wire(at)? };
        let to = Box::new(To { place, options: options.clone() });
        Wire::over(to, options, runtime, keep).await
    }

    /// What is served where connections of `to` lead.
    ///
    /// # Errors
    /// As [`Wire::connect`].
    pub async fn over(
        to: Box<dyn Dial>,
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        Inner::connect(to, options, runtime, keep).await.map(|inner| Wire(Arc::new(inner)))
    }

    /// Closing waits for nothing, but where what was written may be refused by it.
    fn release<'a>(&'a self, cx: &'a Cx, op: Release) -> Answer<'a> {
        let inner = &self.0;
        let Some((session, handle, node)) = inner.close(op.handle) else {
            return Answer::Ready(Reply::Done(()));
        };
        let Some(theirs) = session.numbers.theirs(node) else { return Answer::Ready(Reply::Done(())) };
        let request: Request = Release { node: theirs, handle, ..op.clone() }.into();
        let may_fail = inner.abilities.whole_files || inner.abilities.refuses_at_close;
        if !(may_fail && op.flags.writes()) {
            session.tell(cx, request);
            inner.let_go(cx, node);
            return Answer::Ready(Reply::Done(()));
        }
        Answer::later(async move {
            let closed = session.ask(cx, inner.runtime(), request).await;
            inner.let_go(cx, node);
            closed.unwrap_or_else(|fault| match fault {
                session::Fault::Lost(error) | session::Fault::Known(error) => Reply::Error(error),
                session::Fault::Refused(never) => match never {},
            })
        })
    }
}

impl Service for Wire {
    fn call<'a>(&'a self, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        let inner = &self.0;
        match &mut request {
            Request::Forget(op) => {
                inner.forget(cx, op);
                return Answer::Ready(Reply::Done(()));
            }
            Request::Release(op) if inner.is_on_way(op.node) => {
                let op = op.clone();
                return Answer::later(async move {
                    inner.until_named(op.node).await;
                    self.release(cx, op).await
                });
            }
            Request::Release(op) => return self.release(cx, op.clone()),
            Request::Locate(Locate { node }) => {
                return Answer::Ready(inner.files.table().locate(*node).into());
            }
            // Directories are not open at the other side.
            Request::ReadDir(op) => op.handle = Handle::NONE,
            Request::ReadDirPlus(op) => op.handle = Handle::NONE,
            Request::FSyncDir(op) => op.handle = Handle::NONE,
            _ => {}
        }
        if !inner.abilities.ops.has(request.op()) {
            return Answer::error(Errno::ENOSYS);
        }
        Answer::later(async move {
            let done = match request {
                Request::Read(op) => inner.read(cx, op).await,
                Request::Write(op) => inner.write(cx, op).await,
                Request::Create(op) => inner.create(cx, op).await,
                request => inner.ask(cx, &request).await,
            };
            done.unwrap_or_else(Reply::Error)
        })
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities.clone()
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}
