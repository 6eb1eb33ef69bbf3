// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections to servers: TCP, and TLS over it. Each step has a deadline.

use crate::fault::Fault;
use crate::staging::Staged;
use bytes::BytesMut;
use outrigger_core::{Errno, Error, Result};
use outrigger_toolkit_tls::{certificates, own};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::fmt;
use std::future::{Future, pending};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How much of a staged file is read at once, in bytes.
const PIECE: usize = 1 << 18;

/// What a line of a listing takes in memory beside its text, in bytes: what it says, twice while names are put in order, and
/// the name in an allocation of its own.
const LINE: usize = 448;

/// A connection of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The result of `work`, within a time.
///
/// # Errors
/// `ETIMEDOUT`, and what `work` fails with; both say what was tried.
pub async fn within<T, E: Into<Error>>(
    limit: Duration,
    what: impl fmt::Display,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            let error = error.into();
            let why = error.reason.as_deref().map_or_else(|| error.errno.message().to_owned(), str::to_owned);
            Err(error.errno.because(format!("{what}: {why}")))
        }
        Err(_) => {
            let seconds = limit.as_secs_f32();
            Err(Errno::ETIMEDOUT.because(format!("{what}: nothing came for {seconds} s")))
        }
    }
}

/// Connects to a port of a host.
///
/// # Errors
/// Why there is no connection.
pub async fn connect_tcp(host: &str, port: u16, limit: Duration) -> Result<TcpStream> {
    let stream = within(limit, format!("connecting to {host} port {port}"), async {
        let addresses: Vec<_> = tokio::net::lookup_host((host, port))
            .await
            .map_err(|error| {
                // The resolver has no error numbers.
                Errno::EHOSTUNREACH.because(format!("the host is not found: {error}"))
            })?
            .collect();
        Ok::<_, Error>(TcpStream::connect(&addresses[..]).await?)
    });
    let stream = stream.await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether nothing has come on a connection: neither its end nor something unasked.
pub fn is_quiet(stream: &mut dyn Stream) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut [0])).is_pending()
}

/// Sends a staged file from `from` on, and that this is all, on a connection for it; `finish` is what the server says to that on
/// another one. A server that has no room says so, and ends the transfer.
///
/// # Errors
/// Those of the connection and of the spool file, `ETIMEDOUT` when nothing is taken for so long, and those of `finish`.
pub async fn send_staged<R>(
    mut stream: Box<dyn Stream>,
    (staged, from): (&Staged, u64),
    limit: Duration,
    finish: impl Future<Output = Result<(), Fault<R>>>,
) -> Result<(), Fault<R>> {
    if let Err(error) = send_from(&mut stream, staged, from, limit).await {
        drop(stream);
        return match finish.await {
            Err(fault @ Fault::Refused(_)) => Err(fault),
            _ => Err(Fault::Lost(error)),
        };
    }
    // Closed with something unread, as a ticket of TLS, the connection would be reset, and what was sent lost. Whether the server
    // closes it does not matter once it has answered.
    let rest = async {
        while stream.read(&mut [0; 256]).await.is_ok_and(|count| count > 0) {}
        pending().await
    };
    tokio::select! {
        finished = finish => finished,
        never = rest => never,
    }
}

async fn send_from(
    stream: &mut Box<dyn Stream>,
    staged: &Staged,
    mut at: u64,
    limit: Duration,
) -> Result<()> {
    loop {
        let piece = staged.read(at, PIECE)?;
        if piece.is_empty() {
            return within(limit, "sending", stream.shutdown()).await;
        }
        within(limit, "sending", stream.write_all(&piece)).await?;
        at += piece.len() as u64;
    }
}

/// Gives the lines that come to `take`: without what ends them, and what is left at the end as one.
///
/// # Errors
/// Those of the connection, `ETIMEDOUT` when nothing comes for so long, `EPROTO` for a line without an end, and `EFBIG` when
/// what is made of the lines takes more than `most` bytes of memory, which `option` permits: the lines themselves, and `LINE`
/// for each.
pub async fn receive_lines<R>(
    stream: &mut Box<dyn Stream>,
    (limit, line_max): (Duration, usize),
    (most, option): (usize, &str),
    mut take: impl FnMut(&[u8]),
) -> Result<(), Fault<R>> {
    let (mut buffer, mut size, mut is_end) = (BytesMut::new(), 0_usize, false);
    while !is_end {
        buffer.reserve(1 << 14);
        let count = within(limit, "receiving", stream.read_buf(&mut buffer)).await.map_err(Fault::Lost)?;
        is_end = count == 0;
        loop {
            let line = match buffer.iter().position(|&byte| byte == b'\n') {
                Some(end) => buffer.split_to(end + 1),
                None if buffer.len() > line_max => {
                    let why = format!("the server lists a line of more than {line_max} bytes");
                    return Err(Errno::EPROTO.because(why).into());
                }
                None if is_end && !buffer.is_empty() => buffer.split(),
                None => break,
            };
            size = size.saturating_add(line.len() + LINE);
            if size > most {
                let why = format!(
                    "what the server lists takes more than {most} bytes of memory; {option}=BYTES permits more"
                );
                return Err(Errno::EFBIG.because(why).into());
            }
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            take(line.strip_suffix(b"\r").unwrap_or(line));
        }
    }
    Ok(())
}

