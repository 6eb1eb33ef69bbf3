// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a tree is served, and connections to there.

use crate::options::Options;
use crate::tls;
use outrigger_core::wire::peer::PORT;
use outrigger_core::{BoxFuture, Errno, Error, Result};
use outrigger_toolkit_remote::{Authority, Carrier, SshCommand, SshProcess, within};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// Where a tree is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a socket of this machine.
    Unix(PathBuf),
    /// At a port of a host, over TLS.
    Tls { host: String, port: u16 },
    /// By a process that ssh starts at a host.
    Ssh { host: String, port: Option<u16> },
}

/// A connection on which nothing has been said yet.
pub struct Connected {
    /// What the other side says.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What is said to it.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// What carries it, and may know why it ended.
    pub carrier: Box<dyn Carrier>,
}

/// Makes connections to a tree that is served. Called again when a connection was lost.
pub trait Dial: Send + Sync {
    /// A new connection. Called with a tokio runtime around it.
    ///
    /// # Errors
    /// Why there is none.
    fn dial(&self) -> BoxFuture<'_, Result<Connected>>;

    /// Where the tree is served, as a LOCATION has it.
    fn shown(&self) -> String;

    /// Why nothing could be agreed on a new connection, with what to do about it.
    fn advised(&self, error: Error) -> Error {
        error
    }
}

/// Connects to a place as options say.
pub(crate) struct To {
    pub(crate) place: Place,
    pub(crate) options: Options,
}

impl Dial for To {
    fn dial(&self) -> BoxFuture<'_, Result<Connected>> {
        Box::pin(self.place.connect(&self.options))
    }

    fn shown(&self) -> String {
        self.place.shown()
    }

    fn advised(&self, error: Error) -> Error {
        advised(&self.place, error)
    }
}

/// A socket has nothing to say about its end.
struct Silent;

impl Carrier for Silent {
    fn last_words(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(async move { otherwise })
    }

    fn cut_short(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        self.last_words(otherwise)
    }
}

impl Place {
    /// What follows `wire:`: `unix:` and the path of a socket with its slashes as `%2F`, or `HOST[:PORT]`.
    pub(crate) fn wire(at: &str) -> Result<Self> {
        match at.strip_prefix("unix:") {
            Some(path) => {
                // The user of an authority is decoded: so is a path in its place.
                let path = Authority::parse(&format!("{path}@host"))?.user.unwrap_or_default();
                Ok(Place::Unix(path.into()))
            }
            None => {
                let Authority { host, port, user, .. } = Authority::parse(at)?;
                if user.is_some() {
                    return Err(Errno::EINVAL.because(format!(
                        "wire://{host}/ has no users: the server knows this client by the certificate of the option cert=FILE"
                    )));
                }
                Ok(Place::Tls { host, port: port.unwrap_or(PORT) })
            }
        }
    }

    /// What follows `ssh://`: `[USER@]HOST[:PORT]`.
    pub(crate) fn ssh(at: &str) -> Result<Self> {
        let server = Authority::parse(at)?;
        if server.password.is_some() {
            return Err(Errno::EINVAL.because(
                "ssh takes no password from a LOCATION, where others could see it: it asks for one, or uses a key",
            ));
        }
        let Authority { host, port, user, .. } = server;
        let host = user.map_or(host.clone(), |user| format!("{user}@{host}"));
        Ok(Place::Ssh { host, port })
    }

    /// Whether TLS protects it.
    pub(crate) fn has_tls(&self) -> bool {
        matches!(self, Place::Tls { .. })
    }

    /// As a LOCATION has it.
    fn shown(&self) -> String {
        match self {
            Place::Unix(path) => format!("wire:unix:{}", path.display()),
            Place::Tls { host, port: PORT } => format!("wire://{}/", bracketed(host)),
            Place::Tls { host, port } => format!("wire://{}:{port}/", bracketed(host)),
            Place::Ssh { host, port: Some(port) } => format!("ssh://{host}:{port}/"),
            Place::Ssh { host, port: None } => format!("ssh://{host}/"),
        }
    }

    /// A new connection. Called with a tokio runtime around it.
    ///
    /// # Errors
    /// Why there is none.
    async fn connect(&self, options: &Options) -> Result<Connected> {
        match self {
            Place::Unix(path) => {
                let what = format!("connecting to {}", path.display());
                let stream = within(options.connect_timeout, what, UnixStream::connect(path)).await?;
                let (reader, writer) = stream.into_split();
                Ok(Connected {
                    reader: Box::new(reader),
                    writer: Box::new(writer),
                    carrier: Box::new(Silent),
                })
            }
            Place::Tls { host, port } => tls::connect(host, *port, options).await,
            Place::Ssh { host, port } => start(host, *port, options),
        }
    }
}

