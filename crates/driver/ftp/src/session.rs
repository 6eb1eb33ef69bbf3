// SPDX-License-Identifier: MIT OR Apache-2.0
//! A control connection, and the data connections that it opens.

use crate::options::Options;
use bytes::Bytes;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_ftp::{Bad, Features, Replies, Reply, command, pwd};
use outrigger_toolkit_remote::{
    Fault as AnyFault, Login, Refusal, Stream, Tls, connect_tcp, errno_at_end, is_quiet, quoted,
    receive_message, send_message,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What to do where the server says nothing before TLS.
const IMPLICIT: &str = "where TLS has to begin before that, the option implicit_tls has it so";

/// A reply that refuses something.
#[derive(Debug, Clone)]
pub struct Refused(Reply);

/// Why something was not done.
pub(crate) type Fault = AnyFault<Refused>;

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
        self.0.refuses_for_good()
    }

    fn is_unknown(&self) -> bool {
        self.0.is_unknown()
    }
}

/// A refusal, if the reply is one.
pub(crate) fn good(reply: Reply) -> Result<Reply, Fault> {
    if reply.is_good() { Ok(reply) } else { Err(Fault::Refused(Refused(reply))) }
}

/// A reply for a message.
fn said(reply: &Reply) -> String {
    format!("{} {}", reply.code, quoted(reply.text()))
}

fn odd(bad: Bad) -> Error {
    Errno::EPROTO.because(format!("the server breaks the protocol: {bad}"))
}

/// A line of the control connection.
///
/// # Errors
/// `EINVAL` for a name that FTP cannot carry.
pub(crate) fn line(verb: &str, argument: &[u8]) -> Result<Vec<u8>> {
    command(verb, argument).map_err(unfit)
}

/// The error for a name that FTP cannot carry.
pub(crate) fn unfit(bad: Bad) -> Error {
    Errno::EINVAL.because(bad.to_string())
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
    dialer: Arc<Dialer>,
    control: Box<dyn Stream>,
    replies: Replies,
    /// The address of the server: data connections go nowhere else.
    peer: String,
    tls: Option<Tls>,
    /// What the server can do.
    pub(crate) features: Features,
    /// The directory that it begins in.
    pub(crate) home: Vec<u8>,
}

/// A data connection, whose control connection owes the last reply.
pub(crate) type Data = Box<dyn Stream>;

impl Dialer {
    /// Connects and logs in.
    ///
    /// # Errors
    /// Why there is no connection; `EACCES` when the login is refused.
    pub(crate) async fn dial(self: &Arc<Self>) -> Result<Session> {
        let limit = self.options.files.timeout;
        let stream = connect_tcp(&self.host, self.port, limit).await?;
        let peer = stream.peer_addr()?.ip().to_string();
        let (replies, features, home) = Default::default();
        let mut control: Box<dyn Stream> = Box::new(stream);
        // A session that is resumed must be one of the same control connection: servers look for that.
        let tls = self.tls.as_ref().map(Tls::separate);
        if let Some(tls) = tls.as_ref().filter(|_| self.options.implicit_tls) {
            control = tls.wrap(control, limit).await?;
        }
        let mut session = Session { dialer: Arc::clone(self), control, replies, peer, tls, features, home };
        let hello = session.reply(true).await.map_err(|fault| match self.options.implicit_tls {
            false if self.tls.is_some() => fault.advised(Errno::ETIMEDOUT, IMPLICIT),
            _ => fault,
        });
        self.accepted(&hello?, "no service")?;
        if let Some(tls) = session.tls.clone().filter(|_| !self.options.implicit_tls) {
            let reply = session.ask(&[line("AUTH", b"TLS")?]).await?.remove(0);
            self.accepted(&reply, "the server has no TLS")?;
            // What came in clear after this would be taken for an answer inside.
            if !session.replies.is_empty() {
                return Err(Errno::EPROTO.because("the server sent more before TLS began"));
            }
            session.control = tls.wrap(session.control, limit).await?;
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
            for reply in session.ask(&[line("PBSZ", b"0")?, line("PROT", b"P")?]).await? {
                self.accepted(&reply, "the server does not protect data connections")?;
            }
        }
        let Login { user, password } = &self.login;
        let mut replies = session.ask(&[line("USER", user.as_bytes())?]).await?;
        if replies[0].code == 331 {
            if self.tls.is_none() && user != "anonymous" {
                tracing::warn!(host = self.host, "the password is sent in clear; ftps:// protects it");
            }
            replies = session.ask(&[line("PASS", password.reveal().as_bytes())?]).await?;
        }
        self.accepted(&replies[0], &format!("the server refuses the login of {user}"))?;
        if replies[0].code >= 300 {
            return Err(Errno::EACCES.because(format!("{}: the login needs an account", self.host)).into());
        }
        let mut lines =
            vec![line("TYPE", b"I")?, line("FEAT", b"")?, line("PWD", b"")?, line("SITE", b"HELP")?];
        lines.extend((!self.options.no_utf8).then(|| line("OPTS", b"UTF8 ON")).transpose()?);
        let replies = session.ask(&lines).await?;
        if !replies[0].is_good() {
            let why = "the server cannot transfer bytes as they are (TYPE I)";
            return Err(Errno::EPROTO.because(why).into());
        }
        session.features = Features::of(&replies[1]).with_site(&replies[3]);
        session.home = pwd(replies[2].text()).unwrap_or_else(|_| b"/".to_vec());
        if let Some(facts) = session.features.mlst_selection() {
            session.ask(&[line("OPTS", facts.as_bytes())?]).await?;
        }
        Ok(())
    }
}

