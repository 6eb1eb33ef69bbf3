// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeping an encrypted tree to one process that changes it: a lock of the host, flock(2), on its configuration.
//!
//! Only the tree below knows whether its configuration is a file of the host: it then reads it by [`Payload::File`]. Other trees
//! cannot be locked. The lock belongs to the open file, so it lasts until the last process that has the file ends: that of a worker
//! that dies stays with its keeper, and with the next worker, which finds the file again.

use crate::admin::cx;
use crate::below::content_of;
use crate::names::{CONFIG, own};
use outrigger_core::registry::Usage;
use outrigger_core::survive::{Layout, Stored};
use outrigger_core::{Errno, Keep, Node, Payload, Result, Runtime, Service};
use outrigger_host::locked_by;
use rustix::fs::{FlockOperation, flock, fstat};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

const LAYOUT: Layout = Layout::of("crypt-lock");

outrigger_core::fields! {
    /// What later processes find again.
    struct Noted {
        /// One more than the number of the locked file; 0 when there is none.
        file: u64,
    }
}

/// A mount that was just ended may have the tree for so long.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A tree that others do not change as long as this is there.
#[derive(Debug)]
pub struct Held {
    /// None where the tree below cannot be locked.
    file: Option<OwnedFd>,
}

impl Held {
    /// Keeps the encrypted tree in `service` to this process, as far as it is used so.
    ///
    /// # Errors
    /// `EBUSY` with a sentence about who has it; those of reading the configuration.
    pub async fn new(service: &dyn Service, runtime: &dyn Runtime, usage: Usage) -> Result<Self> {
        let operation = match usage {
            // What is read is authentic, and may be in the middle of a change: `EBADMSG`, and right when it is read again.
            Usage::Looks => return Ok(Held { file: None }),
            Usage::Shows => FlockOperation::NonBlockingLockShared,
            Usage::Changes => FlockOperation::NonBlockingLockExclusive,
        };
        let deadline = runtime.monotonic() + PATIENCE;
        loop {
            let Some(file) = open(service).await? else { return Ok(Held { file: None }) };
            match flock(&file, operation) {
                // Another one may have taken its name before it was locked.
                Ok(()) => match open(service).await? {
                    Some(now) if is_same(&file, &now)? => return Ok(Held { file: Some(file) }),
                    _ => continue,
                },
                Err(rustix::io::Errno::WOULDBLOCK) if runtime.monotonic() < deadline => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(busy(&file)),
                Err(error) => {
                    tracing::warn!(%error, "the encrypted tree cannot be locked: see to it that only one process changes it");
                    return Ok(Held { file: None });
                }
            }
            runtime.sleep_until(runtime.monotonic() + LOOK_AGAIN).await;
        }
    }

    /// That of a former process that served the same tree, which nobody else can have taken meanwhile.
    ///
    /// # Errors
    /// Those of [`Keep`].
    pub(crate) fn of_predecessor(keep: &dyn Keep) -> Result<Option<Self>> {
        let area = LAYOUT.attach(keep, Noted::WORDS)?.area;
        let noted = area.view::<Noted<'_>>().file();
        let Some(number) = noted.get().checked_sub(1) else { return Ok(None) };
        let file = keep.adopt(number as RawFd)?;
        noted.set(file.as_raw_fd() as u64 + 1);
        Ok(Some(Held { file: Some(file) }))
    }

    /// Leaves it to the processes to come.
    ///
    /// # Errors
    /// Those of [`Keep`].
    pub(crate) fn leave_to(&self, keep: &dyn Keep) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let area = LAYOUT.attach(keep, Noted::WORDS)?.area;
        keep.hold(file.as_fd())?;
        area.view::<Noted<'_>>().file().set(file.as_raw_fd() as u64 + 1);
        Ok(())
    }
}

/// The configuration as an open file of the host, if it is one.
async fn open(service: &dyn Service) -> Result<Option<OwnedFd>> {
    let file = |content| match content {
        Payload::File(slice) => Ok(slice.file.fd().map(|fd| fd.try_clone_to_owned()).transpose()?),
        Payload::Bytes(_) | Payload::Chunks(_) => Ok(None),
    };
    Ok(content_of(service, &cx(), Node::ROOT, own(CONFIG), file).await?.flatten())
}

fn is_same(one: &OwnedFd, other: &OwnedFd) -> Result<bool> {
    let of = |file| fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).map_err(std::io::Error::from);
    Ok(of(one)? == of(other)?)
}

fn busy(file: &OwnedFd) -> outrigger_core::Error {
    let who = locked_by(file.as_fd()).map(|who| format!(" ({who})")).unwrap_or_default();
    Errno::EBUSY.because(format!(
        "another process uses the encrypted tree{who}, by a lock on its {CONFIG}: what two of them write is lost. Use it where it is \
         mounted, or end that first (`outrigger status` lists mounts); commands that only read work meanwhile, and mounts where \
         all are read-only (-o ro)"
    ))
}
