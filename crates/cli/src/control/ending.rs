// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting until the process of a mount has ended: only then an image it serves is whole and free again.

use super::peer::{children, is_stopped, state};
use super::place::{Copy, copies, inode, is_by_nfs, shown, superblock};
use super::{MountStatus, Peer, peers};
use crate::interrupt::{self, Waited};
use outrigger_host::MountEntry;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between two looks at a process.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// After this time a terminal shows what is waited for.
const SOON: Duration = Duration::from_secs(1);
/// How long a process may take to end whose connection was cut.
const AFTER_CUT: Duration = Duration::from_millis(200);
/// A request that takes longer than this counts as hanging, in seconds.
const HANGING: f64 = 0.5;

/// The process with which a mount ends, opened before the unmount: its number may be reused later.
pub struct Ending {
    process: OwnedFd,
    pid: u32,
    source: String,
    connection: Connection,
    /// A request hangs, so that its end cannot be predicted.
    hangs: bool,
    /// The file in which the process leaves its final error.
    words: PathBuf,
}

/// A FUSE connection, which exists as long as it is mounted in any namespace. Its number alone does not identify it: the next
/// mount reuses it.
struct Connection {
    number: u32,
    /// Where the host shows connections, and the number of its inode there; nothing where it does not.
    shown: Option<(PathBuf, u64)>,
    /// Further places where it is mounted.
    places: Vec<u32>,
    copies: Vec<Copy>,
}

impl Connection {
    /// The one with this number, which is about to be unmounted from `mountpoint`.
    fn of(number: u32, mountpoint: &Path) -> Self {
        let mut places = MountEntry::all().unwrap_or_default();
        places.retain(|entry| (entry.is_fuse() || is_by_nfs(entry)) && entry.minor == number);
        let shown = if places.iter().any(is_by_nfs) { superblock(number) } else { shown(number) };
        if let Some(own) = places.iter().rposition(|entry| entry.mountpoint == mountpoint) {
            places.remove(own);
        }
        let places = places.into_iter().map(|entry| entry.id).collect();
        let shown = inode(&shown).map(|inode| (shown, inode));
        Connection { number, shown, places, copies: copies(number) }
    }

    /// A process in whose mount namespace it is still mounted.
    fn holder(&self) -> Option<u32> {
        let is_copy = |copy: &&Copy| {
            let mounts = MountEntry::seen_by(copy.pid).unwrap_or_default();
            mounts.iter().any(|entry| entry.minor == self.number && entry.id == copy.id)
        };
        self.copies.iter().find(is_copy).map(|copy| copy.pid)
    }

    fn is_there(&self) -> bool {
        let is_place = |entry: &MountEntry| entry.minor == self.number && self.places.contains(&entry.id);
        // Mounts in other namespaces are seen where all connections are.
        self.shown.as_ref().is_some_and(|(path, known)| inode(path) == Some(*known))
            || MountEntry::all().is_ok_and(|all| all.iter().any(is_place))
    }
}

impl Ending {
    /// Of the mount: its keeper, or else its server. Without a status its server does not answer. `None` when it has ended.
    pub fn of(peer: &Peer, status: Option<&MountStatus>) -> Option<Self> {
        let serves =
            |status: &MountStatus| status.guard.as_ref().and_then(|guard| guard.keeper).unwrap_or(status.pid);
        let pid = status.map_or(peer.owner(), serves);
        let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let mountpoint = status.map(|status| Path::new(&status.mountpoint)).or(peer.mountpoint())?;
        let connection = Connection::of(peer.connection(), mountpoint);
        let hangs =
            |status: &MountStatus| status.in_flight.iter().any(|request| request.age_seconds > HANGING);
        let source = match status {
            Some(status) => status.source.clone(),
            None => MountEntry::at(mountpoint).ok()??.source.to_string_lossy().into_owned(),
        };
        let (hangs, words) = (status.is_none_or(hangs), peer.words());
        Some(Ending { process, pid, source, connection, hangs, words })
    }

    /// The process, or one that it has started, that a signal has stopped.
    fn stopped(&self) -> Option<u32> {
        std::iter::once(self.pid).chain(children(self.pid)).find(|pid| is_stopped(*pid))
    }

    /// As [`Connection::holder`], without processes that release it within `soon`: one that starts in a new mount namespace has
    /// copies of all mounts for a moment.
    fn lasting_holder(&self, soon: Duration) -> Option<u32> {
        let deadline = Instant::now() + soon;
        loop {
            let pid = self.connection.holder()?;
            let ended = interrupt::wait_readable_for(&self.process, LOOK_AGAIN);
            if Instant::now() >= deadline || !matches!(ended, Ok(Waited::InVain)) {
                return self.connection.holder().map(|_| pid);
            }
        }
    }

    /// Waits until it has ended, for at most `patience`. A mount of the same connection elsewhere keeps it: then there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// What is still running, which process has the mount in its mount namespace, or what could not be written in the end.
    pub fn wait(&self, patience: Duration) -> Result<(), String> {
        if let Some(pid) = self.lasting_holder(patience.min(SOON)) {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Err(format!(
                "unmounted here, but '{}' stays in use: process {pid} ({}) has the mount in another mount namespace; it ends \
                 when that process does or `nsenter -t {pid} -m umount` removes it there",
                self.source,
                comm.trim_end().escape_debug()
            ));
        }
        if self.connection.is_there() {
            return Ok(());
        }
        let patience = if self.hangs { patience.min(SOON) } else { patience };
        let begun = interrupt::wait_readable_for(&self.process, patience.min(SOON));
        if let (Ok(Waited::InVain), Some(pid)) = (&begun, self.stopped()) {
            return Err(format!("unmounted, but process {pid} is stopped (`kill -CONT {pid}` lets it end)"));
        }
        let waited = match begun {
            Ok(Waited::InVain) if patience > SOON => self.wait_longer(patience - SOON),
            waited => waited,
        };
        let pid = self.pid;
        let source = &self.source;
        let goes_on = format!("process {pid} still works on '{source}'");
        match waited {
            Ok(Waited::Readable) => self.last_words(),
            Ok(Waited::Interrupted) => Err(format!("unmounted, but {goes_on}")),
            Ok(Waited::InVain) => {
                Err(format!("unmounted, but {goes_on} after {} s (--timeout=)", patience.as_secs_f64()))
            }
            Err(error) => Err(format!("unmounted, but process {pid} cannot be waited for: {error}")),
        }
    }

