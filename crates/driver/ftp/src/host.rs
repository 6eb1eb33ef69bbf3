// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server: what a tree asks of it, as commands.

use crate::session::{Data, Dialer, Fault, Refused, Session, good, line, unfit};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Errno, FileKind, Result, Runtime, Time};
use outrigger_proto_ftp::{
    Bad, Features, Kind, LINE_MAX, Listed, Reply, TimeCommand, Told, chmod, list, mlsx,
};
use outrigger_toolkit_remote::{
    Begun, FileServer, Found, Lease, Listing, Pool, Put, Readings, Staged, Version, Ways, find_by_listing,
    parent, quoted, receive_listing, repeated, send_staged, within,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use tokio::io::AsyncReadExt;

/// An FTP server, for [`FileTree`](outrigger_toolkit_remote::FileTree).
pub struct Host {
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) pool: Arc<Pool<Session>>,
    pub(crate) features: OnceLock<Features>,
    pub(crate) readings: Readings<Transfer>,
    /// How times of files are set.
    pub(crate) times: Ways,
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
    /// Whether a path can be sent, and the server takes it for what it is.
    fn check_name(&self, path: &[u8], is_made: bool) -> Result<()> {
        match self.features.get().and_then(|features| features.mistakes(path, is_made)) {
            Some(why) => Err(Errno::EINVAL.because(why)),
            None => line("MLST", path).map(drop),
        }
    }

    /// A connection for one request.
    pub(crate) async fn lease(&self) -> Result<Lease<Session>> {
        let (limit, reclaim) = (self.dialer.options.files.timeout, || self.readings.end_one());
        let session = self.pool.lease(limit, Session::is_quiet, reclaim, || self.dialer.dial()).await?;
        self.features.get_or_init(|| session.features.clone());
        Ok(session)
    }

    /// What the server can do.
    async fn features(&self) -> Result<&Features> {
        if self.features.get().is_none() {
            self.lease().await?.give_back();
        }
        Ok(self.features.get_or_init(Features::default))
    }

    async fn has(&self, feature: &str) -> Result<bool> {
        Ok(self.features().await?.has(feature))
    }

    async fn has_mlst(&self) -> Result<bool> {
        Ok(!self.dialer.options.no_mlsd && (self.has("MLST").await? || self.has("MLSD").await?))
    }

    /// The commands that tell size and time of change of a file, of those that the server has.
    async fn version_lines(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.features().await?.version_commands(path).map_err(unfit)
    }

    /// Sends commands at once; the answers.
    async fn ask(&self, lines: &[Vec<u8>]) -> Result<Vec<Reply>, Fault> {
        let mut session = self.lease().await?;
        let replies = session.ask(lines).await;
        session.after(replies)
    }

    /// Sends one command; the answer, if it is good.
    async fn command(&self, verb: &str, argument: &[u8]) -> Result<Reply, Fault> {
        good(self.ask(&[line(verb, argument)?]).await?.remove(0))
    }

    /// Opens a data connection with the last of `lines`; the answers to the others.
    async fn transfer(&self, lines: &[Vec<u8>]) -> Result<(Transfer, Vec<Reply>), Fault> {
        let mut session = self.lease().await?;
        match session.transfer(lines).await {
            Ok((data, replies)) => Ok((Transfer { session, data }, replies)),
            Err(fault) => session.after(Err(fault)),
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
        let reply = session.finish().await;
        session.after(reply)
    }

    async fn listing(
        &self,
        lines: &[Vec<u8>],
        read: impl Fn(&[u8]) -> Result<Option<Listed>, Bad>,
    ) -> Result<Listing, Fault> {
        let (Transfer { session, mut data }, before) = self.transfer(lines).await?;
        before.into_iter().try_for_each(|reply| good(reply).map(drop))?;
        let read = |line: &[u8]| read(line).map(|listed| listed.map(found));
        let listing = receive_listing(&mut data, &self.dialer.options.files, LINE_MAX, read).await?;
        let reply = self.last_reply(Transfer { session, data }).await?;
        if reply.tells_of_truncation() {
            let why = format!("the server shows only a part of the directory: {}", quoted(reply.text()));
            return Err(Errno::EFBIG.because(why).into());
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
        self.check_name(path, false)
    }

    fn keeps_name(&self, path: &[u8]) -> Result<()> {
        self.check_name(path, true)
    }

    async fn stat(&self, path: &[u8]) -> Result<Found, Fault> {
        if path == b"/" {
            return Ok(Found::new(FileKind::Directory));
        }
        if !self.has_mlst().await? {
            return find_by_listing(self, path, &self.base).await;
        }
        let listed = repeated(|_| self.command("MLST", path)).await?.listed();
        let odd = || Errno::EPROTO.because("the answer to MLST makes no sense").into();
        listed.map(found).ok_or_else(odd)
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

    async fn send(&self, path: &[u8], how: Put, staged: &Arc<Staged>, from: u64) -> Result<(), Fault> {
        let verb = if how == Put::Whole { "STOR" } else { "APPE" };
        let (Transfer { mut session, data }, _) = self.transfer(&[line(verb, path)?]).await?;
        let finish = async { session.finish().await.map(drop) };
        let limit = self.dialer.options.files.timeout;
        let sent = send_staged(data, (staged, from), limit, finish).await;
        session.after(sent)
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
        Ok(repeated(|_| self.command("AVBL", path)).await?.number())
    }

    fn sets_times(&self) -> bool {
        self.times.may_work()
    }

    async fn set_time(&self, path: &[u8], time: Time) -> Result<(), Fault> {
        let has_mfmt = self.has("MFMT").await?;
        let commands = if has_mfmt { &[TimeCommand::Mfmt][..] } else { TimeCommand::WITHOUT_MFMT };
        let ask = |command: TimeCommand| async move {
            let (verb, argument) = command.of(path, time.secs);
            self.command(verb, &argument).await.map(drop)
        };
        // MDTM alone is perhaps asked for the time of a file whose name begins with a time.
        let ambiguous = |command| command == TimeCommand::Mdtm;
        let lacks = "the server has no command that sets the time of a file";
        self.times.first(commands, ambiguous, lacks, ask).await
    }
}

/// What the answers to MLST, or to [`Host::version_lines`], tell.
fn version(asked: &[Vec<u8>], replies: &[Reply]) -> Version {
    let Told { size, modified } = Told::by(asked, replies);
    Version { size, modified, tag: None }
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
