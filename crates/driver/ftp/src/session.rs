// SPDX-License-Identifier: MIT OR Apache-2.0
//! A control connection, and the data connections that it opens.

use crate::options::Options;
use bytes::Bytes;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_ftp::{Bad, Features, Replies, Reply, command, epsv, pasv};
use outrigger_toolkit_remote::{
    Fault as AnyFault, Login, Refusal, Stream, Tls, connect_tcp, errno_at_end, is_quiet, within,
};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A reply that refuses something.
#[derive(Debug, Clone)]
pub struct Refused(Reply);

/// What ProFTPD says of a command that its settings forbid for all files.
const SETTING: &[u8] = b"Append/Restart not permitted";

/// Why something was not done.
pub(crate) type Fault = AnyFault<Refused>;

impl Refused {
    /// Whether the server does not know the command, or this form of it.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.0.code, 500 | 501 | 502 | 504)
    }
}

impl Refusal for Refused {
    fn error(&self) -> Error {
        let errno = match self.0.code {
            452 | 552 => Errno::ENOSPC,
            _ if self.is_unknown() => Errno::EOPNOTSUPP,
            530 | 532 => Errno::EACCES,
            _ => errno_at_end(self.0.text()).unwrap_or(Errno::EIO),
        };
        errno.because(format!("the server says: {}", said(&self.0)))
    }

    fn usual(&self) -> Option<Errno> {
        let usual = match self.0.code {
            450 | 451 => Errno::EIO,
            550 | 553 => Errno::EACCES,
            _ => return None,
        };
        (self.error().errno == Errno::EIO).then_some(usual)
    }

    fn is_for_good(&self) -> bool {
        // ProFTPD answers so to every APPE where AllowStoreRestart is off, with a code that says the opposite.
        let names_a_setting = self.0.text().windows(SETTING.len()).any(|words| words == SETTING);
        matches!(self.0.code, 500 | 502 | 504) || self.0.code == 451 && names_a_setting
    }
}

/// A refusal, if the reply is one.
pub(crate) fn good(reply: Reply) -> Result<Reply, Fault> {
    if reply.is_good() { Ok(reply) } else { Err(Fault::Refused(Refused(reply))) }
}

/// A reply for a message: only what would control a terminal is escaped, so that it reads as the server has written it.
fn said(reply: &Reply) -> String {
    let mut said = format!("{} ", reply.code);
    for char in String::from_utf8_lossy(reply.text()).chars() {
        match char.is_control() {
            true => said.extend(char.escape_debug()),
            false => said.push(char),
        }
    }
    said
}

fn odd(bad: Bad) -> Error {
    Errno::EPROTO.because(format!("the server breaks the protocol: {bad}"))
}

/// A line of the control connection.
///
/// # Errors
/// `EINVAL` for a name that FTP cannot carry.
pub(crate) fn line(verb: &str, argument: &[u8]) -> Result<Vec<u8>> {
    command(verb, argument).map_err(|bad| Errno::EINVAL.because(bad.to_string()))
}

/// How a server is reached, and what was learned about it.
pub(crate) struct Dialer {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) login: Login,
    pub(crate) options: Options,
    pub(crate) tls: Option<Tls>,
    /// The server does not know EPSV.
    pub(crate) without_epsv: AtomicBool,
    /// The server knows `LIST -a`.
    pub(crate) lists_all: AtomicBool,
}

/// A control connection after login.
pub(crate) struct Session {
    control: Box<dyn Stream>,
    replies: Replies,
    /// The address of the server: data connections go nowhere else.
    peer: String,
    tls: Option<Tls>,
    /// The answers to FEAT, PWD and SITE HELP.
    pub(crate) greeting: [Reply; 3],
}

/// A data connection, whose control connection owes the last reply.
pub(crate) type Data = Box<dyn Stream>;

