// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where connections come from: usually a child process of ssh, which brings configuration, agents, jump hosts and hardware
//! keys with it.

use crate::line::{self, Ends};
use crate::options::Options;
use outrigger_core::{BoxFuture, Errno, Error, lock};
use outrigger_host::Confined;
use std::ffi::OsString;
use std::future::ready;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::process::{Child as Process, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How much of what ssh says is kept, in bytes: the last lines.
const SAID_MAX: usize = 4096;
/// How long ssh may take to end, and its last words to arrive, when the connection has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often ssh asks whether the server is still there, in seconds, unless the user says so; after three times without
/// an answer it ends.
const ALIVE_INTERVAL: &str = "15";

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

/// What carries the bytes of a connection. Dropping it ends it.
pub trait Carrier: Send {
    /// The error that says why the connection ended: in the carrier's own words where it has any, else `otherwise`.
    fn last_words(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error>;

    /// The same when the connection is given up before it worked.
    fn cut_short(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error>;
}

/// Starts an ssh for each connection, or what the user wants in its place.
pub(crate) struct Ssh {
    pub(crate) host: String,
    pub(crate) options: Options,
}

/// The process, and what it says.
struct Child {
    /// `None` when a former process has started it.
    process: Option<Process>,
    said: Arc<Mutex<Vec<u8>>>,
    saying: JoinHandle<()>,
    command: String,
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
        let (process, command) =
            self.spawn(theirs.stdin.into(), theirs.stdout.into(), theirs.stderr.into())?;
        let errors = pipe::Receiver::from_owned_fd(ends.errors.try_clone()?)?;
        Ok((ends, Box::new(Child::new(Some(process), errors, command))))
    }

    fn spawn(&self, stdin: Stdio, stdout: Stdio, stderr: Stdio) -> Result<(Process, String), Error> {
        let words = words(&self.options, &self.host, std::io::stderr().is_terminal())?;
        let command = words[0].to_string_lossy().into_owned();
        let cannot =
            |error: std::io::Error| Errno::ENOENT.because(format!("{command} cannot be started: {error}"));
        let mut process = Command::new(&words[0]);
        process.args(&words[1..]).stdin(stdin).stdout(stdout).stderr(stderr).kill_on_drop(true);
        process.as_std_mut().confined(&[]);
        let process = process.spawn().map_err(cannot)?;
        Ok((process, command))
    }
}

/// What carries a connection that a former process made, and goes on talking to `errors`.
///
/// # Errors
/// When that is no pipe.
pub(crate) fn inherited(errors: OwnedFd) -> Result<Box<dyn Carrier>, Error> {
    let errors = pipe::Receiver::from_owned_fd(errors)?;
    Ok(Box::new(Child::new(None, errors, "the connection".to_owned())))
}

/// The command line.
///
/// # Errors
/// `EINVAL` for a host that ssh would take for something else.
fn words(options: &Options, host: &str, terminal: bool) -> Result<Vec<OsString>, Error> {
    if let Some(command) = &options.command {
        return Ok(command.clone());
    }
    if host.is_empty() || host.starts_with('-') {
        return Err(Errno::EINVAL
            .because(format!("'{host}' is not the name of a host (as in HOST:PATH or sftp://HOST/PATH)")));
    }
    let mut words = options.ssh_command.clone();
    let mut add = |word: &str| words.push(word.into());
    // Nothing of the user's other sessions belongs on this connection.
    ["-x", "-a", "-oClearAllForwardings=yes"].into_iter().for_each(&mut add);
    if let Some(config) = &options.config {
        ["-F", config].into_iter().for_each(&mut add);
    }
    if let Some(port) = options.port {
        ["-p", &port.to_string()].into_iter().for_each(&mut add);
    }
    if let Some(compression) = options.compression {
        add(if compression { "-oCompression=yes" } else { "-oCompression=no" });
    }
    for (name, value) in &options.ssh {
        add(&format!("-o{name}={value}"));
    }
    let unless_said = |name: &str, value: &str| {
        let said = options.ssh.iter().any(|(said, _)| said.eq_ignore_ascii_case(name));
        (!said).then(|| format!("-o{name}={value}"))
    };
    let seconds = options.connect_timeout.as_secs().max(1).to_string();
    unless_said("ConnectTimeout", &seconds).iter().for_each(|word| add(word));
    unless_said("ServerAliveInterval", ALIVE_INTERVAL).iter().for_each(|word| add(word));
    if !terminal {
        // No user can be asked for a password.
        unless_said("BatchMode", "yes").iter().for_each(|word| add(word));
    }
    if !options.server.contains('/') {
        add("-s");
    }
    // What follows is the host, whatever it looks like.
    ["--", host, &options.server].into_iter().for_each(&mut add);
    Ok(words)
}

/// Keeps the last of what comes.
async fn listen(mut errors: impl AsyncRead + Unpin, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = errors.read(&mut buffer).await {
        tracing::debug!(said = %buffer[..count].escape_ascii(), "ssh");
        let mut said = lock(&said);
        said.extend_from_slice(&buffer[..count]);
        let excess = said.len().saturating_sub(SAID_MAX);
        said.drain(..excess);
    }
}

impl Carrier for Child {
    fn last_words(mut self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(async move {
            let status = match &mut self.process {
                Some(process) => timeout(LAST_WORDS, process.wait()).await.ok().and_then(Result::ok),
                None => None,
            };
            let status = status.filter(|status| !status.success());
            self.error(otherwise, status.map(|status| status.to_string())).await
        })
    }

    fn cut_short(mut self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(async move {
            // It may have ended by itself.
            if let Some(process) = &mut self.process {
                let _ = process.start_kill();
            }
            self.error(otherwise, None).await
        })
    }
}

impl Child {
    fn new(
        process: Option<Process>,
        errors: impl AsyncRead + Send + Unpin + 'static,
        command: String,
    ) -> Self {
        let said = Arc::new(Mutex::new(Vec::new()));
        let saying = tokio::spawn(listen(errors, Arc::clone(&said)));
        Child { process, said, saying, command }
    }

    async fn error(&mut self, otherwise: Error, status: Option<String>) -> Error {
        // What it has said is in the pipe; a child of it may hold that open for longer.
        let _ = timeout(LAST_WORDS, &mut self.saying).await;
        let said = readable(&lock(&self.said));
        let command = &self.command;
        let why = otherwise.reason.unwrap_or_default();
        let cause = CAUSES.iter().find(|(words, _)| said.contains(words));
        let errno = cause.map_or(otherwise.errno, |(_, errno)| *errno);
        errno.because(match (said.is_empty(), status) {
            // ssh begins some of its messages with its name.
            (false, _) if said.starts_with(&format!("{command}: ")) => said,
            (false, _) => format!("{command}: {said}"),
            (true, Some(status)) => format!("{why} ({command} ended with {status})"),
            (true, None) => why.to_string(),
        })
    }
}

/// What ssh says, and the error that is.
const CAUSES: &[(&str, Errno)] = &[
    ("Connection refused", Errno::ECONNREFUSED),
    ("timed out", Errno::ETIMEDOUT),
    ("No route to host", Errno::EHOSTUNREACH),
    ("Network is unreachable", Errno::ENETUNREACH),
    ("Could not resolve hostname", Errno::EHOSTUNREACH),
    ("Host key verification failed", Errno::EACCES),
    ("Permission denied", Errno::EACCES),
];

/// The lines ssh said as one, without what a terminal would obey, and without the frame around a warning.
fn readable(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let frame = |c: char| c == '@' || c.is_whitespace();
    let lines: Vec<&str> = text
        .lines()
        .map(|line| if line.starts_with('@') { line.trim_matches(frame) } else { line.trim() })
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("; ").chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn what_ssh_says_is_one_readable_line() {
        assert_eq!(
            readable(b"\r\n** banner\x1b[2J **\r\nPermission denied.\n\n"),
            "** banner[2J **; Permission denied."
        );
        assert_eq!(
            readable(
                b"@@@@@@@@@@@\r\n@  WARNING: IT HAS CHANGED!  @\r\n@@@@@@@@@@@\r\nIt is possible @ you.\r\n"
            ),
            "WARNING: IT HAS CHANGED!; It is possible @ you."
        );
    }
}
