// SPDX-License-Identifier: MIT OR Apache-2.0
//! How content gets to the server, and what else changes there.

use crate::server::Host;
use crate::session::{Fault, line};
use outrigger_core::{Errno, Error, Result, Time};
use outrigger_proto_ftp::{Kind, stamp};
use outrigger_toolkit_remote::{Attempt, REPEATS, SILLY_PREFIX, Staged, join, parent, unique_name, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How much is read from a spool file at once, in bytes.
const PIECE: usize = 1 << 18;
/// What names begin with under which files are uploaded.
const UPLOAD_PREFIX: &str = ".outrigger-upload-";

impl Host {
    /// Appends what was staged. After a lost connection, what had arrived of it is not sent again.
    pub(crate) async fn append_staged(&self, path: &[u8], staged: &Staged) -> Result<()> {
        let state = staged.state();
        let mut from = state.base;
        for attempt in 0..=REPEATS {
            let there = self.look(path).await?.size.unwrap_or(0);
            // What others have appended would be in the way of what was written at this place.
            let most = if attempt > 0 { state.size } else { state.base };
            if there < state.base || there > most {
                return Err(Errno::ESTALE.because("the file was changed by others while it was appended to"));
            }
            if attempt > 0 {
                from = there;
            }
            match self.send(&[line("APPE", path)?], staged, from).await {
                Err(Fault::Lost(_)) if attempt < REPEATS => {}
                Err(fault) => return Err(self.why(fault, Attempt::Open { path, writes: true }).await),
                Ok(()) => return Ok(()),
            }
        }
        Err(Errno::EIO.into())
    }

    /// Sends a whole file: under another name first, where the directory permits that.
    pub(crate) async fn store_staged(&self, path: &[u8], staged: &Staged) -> Result<()> {
        let chmod = self.has("SITE CHMOD").await?;
        let mode = format!("CHMOD {:o} ", staged.state().mode & 0o7777).into_bytes();
        let permit = |path: &[u8]| line("SITE", &[&mode[..], path].concat());
        let mut last = Fault::Lost(Errno::EIO.into());
        // One name for all attempts: each replaces what the one before has left.
        let aside = join(parent(path).to_vec(), &unique_name(UPLOAD_PREFIX)?)?;
        for _ in 0..=REPEATS {
            if !self.dialer.options.temporary {
                break;
            }
            match self.send(&[line("STOR", &aside)?], staged, 0).await {
                Ok(()) => {
                    if chmod {
                        // Some servers refuse that for some files; the content matters more.
                        self.ask(true, &[permit(&aside)?]).await.map_err(Error::from)?;
                    }
                    if let Err(fault) = self.replace(&aside, path).await {
                        let error = self.why(fault, Attempt::Make { path }).await;
                        let _ = self.change(&[line("DELE", &aside)?]).await;
                        return Err(error);
                    }
                    return Ok(());
                }
                Err(Fault::Lost(error)) => last = Fault::Lost(error),
                // Where no file can be made the old one may still be written to. A full disk would only cost its content.
                Err(fault @ Fault::Refused(_)) if forbids_names(&fault) => {
                    last = fault;
                    break;
                }
                Err(fault) => {
                    // A part of it may be there.
                    let _ = self.change(&[line("DELE", &aside)?]).await;
                    return Err(self.why(fault, Attempt::Write { path }).await);
                }
            }
        }
        if self.dialer.options.temporary && matches!(last, Fault::Lost(_)) {
            // The server may be full of it.
            let _ = self.change(&[line("DELE", &aside)?]).await;
            return Err(last.into());
        }
        match self.send(&[line("STOR", path)?], staged, 0).await {
            Err(fault) => Err(self.why(fault, Attempt::Open { path, writes: true }).await),
            Ok(()) if chmod => self.ask(true, &[permit(path)?]).await.map(drop).map_err(Into::into),
            Ok(()) => Ok(()),
        }
    }

    /// Sends a staged file from `from` on as the content of a transfer.
    async fn send(&self, lines: &[Vec<u8>], staged: &Staged, from: u64) -> Result<(), Fault> {
        let limit = self.dialer.options.timeout;
        let (mut session, mut data, _) = self.transfer(lines).await?;
        let mut at = from;
        let sent = loop {
            let piece = staged.read(at, PIECE)?;
            if piece.is_empty() {
                let ended = async {
                    data.shutdown().await?;
                    // Closed with something unread, as a ticket of TLS, the connection would be reset, and what was sent lost.
                    while data.read(&mut [0; 256]).await? > 0 {}
                    Ok::<_, std::io::Error>(())
                };
                break within(limit, "sending", ended).await;
            }
            if let Err(error) = within(limit, "sending", data.write_all(&piece)).await {
                break Err(error);
            }
            at += piece.len() as u64;
        };
        // A server that has no room says so, and ends the transfer.
        let finished = session.finish(&self.dialer, data).await;
        match (sent, finished) {
            (_, Err(fault @ Fault::Refused(_))) => {
                session.give_back();
                Err(fault)
            }
            (Err(error), _) => Err(Fault::Lost(error)),
            (Ok(()), Err(fault)) => Err(fault),
            (Ok(()), Ok(())) => {
                session.give_back();
                Ok(())
            }
        }
    }

    async fn rename_lines(&self, from: &[u8], to: &[u8]) -> Result<(), Fault> {
        self.change(&[line("RNFR", from)?, line("RNTO", to)?]).await
    }

    /// Renames, replacing a file: servers that do not replace have it moved aside first, so that it is there again when the rename
    /// fails.
    pub(crate) async fn replace(&self, from: &[u8], to: &[u8]) -> Result<(), Fault> {
        let refused = match self.rename_lines(from, to).await {
            Err(Fault::Refused(reply)) => Fault::Refused(reply),
            outcome => return outcome,
        };
        let kinds = [self.listed(from).await?.kind, self.listed(to).await.map_err(|_| refused.clone())?.kind];
        if kinds.contains(&Kind::Directory) {
            return Err(refused);
        }
        let aside = join(parent(to).to_vec(), &unique_name(SILLY_PREFIX)?)?;
        self.rename_lines(to, &aside).await.map_err(|_| refused)?;
        match self.rename_lines(from, to).await {
            Ok(()) => self.change(&[line("DELE", &aside)?]).await,
            Err(fault) => {
                self.rename_lines(&aside, to).await?;
                Err(fault)
            }
        }
    }

    /// Sets the time of change by whatever the server has for that.
    pub(crate) async fn change_time(&self, path: &[u8], time: Time) -> Result<()> {
        let stamp = stamp(time.secs);
        let with = |verb, before: &str, after: &str| {
            line(verb, &[before.as_bytes(), path, after.as_bytes()].concat())
        };
        let mut ways = Vec::new();
        if self.has("MFMT").await? {
            ways.push(with("MFMT", &format!("{stamp} "), "")?);
        } else {
            // vsftpd's way, and that of older servers.
            ways.push(with("MDTM", &format!("{stamp} "), "")?);
            ways.push(with("SITE", &format!("UTIME {stamp} "), "")?);
            ways.push(with("SITE", "UTIME ", &format!(" {stamp} {stamp} {stamp} UTC"))?);
        }
        let mut refused = None;
        for way in ways {
            let reply = self.ask(true, &[way]).await.map_err(Error::from)?.remove(0);
            if reply.is_good() {
                return Ok(());
            }
            refused = Some(reply);
        }
        match refused {
            Some(reply) => Err(self.why_not_set(Fault::Refused(reply), path).await),
            None => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    pub(crate) async fn why_not_set(&self, fault: Fault, path: &[u8]) -> Error {
        let error = Error::from(fault);
        match (error.errno, self.look(path).await) {
            (Errno::EIO, Ok(_)) => Errno::EPERM.because(error.reason.unwrap_or_default()),
            (Errno::EIO, Err(missing)) => missing,
            _ => error,
        }
    }
}

/// Whether a refusal is about making a name, as far as it shows.
fn forbids_names(fault: &Fault) -> bool {
    let errno = Error::from(fault.clone()).errno;
    matches!(fault, Fault::Refused(reply) if matches!(reply.code, 550 | 553))
        && ![Errno::ENOSPC, Errno::EDQUOT, Errno::EROFS].contains(&errno)
}