/// Sends a message.
///
/// # Errors
/// Those of the connection, and `ETIMEDOUT` when it is not taken in time.
pub async fn send_message<R>(
    stream: &mut dyn Stream,
    limit: Duration,
    message: &[u8],
) -> Result<(), Fault<R>> {
    let sent = within(limit, "sending to the server", async {
        stream.write_all(message).await?;
        stream.flush().await
    });
    sent.await.map_err(Fault::Lost)
}

/// Receives until `take` has put a whole message together from what came: it gets that piece by piece, at first an empty one.
///
/// # Errors
/// Those of the connection and of `take`, `EIO` where it ends before, and `ETIMEDOUT` when the message is not whole in time.
pub async fn receive_message<T, R>(
    stream: &mut dyn Stream,
    limit: Duration,
    mut take: impl FnMut(&[u8]) -> Result<Option<T>>,
) -> Result<T, Fault<R>> {
    let received = within(limit, "waiting for an answer", async {
        let (mut buffer, mut count) = ([0; 4096], 0);
        loop {
            if let Some(message) = take(&buffer[..count])? {
                return Ok(message);
            }
            count = stream.read(&mut buffer).await?;
            if count == 0 {
                return Err(Errno::EIO.because("the server closed the connection"));
            }
        }
    });
    received.await.map_err(Fault::Lost)
}

/// How servers are known over TLS.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// The user has said which certificates are trusted.
    is_pinned: bool,
    /// The file of the certificate that the server is shown.
    shown: Option<PathBuf>,
}

