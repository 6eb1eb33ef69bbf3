// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles this layer gives out itself, for what it need not open below, or not yet.
//!
//! They are recognised by their number, so that the process that takes over after this one knows what to do about them:
//! open the directory, or the file for reading, when it becomes necessary.

use crate::fill::Fill;
use crate::inner::Inner;
use crate::moment::Moment;
use crate::real::Real;
use crate::table::{SharedNames, lock};
use outrigger_core::{Cx, Handle, Node, Request, Result, Time, Traverse, Visit};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The high bits of handles of our own. Drivers count theirs from below.
const OWN: u64 = 0xffff << 48;

/// An open directory.
pub(crate) struct OpenDirectory {
    pub(crate) node: Node,
    pub(crate) view: Mutex<View>,
    /// Whether it was read from its start.
    pub(crate) read: AtomicBool,
    /// Open below, for the few requests that need that.
    real: Mutex<Option<Arc<Real>>>,
}

/// What the listing of an open directory is read from.
pub(crate) enum View {
    /// Nothing: a former process opened it.
    Nothing,
    /// Names that are known, as of this moment.
    Known(SharedNames, Moment),
    /// A listing that is being received.
    Arriving(Arc<Fill>),
    /// The tree below.
    Direct(Arc<Real>),
}

/// Every handle of our own.
pub(crate) struct Handles {
    directories: Mutex<HashMap<(Node, Handle), Arc<OpenDirectory>>>,
    next: AtomicU64,
}

/// Whether the number of a handle is one of ours.
pub(crate) fn is_own(handle: Handle) -> bool {
    handle.0 & OWN == OWN
}

impl Handles {
    /// No handles. The numbers of former processes, which counted from an earlier time of day, do not come again.
    pub(crate) fn new(wall: Time) -> Self {
        let micros = (wall.secs as u64).wrapping_mul(1_000_000).wrapping_add(u64::from(wall.nanos / 1000));
        Handles { directories: Mutex::default(), next: AtomicU64::new(micros) }
    }

    /// A number that no other handle has.
    pub(crate) fn number(&self) -> Handle {
        Handle(OWN | self.next.fetch_add(1, Ordering::Relaxed) & !OWN)
    }

    /// Opens a directory.
    pub(crate) fn open_directory(&self, node: Node, view: View) -> Handle {
        let handle = self.number();
        self.insert_directory(node, handle, view);
        handle
    }

    fn insert_directory(&self, node: Node, handle: Handle, view: View) -> Arc<OpenDirectory> {
        let (view, read) = (Mutex::new(view), AtomicBool::new(false));
        let open = Arc::new(OpenDirectory { node, view, read, real: Mutex::default() });
        lock(&self.directories).insert((node, handle), Arc::clone(&open));
        open
    }

    /// An open directory; one that a former process opened is opened again. `None` for handles of others.
    pub(crate) fn directory(&self, node: Node, handle: Handle) -> Option<Arc<OpenDirectory>> {
        if !is_own(handle) {
            return None;
        }
        let known = lock(&self.directories).get(&(node, handle)).cloned();
        Some(known.unwrap_or_else(|| self.insert_directory(node, handle, View::Nothing)))
    }

    /// Closes a directory; answers whether it was ours.
    pub(crate) fn close_directory(&self, node: Node, handle: Handle) -> bool {
        lock(&self.directories).remove(&(node, handle));
        is_own(handle)
    }
}

/// The handles in a request.
struct Own(Vec<Handle>);

impl Visit for Own {
    fn handle(&mut self, handle: &mut Handle) {
        if is_own(*handle) {
            self.0.push(*handle);
        }
    }
}

/// Puts one handle in the place of another.
struct Replace(Handle, Handle);

impl Visit for Replace {
    fn handle(&mut self, handle: &mut Handle) {
        if *handle == self.0 {
            *handle = self.1;
        }
    }
}

/// Whether a request mentions a handle of ours.
pub(crate) fn mentions_own(request: &mut Request) -> bool {
    let mut own = Own(Vec::new());
    request.traverse(&mut own);
    !own.0.is_empty()
}

impl Inner {
    /// Makes a request that may mention handles of ours one that the tree below understands.
    pub(crate) async fn translate(&self, cx: &Cx, request: &mut Request) -> Result<()> {
        // Attributes need no handle; so nothing has to be opened for them.
        match request {
            Request::GetAttr(op) => op.handle = op.handle.filter(|&handle| !is_own(handle)),
            Request::SetAttr(op) => op.handle = op.handle.filter(|&handle| !is_own(handle)),
            _ => {}
        }
        let mut own = Own(Vec::new());
        request.traverse(&mut own);
        for handle in own.0 {
            let subject = outrigger_core::paths::subjects(request).first().map(|subject| subject.node);
            let Some(open) = subject.and_then(|node| self.handles.directory(node, handle)) else { continue };
            let real = self.really_open(cx, &open).await?;
            request.traverse(&mut Replace(handle, real.handle()));
        }
        Ok(())
    }

    /// Opens a directory below that was not opened yet.
    async fn really_open(&self, cx: &Cx, open: &OpenDirectory) -> Result<Arc<Real>> {
        if let Some(real) = &*lock(&open.real) {
            return Ok(Arc::clone(real));
        }
        let opened = Arc::new(self.open_dir(cx, open.node).await?);
        // Whoever came second gives its own back.
        Ok(Arc::clone(lock(&open.real).get_or_insert(opened)))
    }
}
