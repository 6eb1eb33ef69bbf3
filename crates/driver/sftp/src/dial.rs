// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starting ssh, which brings configuration, agents, jump hosts and hardware keys with it.

use crate::options::Options;
use outrigger_core::{Errno, Error};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// How much of what ssh says is kept, in bytes: the last lines.
const SAID_MAX: usize = 4096;
/// How long ssh may take to end, and its last words to arrive, when the connection has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often ssh asks whether the server is still there, in seconds, unless the user says so; after three times without
/// an answer it ends.
const ALIVE_INTERVAL: &str = "15";

/// A started ssh. Dropping it kills it.
pub(crate) struct Dialed {
    pub(crate) reader: ChildStdout,
    pub(crate) writer: ChildStdin,
    pub(crate) ssh: Ssh,
}

/// The process, and what it says.
pub(crate) struct Ssh {
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    saying: tokio::task::JoinHandle<()>,
    command: String,
}

/// Starts ssh, or what the user wants in its place. Needs a tokio runtime around it.
///
/// # Errors
/// Why it cannot be started.
pub(crate) fn dial(options: &Options, host: &str) -> Result<Dialed, Error> {
    let words = words(options, host, std::io::stderr().is_terminal())?;
    let command = words[0].to_string_lossy().into_owned();
    let cannot =
        |error: std::io::Error| Errno::ENOENT.because(format!("{command} cannot be started: {error}"));
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(cannot)?;
    let (Some(writer), Some(reader), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(Errno::EIO.because("a child process without pipes"));
    };
    let said = Arc::new(Mutex::new(Vec::new()));
    let saying = tokio::spawn(listen(errors, Arc::clone(&said)));
    Ok(Dialed { reader, writer, ssh: Ssh { child, said, saying, command } })
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
        return Err(Errno::EINVAL.because(format!("'{host}' is not the name of a host")));
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
        // There is nobody to ask for a password.
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
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&buffer[..count]);
        let excess = said.len().saturating_sub(SAID_MAX);
        said.drain(..excess);
    }
}

impl Ssh {
    /// The error that tells why a connection ended, in ssh's own words where it had any; `otherwise` where it had none.
    pub(crate) async fn last_words(mut self, otherwise: Error) -> Error {
        let status = timeout(LAST_WORDS, self.child.wait()).await.ok().and_then(Result::ok);
        let status = status.filter(|status| !status.success());
        self.error(otherwise, status.map(|status| status.to_string())).await
    }

    /// As [`Ssh::last_words`] for one that is to end now.
    pub(crate) async fn killed(mut self, otherwise: Error) -> Error {
        // It may have ended by itself.
        let _ = self.child.start_kill();
        self.error(otherwise, None).await
    }

    async fn error(&mut self, otherwise: Error, status: Option<String>) -> Error {
        // What it has said is in the pipe; a child of it may hold that open for longer.
        let _ = timeout(LAST_WORDS, &mut self.saying).await;
        let said = readable(&self.said.lock().unwrap_or_else(PoisonError::into_inner));
        let command = &self.command;
        let why = otherwise.reason.unwrap_or_default();
        let errno = CAUSES
            .iter()
            .find(|(words, _)| said.contains(words))
            .map_or(otherwise.errno, |(_, errno)| *errno);
        errno.because(match (said.is_empty(), status) {
            (false, _) => format!("{command}: {said}"),
            (true, Some(status)) => format!("{why} ({command} ended with {status})"),
            (true, None) => why.to_string(),
        })
    }

    /// Waits until the process has ended, for at most `patience`; then it is killed.
    pub(crate) async fn end(mut self, patience: Duration) {
        let _ = timeout(patience, self.child.wait()).await;
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

/// The lines ssh said as one, without what a terminal would obey.
fn readable(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
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
    fn ssh_is_told_what_the_user_wants_and_the_host_last() {
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
    }
}
