// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{OptionTable, Result};
use outrigger_proto_ninep::Dialect;
use outrigger_toolkit_remote::command_words;
use std::ffi::OsString;
use std::time::Duration;

/// What [`Options::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "9p",
    options: &[
        option("aname", "NAME", "the path", "what the server calls the tree; paths begin in it then"),
        option(
            "uname",
            "NAME",
            "the user of this process",
            "the name of the user at the server, also as USER@HOST",
        ),
        option(
            "uid",
            "N",
            "the user of this process; as root the one who asks",
            "the number of the user at the server, who makes all requests",
        ),
        option(
            "dialect",
            "9p2000.L|9p2000.u|9p2000",
            "the first of these that the server speaks",
            "what is spoken, and nothing else",
        ),
        option(
            "command",
            "WORDS",
            "",
            "a program that speaks 9P on its standard input and output, in place of a connection: ssh HOST u9fs",
        ),
        option(
            "timeout",
            "SECONDS",
            "30",
            "how long the server may say nothing to a request, and how long one that was there may be gone",
        ),
        option(
            "noxattr",
            "",
            "",
            "no extended attributes: ls -l asks for those of each file, one after the other",
        ),
        option(
            "locks",
            "local|server",
            "server where it keeps some, else local",
            "where locks of fcntl(2) and flock(2) hold: server, among all its clients, or local, among the programs of one mount",
        ),
        option("max_listing", "BYTES", "1g", "the most memory that the names of one directory may take"),
    ],
};

/// Options of mount(8) for the kernel's client that there are not here, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    (
        "access",
        "uid=N has one user for all requests; without it, as root, each request is made as the user of the program",
    ),
    ("cache", "cache=SECONDS says for how long answers are used; cache=never asks every time"),
    ("dfltuid", "users without a number are those of their names here, or nobody: leave it out"),
    ("dfltgid", "groups without a number are those of their names here, or nobody: leave it out"),
    ("msize", "as much as the server likes, up to 1 MiB: leave it out"),
    ("nolock", "locks=local keeps locks among the programs of one mount"),
    ("local_lock", "locks=local keeps locks among the programs of one mount"),
    ("port", "the LOCATION names it: 9p://HOST:PORT/"),
    ("trans", "the LOCATION says it: 9p://HOST/ is TCP, 9p:unix:PATH a socket of this machine"),
    ("version", "dialect=9p2000.L, dialect=9p2000.u or dialect=9p2000"),
];

/// Where locks hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// Among the programs of one mount.
    Local,
    /// Among all clients of the server.
    Server,
}

/// What `locks=` takes.
const WHERE: &[(&str, Where)] = &[("local", Where::Local), ("server", Where::Server)];

/// What `dialect=` takes.
const DIALECTS: &[(&str, Dialect)] =
    &[("9p2000.L", Dialect::Linux), ("9p2000.u", Dialect::Unix), ("9p2000", Dialect::Plain)];

/// Options of a [`crate::NineP`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What the server calls the tree (`aname=NAME`).
    pub aname: Option<String>,
    /// The name of the user (`uname=NAME`).
    pub uname: Option<String>,
    /// The number of the user (`uid=N`).
    pub uid: Option<u32>,
    /// What is spoken (`dialect=`); `None` for the richest dialect that the server speaks.
    pub dialect: Option<Dialect>,
    /// The program that is started in place of a connection, with its arguments (`command=WORDS`); empty for none.
    pub command: Vec<OsString>,
    /// How long the server may say nothing to a request, and how long one that was there may be gone (`timeout=SECONDS`).
    pub timeout: Duration,
    /// Whether extended attributes are left out (`noxattr`).
    pub noxattr: bool,
    /// Where locks hold (`locks=local` or `locks=server`); `None` for the server if it keeps some, else for this mount.
    pub locks: Option<Where>,
    /// The most bytes of memory that the names of one directory may take (`max_listing=BYTES`).
    pub max_listing: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            aname: None,
            uname: None,
            uid: None,
            dialect: None,
            command: Vec::new(),
            noxattr: false,
            locks: None,
            timeout: Duration::from_secs(30),
            max_listing: 1 << 30,
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
            "aname" => self.aname = Some(value.to_owned()),
            "uname" => self.uname = Some(value.to_owned()),
            "uid" => self.uid = Some(table.number(key, value, ..)?),
            "dialect" => self.dialect = Some(table.one_of(key, value, DIALECTS)?),
            "command" => self.command = command_words(table, key, value)?,
            "timeout" => self.timeout = table.time_limit(key, value)?,
            "noxattr" => self.noxattr = table.switch(key, value)?,
            "locks" => self.locks = Some(table.one_of(key, value, WHERE)?),
            "max_listing" => self.max_listing = table.bytes(key, value)?,
            _ => return Err(table.unknown_beside(key, INSTEAD, std::iter::empty())),
        }
        Ok(())
    }
}

/// Whether the option `key` can have a program started.
pub(crate) fn is_dangerous(key: &str, _: &str) -> bool {
    OPTIONS.name(key).unwrap_or(key) == "command"
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    #[test]
    fn options_are_taken_and_those_of_the_kernel_name_ours() {
        let mut options = Options::default();
        for (key, value) in
            [("aname", "/srv"), ("uid", "7"), ("timeout", "3"), ("max_listing", "1m"), ("dialect", "9p2000")]
        {
            assert_eq!(options.set(key, value), Ok(()), "{key}");
        }
        assert_eq!((options.uid, options.max_listing), (Some(7), 1 << 20));
        assert_eq!(options.dialect, Some(Dialect::Plain));
        for (key, value, ours) in [
            ("locks", "none", "local|server"),
            ("trans", "tcp", "LOCATION"),
            ("command", "", "WORDS"),
            ("version", "9p2000", "dialect=9p2000.u"),
            ("dialect", "9p", "9p2000.L|9p2000.u|9p2000"),
            ("msize", "8192", "1 MiB"),
            ("uid", "x", "uid"),
        ] {
            let refused = Options::default().set(key, value).unwrap_err();
            assert_eq!(refused.errno, Errno::EINVAL, "{key}");
            assert!(refused.to_string().contains(ours), "{refused}");
        }
    }
}