impl Dialer {
    /// Connects and logs in.
    ///
    /// # Errors
    /// Why there is no connection; `EACCES` when the login is refused.
    pub(crate) async fn dial(&self) -> Result<Session> {
        let stream = connect_tcp(&self.host, self.port, self.options.files.timeout).await?;
        let peer = stream.peer_addr()?.ip().to_string();
        let greeting = std::array::from_fn(|_| Reply { code: 0, lines: Vec::new() });
        let control = Box::new(stream);
        let mut session = Session { control, replies: Replies::default(), peer, tls: None, greeting };
        self.accepted(&session.reply(self, true).await?, "no service")?;
        if let Some(tls) = &self.tls {
            let reply = session.ask(self, &[line("AUTH", b"TLS")?]).await?.remove(0);
            self.accepted(&reply, "the server has no TLS")?;
            // What came in clear after this would be taken for an answer inside.
            if !session.replies.is_empty() {
                return Err(Errno::EPROTO.because("the server sent more before TLS began"));
            }
            // A session that is resumed must be one of the same control connection: servers look for that.
            let tls = tls.separate();
            session.control = tls.wrap(session.control, self.options.files.timeout).await?;
            session.tls = Some(tls);
        }
        self.log_in(&mut session).await?;
        Ok(session)
    }

    fn accepted(&self, reply: &Reply, what: &str) -> Result<()> {
        match reply.is_good() {
            true => Ok(()),
            false => Err(Errno::EACCES.because(format!("{}: {what}: {}", self.host, said(reply)))),
        }
    }

    async fn log_in(&self, session: &mut Session) -> Result<(), Fault> {
        if session.tls.is_some() {
            for reply in session.ask(self, &[line("PBSZ", b"0")?, line("PROT", b"P")?]).await? {
                self.accepted(&reply, "the server does not protect data connections")?;
            }
        }
        let Login { user, password } = &self.login;
        let mut replies = session.ask(self, &[line("USER", user.as_bytes())?]).await?;
        if replies[0].code == 331 {
            if self.tls.is_none() && user != "anonymous" {
                tracing::warn!(host = self.host, "the password is sent in clear; ftps:// protects it");
            }
            replies = session.ask(self, &[line("PASS", password.reveal().as_bytes())?]).await?;
        }
        self.accepted(&replies[0], &format!("the server refuses the login of {user}"))?;
        if replies[0].code >= 300 {
            return Err(Errno::EACCES.because(format!("{}: the login needs an account", self.host)).into());
        }
        let mut lines =
            vec![line("TYPE", b"I")?, line("FEAT", b"")?, line("PWD", b"")?, line("SITE", b"HELP")?];
        lines.extend(self.options.utf8.then(|| line("OPTS", b"UTF8 ON")).transpose()?);
        let mut replies = session.ask(self, &lines).await?.into_iter();
        if !replies.next().is_some_and(|binary| binary.is_good()) {
            let why = "the server cannot transfer bytes as they are (TYPE I)";
            return Err(Errno::EPROTO.because(why).into());
        }
        session.greeting.iter_mut().zip(replies).for_each(|(known, reply)| *known = reply);
        if let Some(facts) = Features::of(&session.greeting[0]).mlst_selection() {
            session.ask(self, &[line("OPTS", facts.as_bytes())?]).await?;
        }
        Ok(())
    }
}

