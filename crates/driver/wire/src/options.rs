// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{Errno, Error, OptionTable, Result};
use outrigger_toolkit_remote::{
    command_words, file_option, for_ssh, is_dangerous_to_ssh, is_of_ssh, lasting_file, options_of_ssh,
};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What [`Options::set`] takes; besides, options of ssh_config(5) go to ssh.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "wire",
    options: &[
        option(
            "tree",
            "LOCATION",
            "/",
            "ssh://: what is served at the host, as a LOCATION there; PATH is a path in it",
        ),
        option(
            "command",
            "WORDS",
            "outrigger",
            "ssh://: how outrigger is called at the host, as in /opt/bin/outrigger",
        ),
        option("ssh_command", "WORDS", "ssh", "ssh://: the ssh to run, with options"),
        option(
            "cert",
            "FILE",
            "",
            "wire://HOST: the certificate that the server is shown, in PEM, with those that lead to its authority",
        ),
        option(
            "key",
            "FILE",
            "that of cert",
            "wire://HOST: the key of cert, in PEM, which only its owner can read; read again for each connection, as cert is",
        ),
        option(
            "ca",
            "FILE",
            "",
            "wire://HOST: certificates in PEM to trust in place of the system's; also the server's own",
        )
        .also(&["cacert"]),
        option("F", "FILE", "~/.ssh/config", "ssh://: the configuration file of ssh"),
        option("compression", "yes|no", "as ssh is configured", "ssh://: whether ssh compresses"),
        option("connect_timeout", "SECONDS", "30", "how long connecting may take"),
        option(
            "timeout",
            "SECONDS",
            "30",
            "how long the other side may say nothing to a request, and how long one that was there may be gone",
        ),
    ],
};

/// Options of a [`crate::Wire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What is served at the host (`tree=LOCATION`).
    pub tree: String,
    /// How outrigger is called there, in words of its shell (`command=WORDS`).
    pub command: String,
    /// The ssh to run, with options (`ssh_command=WORDS`).
    pub ssh_command: Vec<OsString>,
    /// Options passed on to ssh, by their names in ssh_config(5).
    pub ssh: Vec<(String, String)>,
    /// The certificate that a server is shown over TLS (`cert=FILE`).
    pub cert: Option<PathBuf>,
    /// Its key, if it is not in the same file (`key=FILE`).
    pub key: Option<PathBuf>,
    /// Certificates to trust over TLS in place of the system's (`ca=FILE`).
    pub ca: Option<PathBuf>,
    /// The configuration file of ssh (`F=FILE`).
    pub config: Option<String>,
    /// Whether ssh compresses (`compression=yes|no`); as it is configured when absent.
    pub compression: Option<bool>,
    /// How long connecting may take (`connect_timeout=SECONDS`).
    pub connect_timeout: Duration,
    /// How long the other side may say nothing to a request (`timeout=SECONDS`).
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tree: "/".into(),
            command: "outrigger".into(),
            ssh_command: vec!["ssh".into()],
            ssh: Vec::new(),
            cert: None,
            key: None,
            ca: None,
            config: None,
            compression: None,
            connect_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
        }
    }
}

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let table = &OPTIONS;
        match table.name(key).unwrap_or(key) {
            "tree" if !value.is_empty() => self.tree = value.into(),
            "command" => {
                command_words(&OPTIONS, key, value)?;
                self.command = value.into();
            }
            "ssh_command" => self.ssh_command = command_words(&OPTIONS, key, value)?,
            "cert" => self.cert = Some(file_option(table, key, value)?),
            "key" => self.key = Some(file_option(table, key, value)?),
            "ca" => self.ca = Some(file_option(table, key, value)?),
            "F" => self.config = Some(lasting_file(value)),
            "compression" => self.compression = Some(table.switch(key, value)?),
            "connect_timeout" => self.connect_timeout = table.time_limit(key, value)?,
            "timeout" => self.timeout = table.time_limit(key, value)?,
            _ if is_of_ssh(key) => self.ssh.push(for_ssh(key, value)),
            "tree" => return Err(table.unfit(key, value)),
            _ => return Err(unknown(key)),
        }
        Ok(())
    }

    /// Whether there is something for TLS among them that makes no sense: at a place without TLS, or a key without a certificate.
    ///
    /// # Errors
    /// `EINVAL` where there is.
    pub(crate) fn check(&self, has_tls: bool) -> Result<()> {
        let given = [("cert", &self.cert), ("key", &self.key), ("ca", &self.ca)];
        let given = given.iter().find(|(_, file)| file.is_some()).map(|(key, _)| *key);
        match given {
            Some(key) if !has_tls => Err(Errno::EINVAL.because(format!(
                "option {key}: it is about TLS, which wire://HOST/ has; ssh and sockets of this machine know the other side by themselves"
            ))),
            _ if self.key.is_some() && self.cert.is_none() => {
                Err(Errno::EINVAL.because("option key: it is the key of a certificate, which cert=FILE has to name"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the option `key` with this value can have a program started, here or at the host, have ssh(1) talk to another host than the
/// one that was named, or weaken what it checks.
pub(crate) fn is_dangerous(key: &str, value: &str) -> bool {
    matches!(key, "command" | "ssh_command" | "F" | "tree") || is_dangerous_to_ssh(key, value)
}

fn unknown(key: &str) -> Error {
    OPTIONS.unknown_beside(key, &[("port", "the LOCATION names it: ssh://HOST:PORT/")], options_of_ssh())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_those_of_ssh_are_passed_on_and_others_are_refused() {
        let mut options = Options::default();
        for (key, value) in [
            ("tree", "/srv"),
            ("timeout", "3"),
            ("IdentityFile", "/k"),
            ("ssh_command", "ssh -v"),
            ("cacert", "c"),
        ] {
            assert_eq!(options.set(key, value), Ok(()), "{key}");
        }
        assert_eq!(options.ssh, [("IdentityFile".to_owned(), "/k".to_owned())]);
        assert_eq!(options.ssh_command, ["ssh", "-v"]);
        assert!(options.ca.as_ref().is_some_and(|file| file.is_absolute()));
        assert!(options.check(true).is_ok() && options.check(false).is_err());
        options.set("key", "k").unwrap();
        assert!(options.check(true).unwrap_err().to_string().contains("cert=FILE"));
        for (key, value, word) in [
            ("port", "22", "ssh://HOST:PORT/"),
            ("command", "", "command"),
            ("x", "", "outrigger drivers wire"),
        ] {
            let refused = Options::default().set(key, value).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
        assert!(
            is_dangerous("ProxyCommand", "x")
                && is_dangerous("command", "x")
                && !is_dangerous("timeout", "3")
        );
    }
}