    /// Makes sure that a connection that was to be cut is cut. An ordinary user cannot where `/sys/fs/fuse/connections` is not
    /// mounted: there the processes that hold it are killed.
    ///
    /// # Errors
    /// Which process is still there.
    pub fn cut(&self) -> Result<(), String> {
        if self.connection.shown.is_some() {
            return Ok(());
        }
        if matches!(interrupt::wait_readable_for(&self.process, AFTER_CUT), Ok(Waited::Readable)) {
            return Ok(());
        }
        let mut processes = vec![self.pid];
        let mut next = 0;
        while let Some(&pid) = processes.get(next) {
            processes.extend(children(pid));
            next += 1;
        }
        // The keeper first, which would replace the others. What has ended meanwhile is as wanted.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        for pid in &processes[1..] {
            let _ =
                i32::try_from(*pid).ok().and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::KILL));
        }
        match interrupt::wait_readable_for(&self.process, SOON) {
            Ok(Waited::Readable) => Ok(()),
            _ => Err(format!("unmounted, but process {} that serves it cannot be ended", self.pid)),
        }
    }

    /// The final error that the process left.
    fn last_words(&self) -> Result<(), String> {
        let Ok(words) = fs::read_to_string(&self.words) else { return Ok(()) };
        // Said once.
        let _ = fs::remove_file(&self.words);
        Err(format!("unmounted, but {words}"))
    }

    /// The same; a terminal shows what is waited for.
    fn wait_longer(&self, patience: Duration) -> io::Result<Waited> {
        let shows = io::stderr().is_terminal();
        if shows {
            // Fails only when the terminal has gone.
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

/// Waits, for at most `patience`, for processes that still have the file `path` open although their mount has gone. `false` when
/// there are none.
pub fn wait_for_predecessors(path: &Path, patience: Duration) -> bool {
    let Ok(wanted) = fs::metadata(path) else { return false };
    let is_it = |found: fs::Metadata| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino());
    let has_it = |pid: u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter_map(|entry| fs::metadata(entry.path()).ok()).any(is_it)
    };
    let ends =
        |peer: &Peer| !peer.is_mounted() && has_it(peer.owner()) && copies(peer.connection()).is_empty();
    let ending: Vec<_> = peers().unwrap_or_default().into_iter().filter(ends).collect();
    for peer in &ending {
        let pid = i32::try_from(peer.owner()).ok().and_then(Pid::from_raw);
        if let Some(process) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
            // If it has not ended, opening the file again fails.
            let _ = interrupt::wait_readable_for(&process, patience);
        }
    }
    !ending.is_empty()
}

/// Who keeps a file locked (flock(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locker {
    /// Nobody.
    None,
    /// A process that lives, or one that this process may not know.
    Living,
    /// One that has ended: those that it started have the lock as long as they live, and end because it has.
    Dead,
}

/// Who keeps the file `path` locked.
pub fn locker(path: &Path) -> Locker {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let Ok(file) = File::options().read(true).custom_flags(nonblocking).open(path) else {
        return Locker::Living;
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Locker::None,
        Err(Errno::WOULDBLOCK) => {}
        Err(_) => return Locker::Living,
    }
    // A process that has ended and was waited for is in the list no more. The device is written in another way on some file systems.
    let inode = file.metadata().map(|metadata| format!(":{}", metadata.ino())).unwrap_or_default();
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut owners = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it =
            words.get(1) == Some(&"FLOCK") && words.get(5).is_some_and(|place| place.ends_with(&inode));
        if is_it { words[4].parse::<u32>().ok() } else { None }
    });
    if locks.is_empty() || owners.any(lives) { Locker::Living } else { Locker::Dead }
}

fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_a_process_that_has_ended_is_told_from_one_of_a_living() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let file = File::create(&path).unwrap();
        assert_eq!(locker(&path), Locker::None);
        file.lock().unwrap();
        assert_eq!(locker(&path), Locker::Living);
        drop(file);
        // The shell locks it, and leaves the lock to what it starts.
        let script = "exec 9<\"$0\"; flock 9; sleep 60 & echo $!";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script]).arg(&path).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut heir = String::new();
        let mut out = io::BufReader::new(shell.stdout.take().unwrap());
        io::BufRead::read_line(&mut out, &mut heir).unwrap();
        shell.wait().unwrap();
        // Where flock(1) itself has locked it, that has ended, too.
        assert_eq!(locker(&path), Locker::Dead);
        kill_process(Pid::from_raw(heir.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_number_that_is_given_again_is_that_of_another_mount() {
        let dir = tempfile::tempdir().unwrap();
        let [shown, next] = ["39", "next"].map(|name| dir.path().join(name));
        [&shown, &next].iter().for_each(|path| fs::create_dir(path).unwrap());
        let known = inode(&shown).unwrap();
        let connection = Connection {
            number: 39,
            shown: Some((shown.clone(), known)),
            places: Vec::new(),
            copies: Vec::new(),
        };
        assert!(connection.is_there());
        fs::rename(&next, &shown).unwrap();
        assert!(!connection.is_there());
    }
}