impl Session {
    /// Whether nothing came on an idle connection: neither its end nor a farewell.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.replies.is_empty() && is_quiet(&mut *self.control)
    }

    async fn tell(&mut self, dialer: &Dialer, lines: &[Vec<u8>]) -> Result<(), Fault> {
        let sent = within(dialer.options.files.timeout, "sending to the server", async {
            self.control.write_all(&lines.concat()).await?;
            self.control.flush().await
        });
        sent.await.map_err(Fault::Lost)
    }

    /// The next reply; with `last`, the next that no other one follows.
    async fn reply(&mut self, dialer: &Dialer, last: bool) -> Result<Reply, Fault> {
        let next = async {
            let mut buffer = [0; 4096];
            loop {
                match self.replies.take_next().map_err(odd)? {
                    Some(reply) if last && reply.is_preliminary() => {}
                    Some(reply) => return Ok(reply),
                    None => match self.control.read(&mut buffer).await? {
                        0 => return Err(Errno::EIO.because("the server closed the connection")),
                        count => self.replies.push(&buffer[..count]),
                    },
                }
            }
        };
        let reply = within(dialer.options.files.timeout, "waiting for an answer", next).await;
        let mut reply = reply.map_err(Fault::Lost)?;
        if !reply.is_good() {
            let masked = |line: &mut Bytes| *line = dialer.login.password.masked(line).into();
            reply.lines.iter_mut().for_each(masked);
        }
        if reply.code == 421 { Err(Fault::Lost(Refused(reply).error())) } else { Ok(reply) }
    }

    /// Sends commands at once; their answers.
    pub(crate) async fn ask(&mut self, dialer: &Dialer, lines: &[Vec<u8>]) -> Result<Vec<Reply>, Fault> {
        self.tell(dialer, lines).await?;
        let mut replies = Vec::new();
        for _ in lines {
            replies.push(self.reply(dialer, true).await?);
        }
        Ok(replies)
    }

    /// Opens a data connection with the last of `lines`; the answers to those before it.
    pub(crate) async fn transfer(
        &mut self,
        dialer: &Dialer,
        lines: &[Vec<u8>],
    ) -> Result<(Data, Vec<Reply>), Fault> {
        let (limit, port, peer) =
            (dialer.options.files.timeout, self.passive(dialer).await?, self.peer.clone());
        let connect = async { connect_tcp(&peer, port, limit).await.map_err(Fault::Lost) };
        let ask = async {
            self.tell(dialer, lines).await?;
            let mut replies = Vec::new();
            for _ in &lines[1..] {
                replies.push(self.reply(dialer, true).await?);
            }
            let begun = good(self.reply(dialer, false).await?)?;
            Ok((replies, begun))
        };
        // The server waits for the connection before it answers, and answers at once when it does not want one.
        let (stream, (replies, begun)) = tokio::try_join!(connect, ask)?;
        if !begun.is_preliminary() {
            return Err(Errno::EPROTO.because("the server ended a transfer before it began").into());
        }
        let Some(tls) = self.tls.clone() else { return Ok((Box::new(stream), replies)) };
        let error = match tls.wrap(Box::new(stream), limit).await {
            Ok(stream) => return Ok((stream, replies)),
            Err(error) => error,
        };
        // The server may say why: some want a session that is resumed, and do not take that of rustls.
        let reply = self.reply(dialer, true).await.ok().filter(|reply| !reply.is_good());
        Err(Fault::Lost(reply.map_or(error.clone(), |reply| {
            let hint = "it may demand that TLS sessions are reused";
            Errno::EACCES.because(format!("{error}; the server says: {} ({hint})", said(&reply)))
        })))
    }

    async fn passive(&mut self, dialer: &Dialer) -> Result<u16, Fault> {
        if !dialer.without_epsv.load(Ordering::Relaxed) {
            let reply = self.ask(dialer, &[line("EPSV", b"")?]).await?.remove(0);
            match reply.code {
                229 => return epsv(reply.text()).map_err(|bad| Fault::Lost(odd(bad))),
                500..600 => dialer.without_epsv.store(true, Ordering::Relaxed),
                _ => return Err(Fault::Refused(Refused(reply))),
            }
        }
        let reply = self.ask(dialer, &[line("PASV", b"")?]).await?.remove(0);
        match reply.code {
            227 => pasv(reply.text()).map_err(|bad| Fault::Lost(odd(bad))),
            _ => Err(Fault::Refused(Refused(reply))),
        }
    }

    /// A data connection has ended; the transfer is complete only if the server says so.
    pub(crate) async fn finish(&mut self, dialer: &Dialer) -> Result<Reply, Fault> {
        let reply = self.reply(dialer, true).await?;
        match reply.code {
            425 | 426 => Err(Fault::Lost(Refused(reply).error())),
            _ => good(reply),
        }
    }
}
