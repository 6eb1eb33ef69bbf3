// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mount as the process of the kernel code serves it by itself: it keeps the state; where the image is guarded it records
//! that for the process that has made the mount, which goes on with it when this one dies.

use crate::flight::Ask;
use crate::record::Recorder;
use crate::state::{Role, State, Task};
use bytes::Bytes;
use futures_channel::oneshot::Sender;
use outrigger_core::{Cx, Errno, Node, Reply, Request, Result};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// The number of the frame that says that there is something to read in the record.
pub const RECORDED: u64 = 1 << 60;

/// So many bytes are recorded at once although no reply waits for them.
const MUCH: usize = 256 << 10;

/// See the [module](self).
pub struct Served {
    state: State,
}

impl Served {
    /// With which everything ends. No reply has been given yet; the kernel code is to hold so many files at most.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(most: usize) -> Result<Self> {
        Ok(Served { state: State::new(Role::Unguarded, most)? })
    }

    /// With what another process has [left](State::leave), which goes on with it when this one dies: the record goes to a
    /// memory file, whose part for it starts there.
    ///
    /// # Errors
    /// `EPROTO` when it was not left so.
    pub fn going_on((file, start): (Arc<File>, u64), left: Bytes) -> Result<Self> {
        let role = Role::Recorded(Recorder::new(file, start)?);
        Ok(Served { state: State::restored(role, left)? })
    }

    /// Takes a request of the door. The reply goes to `sender`.
    ///
    /// # Errors
    /// When the content of a write cannot be had.
    pub fn ask(&mut self, cx: &Cx, request: Request, sender: Sender<Reply>) -> Result<()> {
        match self.state.may_look(&request) {
            Some(theirs) => self.state.look(cx.cred.clone(), request, theirs, sender),
            None => self.state.take(Ask::of(cx, request, sender)?),
        }
        Ok(())
    }

    /// Returns references of the door.
    pub fn forget(&mut self, node: Node, count: u64) {
        self.state.forget(node, count);
    }

    /// The kernel code has done a task.
    pub fn replied(&mut self, id: u64, reply: Reply) {
        self.state.receive(id, reply);
    }

    /// The same for one that only looks; gives the sender of the reply.
    pub fn looked_at(&mut self, id: u64, reply: &mut Reply) -> Option<Sender<Reply>> {
        self.state.looked_at(id, reply)
    }

    /// Looks whether it is time for something.
    pub fn tick(&mut self) {
        self.state.go_on();
    }

    /// After which time there is to be a [`Served::tick`] if nothing else happens.
    pub fn due_after(&self) -> Option<Duration> {
        self.state.due_after()
    }

    /// Whether nothing is being done.
    pub fn is_idle(&self) -> bool {
        self.state.is_idle()
    }

    /// What is to be done now, and the replies with their senders; before that [`Served::record`] has to be called.
    pub fn take_next(&mut self) -> (Vec<Task>, Vec<(Sender<Reply>, Reply)>) {
        (std::mem::take(&mut self.state.outgoing), self.state.answers())
    }

    /// Records what has happened, if a reply that follows from it is about to be given, or if it is much. `true` when it is time that the other
    /// process reads it. While there is no room this waits, as long as `is_read` says that there is such a process; it is
    /// called with the time that it may take. Where no process reads, none continues from the record, and nothing is recorded.
    ///
    /// # Errors
    /// When the file cannot be written: no reply may be given that is not recorded.
    pub fn record(&mut self, is_told: bool, is_read: impl FnMut(Duration) -> bool) -> Result<bool> {
        let Role::Recorded(recorder) = &mut self.state.role else { return Ok(false) };
        if recorder.pending() == 0 || !(is_told || recorder.pending() >= MUCH) {
            return Ok(false);
        }
        match recorder.flush(is_read) {
            Err(error) if error.errno == Errno::EPIPE => Ok(false),
            recorded => recorded,
        }
    }
}
