// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices of the driver on their way to the kernel.
//!
//! A notification can wait in the kernel for a page or a directory that is locked by a request which only our readers
//! can finish. So a thread of its own sends them, never one that serves requests or that the driver calls from.
use crate::backlog::Backlog;
use crate::device::Device;
use outrigger_core::{Node, Notice, Notify, lock};
use outrigger_proto_fuse::Notification;
use std::io::IoSlice;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};

/// The most nodes in one notification.
const PRUNED: usize = 4096;

/// What both ends share.
#[derive(Default)]
struct State {
    backlog: Backlog,
    /// The file of which the thread is sending an invalidation.
    sending: Option<Node>,
    stopped: bool,
}

/// The driver's end.
#[derive(Clone)]
pub(crate) struct Notifier {
    state: Arc<Mutex<State>>,
    /// Full while the thread has not looked.
    wake: SyncSender<()>,
}

/// The thread's end.
pub(crate) struct Courier {
    state: Arc<Mutex<State>>,
    wake: Receiver<()>,
    device: Arc<Device>,
}

/// A pair of ends.
pub(crate) fn notifier(device: Arc<Device>) -> (Notifier, Courier) {
    let (sender, receiver) = mpsc::sync_channel(1);
    let state = Arc::<Mutex<State>>::default();
    (Notifier { state: Arc::clone(&state), wake: sender }, Courier { state, wake: receiver, device })
}

impl Notifier {
    /// Ends the thread; later notices go nowhere.
    pub(crate) fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// The kernel knows how to check all names.
    pub(crate) fn kernel_knows_epochs(&self) {
        self.change(|state| state.backlog.knows_epochs = true);
    }

    /// Whether the kernel may have attributes of a file yet that a notice was to invalidate.
    pub(crate) fn has_yet_to_invalidate(&self, node: Node) -> bool {
        let state = lock(&self.state);
        state.sending == Some(node) || state.backlog.invalidates(node)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        // An error means that the thread has yet to look, or has ended.
        let _ = self.wake.try_send(());
    }
}

impl Notify for Notifier {
    fn notify(&self, notice: Notice) {
        self.change(|state| {
            if !state.stopped {
                state.backlog.push(notice);
            }
        });
    }
}

impl Courier {
    /// Sends until [`Notifier::stop`], and what waits then. Calls `lost` with doubted nodes that the kernel does not know.
    pub(crate) fn run(self, lost: impl Fn(Node)) {
        loop {
            match self.next() {
                Some(notice) => {
                    let doubted = if let Notice::Revalidate { node } = notice { Some(node) } else { None };
                    let error = self.send(notice);
                    if let (Some(node), Some(libc::ENOENT)) = (doubted, error) {
                        lost(node);
                    }
                }
                None if self.lock().stopped || self.wake.recv().is_err() => return,
                None => {}
            }
        }
    }

    /// The next notice; the one before has been sent.
    fn next(&self) -> Option<Notice> {
        let mut state = self.lock();
        let notice = state.backlog.pop();
        state.sending = match notice {
            Some(Notice::InvalidateNode { node, .. }) => Some(node),
            _ => None,
        };
        notice
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives the number of the error, if there was one.
    fn send(&self, notice: Notice) -> Option<i32> {
        let message = match &notice {
            Notice::InvalidateNode { node, offset, len } => {
                Notification::InvalInode { nodeid: node.0, off: *offset, len: *len }.encode()
            }
            Notice::Revalidate { node } => attributes(*node),
            Notice::InvalidateEntry { dir, name } => {
                let name = name.as_bytes();
                Notification::InvalEntry { parent: dir.0, name, expire_only: false }.encode()
            }
            Notice::Deleted { dir, node, name } => {
                Notification::Delete { parent: dir.0, child: node.0, name: name.as_bytes() }.encode()
            }
            Notice::InvalidateAll => Notification::IncEpoch.encode(),
            Notice::Store { node, offset, data } => match data.clone().into_bytes() {
                Ok(data) => Notification::Store { nodeid: node.0, offset: *offset, data: &data }.encode(),
                Err(error) => {
                    tracing::warn!(%error, "content to store cannot be read");
                    return None;
                }
            },
            Notice::Prune { nodes } => return self.prune(nodes),
            Notice::Wake { key } => Notification::Poll { kh: *key }.encode(),
        };
        // ENOENT and ENOTDIR: the kernel does not cache it, which is as good.
        let error = self.device.send(&[IoSlice::new(&message)]).err()?;
        tracing::trace!(%error, ?notice, "notification not taken");
        error.raw_os_error()
    }

    /// Has the kernel forget the nodes it does not use. Kernels before 6.18 do not know how to.
    fn prune(&self, nodes: &[Node]) -> Option<i32> {
        for nodes in nodes.chunks(PRUNED) {
            let message = Notification::Prune { nodes: nodes.iter().map(|node| node.0).collect() }.encode();
            if let Err(error) = self.device.send(&[IoSlice::new(&message)]) {
                tracing::trace!(%error, "the kernel keeps what it refers to");
                return error.raw_os_error();
            }
        }
        None
    }
}

/// Has the kernel ask for the attributes of a node, before it gets the reply to a request that changed them, or learned that they changed.
///
/// The kernel takes this without waiting for pages and directories, so that a thread that serves requests may send it.
pub(crate) fn forget_attributes(device: &Device, node: Node) {
    if let Err(error) = device.send(&[IoSlice::new(&attributes(node))]) {
        tracing::trace!(%error, "the kernel has no attributes of it");
    }
}

/// Does nothing to what is cached but to ask for attributes once more.
fn attributes(node: Node) -> Vec<u8> {
    Notification::InvalInode { nodeid: node.0, off: -1, len: 0 }.encode()
}
