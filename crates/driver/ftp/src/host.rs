// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server: what a tree asks of it, as commands.

use crate::session::{Data, Dialer, Fault, Refused, Session, good, line};
use crate::times::{Times, Way};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Errno, FileKind, Result, Runtime, Time};
use outrigger_proto_ftp::{Bad, Features, Kind, LINE_MAX, Listed, Reply, list, mlsx, timestamp};
use outrigger_toolkit_remote::{
    Begun, FileServer, Found, Lease, Listing, Pool, Put, Readings, Staged, Version, parent, receive_lines,
    repeated, send_staged, within,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use tokio::io::AsyncReadExt;

/// An FTP server, for [`FileTree`](outrigger_toolkit_remote::FileTree).
pub struct Host {
    pub(crate) dialer: Dialer,
    pub(crate) pool: Arc<Pool<Session>>,
    pub(crate) features: OnceLock<Features>,
    pub(crate) readings: Readings<Transfer>,
    pub(crate) times: Times,
    /// Where the tree begins.
    pub(crate) base: Vec<u8>,
    pub(crate) runtime: Arc<dyn Runtime>,
}

/// A file that is being received, and the connection that owes its last reply.
pub struct Transfer {
    session: Lease<Session>,
    data: Data,
}

impl Host {
    /// Whether the server changes names so that they may be those of other files.
    fn rewrites_names(&self) -> bool {
        self.features.get().is_some_and(|features| features.has("SITE PURE"))
    }

    /// A connection for one request.
    pub(crate) async fn lease(&self) -> Result<Lease<Session>> {
        let (limit, reclaim) = (self.dialer.options.files.timeout, || self.readings.end_one());
        let session = self.pool.lease(limit, Session::is_quiet, reclaim, || self.dialer.dial()).await?;
        let [feat, _, site] = &session.greeting;
        self.features.get_or_init(|| Features::of(feat).with_site(site));
        Ok(session)
    }

    /// What the server can do.
    async fn has(&self, feature: &str) -> Result<bool> {
        if self.features.get().is_none() {
            self.lease().await?.give_back();
        }
        Ok(self.features.get().is_some_and(|features| features.has(feature)))
    }

    async fn has_mlst(&self) -> Result<bool> {
        Ok(self.dialer.options.mlsd && (self.has("MLST").await? || self.has("MLSD").await?))
    }

    /// The commands that tell size and time of change of a file, of those that the server has.
    async fn version_lines(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lines = Vec::new();
        for verb in ["SIZE", "MDTM"] {
            lines.extend(self.has(verb).await?.then(|| line(verb, path)).transpose()?);
        }
        Ok(lines)
    }

    /// Sends commands at once; the answers.
    async fn ask(&self, lines: &[Vec<u8>]) -> Result<Vec<Reply>, Fault> {
        let mut session = self.lease().await?;
        let replies = session.ask(&self.dialer, lines).await?;
        session.give_back();
        Ok(replies)
    }

    /// Sends one command; the answer, if it is good.
    async fn command(&self, verb: &str, argument: &[u8]) -> Result<Reply, Fault> {
        good(self.ask(&[line(verb, argument)?]).await?.remove(0))
    }

    /// Opens a data connection with the last of `lines`; the answers to the others.
    async fn transfer(&self, lines: &[Vec<u8>]) -> Result<(Transfer, Vec<Reply>), Fault> {
        let mut session = self.lease().await?;
        match session.transfer(&self.dialer, lines).await {
            Ok((data, replies)) => Ok((Transfer { session, data }, replies)),
            Err(fault) => {
                if matches!(fault, Fault::Refused(_)) {
                    session.give_back();
                }
                Err(fault)
            }
        }
    }

    /// The names in the directory at `path`, as LIST tells them.
    async fn names_by_list(&self, path: &[u8]) -> Result<Listing, Fault> {
        let now = self.runtime.wall().secs;
        // LIST takes its argument for options or patterns, so the directory is gone to. Names that begin with a dot are shown on
        // demand, where the server knows how.
        let list_in = async |how: &[u8]| {
            let lines = [line("CWD", path)?, line("LIST", how)?];
            repeated(|_| self.listing(&lines, |line| list(line, now))).await
        };
        let lists_all = &self.dialer.lists_all;
        match list_in(b"-a").await {
            Ok(listing) if !listing.names.is_empty() || lists_all.load(Ordering::Relaxed) => {
                lists_all.store(true, Ordering::Relaxed);
                Ok(listing)
            }
            Ok(_) | Err(Fault::Refused(_)) => list_in(b"").await,
            fault => fault,
        }
    }

    /// Ends a transfer; what the server says of it.
    async fn last_reply(&self, Transfer { mut session, data }: Transfer) -> Result<Reply, Fault> {
        drop(data);
        let reply = session.finish(&self.dialer).await?;
        session.give_back();
        Ok(reply)
    }

    async fn listing(
        &self,
        lines: &[Vec<u8>],
        read: impl Fn(&[u8]) -> Result<Option<Listed>, Bad>,
    ) -> Result<Listing, Fault> {
        let (Transfer { session, mut data }, before) = self.transfer(lines).await?;
        before.into_iter().try_for_each(|reply| good(reply).map(drop))?;
        let (mut listing, files) = (Listing::default(), &self.dialer.options.files);
        let take = |line: &[u8]| match read(line) {
            Ok(listed) => listing.names.extend(listed.map(found)),
            Err(_) => {
                _ = listing.odd.get_or_insert_with(|| line[..line.len().min(100)].escape_ascii().to_string())
            }
        };
        let (limits, most) = ((files.timeout, LINE_MAX), (files.max_listing, "max_listing"));
        receive_lines(&mut data, limits, most, take).await?;
        let reply = self.last_reply(Transfer { session, data }).await?;
        if reply
            .lines
            .iter()
            .any(|line| line.to_ascii_lowercase().windows(9).any(|word| word == b"truncated"))
        {
            // Pure-FTPd stops after so many names (-L), and says so in its last reply only.
            let said = reply.text().escape_ascii().to_string();
            return Err(Errno::EFBIG
                .because(format!("the server shows only a part of the directory: {said}"))
                .into());
        }
        Ok(listing)
    }
}

impl FileServer for Host {
    type Transfer = Transfer;
    type Refusal = Refused;

    fn driver(&self) -> &'static str {
        "ftp"
    }

    fn shown(&self) -> String {
        format!("ftp://{}", self.dialer.host)
    }

    fn readings(&self) -> &Readings<Transfer> {
        &self.readings
    }

    fn check(&self, path: &[u8]) -> Result<()> {
        if self.rewrites_names() && path.iter().any(|&byte| byte < b' ' || byte == 0x7f) {
            return Err(Errno::EINVAL.because("Pure-FTPd takes control characters in names for '_'"));
        }
        line("MLST", path).map(drop)
    }

    fn keeps_name(&self, path: &[u8]) -> Result<()> {
        if self.rewrites_names() && path.ends_with(b" ") {
            return Err(Errno::EINVAL.because("Pure-FTPd takes a blank at the end of a new name for '_'"));
        }
        self.check(path)
    }

    async fn stat(&self, path: &[u8]) -> Result<Found, Fault> {
        let directory = || Found::new(FileKind::Directory);
        if path == b"/" {
            return Ok(directory());
        }
        if self.has_mlst().await? {
            let reply = repeated(|_| self.command("MLST", path)).await?;
            let found = found_by_mlst(&reply);
            return found.ok_or_else(|| Errno::EPROTO.because("the answer to MLST makes no sense").into());
        }
        match self.list(parent(path)).await {
            Ok(listing) => Ok(listing.find(path)?),
            // The directory above the tree may be closed to us.
            Err(_) if path == self.base => Ok(directory()),
            Err(fault) => Err(fault),
        }
    }

    async fn list(&self, path: &[u8]) -> Result<Listing, Fault> {
        if !self.has_mlst().await? {
            return self.names_by_list(path).await;
        }
        let lines = [line("MLSD", path)?];
        repeated(|_| self.listing(&lines, |line| mlsx(line, false))).await
    }

    async fn target(&self, path: &[u8]) -> Result<Bytes, Fault> {
        // Some servers tell it in LIST only.
        let target = self.names_by_list(parent(path)).await?.find(path)?.target;
        target.ok_or_else(|| Errno::EIO.because("the server does not tell where the link leads").into())
    }

    async fn exact_version(&self, path: &[u8]) -> Result<Option<Version>, Fault> {
        let lines = self.version_lines(path).await?;
        if lines.len() < 2 || self.has_mlst().await? {
            return Ok(None);
        }
        Ok(version(&lines, &repeated(|_| self.ask(&lines)).await?).complete())
    }

    async fn begin(&self, path: &[u8], offset: u64) -> Result<Begun<Transfer>, Fault> {
        // Asked in one go with the content, these cost no time.
        let mut lines = self.version_lines(path).await?;
        let asked = lines.len();
        lines.extend((offset > 0).then(|| line("REST", offset.to_string().as_bytes())).transpose()?);
        lines.push(line("RETR", path)?);
        let (transfer, replies) = repeated(|_| self.transfer(&lines)).await?;
        let (told, rest) = replies.split_at(asked);
        // Without REST the file comes from its front.
        let at = if rest.iter().all(Reply::is_good) { offset } else { 0 };
        Ok(Begun { transfer: Some(transfer), at, version: version(&lines, told) })
    }

    async fn receive(&self, transfer: &mut Transfer, buffer: &mut BytesMut) -> Result<usize, Fault> {
        let limit = self.dialer.options.files.timeout;
        within(limit, "receiving", transfer.data.read_buf(buffer)).await.map_err(Fault::Lost)
    }

    async fn finish(&self, transfer: Transfer) -> Result<(), Fault> {
        self.last_reply(transfer).await.map(drop)
    }

    async fn send(&self, path: &[u8], how: Put, staged: &Staged, from: u64) -> Result<(), Fault> {
        let verb = if how == Put::Whole { "STOR" } else { "APPE" };
        let (Transfer { mut session, data }, _) = self.transfer(&[line(verb, path)?]).await?;
        let finish = async { session.finish(&self.dialer).await.map(drop) };
        let limit = self.dialer.options.files.timeout;
        let sent = send_staged(data, (staged, from), limit, finish).await;
        if matches!(sent, Ok(()) | Err(Fault::Refused(_))) {
            session.give_back();
        }
        sent
    }

    async fn rename(&self, from: &[u8], to: &[u8], mode: Option<u32>) -> Result<Option<Version>, Fault> {
        let mut lines = Vec::new();
        if let Some(mode) = mode
            && self.has("SITE CHMOD").await?
        {
            // Some servers refuse that for some files; the content matters more.
            lines.push(line("SITE", &chmod(mode, from))?);
        }
        let begin = lines.len();
        lines.extend([line("RNFR", from)?, line("RNTO", to)?]);
        lines.extend(match mode {
            None => Vec::new(),
            Some(_) if self.has_mlst().await? => vec![line("MLST", to)?],
            Some(_) => self.version_lines(to).await?,
        });
        let replies = self.ask(&lines).await?.split_off(begin);
        replies.iter().take(2).try_for_each(|reply| good(reply.clone()).map(drop))?;
        Ok(version(&lines[begin..], &replies).complete())
    }

    async fn make_dir(&self, path: &[u8], mode: u32) -> Result<(), Fault> {
        self.command("MKD", path).await?;
        if self.has("SITE CHMOD").await? {
            // Not every server lets every mode be: the directory is there.
            let _ = self.set_mode(path, mode).await;
        }
        Ok(())
    }

    async fn remove_dir(&self, path: &[u8]) -> Result<(), Fault> {
        self.command("RMD", path).await.map(drop)
    }

    async fn remove(&self, path: &[u8]) -> Result<(), Fault> {
        self.command("DELE", path).await.map(drop)
    }

    async fn set_mode(&self, path: &[u8], mode: u32) -> Result<(), Fault> {
        repeated(|_| async move { self.command("SITE", &chmod(mode, path)).await.map(drop) }).await
    }

    /// AVBL of draft-peterson-streamlined-ftp-command-extensions.
    async fn free_space(&self, path: &[u8]) -> Result<Option<u64>, Fault> {
        if !self.has("AVBL").await? {
            return Ok(None);
        }
        let reply = repeated(|_| self.command("AVBL", path)).await?;
        Ok(std::str::from_utf8(reply.text().trim_ascii()).ok().and_then(|text| text.parse().ok()))
    }

    fn sets_times(&self) -> bool {
        self.times.may_be_set()
    }

    async fn set_time(&self, path: &[u8], time: Time) -> Result<(), Fault> {
        let ways = if self.has("MFMT").await? { &[Way::Mfmt][..] } else { Way::OTHERS };
        let mut refusals = Vec::new();
        for way in ways.iter().filter(|way| self.times.may_have(**way)) {
            let (verb, argument) = way.command(path, time);
            let argument = &argument;
            match repeated(|_| async move { self.command(verb, argument).await.map(drop) }).await {
                Ok(()) => {
                    self.times.worked();
                    return Ok(());
                }
                Err(Fault::Refused(refused)) => refusals.push((*way, refused)),
                fault => return fault,
            }
        }
        Err(self.times.refused(ways, refusals))
    }
}

