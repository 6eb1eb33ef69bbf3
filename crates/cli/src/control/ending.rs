// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting until the process of a mount has ended: only then an image it serves is whole and free again.

use super::{MountStatus, Peer};
use crate::interrupt::{self, Waited};
use outrigger_door_fuse::MountEntry;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// From when on somebody who looks is told what is waited for.
const SOON: Duration = Duration::from_secs(1);
/// A request that takes longer than this hangs, as far as whoever unmounts is concerned, in seconds.
const HANGING: f64 = 0.5;

/// The process with which a mount ends, known before it is unmounted: its number may be another's later.
pub struct Ending {
    process: OwnedFd,
    pid: u32,
    source: String,
    /// The connection, which is there as long as the mount is anywhere.
    connection: u32,
    /// Where it is shown; nothing where it is not.
    shown: Option<PathBuf>,
    /// Nobody knows when it ends.
    hangs: bool,
}

impl Ending {
    /// Of the mount that a status tells of: its keeper, or else the process that serves it. None when that has gone.
    pub fn of(peer: &Peer, status: &MountStatus) -> Option<Self> {
        let pid = status.guard.as_ref().and_then(|guard| guard.keeper).unwrap_or(status.pid);
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let connection = peer.connection();
        let shown = Some(PathBuf::from(format!("/sys/fs/fuse/connections/{connection}")));
        let shown = shown.filter(|path| path.exists());
        let hangs = status.in_flight.iter().any(|request| request.age_seconds > HANGING);
        Some(Ending { process, pid, source: status.source.clone(), connection, shown, hangs })
    }

    /// Waits until it has ended, for at most `patience`. Whoever has the mount elsewhere, in another mount namespace, keeps
    /// it: then there is nothing to wait for.
    ///
    /// # Errors
    /// What still goes on.
    pub fn wait(&self, patience: Duration) -> Result<(), String> {
        if self.is_still_mounted() {
            return Ok(());
        }
        let patience = if self.hangs { patience.min(SOON) } else { patience };
        let begun = interrupt::wait_readable_for(&self.process, patience.min(SOON));
        let waited = match begun {
            Ok(Waited::InVain) if patience > SOON => self.wait_longer(patience - SOON),
            waited => waited,
        };
        let pid = self.pid;
        let source = &self.source;
        let goes_on = format!("process {pid} still works on '{source}'");
        match waited {
            Ok(Waited::Readable) => Ok(()),
            Ok(Waited::Interrupted) => Err(format!("unmounted, but {goes_on}")),
            Ok(Waited::InVain) => {
                Err(format!("unmounted, but {goes_on} after {} s (--timeout=)", patience.as_secs_f64()))
            }
            Err(error) => Err(format!("unmounted, but process {pid} cannot be waited for: {error}")),
        }
    }

    fn is_still_mounted(&self) -> bool {
        let is_it = |entry: &MountEntry| entry.is_fuse() && entry.minor == self.connection;
        // Mounts in other namespaces are seen where all connections are.
        self.shown.as_ref().is_some_and(|path| path.exists())
            || MountEntry::all().is_ok_and(|all| all.iter().any(is_it))
    }

    /// The same; a terminal shows what is waited for.
    fn wait_longer(&self, patience: Duration) -> io::Result<Waited> {
        let shows = io::stderr().is_terminal();
        if shows {
            // A terminal that has gone away need not be told.
            let (pid, source) = (self.pid, &self.source);
            let _ = write!(io::stderr(), "\r\x1b[Kprocess {pid} writes what is left to '{source}'");
        }
        let waited = interrupt::wait_readable_for(&self.process, patience);
        if shows {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        waited
    }
}
