// SPDX-License-Identifier: MIT OR Apache-2.0
//! A control connection, and the data connections that it opens.

use crate::options::Options;
use bytes::BytesMut;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_ftp::{Bad, Replies, Reply, command, epsv, pasv};
use outrigger_toolkit_remote::{Login, Stream, Tls, connect_tcp, errno_of, within};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

/// Why something was not done.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The server says so.
    Refused(Reply),
    /// The connection was lost, so whether it was done is not known.
    Lost(Error),
    /// It was not asked.
    Known(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Known(error)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Fault::Known(errno.into())
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(reply) => {
                let words = String::from_utf8_lossy(reply.text()).escape_debug().to_string();
                errno_of_reply(&reply).because(format!("the server says: {} {words}", reply.code))
            }
            Fault::Lost(error) | Fault::Known(error) => error,
        }
    }
}

/// What a refusal means by itself.
fn errno_of_reply(reply: &Reply) -> Errno {
    let words = reply.text();
    let ends = |errno: &Errno| {
        let message = errno.message().as_bytes();
        words.len() >= message.len() && words[words.len() - message.len()..].eq_ignore_ascii_case(message)
    };
    let named = [
        Errno::ENOENT,
        Errno::EACCES,
        Errno::ENOSPC,
        Errno::EDQUOT,
        Errno::ENOTEMPTY,
        Errno::EEXIST,
        Errno::EROFS,
    ];
    match reply.code {
        452 | 552 => Errno::ENOSPC,
        500 | 501 | 502 | 504 => Errno::EOPNOTSUPP,
        530 | 532 => Errno::EACCES,
        _ => errno_of(words).or_else(|| named.into_iter().find(ends)).unwrap_or(Errno::EIO),
    }
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
        let (host, limit) = (&self.host, self.options.timeout);
        let stream = connect_tcp(host, self.port, limit).await?;
        let peer = stream.peer_addr()?.ip().to_string();
        let nothing = || Reply { code: 0, lines: Vec::new() };
        let greeting = [nothing(), nothing(), nothing()];
        // A session that is resumed must be one of the same control connection: servers look for that.
        let tls = self.tls.as_ref().map(Tls::separate);
        let mut plain = Plain { stream, replies: Replies::default() };
        let welcome = within(limit, format!("the greeting of {host}"), plain.last()).await?;
        self.good(&welcome, "no service")?;
        let control = match &tls {
            None => Box::new(plain.stream) as Data,
            Some(tls) => {
                within(limit, "AUTH TLS", async {
                    Ok::<_, Error>(plain.stream.write_all(b"AUTH TLS\r\n").await?)
                })
                .await?;
                let reply = within(limit, "AUTH TLS", plain.last()).await?;
                self.good(&reply, "the server has no TLS")?;
                // What came in clear after this would be taken for an answer inside.
                if !plain.replies.is_empty() {
                    return Err(Errno::EPROTO.because("the server sent more before TLS began"));
                }
                tls.wrap(plain.stream, limit).await?
            }
        };
        let mut session = Session { control, replies: Replies::default(), peer, tls, greeting };
        self.log_in(&mut session).await.map_err(Error::from)?;
        Ok(session)
    }

    fn good(&self, reply: &Reply, what: &str) -> Result<()> {
        let words = String::from_utf8_lossy(reply.text()).escape_debug().to_string();
        let (host, code) = (&self.host, reply.code);
        match reply.is_good() {
            true => Ok(()),
            false => Err(Errno::EACCES.because(format!("{host}: {what}: {code} {words}"))),
        }
    }

    async fn log_in(&self, session: &mut Session) -> Result<(), Fault> {
        if session.tls.is_some() {
            for reply in session.ask(self, &[line("PBSZ", b"0")?, line("PROT", b"P")?]).await? {
                self.good(&reply, "the server does not protect data connections")?;
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
        let refused = format!("the server refuses the login of {user}");
        self.good(&replies[0], &refused)?;
        if replies[0].code >= 300 {
            return Err(Errno::EACCES.because(format!("{}: the login needs an account", self.host)).into());
        }
        let mut lines =
            vec![line("TYPE", b"I")?, line("FEAT", b"")?, line("PWD", b"")?, line("SITE", b"HELP")?];
        lines.extend(self.options.utf8.then(|| line("OPTS", b"UTF8 ON")).transpose()?);
        let mut replies = session.ask(self, &lines).await?.into_iter();
        let binary = replies.next().filter(Reply::is_good);
        binary
            .ok_or_else(|| Errno::EPROTO.because("the server cannot transfer bytes as they are (TYPE I)"))?;
        session.greeting =
            std::array::from_fn(|_| replies.next().unwrap_or(Reply { code: 0, lines: Vec::new() }));
        Ok(())
    }
}

/// A control connection before TLS.
struct Plain {
    stream: tokio::net::TcpStream,
    replies: Replies,
}

impl Plain {
    async fn last(&mut self) -> Result<Reply> {
        next_reply(&mut self.stream, &mut self.replies, true).await
    }
}

/// The next reply, or the next that no other one follows.
async fn next_reply(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    replies: &mut Replies,
    last: bool,
) -> Result<Reply> {
    let odd = |bad: Bad| Errno::EPROTO.because(format!("the server breaks the protocol: {bad}"));
    let mut buffer = [0; 4096];
    loop {
        match replies.take_next().map_err(odd)? {
            Some(reply) if last && reply.is_preliminary() => {}
            Some(reply) => return Ok(reply),
            None => match stream.read(&mut buffer).await? {
                0 => return Err(Errno::EIO.because("the server closed the connection")),
                count => replies.push(&buffer[..count]),
            },
        }
    }
}

impl Session {
    /// Whether nothing came on an idle connection: neither its end nor a farewell.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut buffer = [0; 1];
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = ReadBuf::new(&mut buffer);
        self.replies.is_empty()
            && Pin::new(&mut self.control).poll_read(&mut context, &mut buffer).is_pending()
    }

    async fn send(&mut self, limit: std::time::Duration, bytes: &[u8]) -> Result<(), Fault> {
        let sent = within(limit, "sending to the server", async {
            self.control.write_all(bytes).await?;
            self.control.flush().await
        });
        sent.await.map_err(Fault::Lost)
    }

    /// The next reply; with `last`, preliminary ones are passed over.
    pub(crate) async fn reply(&mut self, dialer: &Dialer, last: bool) -> Result<Reply, Fault> {
        let next = next_reply(&mut self.control, &mut self.replies, last);
        let reply =
            within(dialer.options.timeout, "waiting for an answer", next).await.map_err(Fault::Lost)?;
        match reply.code {
            421 => Err(Fault::Lost(Error::from(Fault::Refused(reply)))),
            _ => Ok(reply),
        }
    }

    /// Sends commands at once; their answers.
    pub(crate) async fn ask(&mut self, dialer: &Dialer, lines: &[Vec<u8>]) -> Result<Vec<Reply>, Fault> {
        self.send(dialer.options.timeout, &lines.concat()).await?;
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
        let port = self.passive(dialer).await?;
        let peer = self.peer.clone();
        let connect = async { connect_tcp(&peer, port, dialer.options.timeout).await.map_err(Fault::Lost) };
        let ask = async {
            self.send(dialer.options.timeout, &lines.concat()).await?;
            let mut replies = Vec::new();
            for _ in &lines[1..] {
                replies.push(self.reply(dialer, true).await?);
            }
            let begun = self.reply(dialer, false).await?;
            Ok((replies, begun))
        };
        // The server waits for the connection before it answers, and answers at once when it does not want one.
        let (stream, (replies, begun)) = tokio::try_join!(connect, ask)?;
        match begun.is_preliminary() {
            false if begun.is_good() => {
                Err(Errno::EPROTO.because("the server ended a transfer before it began").into())
            }
            false => Err(Fault::Refused(begun)),
            true => match &self.tls {
                None => Ok((Box::new(stream), replies)),
                Some(tls) => match tls.wrap(stream, dialer.options.timeout).await {
                    Ok(stream) => Ok((stream, replies)),
                    Err(error) => Err(self.why_no_tls(dialer, error).await),
                },
            },
        }
    }

    /// The server may say why it has ended TLS on a data connection: some want a session that is resumed, and do not take that of
    /// rustls.
    async fn why_no_tls(&mut self, dialer: &Dialer, error: Error) -> Fault {
        match self.reply(dialer, true).await {
            Ok(reply) if !reply.is_good() => {
                let words = String::from_utf8_lossy(reply.text()).escape_debug().to_string();
                let why = format!(
                    "{error}; the server says: {} {words} (it may demand that TLS sessions are reused)",
                    reply.code
                );
                Fault::Lost(Errno::EACCES.because(why))
            }
            _ => Fault::Lost(error),
        }
    }

    async fn passive(&mut self, dialer: &Dialer) -> Result<u16, Fault> {
        let odd = |bad: Bad| Fault::Lost(Errno::EPROTO.because(bad.to_string()));
        if !dialer.without_epsv.load(Ordering::Relaxed) {
            let reply = self.ask(dialer, &[line("EPSV", b"")?]).await?.remove(0);
            match reply.code {
                229 => return epsv(reply.text()).map_err(odd),
                500..600 => dialer.without_epsv.store(true, Ordering::Relaxed),
                _ => return Err(Fault::Refused(reply)),
            }
        }
        let reply = self.ask(dialer, &[line("PASV", b"")?]).await?.remove(0);
        match reply.code {
            227 => pasv(reply.text()).map_err(odd),
            _ => Err(Fault::Refused(reply)),
        }
    }

    /// Reads more of a data connection to the end of `buffer`; 0 at its end.
    pub(crate) async fn receive(
        dialer: &Dialer,
        data: &mut Data,
        buffer: &mut BytesMut,
    ) -> Result<usize, Fault> {
        let read = within(dialer.options.timeout, "receiving", data.read_buf(buffer));
        read.await.map_err(Fault::Lost)
    }

    /// Ends a data connection; the transfer is complete only if the server says so.
    pub(crate) async fn finish(&mut self, dialer: &Dialer, data: Data) -> Result<(), Fault> {
        drop(data);
        let reply = self.reply(dialer, true).await?;
        match reply.code {
            425 | 426 => Err(Fault::Lost(Error::from(Fault::Refused(reply)))),
            _ if reply.is_good() => Ok(()),
            _ => Err(Fault::Refused(reply)),
        }
    }
}
