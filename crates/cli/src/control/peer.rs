// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands' side of the control sockets.

use super::{Answer, Ask, MountStatus, directory, socket_prefix};
use crate::status::Failure;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A mount that can be asked.
#[derive(Debug, Clone)]
pub struct Peer {
    socket: PathBuf,
}

impl Peer {
    /// Asks, and gives the connection the answer comes from.
    ///
    /// # Errors
    /// When the mount has gone or does not read.
    pub fn connect(&self, ask: &Ask) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_write_timeout(Some(PATIENCE))?;
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
        let stream = self.connect(ask)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// What the mount is and does.
    ///
    /// # Errors
    /// As [`Peer::ask`].
    pub fn status(&self) -> io::Result<MountStatus> {
        match self.ask(&Ask::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(io::Error::other(format!("an unexpected answer: {other:?}"))),
        }
    }
}

/// The mounts of this user. Sockets that mounts have left behind are removed.
///
/// # Errors
/// When the directory of the sockets cannot be used.
pub fn peers() -> io::Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for entry in fs::read_dir(directory()?)? {
        let socket = entry?.path();
        if socket.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        match UnixStream::connect(&socket) {
            Ok(_) => peers.push(Peer { socket }),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&socket);
            }
            Err(_) => {}
        }
    }
    peers.sort_by(|a, b| a.socket.cmp(&b.socket));
    Ok(peers)
}

/// What all of `peers` are and do, asked side by side: one that hangs must not hold up the others.
pub fn statuses(peers: Vec<Peer>) -> Vec<(Peer, io::Result<MountStatus>)> {
    let ask = |peer: Peer| thread::spawn(move || (peer.status(), peer));
    let asked: Vec<_> = peers.into_iter().map(ask).collect();
    let answers = asked.into_iter().filter_map(|thread| thread.join().ok());
    answers.map(|(status, peer)| (peer, status)).collect()
}

/// The mount at `mountpoint`.
///
/// # Errors
/// When there is none of this user's there, or it does not answer.
pub fn find(mountpoint: &Path) -> Result<(Peer, MountStatus), Failure> {
    let wanted = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
    let prefix = socket_prefix(&wanted);
    let mut peers = peers().map_err(|error| Failure::new(format!("cannot look for mounts: {error}")))?;
    peers.retain(|peer| {
        peer.socket.file_name().is_some_and(|name| name.as_bytes().starts_with(prefix.as_bytes()))
    });
    let mut failure =
        format!("'{}' is not a mount of yours: `outrigger status` lists them", mountpoint.display());
    for (peer, status) in statuses(peers) {
        match status {
            Ok(status) if Path::new(&status.mountpoint) == wanted => return Ok((peer, status)),
            Ok(_) => {}
            Err(error) => {
                failure = format!("{peer} serves '{}' and does not answer: {error}", wanted.display())
            }
        }
    }
    Err(Failure::new(failure))
}

impl fmt::Display for Peer {
    /// The process behind it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.socket.file_stem().unwrap_or_default().to_string_lossy();
        write!(f, "process {}", name.rsplit('-').next().unwrap_or_default())
    }
}
