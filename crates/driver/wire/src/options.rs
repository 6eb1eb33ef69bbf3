// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{Error, OptionTable, Result};
use outrigger_toolkit_remote::{
    command_words, for_ssh, is_dangerous_to_ssh, is_of_ssh, lasting_file, options_of_ssh,
};
use std::ffi::OsString;
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
        match key {
            "tree" if !value.is_empty() => self.tree = value.into(),
            "command" => {
                command_words(&OPTIONS, key, value)?;
                self.command = value.into();
            }
            "ssh_command" => self.ssh_command = command_words(&OPTIONS, key, value)?,
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
        for (key, value) in
            [("tree", "/srv"), ("timeout", "3"), ("IdentityFile", "/k"), ("ssh_command", "ssh -v")]
        {
            assert_eq!(options.set(key, value), Ok(()), "{key}");
        }
        assert_eq!(options.ssh, [("IdentityFile".to_owned(), "/k".to_owned())]);
        assert_eq!(options.ssh_command, ["ssh", "-v"]);
        for (key, value, word) in
            [("port", "22", "ssh://HOST:PORT/"), ("command", "", "command"), ("x", "", "tree")]
        {
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
