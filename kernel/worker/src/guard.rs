// SPDX-License-Identifier: GPL-2.0-only
//! What makes the death of this process no loss: changes happen at times that are noted, or at those noted before, and
//! checkpoints say up to where none of them has to be repeated.

use crate::control::Control;
use crate::task::{Fd, Task};
use crate::tree::Tree;
use crate::{MOUNTPOINT, disk};
use outrigger_core::{Credentials, Reply, Request, Result, Synced};
use outrigger_succession::control::Stamp;
use outrigger_succession::place::FIRST_CHANGE;
use outrigger_succession::silly_name;
use std::fs::File;
use std::sync::Arc;
use std::time::SystemTime;

/// The guard of a mount.
pub struct Guard {
    control: Arc<Control>,
    disk: u32,
}

impl Guard {
    /// Of the file system on disk number `disk`.
    pub fn new(control: Arc<Control>, disk: u32) -> Self {
        Guard { control, disk }
    }

    /// Where what becomes of a mount is recorded: a file, and where in it.
    pub fn record(&self) -> (Arc<File>, u64) {
        self.control.parts()
    }

    /// To be called before the request in the frame with this number. Fails when the clock cannot be set or the time not be
    /// noted.
    fn begin(&self, task: &Task, frame: u64) -> Result<()> {
        if frame < FIRST_CHANGE {
            return Ok(());
        }
        match self.control.next()? {
            Some(None) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                set(task, [now.as_secs(), now.subsec_nanos().into()])?;
            }
            Some(Some(stamp)) => set(task, stamp)?,
            None => {}
        }
        let now = task.clock()?;
        Ok(self.control.note_time(frame, [now.tv_sec as u64, now.tv_nsec as u64])?)
    }

    /// Everything that was answered is in the image when this returns, on the medium. Nothing changes meanwhile.
    fn checkpoint(&self, task: &Task) -> Result<()> {
        let root = task.open(Fd::CWD, MOUNTPOINT, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let disk = disk::get(self.disk)?;
        let result = task.syncfs(root).and_then(|()| Ok(disk.checkpoint()?));
        let result = disk::all_written_since_last().and(result);
        task.close(root);
        result
    }

    /// Answers the request in a frame; `SyncFs` is a checkpoint.
    pub fn answer(
        &self,
        task: &Task,
        tree: &Tree,
        (id, cred): (u64, Credentials),
        request: Request,
    ) -> Reply {
        if let Err(error) = self.begin(task, id) {
            return Reply::Error(error);
        }
        if request.syncs() == Some(Synced::Tree) {
            return self.checkpoint(task).into();
        }
        match silly_name(id) {
            Some(name) => tree.answer_keeping(task, &cred, &name, request),
            None => tree.answer(task, &cred, request),
        }
    }
}

fn set(task: &Task, [seconds, nanoseconds]: Stamp) -> Result<()> {
    task.set_clock(&libc::timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds as i64 })
}