/// A host as an authority has it.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Starts ssh, and outrigger at the host.
fn start(host: &str, port: Option<u16>, options: &Options) -> Result<Connected> {
    let ssh = SshCommand {
        program: &options.ssh_command,
        config: options.config.as_deref(),
        port,
        compression: options.compression,
        options: &options.ssh,
        connect_timeout: options.connect_timeout,
    };
    let words = ssh.words(host, std::io::stderr().is_terminal(), (false, &far_command(options)))?;
    let (mut process, command) = SshProcess::spawn(&words, std::array::from_fn(|_| Stdio::piped()))?;
    let (reader, writer, errors) = (process.stdout.take(), process.stdin.take(), process.stderr.take());
    let (Some(reader), Some(writer), Some(errors)) = (reader, writer, errors) else {
        return Err(Errno::EIO.because("a process was started without its standard streams"));
    };
    let carrier = Box::new(SshProcess::new(Some(process), errors, command));
    Ok(Connected { reader: Box::new(reader), writer: Box::new(writer), carrier })
}

/// What the shell at the host runs.
fn far_command(options: &Options) -> String {
    format!("{} serve wire --stdio -- {}", options.command, shell_words::quote(&options.tree))
}

/// The same error with the host, and with what to do where the host has no outrigger, which its shell says, or ssh does not know its key.
fn advised(place: &Place, error: Error) -> Error {
    let why = error.why();
    let is_missing =
        ["not found", "No such file or directory", "status 127", "exit status: 127", "Unknown command"];
    // Outrigger itself says what it cannot open.
    let is_missing = is_missing.iter().any(|words| why.contains(words)) && !why.contains("cannot open");
    match place {
        Place::Ssh { host, .. } if is_missing => Errno::ENOENT.because(format!(
            "{host} has no outrigger, or not under this name ({why}): command=PATH says where it is, and sftp://{host}/ needs none"
        )),
        Place::Ssh { host, port } if why.contains("Host key verification failed") => {
            let (shown, why) = (place.shown(), why.trim_end_matches('.'));
            let port = port.map_or_else(String::new, |port| format!("-p {port} "));
            error.errno.because(format!(
                "{shown}: {why}; `ssh {port}{host}` shows the key and asks whether it is right"
            ))
        }
        Place::Ssh { .. } => error.errno.because(format!("{}: {why}", place.shown())),
        Place::Tls { .. } => error.errno.because(format!("{}: {why}", place.shown())),
        Place::Unix(_) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_sockets_and_hosts() {
        assert_eq!(Place::wire("unix:%2Frun%2Fa%20b"), Ok(Place::Unix("/run/a b".into())));
        let tls = |host: &str, port| Ok(Place::Tls { host: host.into(), port });
        for (at, place, shown) in [
            ("h", tls("h", PORT), "wire://h/"),
            ("h:7", tls("h", 7), "wire://h:7/"),
            ("[::1]:7", tls("::1", 7), "wire://[::1]:7/"),
        ] {
            assert_eq!(Place::wire(at), place);
            assert_eq!(place.map(|place| place.shown()), Ok(shown.to_owned()));
        }
        assert!(Place::wire("u@h").unwrap_err().to_string().contains("cert=FILE"));
        let ssh = |host: &str, port| Ok(Place::Ssh { host: host.into(), port });
        assert_eq!(Place::ssh("u@h:22"), ssh("u@h", Some(22)));
        assert_eq!(Place::ssh("h"), ssh("h", None));
        assert!(Place::ssh("u:p@h").is_err());
    }

    #[test]
    fn what_the_host_runs_is_one_command_whatever_the_tree_is_called() {
        let options = Options { tree: "/a b; reboot".into(), ..Options::default() };
        assert_eq!(far_command(&options), "outrigger serve wire --stdio -- '/a b; reboot'");
    }

    #[test]
    fn a_host_without_outrigger_is_named_with_what_to_do() {
        let place = Place::Ssh { host: "h".into(), port: None };
        let said = advised(&place, Errno::EIO.because("ssh: sh: 1: outrigger: not found")).to_string();
        assert!(
            ["h has no outrigger", "command=", "sftp://h/"].iter().all(|part| said.contains(part)),
            "{said}"
        );
        for (why, expected) in [
            ("ssh: Permission denied", "ssh://h/: ssh: Permission denied"),
            (
                "ssh: outrigger: cannot open '/x': No such file or directory",
                "ssh://h/: ssh: outrigger: cannot open '/x': No such file or directory",
            ),
            (
                "ssh: Host key verification failed.",
                "ssh://h/: ssh: Host key verification failed; `ssh h` shows the key and asks whether it is right",
            ),
        ] {
            assert_eq!(advised(&place, Errno::EACCES.because(why)).why(), expected);
        }
    }
}
