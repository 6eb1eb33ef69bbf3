// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a connection was given: nodes with their references, and open handles. A peer can name nothing else.

use outrigger_core::effects::Opening;
use outrigger_core::ops::{Forget, OpenFlags, Release, ReleaseDir};
use outrigger_core::order::{Kind, Order, Turn};
use outrigger_core::reply::{Entry, Opened};
use outrigger_core::{Errno, Handle, LockOwner, Node, Reply, Request, Result, Traverse, Visit, lock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The most nodes, and handles, that one connection has.
pub(crate) const NODES: usize = 1 << 22;
pub(crate) const HANDLES: usize = 1 << 16;
/// The most open files of one connection that were made without a name.
pub(crate) const NAMELESS: usize = 1 << 10;

/// Of one connection.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many references of each node are out.
    nodes: HashMap<Node, u64>,
    handles: HashMap<Handle, Open>,
    /// How many of the handles are of files that were made without a name.
    nameless: usize,
    /// The connection has ended: nothing is given out any more.
    ended: bool,
}

#[derive(Debug, Clone)]
struct Open {
    node: Node,
    /// How a file was opened; a directory has none.
    flags: Option<OpenFlags>,
    /// How often the tree has given out this handle.
    count: u32,
    /// The file was made without a name.
    nameless: bool,
    /// What is asked by way of it is done in the order in which it came.
    order: Arc<Order>,
}

/// The last handle in a request: of a file that the request writes to, if it writes to one.
struct ByHandle(Handle);

impl Visit for ByHandle {
    fn handle(&mut self, handle: &mut Handle) {
        self.0 = *handle;
    }
}

/// Looks at the numbers in a request.
struct Check<'a> {
    state: &'a State,
    last: Node,
    outcome: Result<()>,
}

impl Visit for Check<'_> {
    fn node(&mut self, node: &mut Node) {
        self.last = *node;
        if *node != Node::ROOT && !self.state.nodes.contains_key(node) && self.outcome.is_ok() {
            self.outcome = Err(Errno::ESTALE.because("this connection was not given that node"));
        }
    }

    fn handle(&mut self, handle: &mut Handle) {
        let is_its = |open: &Open| open.node == self.last;
        if *handle != Handle::NONE
            && !self.state.handles.get(handle).is_some_and(is_its)
            && self.outcome.is_ok()
        {
            self.outcome = Err(Errno::EBADF.because("this connection was not given that handle of the file"));
        }
    }
}

impl Known {
    /// Whether a request names nothing but what this connection was given. What it gives back is gone from then on; it is made a
    /// request that gives back no more than that.
    ///
    /// # Errors
    /// `ESTALE` for a node, `EBADF` for a handle.
    pub(crate) fn admit(&self, request: &mut Request) -> Result<()> {
        let mut state = lock(&self.0);
        let mut check = Check { state: &state, last: Node::default(), outcome: Ok(()) };
        request.traverse(&mut check);
        check.outcome?;
        if let Request::Forget(forget) = request {
            forget.count = state.forget(forget.node, forget.count);
        } else if let Some((_, handle)) = request.ends()
            && let Some(open) = state.handles.get_mut(&handle)
        {
            open.count -= 1;
            if open.count == 0 {
                let nameless = open.nameless;
                state.handles.remove(&handle);
                state.nameless -= usize::from(nameless);
            }
        }
        Ok(())
    }

    /// The place of a request that has come among those about a file which this connection has open for writing. Reading has none.
    pub(crate) fn turn(&self, request: &mut Request) -> Option<Turn> {
        let kind = match request {
            Request::Read(_) => return None,
            Request::Write(_) => Kind::Write,
            _ => Kind::Set,
        };
        let mut by = ByHandle(Handle::NONE);
        request.traverse(&mut by);
        let state = lock(&self.0);
        let open = state.handles.get(&by.0).filter(|open| open.flags.is_some_and(OpenFlags::writes))?;
        Some(open.order.turn(kind))
    }

    /// Notes what a reply gives out.
    ///
    /// # Errors
    /// `ENFILE` when the connection has too much already, or has ended: the reply must not be sent, and what is in it is to be given back.
    pub(crate) fn note(&self, request: &Request, reply: &Reply) -> Result<()> {
        let mut state = lock(&self.0);
        let (entries, opened) = given_out(reply);
        if entries.is_empty() && opened.is_none() {
            return Ok(());
        }
        if state.ended {
            return Err(Errno::ECONNRESET.into());
        }
        let nameless = matches!(request, Request::TmpFile(_));
        if state.nodes.len() + entries.len() > NODES
            || state.handles.len() >= HANDLES
            || (nameless && state.nameless >= NAMELESS)
        {
            return Err(
                Errno::ENFILE.because("the connection has too many files: some have to be forgotten first")
            );
        }
        for entry in &entries {
            *state.nodes.entry(entry.node).or_default() += 1;
        }
        let Opening { node, flags } = request.opens().unwrap_or(Opening { node: None, flags: None });
        if let Some(opened) = opened.filter(|opened| opened.handle != Handle::NONE) {
            let node = node.or(entries.first().map(|entry| entry.node)).unwrap_or_default();
            let new = Open { node, flags, count: 0, nameless, order: Arc::default() };
            let open = state.handles.entry(opened.handle).or_insert(new);
            open.count += 1;
            state.nameless += usize::from(nameless);
        }
        Ok(())
    }

