// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server: its connections, and how files are looked at.

use crate::session::{Data, Dialer, Fault, Session, line};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Errno, Error, FileKind, Result, Runtime};
use outrigger_proto_ftp::{Features, Kind, LINE_MAX, Listed, Reply, list, mlsx};
use outrigger_toolkit_remote::{
    Attempt, Found, Lease, Pool, Probe, REPEATS, Readings, Setback, diagnose, parent,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// An FTP server, for [`FileTree`](outrigger_toolkit_remote::FileTree).
pub struct Host {
    pub(crate) dialer: Dialer,
    pub(crate) pool: Arc<Pool<Session>>,
    pub(crate) setback: Setback,
    pub(crate) features: OnceLock<Features>,
    pub(crate) readings: Readings<Transfer>,
    /// Where the tree begins.
    pub(crate) base: Vec<u8>,
    pub(crate) runtime: Arc<dyn Runtime>,
}

/// A file that is being received, and the connection that owes its last reply.
pub struct Transfer {
    pub(crate) session: Lease<Session>,
    pub(crate) data: Data,
}

impl Host {
    /// A connection for one request.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn lease(&self) -> Result<Lease<Session>> {
        let dial = || async {
            if let Some(error) = self.setback.recent(self.runtime.monotonic()) {
                return Err(error);
            }
            let session = self.dialer.dial().await;
            session.inspect_err(|error| self.setback.note(error, self.runtime.monotonic()))
        };
        let session = self
            .pool
            .lease(self.dialer.options.timeout, Session::is_quiet, || self.readings.end_one(), dial)
            .await?;
        let [feat, _, site] = &session.greeting;
        self.features.get_or_init(|| Features::of(feat).with_site(site));
        Ok(session)
    }

    /// What the server can do.
    pub(crate) async fn has(&self, feature: &str) -> Result<bool> {
        if self.features.get().is_none() {
            self.lease().await?.give_back();
        }
        Ok(self.features.get().is_some_and(|features| features.has(feature)))
    }

    /// Sends commands at once; the answers. They are sent again on another connection when one is lost, if that does no harm.
    pub(crate) async fn ask(&self, again: bool, lines: &[Vec<u8>]) -> Result<Vec<Reply>, Fault> {
        let mut repeats = 0;
        loop {
            let mut session = self.lease().await?;
            match session.ask(&self.dialer, lines).await {
                Ok(replies) => {
                    session.give_back();
                    return Ok(replies);
                }
                Err(Fault::Lost(_)) if again && repeats < REPEATS => repeats += 1,
                Err(fault) => return Err(fault),
            }
        }
    }

    /// As [`Inner::ask`] for changes: the last answer, if all are good.
    pub(crate) async fn change(&self, lines: &[Vec<u8>]) -> Result<(), Fault> {
        let replies = self.ask(false, lines).await?;
        replies.into_iter().find(|reply| !reply.is_good()).map_or(Ok(()), |reply| Err(Fault::Refused(reply)))
    }

    /// Opens a data connection with the last of `lines`, on another control connection when one is lost.
    pub(crate) async fn transfer(
        &self,
        lines: &[Vec<u8>],
    ) -> Result<(Lease<Session>, Data, Vec<Reply>), Fault> {
        let mut repeats = 0;
        loop {
            let mut session = self.lease().await?;
            match session.transfer(&self.dialer, lines).await {
                Ok((data, replies)) => return Ok((session, data, replies)),
                Err(Fault::Lost(_)) if repeats < REPEATS => repeats += 1,
                Err(fault) => {
                    if matches!(fault, Fault::Refused(_)) {
                        session.give_back();
                    }
                    return Err(fault);
                }
            }
        }
    }

    async fn has_mlst(&self) -> Result<bool> {
        Ok(self.dialer.options.mlsd && (self.has("MLST").await? || self.has("MLSD").await?))
    }

    /// The names in the directory at `path`.
    pub(crate) async fn names(&self, path: &[u8]) -> Result<Vec<Listed>, Fault> {
        if self.has_mlst().await? {
            return self.listing(&[line("MLSD", path)?], |line| mlsx(line, false)).await;
        }
        self.list_plainly(path).await
    }

    /// The same by LIST.
    pub(crate) async fn list_plainly(&self, path: &[u8]) -> Result<Vec<Listed>, Fault> {
        let now = self.runtime.wall().secs;
        // LIST takes its argument for options or patterns, so the directory is gone to. Names that begin with a dot are shown on
        // demand, where the server knows how.
        let list_in = async |how: &[u8]| {
            let lines = [line("CWD", path)?, line("LIST", how)?];
            self.listing(&lines, |line| list(line, now)).await
        };
        let lists_all = &self.dialer.lists_all;
        match list_in(b"-a").await {
            Ok(names) if !names.is_empty() || lists_all.load(Ordering::Relaxed) => {
                lists_all.store(true, Ordering::Relaxed);
                Ok(names)
            }
            Ok(_) | Err(Fault::Refused(_)) => list_in(b"").await,
            fault => fault,
        }
    }

    async fn listing(
        &self,
        lines: &[Vec<u8>],
        read: impl Fn(&[u8]) -> Option<Listed>,
    ) -> Result<Vec<Listed>, Fault> {
        let mut repeats = 0;
        loop {
            match self.listing_once(lines, &read).await {
                Err(Fault::Lost(_)) if repeats < REPEATS => repeats += 1,
                outcome => return outcome,
            }
        }
    }

    async fn listing_once(
        &self,
        lines: &[Vec<u8>],
        read: &impl Fn(&[u8]) -> Option<Listed>,
    ) -> Result<Vec<Listed>, Fault> {
        let (mut session, mut data, before) = self.transfer(lines).await?;
        if let Some(refused) = before.into_iter().find(|reply| !reply.is_good()) {
            return Err(Fault::Refused(refused));
        }
        let (mut names, mut buffer, mut size) = (Vec::new(), BytesMut::with_capacity(1 << 16), 0_usize);
        loop {
            let count = Session::receive(&self.dialer, &mut data, &mut buffer).await?;
            size += count;
            if size > self.dialer.options.max_listing {
                let why = format!("the listing is longer than {size} bytes; max_listing=BYTES permits more");
                return Err(Errno::EFBIG.because(why).into());
            }
            while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
                let line = buffer.split_to(end + 1);
                names.extend(read(without_end(&line)));
            }
            if buffer.len() > LINE_MAX {
                return Err(Errno::EPROTO.because("the server lists a line without an end").into());
            }
            if count == 0 {
                names.extend(read(without_end(&buffer)));
                break;
            }
            buffer.reserve(1 << 14);
        }
        session.finish(&self.dialer, data).await?;
        session.give_back();
        Ok(names)
    }

    /// What is at a path.
    pub(crate) async fn listed(&self, path: &[u8]) -> Result<Listed, Fault> {
        let directory = Listed {
            name: Bytes::new(),
            kind: Kind::Directory,
            size: None,
            modified: None,
            mode: None,
            target: None,
        };
        if path == b"/" {
            return Ok(directory);
        }
        if self.has_mlst().await? {
            let reply = self.ask(true, &[line("MLST", path)?]).await?.remove(0);
            if !reply.is_good() {
                return Err(Fault::Refused(reply));
            }
            let found = reply.lines.iter().find_map(|line| mlsx(line.trim_ascii_start(), true));
            return found.ok_or_else(|| Errno::EPROTO.because("the answer to MLST makes no sense").into());
        }
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        match self.names(parent(path)).await {
            Ok(names) => {
                names.into_iter().find(|listed| &listed.name[..] == name).ok_or_else(|| Errno::ENOENT.into())
            }
            // The directory above the tree may be closed to us.
            Err(_) if path == self.base => Ok(directory),
            Err(fault) => Err(fault),
        }
    }

    /// The error to report for a failed attempt.
    pub(crate) async fn why(&self, fault: Fault, attempt: Attempt<'_>) -> Error {
        let error = Error::from(fault.clone());
        match &fault {
            Fault::Refused(reply)
                if matches!(reply.code, 450 | 451 | 550 | 553) && error.errno == Errno::EIO =>
            {
                let errno = diagnose(self, attempt, true).await;
                let errno = errno.unwrap_or(if reply.code < 500 { Errno::EIO } else { Errno::EACCES });
                errno.because(error.reason.unwrap_or_default())
            }
            _ => error,
        }
    }

    /// What is at a path, or why nothing is.
    pub(crate) async fn look(&self, path: &[u8]) -> Result<Listed> {
        match self.listed(path).await {
            Err(Fault::Refused(reply)) if reply.code >= 500 => {
                let is_below_directory = match path == self.base {
                    true => None,
                    false => self.kind_at(parent(path)).await,
                };
                match is_below_directory {
                    Some(FileKind::Directory | FileKind::Symlink) | None => Err(Errno::ENOENT.into()),
                    Some(_) => Err(Errno::ENOTDIR.into()),
                }
            }
            outcome => Ok(outcome?),
        }
    }
}

pub(crate) fn found(listed: Listed) -> Found {
    let Listed { name, kind, size, modified, mode, target } = listed;
    Found { name, kind: file_kind(kind), size, modified, mode, target }
}

fn file_kind(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::Regular,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Other => FileKind::Fifo,
    }
}

impl Probe for Host {
    async fn kind_at(&self, path: &[u8]) -> Option<FileKind> {
        self.listed(path).await.ok().map(|listed| file_kind(listed.kind))
    }

    async fn is_empty(&self, path: &[u8]) -> Option<bool> {
        self.names(path).await.ok().map(|names| names.is_empty())
    }

    async fn lack(&self, _: &[u8]) -> Option<Errno> {
        None
    }

    async fn separate(&self, _: &[u8], _: &[u8]) -> Option<Errno> {
        None
    }
}

/// A line without what ends it; a space before that belongs to the name.
fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
