// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections of clients that show a certificate. TLS 1.3 only, each with a handshake of its own: a session that is resumed would not show
//! its certificate again.

use crate::files::{Stamp, certificates, own, stamp};
use crate::names::names;
use outrigger_core::{Errno, Error, Result, lock};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// So many characters of a name are in messages, and so many names of a client that is refused.
const NAME_SHOWN: usize = 80;
const NAMES_SHOWN: usize = 4;

/// What a server shows, and whom it lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Its certificate, with those that lead to the authority, in PEM.
    pub cert: PathBuf,
    /// The key of that.
    pub key: PathBuf,
    /// The certificates of clients, or of the authorities that sign these, in PEM.
    pub client_ca: PathBuf,
    /// Names of clients that are let in; all where there is none.
    pub allowed: Vec<String>,
    /// The protocol that is spoken, as both sides call it (ALPN, RFC 7301).
    pub protocol: &'static str,
}

/// A client that has shown a certificate. As text it is what lets it in: the name that is allowed, or else the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    name: Option<String>,
    /// The certificate, in DER: who has one is one client.
    pub certificate: Vec<u8>,
}

impl Client {
    fn new(certificate: &[u8], allowed: &[String]) -> Self {
        let names = names(certificate);
        let name = names.iter().find(|name| is_allowed(name, allowed)).or(names.first());
        Client { name: name.map(|name| shown(name)), certificate: certificate.to_vec() }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_deref().unwrap_or("a client whose certificate has no name"))
    }
}

fn is_allowed(name: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// Accepts clients. The files are read again when they were changed, for the connections that come then.
#[derive(Debug)]
pub struct Acceptor {
    terms: Terms,
    provider: Arc<CryptoProvider>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    /// What the files were like when they were read last, even if that failed.
    stamps: [Stamp; 3],
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with which of them.
    pub fn new(terms: Terms) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        // Before they are read: a change in between is found later.
        let stamps = terms.stamps();
        let config = terms.config(&provider)?;
        Ok(Acceptor { terms, provider, current: Mutex::new(Current { stamps, config }) })
    }

    /// What holds for a connection that comes now. Looks at the files: not to be called where others wait for the thread.
    fn config(&self) -> Arc<ServerConfig> {
        let mut current = lock(&self.current);
        let stamps = self.terms.stamps();
        if stamps != current.stamps {
            current.stamps = stamps;
            match self.terms.config(&self.provider) {
                Ok(config) => {
                    tracing::info!("the certificates were changed, and are read again");
                    current.config = config;
                }
                // They may be half written.
                Err(error) => tracing::warn!(
                    "certificates cannot be read again, those before stay in use: {}",
                    error.why()
                ),
            }
        }
        Arc::clone(&current.config)
    }

    /// Lets a client show who it is. Without a deadline.
    ///
    /// # Errors
    /// Why it is not let in, which it has been told, and the connection: it may be under way to the client, and would be lost if that was closed with
    /// something unread.
    pub async fn accept<S>(self: &Arc<Self>, stream: S) -> Result<(TlsStream<S>, Client), (Error, S)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = Arc::clone(self);
        let config = match tokio::task::spawn_blocking(move || acceptor.config()).await {
            Ok(config) => config,
            Err(_) => return Err((Errno::EIO.because("the program is ending"), stream)),
        };
        match TlsAcceptor::from(config).accept(stream).into_fallible().await {
            Ok(stream) => {
                let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let certificate = certificate.map_or(&[][..], |certificate| certificate);
                let client = Client::new(certificate, &self.terms.allowed);
                Ok((stream, client))
            }
            Err((error, stream)) => Err((self.terms.why(&error), stream)),
        }
    }
}

impl Terms {
    fn stamps(&self) -> [Stamp; 3] {
        [&self.cert, &self.key, &self.client_ca].map(|path| stamp(path))
    }

