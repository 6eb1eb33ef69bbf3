// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where connections come from: usually a child process of ssh, which brings configuration, agents, jump hosts and hardware
//! keys with it.

use crate::line::{self, Ends};
use crate::options::Options;
use outrigger_core::{BoxFuture, Error};
use outrigger_toolkit_remote::{Carrier, SshCommand, SshProcess};
use std::ffi::OsString;
use std::future::ready;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe;

/// Makes connections to a server. Called again when a connection was lost.
pub trait Dial: Send + Sync {
    /// A new connection, on which nothing has been said yet. Called with a tokio runtime around it.
    ///
    /// # Errors
    /// Why there is none.
    fn dial(&self) -> BoxFuture<'_, Result<Connected, Error>>;

    /// The same as pipes, which can outlive this process; `None` where connections are of another kind. Called with a tokio
    /// runtime around it.
    ///
    /// # Errors
    /// As [`Dial::dial`].
    fn dial_by_pipes(&self) -> Option<Piped> {
        None
    }
}

/// A connection.
pub struct Connected {
    /// What the server says.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What is said to it.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Who carries the bytes, and may know why they stopped.
    pub carrier: Box<dyn Carrier>,
}

/// A connection as pipes, and the carrier of the bytes; or why there is none.
pub type Piped = Result<(Ends, Box<dyn Carrier>), Error>;

/// Starts an ssh for each connection, or what the user wants in its place.
pub(crate) struct Ssh {
    pub(crate) host: String,
    pub(crate) options: Options,
}

impl Dial for Ssh {
    fn dial(&self) -> BoxFuture<'_, Result<Connected, Error>> {
        let connected = self.start().and_then(|(Ends { to, from, .. }, carrier)| {
            let reader = Box::new(pipe::Receiver::from_owned_fd(from)?);
            Ok(Connected { reader, writer: Box::new(pipe::Sender::from_owned_fd(to)?), carrier })
        });
        Box::pin(ready(connected))
    }

    fn dial_by_pipes(&self) -> Option<Piped> {
        Some(self.start())
    }
}

impl Ssh {
    fn start(&self) -> Piped {
        let (ends, theirs) = line::pipes()?;
        let words = words(&self.options, &self.host, std::io::stderr().is_terminal())?;
        let streams = [theirs.stdin.into(), theirs.stdout.into(), theirs.stderr.into()];
        let (process, command) = SshProcess::spawn(&words, streams)?;
        let errors = pipe::Receiver::from_owned_fd(ends.errors.try_clone()?)?;
        Ok((ends, Box::new(SshProcess::new(Some(process), errors, command))))
    }
}

/// What carries a connection that a former process made, and goes on talking to `errors`.
///
/// # Errors
/// When that is no pipe.
pub(crate) fn inherited(errors: OwnedFd) -> Result<Box<dyn Carrier>, Error> {
    let errors = pipe::Receiver::from_owned_fd(errors)?;
    Ok(Box::new(SshProcess::new(None, errors, "the connection".to_owned())))
}

/// The command line.
///
/// # Errors
/// `EINVAL` for a host that ssh would take for something else.
fn words(options: &Options, host: &str, terminal: bool) -> Result<Vec<OsString>, Error> {
    if let Some(command) = &options.command {
        return Ok(command.clone());
    }
    let ssh = SshCommand {
        program: &options.ssh_command,
        config: options.config.as_deref(),
        port: options.port,
        compression: options.compression,
        options: &options.ssh,
        connect_timeout: options.connect_timeout,
    };
    ssh.words(host, terminal, (!options.server.contains('/'), &options.server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    fn line(options: &Options, host: &str, terminal: bool) -> String {
        let words = words(options, host, terminal).expect("a command");
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ssh_gets_the_options_of_the_user_and_the_host_last() {
        let mut options = Options::default();
        let common = "-x -a -oClearAllForwardings=yes";
        let usual = "-oConnectTimeout=30 -oServerAliveInterval=15";
        assert_eq!(line(&options, "u@h", true), format!("ssh {common} {usual} -s -- u@h sftp"));
        assert_eq!(line(&options, "h", false), format!("ssh {common} {usual} -oBatchMode=yes -s -- h sftp"));
        for (key, value) in [
            ("port", "2222"),
            ("compression", "yes"),
            ("IdentityFile", "/key file"),
            ("connecttimeout", "7"),
            ("BatchMode", "no"),
            ("ServerAliveInterval", "0"),
            ("F", "/dev/null"),
            ("ssh_command", "ssh -v"),
            ("sftp_server", "/usr/lib/sftp-server"),
        ] {
            options.set(if key == "connecttimeout" { "ConnectTimeout" } else { key }, value).expect(key);
        }
        assert_eq!(
            line(&options, "h", false),
            format!(
                "ssh -v {common} -F /dev/null -p 2222 -oCompression=yes -oIdentityFile=/key file -oConnectTimeout=7 \
                 -oBatchMode=no -oServerAliveInterval=0 -- h /usr/lib/sftp-server"
            )
        );
    }

    #[test]
    fn a_host_that_looks_like_an_option_is_refused() {
        for host in ["-oProxyCommand=reboot", ""] {
            assert_eq!(words(&Options::default(), host, true).expect_err("refused").errno, Errno::EINVAL);
        }
    }
}
