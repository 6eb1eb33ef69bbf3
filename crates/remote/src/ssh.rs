// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that a child process of ssh carries, which brings configuration, agents, jump hosts and hardware keys with it.

use outrigger_core::{BoxFuture, Errno, Error, lock};
use outrigger_host::Confined;
use std::ffi::OsString;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
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

/// What carries the bytes of a connection. Dropping it ends it.
pub trait Carrier: Send {
    /// The error that says why the connection ended: in the carrier's own words where it has any, else `otherwise`.
    fn last_words(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error>;

    /// The same when the connection is given up before it worked.
    fn cut_short(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error>;
}

/// How ssh(1) is started for a connection.
#[derive(Debug, Clone, Copy)]
pub struct SshCommand<'a> {
    /// The ssh to run, with options.
    pub program: &'a [OsString],
    /// Its configuration file, if not the usual one.
    pub config: Option<&'a str>,
    /// The port of the server.
    pub port: Option<u16>,
    /// Whether it compresses; as it is configured when absent.
    pub compression: Option<bool>,
    /// Options by their names in ssh_config(5).
    pub options: &'a [(String, String)],
    /// How long connecting may take.
    pub connect_timeout: Duration,
}

impl SshCommand<'_> {
    /// The command line that starts `far` at `host`: a subsystem, or words for the shell there. `terminal` says whether a user can be asked
    /// for a password.
    ///
    /// # Errors
    /// `EINVAL` for a host that ssh would take for something else.
    pub fn words(
        &self,
        host: &str,
        terminal: bool,
        (is_subsystem, far): (bool, &str),
    ) -> Result<Vec<OsString>, Error> {
        if host.is_empty() || host.starts_with('-') {
            return Err(Errno::EINVAL.because(format!(
                "'{host}' is not the name of a host (as in HOST:PATH or sftp://HOST/PATH)"
            )));
        }
        let mut words = self.program.to_vec();
        let mut add = |word: &str| words.push(word.into());
        // Nothing of the user's other sessions belongs on this connection.
        ["-x", "-a", "-oClearAllForwardings=yes"].into_iter().for_each(&mut add);
        if let Some(config) = self.config {
            ["-F", config].into_iter().for_each(&mut add);
        }
        if let Some(port) = self.port {
            ["-p", &port.to_string()].into_iter().for_each(&mut add);
        }
        if let Some(compression) = self.compression {
            add(if compression { "-oCompression=yes" } else { "-oCompression=no" });
        }
        for (name, value) in self.options {
            add(&format!("-o{name}={value}"));
        }
        let unless_said = |name: &str, value: &str| {
            let said = self.options.iter().any(|(said, _)| said.eq_ignore_ascii_case(name));
            (!said).then(|| format!("-o{name}={value}"))
        };
        let seconds = self.connect_timeout.as_secs().max(1).to_string();
        unless_said("ConnectTimeout", &seconds).iter().for_each(|word| add(word));
        unless_said("ServerAliveInterval", ALIVE_INTERVAL).iter().for_each(|word| add(word));
        if !terminal {
            // No user can be asked for a password.
            unless_said("BatchMode", "yes").iter().for_each(|word| add(word));
        }
        if is_subsystem {
            add("-s");
        }
        // What follows is the host, whatever it looks like.
        ["--", host, far].into_iter().for_each(&mut add);
        Ok(words)
    }
}

/// A process that carries a connection, ssh or what the user wants in its place, and what it says on standard error.
pub struct SshProcess {
    /// `None` when a former process has started it.
    process: Option<Process>,
    said: Arc<Mutex<Vec<u8>>>,
    saying: JoinHandle<()>,
    command: String,
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

impl Carrier for SshProcess {
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

impl SshProcess {
    /// One that was started, or goes on for a former process; it says `errors`. Called with a tokio runtime around it.
    pub fn new(
        process: Option<Process>,
        errors: impl AsyncRead + Send + Unpin + 'static,
        command: String,
    ) -> Self {
        let said = Arc::new(Mutex::new(Vec::new()));
        let saying = tokio::spawn(listen(errors, Arc::clone(&said)));
        SshProcess { process, said, saying, command }
    }

    /// Starts the process of a command line with these standard streams; the process, and the name of the command.
    ///
    /// # Errors
    /// `ENOENT` when it cannot be started.
    pub fn spawn(
        words: &[OsString],
        [stdin, stdout, stderr]: [Stdio; 3],
    ) -> Result<(Process, String), Error> {
        let [program, arguments @ ..] = words else {
            return Err(Errno::EINVAL.because("no command is named"));
        };
        let command = program.to_string_lossy().into_owned();
        let cannot = |error: std::io::Error| {
            Errno::ENOENT.because(format!("{command} cannot be started: {}", Error::from(error).why()))
        };
        let mut process = Command::new(program);
        process.args(arguments).stdin(stdin).stdout(stdout).stderr(stderr).kill_on_drop(true);
        process.as_std_mut().confined(&[]);
        let process = process.spawn().map_err(cannot)?;
        Ok((process, command))
    }

    async fn error(&mut self, otherwise: Error, status: Option<String>) -> Error {
        // What it has said is in the pipe; a child of it may hold that open for longer.
        let _ = timeout(LAST_WORDS, &mut self.saying).await;
        let said = readable(&lock(&self.said));
        let command = &self.command;
        let why = otherwise.reason.unwrap_or_default();
        let cause = CAUSES.iter().find(|(words, _)| said.contains(words));
        let errno = cause.map_or(otherwise.errno, |(_, errno)| *errno);
        // ssh begins some of its messages with its name.
        let named = |said: String| match said.starts_with(&format!("{command}: ")) {
            true => said,
            false => format!("{command}: {said}"),
        };
        errno.because(match (said.is_empty(), status) {
            (false, Some(status)) if cause.is_none() => format!("{} ({status})", named(said)),
            (false, _) => named(said),
            (true, Some(status)) => format!("{why} ({command} ended with {status})"),
            (true, None) => why.to_string(),
        })
    }

    /// Leaves the process to itself: it ends with its streams, or else with this process.
    pub fn stays(self) {
        if let Some(mut process) = self.process {
            tokio::spawn(async move { process.wait().await });
        }
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
