// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a tree asks of its server.

use crate::server::{Host, Transfer, found};
use crate::session::{Fault, Session, line};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Errno, Error, Result, Time};
use outrigger_proto_ftp::{Reply, timestamp};
use outrigger_toolkit_remote::{Attempt, FileServer, Found, Readings, Staged, Version, parent};

impl FileServer for Host {
    type Transfer = Transfer;

    fn driver(&self) -> &'static str {
        "ftp"
    }

    fn shown(&self) -> String {
        format!("ftp://{}", self.dialer.host)
    }

    fn contains_symlinks(&self) -> bool {
        self.dialer.options.contain_symlinks
    }

    fn readings(&self) -> &Readings<Transfer> {
        &self.readings
    }

    fn check(&self, path: &[u8]) -> Result<()> {
        line("MLST", path).map(drop)
    }

    async fn stat(&self, path: &[u8]) -> Result<Found> {
        self.look(path).await.map(found)
    }

    async fn list(&self, path: &[u8]) -> Result<Vec<Found>> {
        match self.names(path).await {
            Ok(names) => Ok(names.into_iter().map(found).collect()),
            Err(fault) => Err(self.why(fault, Attempt::RmDir { path }).await),
        }
    }

    async fn target(&self, path: &[u8]) -> Result<Bytes> {
        let mut target = self.look(path).await?.target;
        if target.is_none() {
            // Some servers tell it in LIST only.
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            let listed = self.list_plainly(parent(path)).await.map_err(Error::from)?;
            target =
                listed.into_iter().find(|listed| &listed.name[..] == name).and_then(|listed| listed.target);
        }
        target.ok_or_else(|| Errno::EIO.because("the server does not tell where the link leads"))
    }

    async fn begin(
        &self,
        path: &[u8],
        offset: u64,
        before: Option<Version>,
    ) -> Result<(Option<Transfer>, Version)> {
        // Asked in one go with the content, these cost no time.
        let mut lines = Vec::new();
        let (size, mdtm) = (self.has("SIZE").await?, self.has("MDTM").await?);
        lines.extend(size.then(|| line("SIZE", path)).transpose()?);
        lines.extend(mdtm.then(|| line("MDTM", path)).transpose()?);
        lines.extend((offset > 0).then(|| line("REST", offset.to_string().as_bytes())).transpose()?);
        lines.push(line("RETR", path)?);
        let (session, data, replies) = match self.transfer(&lines).await {
            Ok(begun) => begun,
            Err(fault) => return self.nothing_there(fault, path, offset).await,
        };
        let mut replies = replies.into_iter();
        let mut answer = |asked: bool| asked.then(|| replies.next()).flatten().filter(Reply::is_good);
        let size = answer(size).and_then(|reply| std::str::from_utf8(reply.text()).ok()?.trim().parse().ok());
        let modified = answer(mdtm).and_then(|reply| timestamp(reply.text().trim_ascii()));
        let version = Version { size, modified };
        if offset > 0 && answer(true).is_none() {
            return Err(Errno::EOPNOTSUPP.because("the server cannot begin in the middle of a file (REST)"));
        }
        if before.is_some_and(|before| before != version) {
            return Err(Errno::ESTALE.because("the file was changed while the connection was lost"));
        }
        Ok((Some(Transfer { session, data }), version))
    }

    async fn receive(&self, transfer: &mut Option<Transfer>, buffer: &mut BytesMut) -> Result<bool> {
        let Some(Transfer { data, .. }) = transfer else { return Ok(true) };
        let outcome = match Session::receive(&self.dialer, data, buffer).await {
            Ok(0) => {
                let Some(Transfer { mut session, data }) = transfer.take() else { return Ok(true) };
                let finished = session.finish(&self.dialer, data).await;
                finished.map(|()| session.give_back())
            }
            received => received.map(drop),
        };
        match outcome {
            Err(Fault::Lost(_)) => Ok(false),
            outcome => Ok(outcome.map(|()| true)?),
        }
    }

    async fn store(&self, path: &[u8], staged: &Staged) -> Result<()> {
        self.store_staged(path, staged).await
    }

    async fn append(&self, path: &[u8], staged: &Staged) -> Result<()> {
        self.append_staged(path, staged).await
    }

    async fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        match self.replace(from, to).await {
            Err(fault) => Err(self.why(fault, Attempt::Rename { from, to, replaces: true }).await),
            Ok(()) => Ok(()),
        }
    }

    async fn make_dir(&self, path: &[u8], mode: u32) -> Result<()> {
        if let Err(fault) = self.change(&[line("MKD", path)?]).await {
            return Err(self.why(fault, Attempt::Make { path }).await);
        }
        if self.has("SITE CHMOD").await? {
            // Not every server lets every mode be: the directory is there.
            let _ = self.set_mode(path, mode).await;
        }
        Ok(())
    }

    async fn remove_dir(&self, path: &[u8]) -> Result<()> {
        match self.change(&[line("RMD", path)?]).await {
            Err(fault) => Err(self.why(fault, Attempt::RmDir { path }).await),
            Ok(()) => Ok(()),
        }
    }

    async fn remove(&self, path: &[u8]) -> Result<()> {
        match self.change(&[line("DELE", path)?]).await {
            Err(fault) => Err(self.why(fault, Attempt::Remove { path }).await),
            Ok(()) => Ok(()),
        }
    }

    async fn set_mode(&self, path: &[u8], mode: u32) -> Result<()> {
        let argument = [format!("CHMOD {mode:o} ").as_bytes(), path].concat();
        let reply = self.ask(true, &[line("SITE", &argument)?]).await.map_err(Error::from)?.remove(0);
        if reply.is_good() {
            return Ok(());
        }
        Err(self.why_not_set(Fault::Refused(reply), path).await)
    }

    async fn set_time(&self, path: &[u8], time: Time) -> Result<()> {
        self.change_time(path, time).await
    }
}

impl Host {
    /// Servers refuse to begin where a file has ended.
    async fn nothing_there(
        &self,
        fault: Fault,
        path: &[u8],
        offset: u64,
    ) -> Result<(Option<Transfer>, Version)> {
        if let (Fault::Refused(_), 1..) = (&fault, offset)
            && self.look(path).await?.size.is_some_and(|size| size <= offset)
        {
            return Ok((None, Version::default()));
        }
        Err(self.why(fault, Attempt::Open { path, writes: false }).await)
    }
}
