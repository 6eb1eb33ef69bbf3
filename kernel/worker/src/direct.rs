// SPDX-License-Identifier: GPL-2.0-only
//! A mount served without a detour: the FUSE door in this process. The process that made the mount hands its connection over,
//! and goes on asking for what does not concern the tree.

use crate::guard::Guard;
use crate::kept::Kept;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::serve::{Connection, Outlet};
use crate::tasks::{Doorside, Tasks};
use crate::tree::Tree;
use outrigger_core::wire::{Body, Frame};
use outrigger_core::{Credentials, Errno, Error, Reply, Request, Service, Stack, Wire};
use outrigger_door_fuse::{Connection as Door, Negotiated, Options, Order, Session};
use outrigger_layer_trace::{Format, Trace, TraceControl};
use outrigger_succession::Served;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::thread;

/// The second is there when the first is stuck in the kernel code: it takes what comes, and as it never runs the kernel then,
/// it is never stuck.
const MAX_READERS: usize = 2;

/// A mount to be served.
pub struct Mount {
    /// The order that said so, which is answered when the mount has ended.
    pub order: u64,
    /// The connection to the host's kernel.
    pub device: File,
    /// The `-o` list.
    pub options: String,
    /// What was agreed on.
    pub negotiated: Negotiated,
    /// What is kept of it.
    pub served: Served,
    /// Who sees its messages from the first one on.
    pub tracing: Option<Tracing>,
}

/// Somebody who sees messages as they pass.
pub struct Tracing(pub File);

impl Tracing {
    fn start(self, trace: &TraceControl) {
        trace.start(Box::new(self.0), Format::Json);
    }
}

/// Serves a mount, and orders, until the other side of `connection` has gone; then does `last`.
///
/// # Errors
/// When the other side sends what is no frame, the connection breaks, or there are no threads.
pub fn serve(
    mut connection: Connection,
    kernel: Kernel,
    tree: Rc<Tree>,
    read_only: bool,
    Mount { order, device, options, negotiated, served, tracing }: Mount,
    guard: Option<Arc<Guard>>,
    last: impl FnOnce(&Kernel, &Rc<Tree>) -> io::Result<()>,
) -> io::Result<()> {
    let (tasks, outlet) = (Tasks::start()?, Arc::new(connection.outlet()));
    let kept = Kept::new(served, guard, Arc::clone(&outlet));
    let machine = Machine::start(kernel, tree, read_only, Arc::clone(&tasks), kept)?;
    let mut direct = Direct::begin(&machine, tasks, outlet);
    direct.open(order, (device, &options, negotiated), tracing);
    let outcome = loop {
        match connection.next() {
            Ok(Some((frame, files))) => direct.take(frame, files),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    machine.finish(last)?;
    outcome
}

/// What serves, and what is reported about it.
struct Direct {
    runtime: Arc<Doorside>,
    machine: Arc<Machine>,
    outlet: Arc<Outlet>,
    session: Arc<OnceLock<Session>>,
    trace: Option<Arc<TraceControl>>,
}

impl Direct {
    fn begin(machine: &Arc<Machine>, tasks: Arc<Tasks>, outlet: Arc<Outlet>) -> Self {
        let (runtime, machine) = (Arc::new(Doorside(tasks)), Arc::clone(machine));
        Direct { runtime, machine, outlet, session: Arc::default(), trace: None }
    }

    /// Begins to serve a mount; says so when it cannot be.
    fn open(&mut self, order: u64, mount: (File, &str, Negotiated), tracing: Option<Tracing>) {
        let waits = self.try_to_open(mount, tracing).and_then(|()| {
            let (session, outlet) = (Arc::clone(&self.session), Arc::clone(&self.outlet));
            let machine = Arc::clone(&self.machine);
            let wait = move || {
                session.get().map(Session::wait);
                machine.settle();
                outlet.reply(order, Reply::Done(()));
            };
            Ok(thread::Builder::new().name("session".into()).spawn(wait)?)
        });
        if let Err(error) = waits {
            self.outlet.reply(order, Reply::Error(error));
        }
    }

    fn try_to_open(
        &mut self,
        (device, list, negotiated): (File, &str, Negotiated),
        tracing: Option<Tracing>,
    ) -> Result<(), Error> {
        let wrong = |error: &dyn std::fmt::Display| Errno::EINVAL.because(error.to_string());
        let (options, _) = Options::parse(list).map_err(|error| wrong(&error))?;
        let options = Options {
            readers: 1,
            max_readers: MAX_READERS,
            passthrough: false,
            splice: false,
            // The process that takes over when this one dies must find every request whole.
            lock_buffers: true,
            // This process opens no files.
            watch_programs: false,
            ..options
        };
        let (trace, control) = Trace::new(self.runtime.clone());
        if let Some(tracing) = tracing {
            tracing.start(&control);
        }
        self.trace = Some(control);
        let machine: Arc<dyn Service> = self.machine.clone();
        let service = Stack::new(machine).push(trace).map_err(|error| wrong(&error))?.service();
        let door = Door::from(OwnedFd::from(device));
        let session = Session::resume(door, negotiated, service, self.runtime.clone(), options)?;
        // There is one order of this kind.
        self.session.set(session).map_err(|_| Error::from(Errno::EBUSY))
    }

    /// Answers a frame.
    fn take(&self, Frame { id, body }: Frame, files: Vec<File>) {
        match body {
            Body::Control(order) => {
                let reply = Order::get(&mut order.clone()).map_err(Error::from);
                let reply = reply.and_then(|order| self.obey(order, files));
                self.outlet.reply(id, reply.unwrap_or_else(Reply::Error));
            }
            Body::Request { cred, request, .. } => self.ask(id, cred, request),
            Body::Reply(_) | Body::Cancel | Body::Notice(_) => {}
        }
    }

    fn obey(&self, order: Order, mut files: Vec<File>) -> Result<Reply, Error> {
        let done = Ok(Reply::Done(()));
        match (order, &self.trace) {
            (Order::Status, _) => {
                let session = self.session.get().ok_or(Errno::ENOTCONN)?;
                let mut bytes = Vec::new();
                session.status().put(&mut bytes);
                Ok(Reply::Value(bytes.into()))
            }
            (Order::Trace, Some(trace)) => {
                Tracing(files.pop().ok_or(Errno::EBADF)?).start(trace);
                done
            }
            (Order::Silence, Some(trace)) => {
                // Also lets go of where the lines went.
                trace.start(Box::new(io::sink()), Format::Json);
                trace.stop();
                done
            }
            (Order::Serve { .. }, _) => Err(Errno::EBUSY.into()),
            (_, None) => Err(Errno::ENOTCONN.into()),
        }
    }

    /// A request for the tree from the other side, which serves the mount itself if this process cannot.
    fn ask(&self, id: u64, cred: Credentials, request: Request) {
        let outlet = Arc::clone(&self.outlet);
        self.machine.answer((id, cred), request, move |reply| outlet.reply(id, reply));
    }
}