    fn config(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<ServerConfig>> {
        let wrong =
            |error: &dyn fmt::Display| Errno::EINVAL.because(format!("TLS cannot be set up: {error}"));
        let shown = own(&self.cert, &self.key, provider)?;
        let verifier = Verifier::new(&self.client_ca, self.allowed.clone(), provider)?;
        let config = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong(&error))?
            .with_client_cert_verifier(Arc::new(verifier));
        let mut config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
        config.alpn_protocols = vec![self.protocol.into()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Why a client is not let in.
    fn why(&self, error: &io::Error) -> Error {
        let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let ca = self.client_ca.display();
        let why = match refused {
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                "it ended the connection before it showed a certificate".into()
            }
            None => {
                return error
                    .raw_os_error()
                    .map_or_else(|| Errno::EIO.because(error.to_string()), |code| Errno(code).into());
            }
            Some(rustls::Error::NoCertificatesPresented) => {
                "it shows no certificate (option cert=FILE of wire://)".into()
            }
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => {
                format!("its certificate is none of those in {ca}, and not signed by one of them")
            }
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other)))) => {
                match other.downcast_ref::<NotAllowed>() {
                    Some(not_allowed) => not_allowed.to_string(),
                    None => format!("its certificate is not taken: {other}"),
                }
            }
            Some(rustls::Error::InvalidCertificate(why)) => format!("its certificate is not taken: {why}"),
            Some(rustls::Error::InvalidMessage(_)) => "what it sends is no TLS".into(),
            Some(rustls::Error::AlertReceived(alert)) => {
                format!("it does not take the certificate in {} ({alert:?})", self.cert.display())
            }
            Some(refused) => refused.to_string(),
        };
        Errno::EACCES.because(why)
    }
}

/// A client is none of those that are let in.
#[derive(Debug, thiserror::Error)]
#[error("its certificate is for {}, whom no --allow-client names", whom(.0))]
struct NotAllowed(Vec<String>);

fn whom(names: &[String]) -> String {
    let mut whom: Vec<String> = names.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect();
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 if names.is_empty() => return "nobody".to_owned(),
        0 => {}
        more => whom.push(format!("{more} more")),
    }
    whom.join(", ")
}

/// A name as messages have it: cut, and with escapes for what would control a terminal or turn the order of letters round.
fn shown(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars().take(NAME_SHOWN) {
        match letter {
            ' '..='~' => text.push(letter),
            _ => text.extend(letter.escape_debug()),
        }
    }
    if name.chars().nth(NAME_SHOWN).is_some() {
        text.push_str("...");
    }
    text
}

/// Takes certificates in the file of the authorities for what they are, and otherwise those that are signed by one of these.
#[derive(Debug)]
struct Verifier {
    usual: Arc<dyn ClientCertVerifier>,
    known: Vec<CertificateDer<'static>>,
    allowed: Vec<String>,
}

impl Verifier {
    fn new(client_ca: &Path, allowed: Vec<String>, provider: &Arc<CryptoProvider>) -> Result<Self> {
        let known = certificates(client_ca)?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(known.iter().cloned());
        let usual =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
        let usual =
            usual.map_err(|error| Errno::EINVAL.because(format!("{}: {error}", client_ca.display())))?;
        Ok(Verifier { usual, known, allowed })
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Strangers need not know who the clients are.
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if !self.known.iter().any(|known| known == certificate) {
            self.usual.verify_client_cert(certificate, above, now)?;
        }
        let names = names(certificate);
        match self.allowed.is_empty() || names.iter().any(|name| is_allowed(name, &self.allowed)) {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(CertificateError::Other(OtherError(Arc::new(NotAllowed(names)))).into()),
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
    use crate::names::tests::{DNS, certificate};

    #[test]
    fn a_client_is_called_by_the_name_that_lets_it_in() {
        let shown = certificate(&[b"Bob"], &[(DNS, b"any.example"), (DNS, b"bob.example")]);
        for (allowed, expected) in
            [(&[][..], "any.example"), (&["BOB.example"], "bob.example"), (&["x", "bob"], "Bob")]
        {
            let allowed: Vec<String> = allowed.iter().map(|&name: &&str| name.to_owned()).collect();
            assert_eq!(Client::new(&shown, &allowed).to_string(), expected);
        }
        let nameless = Client::new(&certificate(&[], &[]), &[]);
        assert_eq!(nameless.to_string(), "a client whose certificate has no name");
    }

    #[test]
    fn names_in_messages_turn_nothing_round_and_have_a_bound() {
        let odd = "a\u{202e}b\u{2066}\u{200f}\u{2028}c é";
        let client = Client::new(&certificate(&[odd.as_bytes()], &[]), &[]);
        assert_eq!(client.to_string(), r"a\u{202e}b\u{2066}\u{200f}\u{2028}c é");
        let long = "n".repeat(300);
        let shown = Client::new(&certificate(&[long.as_bytes()], &[]), &[]).to_string();
        assert_eq!(shown, format!("{}...", &long[..NAME_SHOWN]));
        let many: Vec<String> = (0..9).map(|number| format!("{number}\u{202e}")).collect();
        assert_eq!(whom(&many), r"0\u{202e}, 1\u{202e}, 2\u{202e}, 3\u{202e}, 5 more");
        assert_eq!(whom(&[]), "nobody");
    }
}
