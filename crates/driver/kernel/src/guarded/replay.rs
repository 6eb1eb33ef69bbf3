// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doing the logged changes again, one after the other, with a worker that has just mounted the image of the checkpoint.

use crate::connection::Input;
use outrigger_core::ops::{OpenFlags, Walk};
use outrigger_core::rebind::{Bindings, bind, reopen};
use outrigger_core::wire::{Body, Frame};
use outrigger_core::{Credentials, Errno, Error, Handle, Name, Node, Reply, Request, Result, Wire};
use outrigger_succession::State;
use outrigger_succession::control::Control;
use outrigger_succession::files::Returned;
use outrigger_succession::log::{Entry, Outcome, printable};
use outrigger_succession::place::{FIRST_CHANGE, REMOVED, REMOVED_NAME};
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// Frames that are not changes have numbers from here on, far from those of later.
const FIRST_QUERY: u64 = 1 << 62;

/// Why a change was not done again.
pub(super) enum Fault {
    /// The worker has died.
    Lost,
    /// Somebody else has killed it.
    Killed(Error),
    /// It did something else than the one before.
    Differs(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Differs(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Lost => Errno::EIO.into(),
            Fault::Killed(error) | Fault::Differs(error) => error,
        }
    }
}

/// See the [module](self).
pub(super) struct Replay<'a> {
    socket: &'a UnixStream,
    input: &'a mut Input,
    control: &'a Control,
    queries: u64,
    nodes: HashMap<Node, Node>,
    /// How many references the worker has counted.
    references: HashMap<Node, u64>,
    handles: HashMap<Handle, Handle>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(socket: &'a UnixStream, input: &'a mut Input, control: &'a Control) -> Self {
        let nodes = HashMap::from([Node::ROOT, REMOVED].map(|node| (node, node)));
        let (references, handles) = (HashMap::new(), HashMap::new());
        Replay { socket, input, control, queries: FIRST_QUERY, nodes, references, handles }
    }

    /// Does all changes again.
    ///
    /// # Errors
    /// See [`Fault`].
    pub(super) fn all(&mut self, entries: &[Entry]) -> Result<(), Fault> {
        entries.iter().try_for_each(|entry| self.again(entry))?;
        Ok(self.control.set_clock(None).map_err(Error::from)?)
    }

    fn again(&mut self, entry: &Entry) -> Result<(), Fault> {
        for (node, path) in &entry.places {
            self.find(*node, path)?;
        }
        for (handle, node, flags) in &entry.open {
            self.open(*handle, *node, *flags)?;
        }
        let mut request = decoded(entry)?;
        if bind(&mut request, self)?.is_some() {
            // A file that had lost its last name before the checkpoint, and could not keep one.
            tracing::warn!(request = printable(&mut request), "the file is gone with the worker");
            return Ok(());
        }
        self.control
            .set_clock(Some(self.control.time(entry.change).map_err(Error::from)?))
            .map_err(Error::from)?;
        let reply = self.ask(FIRST_CHANGE + entry.change, entry.cred.clone(), request)?;
        let outcome = Outcome::of(&reply);
        if !entry.outcome.agrees(&outcome) {
            let request = printable(&mut decoded(entry)?);
            let what = match reply {
                Reply::Error(error) => error.to_string(),
                _ => format!("{:?} instead of {:?}", outcome.count, entry.outcome.count),
            };
            let why = format!("'{request}' cannot be repeated after the death of the kernel code: {what}");
            return Err(Errno::EIO.because(why).into());
        }
        if let (Some(node), Some(theirs)) = (entry.outcome.node, outcome.node) {
            self.nodes.insert(node, theirs);
            *self.references.entry(theirs).or_default() += 1;
        }
        if let (Some(handle), Some(theirs)) = (entry.outcome.handle, outcome.handle) {
            self.handles.insert(handle, theirs);
        }
        Ok(())
    }

    fn find(&mut self, node: Node, path: &[Name]) -> Result<(), Fault> {
        if self.nodes.contains_key(&node) || path.is_empty() {
            return Ok(());
        }
        let entries = match self.query(Walk { dir: Node::ROOT, names: path.to_vec() }.into())? {
            Reply::Entries(entries) if entries.len() == path.len() => entries,
            // There was no room to keep a name.
            _ if path[0][..] == *REMOVED_NAME.as_bytes() => return Ok(()),
            reply => {
                let error = reply.error().cloned().unwrap_or(Errno::ENOENT.into());
                let name = path.last().map(ToString::to_string).unwrap_or_default();
                let why =
                    format!("'{name}' is not where it was before the death of the kernel code: {error}");
                return Err(Errno::EIO.because(why).into());
            }
        };
        for entry in &entries {
            *self.references.entry(entry.node).or_default() += 1;
        }
        self.nodes.extend(entries.last().map(|entry| (node, entry.node)));
        Ok(())
    }

    fn open(&mut self, handle: Handle, node: Node, flags: Option<OpenFlags>) -> Result<(), Fault> {
        let Some(&theirs) = self.nodes.get(&node) else { return Ok(()) };
        if self.handles.contains_key(&handle) {
            return Ok(());
        }
        match self.query(reopen(theirs, flags))? {
            Reply::Opened(opened) => {
                self.handles.insert(handle, opened.handle);
                Ok(())
            }
            reply => Err(reply.error().cloned().unwrap_or(Errno::EIO.into()).into()),
        }
    }

    fn query(&mut self, request: Request) -> Result<Reply, Fault> {
        self.queries += 1;
        self.ask(self.queries, Credentials::ROOT, request)
    }

    fn ask(&mut self, id: u64, cred: Credentials, request: Request) -> Result<Reply, Fault> {
        let frame = Frame { id, body: Body::Request { cred, within: None, request } }.encode()?;
        let mut socket = self.socket;
        socket.write_all(&frame).map_err(|_| Fault::Lost)?;
        loop {
            match self.input.frame().map_err(|_| Fault::Lost)? {
                Frame { id: answered, body: Body::Reply(reply) } if answered == id => return Ok(reply),
                _ => {}
            }
        }
    }

    /// Tells the state what the worker knows now.
    pub(super) fn finish(self, state: &mut State) {
        let mut references = self.references;
        for (node, theirs) in self.nodes.into_iter().filter(|(node, _)| *node != Node::ROOT) {
            if state.files.is_known(node) {
                state.found_again(node, theirs, references.remove(&theirs).unwrap_or(0));
            }
        }
        state.give_back(references.into_iter().map(|(theirs, count)| Returned { theirs, count }));
        self.handles.into_iter().for_each(|(handle, theirs)| state.opened_again(handle, theirs));
    }
}

fn decoded(entry: &Entry) -> Result<Request> {
    Ok(Request::get(&mut entry.request.clone().into())?)
}

/// The numbers of the worker that does it again.
impl Bindings for Replay<'_> {
    fn node(&mut self, node: Node) -> Result<Option<Node>> {
        Ok(self.nodes.get(&node).copied())
    }

    fn handle(&mut self, handle: Handle) -> Result<Option<Handle>> {
        Ok(self.handles.get(&handle).copied())
    }
}