    /// Whether the connection refers to a node, and so may have cached something about it.
    pub(crate) fn has(&self, node: Node) -> bool {
        node == Node::ROOT || lock(&self.0).nodes.contains_key(&node)
    }

    /// The connection has ended: what gives everything back, handles first.
    pub(crate) fn end(&self) -> Vec<Request> {
        let mut state = lock(&self.0);
        state.ended = true;
        let mut all = Vec::new();
        for (handle, open) in std::mem::take(&mut state.handles) {
            all.extend((0..open.count).map(|_| release(handle, &open)));
        }
        let nodes = std::mem::take(&mut state.nodes);
        all.extend(nodes.into_iter().map(|(node, count)| Forget { node, count }.into()));
        all
    }
}

impl State {
    /// Takes references off; how many there were.
    fn forget(&mut self, node: Node, count: u64) -> u64 {
        let Some(has) = self.nodes.get_mut(&node) else { return 0 };
        let count = count.min(*has);
        *has -= count;
        if *has == 0 {
            self.nodes.remove(&node);
        }
        count
    }
}

fn release(handle: Handle, &Open { node, flags, .. }: &Open) -> Request {
    match flags {
        Some(flags) => {
            Release { node, handle, flags, owner: LockOwner::default(), flock_release: true }.into()
        }
        None => ReleaseDir { node, handle }.into(),
    }
}

/// The entries of a reply that count a reference, and what it opens.
pub(crate) fn given_out(reply: &Reply) -> (Vec<&Entry>, Option<&Opened>) {
    let counts = |entry: &&Entry| entry.node != Node::default();
    match reply {
        Reply::Entry(entry) => (vec![entry], None),
        Reply::Entries(entries) => (entries.iter().collect(), None),
        Reply::DirentsPlus(list) => {
            (list.entries.iter().map(|dirent| &dirent.entry).filter(counts).collect(), None)
        }
        Reply::Created(created) => (vec![&created.entry], Some(&created.opened)),
        Reply::Opened(opened) => (Vec::new(), Some(opened)),
        _ => (Vec::new(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::{GetAttr, Lookup, Open as OpenOp, Read};
    use outrigger_core::reply::Ttl;
    use outrigger_core::{Attr, Generation, Name};

    fn entry(node: u64) -> Reply {
        Reply::Entry(Entry {
            node: Node(node),
            generation: Generation(0),
            attr: Attr::default(),
            entry_ttl: Ttl::NEVER,
            attr_ttl: Ttl::NEVER,
        })
    }

    fn lookup() -> Request {
        Lookup { dir: Node::ROOT, name: Name::try_from("a").unwrap() }.into()
    }

    fn admitted(known: &Known, request: impl Into<Request>) -> Result<(), Errno> {
        known.admit(&mut request.into()).map_err(|error| error.errno)
    }

    #[test]
    fn a_peer_names_only_what_it_was_given() {
        let known = Known::default();
        let attr = |node| GetAttr { node: Node(node), handle: None };
        assert_eq!(admitted(&known, attr(1)), Ok(()), "the root");
        assert_eq!(admitted(&known, attr(7)), Err(Errno::ESTALE));
        known.note(&lookup(), &entry(7)).unwrap();
        known.note(&lookup(), &entry(8)).unwrap();
        assert_eq!(admitted(&known, attr(7)), Ok(()));
        let read = |node| Read { node: Node(node), handle: Handle(3), offset: 0, len: 1 };
        assert_eq!(admitted(&known, read(7)), Err(Errno::EBADF));
        let open = OpenOp { node: Node(7), flags: OpenFlags::empty() }.into();
        known.note(&open, &Reply::Opened(Opened { handle: Handle(3), ..Opened::default() })).unwrap();
        assert_eq!(admitted(&known, read(7)), Ok(()));
        assert_eq!(admitted(&known, read(8)), Err(Errno::EBADF), "a handle of another file");
    }

    #[test]
    fn nothing_is_given_back_twice_and_the_rest_at_the_end() {
        let known = Known::default();
        for _ in 0..3 {
            known.note(&lookup(), &entry(7)).unwrap();
        }
        let open = OpenOp { node: Node(7), flags: OpenFlags::empty() }.into();
        known.note(&open, &Reply::Opened(Opened { handle: Handle(3), ..Opened::default() })).unwrap();
        let mut forget: Request = Forget { node: Node(7), count: 2 }.into();
        known.admit(&mut forget).unwrap();
        let ended = known.end();
        assert!(matches!(&ended[0], Request::Release(release) if release.handle == Handle(3)), "{ended:?}");
        assert_eq!(ended[1..], [Forget { node: Node(7), count: 1 }.into()]);
        assert!(known.end().is_empty());
        assert_eq!(admitted(&known, forget), Err(Errno::ESTALE));
        assert!(known.note(&lookup(), &entry(9)).is_err(), "a reply that comes too late");
    }
}
