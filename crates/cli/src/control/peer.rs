// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands' side of the control sockets.

use super::directory::{directory, hash};
use super::place::{is_connection, is_mounted_elsewhere, is_ours, resolve};
use super::server::WORDS;
use super::{Answer, Ask, MountStatus};
use crate::status::Failure;
use outrigger_core::{Errno, Error};
use outrigger_host::MountEntry;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long a mount may take to read a request.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long others may take to answer once the one that is looked for has.
const GRACE: Duration = Duration::from_millis(100);

/// How many processes in a row may die while they are asked for a status.
const DEATHS: usize = 5;

/// A mount that can be asked. Its socket is named `HASH-CONNECTION-PID.sock`; the process is the keeper where there is
/// one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    socket: PathBuf,
    hash: String,
    connection: u32,
    /// The process the socket is named after.
    owner: u32,
    /// The process that serves.
    pid: u32,
    /// Where the mount table of this process shows it.
    mountpoint: Option<PathBuf>,
    /// It was moved, or it is another mount: numbers of connections are reused.
    moved: bool,
    /// When the socket was made, which is when the mount was.
    made: Option<SystemTime>,
}

/// Why a mount has no status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Its server has died and the mount is still there.
    Dead,
    /// Its server does not answer, for this reason.
    Silent(String),
}

impl Peer {
    fn of(socket: PathBuf, mounts: &[MountEntry]) -> Option<Self> {
        let name = socket.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned();
        let mut parts = name.split('-');
        let (hashed, connection, owner) = (parts.next()?, parts.next()?, parts.next()?);
        let (connection, owner) = (connection.parse().ok()?, owner.parse().ok()?);
        // A mount may be at several places, or at another one than where it was made.
        let is_it = |entry: &&MountEntry| is_connection(entry, connection);
        let places: Vec<&Path> = mounts.iter().filter(is_it).map(|entry| &*entry.mountpoint).collect();
        let where_it_was = places.iter().copied().find(|place| hash(place) == hashed);
        let mountpoint = where_it_was.or(places.first().copied()).map(Path::to_owned);
        let pid = children(owner).first().copied().unwrap_or(owner);
        let (hash, moved) = (hashed.to_owned(), where_it_was.is_none());
        let made = fs::symlink_metadata(&socket).and_then(|socket| socket.modified()).ok();
        Some(Peer { hash, socket, connection, owner, pid, mountpoint, moved, made })
    }

    /// The number of its FUSE connection.
    pub fn connection(&self) -> u32 {
        self.connection
    }

    /// The process its socket is named after: the keeper where there is one.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Where the mount table of this process shows it.
    pub fn mountpoint(&self) -> Option<&Path> {
        self.mountpoint.as_deref()
    }

    /// Whether the mount table of this process shows it.
    pub fn is_mounted(&self) -> bool {
        self.mountpoint.is_some()
    }

    /// Whether it was made elsewhere than where the mount table shows it, if it is that mount at all: numbers of connections are
    /// reused.
    pub fn is_moved(&self) -> bool {
        self.moved
    }

    /// Where its process leaves a sentence about what went wrong in the end: [`super::Server::leave`].
    pub fn words(&self) -> PathBuf {
        self.socket.with_extension(WORDS)
    }

    /// Asks, and gives the connection the answer comes from.
    ///
    /// # Errors
    /// When the mount has gone or does not read.
    pub fn connect(&self, ask: &Ask) -> io::Result<UnixStream> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Connecting waits, too, once a server that does not accept has enough clients waiting.
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ask.patience()))?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        let mut stream = UnixStream::from(socket);
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        Ok(stream)
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// When the mount has gone, does not answer in time, or answers with something else.
    pub fn ask(&self, ask: &Ask) -> io::Result<Answer> {
        first_answer(&mut BufReader::new(self.connect(ask)?))
    }

    /// Asks for something that is done or fails.
    ///
    /// # Errors
    /// A sentence about what failed.
    pub fn order(&self, ask: &Ask) -> Result<(), String> {
        match self.ask(ask).map_err(|error| Error::from(error).to_string())? {
            Answer::Done => Ok(()),
            Answer::Failed(reason) => Err(reason),
            Answer::Status(_) | Answer::Unwritten(_) | Answer::Faults(_) => {
                Err("an unexpected answer".to_owned())
            }
        }
    }

    /// What the mount is and does.
    ///
    /// # Errors
    /// As [`Peer::ask`].
    pub fn status(&self) -> io::Result<MountStatus> {
        let mut answer = self.ask(&Ask::Status);
        // The process that was asked has died; the next one listens at the same socket.
        for _ in 0..DEATHS {
            match answer {
                Err(error) if is_cut_off(&error) => answer = self.ask(&Ask::Status),
                _ => break,
            }
        }
        match answer? {
            Answer::Status(status) => Ok(*status),
            other => Err(io::Error::other(format!("an unexpected answer: {other:?}"))),
        }
    }

    /// A sentence about what is wrong and what can be done.
    pub fn explain(&self, trouble: &Trouble) -> String {
        let pid = self.pid;
        let Some(place) = self.mountpoint.as_ref().map(|path| path.display()) else {
            return match trouble {
                Trouble::Dead => format!("process {pid} has died"),
                Trouble::Silent(why) if is_mounted_elsewhere(self.connection) => {
                    format!("process {pid}, whose mount is in another mount namespace, {why}")
                }
                Trouble::Silent(why) => format!("process {pid}, whose mount is gone, {why}"),
            };
        };
        match trouble {
            Trouble::Dead => {
                format!(
                    "'{place}': its server (process {pid}) has died; `outrigger umount {place}` removes it"
                )
            }
            Trouble::Silent(why) => format!(
                "'{place}': its server (process {pid}) {why}; `outrigger umount --force {place}` ends the mount"
            ),
        }
    }

    fn trouble(&self, error: io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Trouble::Dead,
            _ if is_stopped(self.pid) => {
                Trouble::Silent(format!("is stopped (`kill -CONT {}` lets it go on)", self.pid))
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Trouble::Silent(format!("does not answer within {} s", PATIENCE.as_secs()))
            }
            _ => Trouble::Silent(format!("does not answer: {}", Error::from(error))),
        }
    }
}