impl Session {
    /// Whether nothing came on an idle connection: neither its end nor a farewell.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.replies.is_empty() && is_quiet(&mut *self.control)
    }

    async fn tell(&mut self, lines: &[Vec<u8>]) -> Result<(), Fault> {
        send_message(&mut *self.control, self.dialer.options.files.timeout, &lines.concat()).await
    }

    /// The next reply; with `last`, the next that no other one follows.
    async fn reply(&mut self, last: bool) -> Result<Reply, Fault> {
        let (limit, replies) = (self.dialer.options.files.timeout, &mut self.replies);
        let take = |came: &[u8]| {
            replies.push(came);
            loop {
                match replies.take_next().map_err(odd)? {
                    Some(reply) if last && reply.is_preliminary() => {}
                    reply => return Ok(reply),
                }
            }
        };
        let mut reply = receive_message(&mut *self.control, limit, take).await?;
        if !reply.is_good() {
            let masked = |line: &mut Bytes| *line = self.dialer.login.password.masked(line).into();
            reply.lines.iter_mut().for_each(masked);
        }
        if reply.code == 421 { Err(Fault::Lost(Refused(reply).error())) } else { Ok(reply) }
    }

    /// The next replies to so many commands.
    async fn replies(&mut self, count: usize) -> Result<Vec<Reply>, Fault> {
        let mut replies = Vec::new();
        while replies.len() < count {
            replies.push(self.reply(true).await?);
        }
        Ok(replies)
    }

    /// Sends commands at once; their answers.
    pub(crate) async fn ask(&mut self, lines: &[Vec<u8>]) -> Result<Vec<Reply>, Fault> {
        self.tell(lines).await?;
        self.replies(lines.len()).await
    }

    /// Opens a data connection with the last of `lines`; the answers to those before it.
    pub(crate) async fn transfer(&mut self, lines: &[Vec<u8>]) -> Result<(Data, Vec<Reply>), Fault> {
        let (limit, port) = (self.dialer.options.files.timeout, self.passive().await?);
        let peer = self.peer.clone();
        let connect = async { connect_tcp(&peer, port, limit).await.map_err(Fault::Lost) };
        let ask = async {
            self.tell(lines).await?;
            let replies = self.replies(lines.len() - 1).await?;
            let begun = good(self.reply(false).await?)?;
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
        Err(Fault::Lost(match self.reply(true).await {
            Ok(reply) if !reply.is_good() => {
                let hint = "it may demand that TLS sessions are reused";
                Errno::EACCES.because(format!("{error}; the server says: {} ({hint})", said(&reply)))
            }
            _ => error,
        }))
    }

    async fn passive(&mut self) -> Result<u16, Fault> {
        let mut reply = None;
        if !self.dialer.without_epsv.load(Ordering::Relaxed) {
            let answer = self.ask(&[line("EPSV", b"")?]).await?.remove(0);
            reply = Some(answer).filter(|reply| !(500..600).contains(&reply.code));
            self.dialer.without_epsv.store(reply.is_none(), Ordering::Relaxed);
        }
        let reply = match reply {
            Some(reply) => reply,
            None => self.ask(&[line("PASV", b"")?]).await?.remove(0),
        };
        match reply.data_port() {
            Some(port) => port.map_err(|bad| Fault::Lost(odd(bad))),
            None => Err(Fault::Refused(Refused(reply))),
        }
    }

    /// A data connection has ended; the transfer is complete only if the server says so.
    pub(crate) async fn finish(&mut self) -> Result<Reply, Fault> {
        let reply = self.reply(true).await?;
        match reply.code {
            425 | 426 => Err(Fault::Lost(Refused(reply).error())),
            _ => good(reply),
        }
    }
}