impl Tls {
    /// Servers called `host` that the certificates of this system vouch for, or those in the PEM file `trusted`, one of which may
    /// also be the server's own.
    ///
    /// # Errors
    /// `EINVAL` for a host that no certificate can name, and for a file that has no certificates.
    pub fn new(host: &str, trusted: Option<&Path>) -> Result<Self> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Errno::EINVAL.because(format!("no certificate can be for the host {host}")))?;
        let trusts = match trusted {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusts.iter().cloned());
        let pinned = if trusted.is_some() { trusts } else { Vec::new() };
        let refused =
            |error: &dyn fmt::Display| Errno::EINVAL.because(format!("TLS cannot be set up: {error}"));
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(&error))?;
        if roots.is_empty() && trusted.is_none() {
            // A system without authorities trusts no server.
            let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
            return Ok(Tls { config, name, is_pinned: false, shown: None });
        }
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = Verifier { usual: usual.map_err(|error| refused(&error))?, pinned };
        let config = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let config = Arc::new(config.with_no_client_auth());
        Ok(Tls { config, name, is_pinned: trusted.is_some(), shown: None })
    }

    /// The same, where the server is asked for `protocol` (ALPN, RFC 7301), and shown the certificate in the PEM file `cert`, if one is named,
    /// whose key is in the file `key`. Each connection shows it: sessions are not resumed.
    ///
    /// # Errors
    /// What is wrong with these files, as for [`own`].
    pub fn showing(&self, own_files: Option<(&Path, &Path)>, protocol: &str) -> Result<Self> {
        let mut config = self.config(&[protocol]);
        config.resumption = Resumption::disabled();
        if let Some((cert, key)) = own_files {
            let own = own(cert, key, &ring::default_provider())?;
            config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(own));
        }
        let shown = own_files.map(|(cert, _)| cert.to_owned());
        Ok(Tls { config: Arc::new(config), shown, ..self.clone() })
    }

    /// What a library takes that makes the connections itself, and has the server choose one of these protocols (RFC 7301).
    pub fn config(&self, protocols: &[&str]) -> ClientConfig {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// Why a connection did not come about, or has ended: the errno and the reason that are behind `error`, which may be one of
    /// ours.
    pub fn why_lost(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        let (mut next, mut last) = (Some(error), error);
        while let Some(error) = next {
            let io = error.downcast_ref::<std::io::Error>();
            let inner =
                io.and_then(std::io::Error::get_ref).map(|inner| inner as &(dyn std::error::Error + 'static));
            if let Some(refused) = inner.unwrap_or(error).downcast_ref::<rustls::Error>() {
                return Errno::EACCES.because(self.advice(refused));
            }
            if let Some(own) = inner.unwrap_or(error).downcast_ref::<Error>() {
                return own.clone();
            }
            if let Some(code) = io.and_then(std::io::Error::raw_os_error) {
                return Errno(code).into();
            }
            (last, next) = (error, inner.or_else(|| error.source()));
        }
        Errno::EIO.because(last.to_string())
    }

    /// The same, where sessions are resumed among the connections that this copy makes only.
    #[must_use]
    pub fn separate(&self) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::in_memory_sessions(16);
        Tls { config: Arc::new(config), ..self.clone() }
    }

    /// Why TLS does not come about, and what to do about it.
    fn advice(&self, refused: &rustls::Error) -> String {
        match refused {
            rustls::Error::InvalidCertificate(
                why @ (CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
                | CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. }),
            ) => format!("the server's certificate is not taken: {why}"),
            rustls::Error::InvalidCertificate(_) if self.is_pinned => {
                format!("it is none of the certificates in ca=FILE, and not signed by one ({refused})")
            }
            rustls::Error::InvalidCertificate(_) => format!(
                "nothing that this system trusts vouches for the certificate: if you know that it is the server's, --opt ca=FILE, for a \
                 mount -o ca=FILE, trusts the one in FILE, in PEM, which is the server's own or that of its authority ({refused})"
            ),
            rustls::Error::InvalidMessage(_) => format!("what the server sends is no TLS ({refused})"),
            rustls::Error::AlertReceived(alert) => self.told(*alert).unwrap_or_else(|| refused.to_string()),
            _ => refused.to_string(),
        }
    }

    /// Why the server has ended the connection, as far as that is about what it is shown.
    fn told(&self, alert: AlertDescription) -> Option<String> {
        let Some(shown) = self.shown.as_ref().map(|path| path.display()) else {
            let why = "the server wants a certificate of the client, and was shown none: wire:// has the options cert=FILE and key=FILE for it";
            return (alert == AlertDescription::CertificateRequired).then(|| why.to_owned());
        };
        Some(match alert {
            // Of an authority that has the name of a known one, the signature is what is wrong.
            AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                format!(
                    "the server does not know who has signed the certificate in {shown} ({alert:?}): its authority has to be among those that the server takes"
                )
            }
            AlertDescription::CertificateExpired => {
                format!(
                    "the certificate in {shown} has expired, or is not valid yet, by the clock of the server"
                )
            }
            AlertDescription::CertificateUnknown
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate => format!(
                "the server does not take the certificate in {shown} ({alert:?}): it may let in other clients only, or it is for another purpose; its log says which"
            ),
            _ => return None,
        })
    }

    /// Speaks TLS over a connection.
    ///
    /// # Errors
    /// `EACCES` for a certificate that is not for this server or that no authority vouches for.
    pub async fn wrap(&self, stream: Box<dyn Stream>, limit: Duration) -> Result<Box<dyn Stream>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let name = self.name.to_str().into_owned();
        let stream = within(limit, format!("TLS with {name}"), async {
            connector.connect(self.name.clone(), stream).await.map_err(|error| match error.get_ref() {
                Some(inner) => match inner.downcast_ref::<rustls::Error>() {
                    Some(refused) => Errno::EACCES.because(self.advice(refused)),
                    None => Error::from(error),
                },
                None => Error::from(error),
            })
        });
        Ok(Box::new(stream.await?))
    }
}

/// Takes certificates that the user has named for what they are, and otherwise those of authorities. A server's own certificate is
/// often marked as one of an authority, which the usual rules refuse.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.pinned.iter().any(|pinned| pinned == certificate) {
            true => Ok(ServerCertVerified::assertion()),
            false => self.usual.verify_server_cert(certificate, above, name, ocsp, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_cut_out_of_what_comes_and_bounded() {
        for (text, most, expected) in [
            (&b"a \r\n\nb\rc"[..], 3 * LINE + 8, Ok(vec!["a ", "", "b\rc"])),
            (b"a\nb\n", 2 * LINE + 3, Err(Errno::EFBIG)),
            (b"a\n0123456789x", 1000, Err(Errno::EPROTO)),
        ] {
            let mut lines = Vec::new();
            let mut stream: Box<dyn Stream> = Box::new(tokio::io::join(text, tokio::io::sink()));
            let limits = (Duration::from_secs(30), 10);
            let take = |line: &[u8]| lines.push(String::from_utf8_lossy(line).into_owned());
            let outcome = receive_lines(&mut stream, limits, (most, "max_listing"), take).await;
            let expected = expected.map(|lines| lines.into_iter().map(str::to_owned).collect::<Vec<_>>());
            let outcome = outcome.map(|()| lines).map_err(|fault: Fault<()>| match fault {
                Fault::Known(error) | Fault::Lost(error) => error.errno,
                Fault::Refused(()) => Errno::EACCES,
            });
            assert_eq!(outcome, expected);
        }
    }
}