/// Whether the process that was asked has ended without an answer.
fn is_cut_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Reads the line that every answer starts with.
///
/// # Errors
/// When it does not come in time or is none.
pub fn first_answer(from: &mut impl BufRead) -> io::Result<Answer> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// The children that a process of one thread has started (proc_pid_children(5)).
pub fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The state of a process (proc_pid_stat(5)); nothing when there is none.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold anything, so the state follows the last one.
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether a signal has stopped the process.
pub fn is_stopped(pid: u32) -> bool {
    matches!(state(pid), Some('T' | 't'))
}

/// The mounts of this user, living or not.
///
/// # Errors
/// When the directory of the sockets or the mount table cannot be read.
pub fn peers() -> io::Result<Vec<Peer>> {
    let mounts = MountEntry::all()?;
    let mut peers = Vec::new();
    for entry in fs::read_dir(directory()?)? {
        peers.extend(Peer::of(entry?.path(), &mounts));
    }
    // An outrigger mount under `guard` has the same mountpoint in its name, and was started by the guard.
    peers.sort_by(|a, b| (&a.hash, a.connection, a.owner).cmp(&(&b.hash, b.connection, b.owner)));
    Ok(peers)
}

/// A mount and what became of asking it.
type Asked = (Peer, Result<MountStatus, Trouble>);

/// Asks all `peers` at once with `ask`, and gives the answers in their order. Once one answers that `is_enough`, the others are
/// waited for [`GRACE`] only.
fn asked<Ask>(peers: Vec<Peer>, ask: Ask, is_enough: impl Fn(&Asked) -> bool) -> Vec<Asked>
where
    Ask: Fn(&Peer) -> io::Result<MountStatus> + Clone + Send + 'static,
{
    let (sender, receiver) = mpsc::channel();
    for (place, peer) in peers.iter().cloned().enumerate() {
        let (sender, ask) = (sender.clone(), ask.clone());
        thread::spawn(move || {
            let status = ask(&peer).map_err(|error| peer.trouble(error));
            // Fails when it is not waited for any more.
            let _ = sender.send((place, status));
        });
    }
    drop(sender);
    let silent = || Err(Trouble::Silent("does not answer as fast as the others".to_owned()));
    let mut answers: Vec<Asked> = peers.into_iter().map(|peer| (peer, silent())).collect();
    let mut deadline: Option<Instant> = None;
    loop {
        let received = match deadline {
            None => receiver.recv().ok(),
            Some(deadline) => receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
        };
        let Some((place, status)) = received else { return answers };
        answers[place].1 = status;
        if deadline.is_none() && is_enough(&answers[place]) {
            deadline = Some(Instant::now() + GRACE);
        }
    }
}

/// The status of all `peers`, asked in parallel: one that hangs must not hold up the others. Sockets without a
/// server and without a mount are removed and left out.
pub fn statuses(peers: Vec<Peer>) -> Vec<Asked> {
    sorted_out(asked(peers, Peer::status, |_| false))
}

/// The answers without those of sockets that have neither a server nor a mount, which are removed.
fn sorted_out(mut answers: Vec<Asked>) -> Vec<Asked> {
    let gone: Vec<bool> =
        answers.iter().map(|one| answers.iter().any(|other| has_taken(other, one))).collect();
    for ((peer, _), _) in answers.iter_mut().zip(gone).filter(|(_, gone)| *gone) {
        (peer.mountpoint, peer.moved) = (None, true);
    }
    let living = answers.iter().filter(|(_, status)| status != &Err(Trouble::Dead));
    let living: Vec<_> = living.map(|(peer, _)| (peer.connection, peer.moved)).collect();
    answers.retain(|(peer, status)| {
        // A living one with the same number is another mount.
        let is_of = |&(connection, moved): &(u32, bool)| connection == peer.connection && !moved;
        let stale = peer.moved || living.iter().any(is_of);
        let remove = status == &Err(Trouble::Dead) && stale;
        if remove {
            // Another process may have removed it, or we may not.
            let _ = fs::remove_file(&peer.socket);
        }
        !remove
    });
    answers
}