/// What the answers to MLST, or to [`Host::version_lines`], tell.
fn version(asked: &[Vec<u8>], replies: &[Reply]) -> Version {
    let told = |verb: &[u8]| {
        let mut answers = asked.iter().zip(replies);
        answers.find(|(line, reply)| line.starts_with(verb) && reply.is_good()).map(|(_, reply)| reply)
    };
    if let Some(Found { size, modified, .. }) = told(b"MLST").and_then(found_by_mlst) {
        return Version { size, modified };
    }
    let text = |verb| told(verb).map(|reply| reply.text().trim_ascii());
    let size = text(b"SIZE").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    Version { size, modified: text(b"MDTM").and_then(timestamp) }
}

fn chmod(mode: u32, path: &[u8]) -> Vec<u8> {
    [format!("CHMOD {mode:o} ").as_bytes(), path].concat()
}

fn found_by_mlst(reply: &Reply) -> Option<Found> {
    let read = |line: &Bytes| mlsx(line.trim_ascii_start(), true).ok().flatten();
    reply.lines.iter().find_map(read).map(found)
}

fn found(listed: Listed) -> Found {
    let kind = match listed.kind {
        Kind::File => FileKind::Regular,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Other => FileKind::Fifo,
    };
    let Listed { name, size, modified, mode, target, .. } = listed;
    Found { name, size, modified, mode, target, ..Found::new(kind) }
}