/// Whether the mount that the table shows for one that gives no status is another's, which got its number: that of a process that
/// answers, or made it later at the same place. It belongs to a process that made it where it is, before one that did not.
fn has_taken((other, answer): &Asked, (peer, status): &Asked) -> bool {
    let can_be_its = other.connection == peer.connection && (peer.moved || !other.moved);
    let is_later = !other.moved && (peer.moved || other.made > peer.made);
    status.is_err() && can_be_its && (answer.is_ok() || is_later)
}

/// The mount at `mountpoint`, whose server answers.
///
/// # Errors
/// When there is none of this user's there, or its server has died or does not answer.
pub fn find(mountpoint: &Path) -> Result<(Peer, MountStatus), Failure> {
    let (peer, status) = locate(mountpoint)?;
    match status {
        Ok(status) => Ok((peer, status)),
        Err(trouble) => Err(Failure::new(peer.explain(&trouble))),
    }
}

/// The mount at `mountpoint`, with its status if its server answers.
///
/// # Errors
/// When there is none of this user's there.
pub fn locate(mountpoint: &Path) -> Result<Asked, Failure> {
    let shown = mountpoint.display();
    let cannot =
        |error: io::Error| Failure::new(format!("cannot look for '{shown}': {}", Error::from(error)));
    let wanted = resolve(mountpoint).map_err(cannot)?;
    let here = MountEntry::at(&wanted).map_err(cannot)?;
    let mut peers = peers().map_err(cannot)?;
    // What is mounted on top counts; a mount that is not here may be in another mount namespace.
    peers.retain(|peer| match &here {
        Some(entry) => is_connection(entry, peer.connection),
        None => peer.mountpoint.is_none() && peer.hash == hash(&wanted),
    });
    // Another process with this number of connection, as in another namespace, may hang.
    let mut found = sorted_out(asked(peers, Peer::status, |(peer, status)| {
        !peer.moved && status.as_ref().is_ok_and(|status| !status.detached)
    }));
    found.retain(|(_, status)| !status.as_ref().is_ok_and(|status| status.detached));
    // One that does not answer may be left from another mount with the same number of connection. Of equals the first is meant.
    let likely = |(_, (peer, status)): &(usize, &(Peer, Result<_, _>))| (status.is_ok(), !peer.moved);
    if let Some((chosen, _)) = found.iter().enumerate().rev().max_by_key(likely) {
        return Ok(found.swap_remove(chosen));
    }
    Err(Failure::new(match here {
        Some(entry) if is_ours(&entry) => format!(
            "'{shown}': the mount there is another user's (who can ask for its status), or its server has died (then \
             `outrigger umount {shown}` removes it)"
        ),
        None if fs::symlink_metadata(&wanted).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {
            format!("'{shown}': {}", Errno::ENOENT)
        }
        _ => format!("'{shown}' is not a mount of yours: `outrigger status` lists them"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_mount_that_hangs_does_not_hold_up_the_one_that_is_looked_for() {
        let peer = |pid: u32| {
            let (socket, hash) = (PathBuf::from("socket"), pid.to_string());
            let (mountpoint, moved, made) = (None, false, None);
            Peer { socket, hash, connection: 1, owner: pid, pid, mountpoint, moved, made }
        };
        let (hang_on, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let ask = move |peer: &Peer| {
            if peer.pid == 1 {
                let _ = hangs.lock().unwrap().recv();
            }
            Ok(MountStatus { pid: peer.pid, ..MountStatus::default() })
        };
        // Comes back although the first one does not answer before `hang_on` is dropped.
        let found = asked(vec![peer(1), peer(7)], ask, |(_, status)| status.is_ok());
        drop(hang_on);
        assert!(matches!(&found[0].1, Err(Trouble::Silent(_))));
        assert!(found[1].1.as_ref().is_ok_and(|status| status.pid == 7));
    }

    /// A process that is stopped after its mount has gone, and the next mount at the same place, which has the same number.
    #[test]
    fn of_two_processes_that_give_no_status_the_later_one_has_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let peer = |owner: u32, age: u64| Peer {
            socket: dir.path().join(owner.to_string()),
            hash: "hash".to_owned(),
            connection: 1,
            owner,
            pid: owner,
            mountpoint: Some("/m".into()),
            moved: false,
            made: SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(100 - age)),
        };
        let silent = || Err(Trouble::Silent("is stopped".to_owned()));
        for next in [silent(), Err(Trouble::Dead), Ok(MountStatus::default())] {
            for (first, second) in [(0, 1), (1, 0)] {
                let mut answers = vec![(peer(1, 9), silent()), (peer(2, 5), next.clone())];
                answers.swap(first, second);
                let mut found = sorted_out(answers);
                found.sort_by_key(|(peer, _)| peer.owner);
                let places: Vec<_> = found.iter().map(|(peer, _)| peer.is_mounted()).collect();
                assert_eq!(places, [false, true], "{next:?}");
            }
        }
    }
}
