// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose, named as in nfs(5).

use outrigger_core::option::option;
use outrigger_core::{OptionTable, Result};
use std::time::Duration;

/// The most content in one READ or WRITE, whatever a server offers, in bytes.
pub(crate) const IO_MAX: u32 = 1 << 20;

/// What [`Options::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "nfs",
    options: &[
        option(
            "port",
            "N",
            "what the portmapper says, else 2049",
            "the port of the server, where MOUNT is looked for first, too",
        ),
        option("mountport", "N", "", "the port of MOUNT"),
        option("timeo", "N", "300", "how many tenths of a second the server may say nothing to a call"),
        option(
            "timeout",
            "SECONDS",
            "30",
            "the same in seconds; also how long a server that was there may be gone",
        ),
        option("retrans", "N", "2", "how often a call is made again before it fails"),
        option("hard", "", "", "calls are made again until the server answers"),
        option("soft", "", "", "the opposite of hard, as usual"),
        option("rsize", "BYTES", "what the server likes", "the most content in one READ"),
        option("wsize", "BYTES", "what the server likes", "the most content in one WRITE"),
        option("noresvport", "", "", "no port below 1024 is used, also where this process may"),
        option("resvport", "", "", "the opposite of noresvport, as usual"),
        option(
            "max_listing",
            "BYTES",
            "1g",
            "the most memory that the names of all open directories may take",
        ),
        option("sec", "sys", "sys", "users are told by their numbers (AUTH_SYS); there is nothing else"),
        option("vers", "3", "3", "the version of the protocol; there is no other").also(&["nfsvers"]),
        option("proto", "tcp", "tcp", "how the server is reached; there is no other way")
            .also(&["mountproto"]),
        option("nolock", "", "", "locks are held on this machine only, as always"),
    ],
};

const CACHE: &str = "cache=SECONDS says for how long answers are used; cache=never asks every time";
const TICKETS: &str = "only AUTH_SYS is there";
const WRITES: &str = "write=through sends writes at once, write=close when a file is closed";

/// Options of nfs(5) that there are not here, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("ac", CACHE),
    ("acdirmax", CACHE),
    ("acdirmin", CACHE),
    ("acregmax", CACHE),
    ("acregmin", CACHE),
    ("actimeo", CACHE),
    ("async", WRITES),
    ("bg", "a mount that cannot be made fails at once: leave it out"),
    ("bsize", "rsize and wsize say how much is moved at once"),
    ("cto", "opening a file asks the server: leave it out"),
    ("fg", "that is always so: leave it out"),
    ("fsc", "disk_cache=BYTES keeps content on disk"),
    ("intr", "that is always so: leave it out"),
    ("lock", "locks are held on this machine only (nolock)"),
    ("lookupcache", CACHE),
    ("mountaddr", "MOUNT is asked at the host of the LOCATION"),
    ("mountvers", "MOUNT is version 3: leave it out"),
    ("namlen", "the server says how long names may be: leave it out"),
    ("nconnect", "one connection carries all calls at once: leave it out"),
    ("noac", CACHE),
    ("nocto", CACHE),
    ("nofsc", "nothing is kept on disk unless disk_cache=BYTES says so: leave it out"),
    ("nointr", "a program that is killed does not wait: leave it out"),
    ("nordirplus", "READDIRPLUS lists directories: leave it out"),
    ("nosharecache", "each mount has its own cache: leave it out"),
    ("retry", "timeout=SECONDS says how long a server may be gone"),
    ("sharecache", "each mount has its own cache"),
    ("softerr", "soft is that"),
    ("softreval", "cache=SECONDS says for how long answers are used"),
    ("sync", WRITES),
    ("tcp", "that is always so: leave it out"),
    ("udp", "only TCP is there: leave it out"),
    ("xprtsec", TICKETS),
];

/// Options of a [`crate::Nfs`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The port of the server (`port=N`).
    pub port: Option<u16>,
    /// The port of MOUNT (`mountport=N`).
    pub mountport: Option<u16>,
    /// How long the server may say nothing to a call, and how long one that was there may be gone (`timeo=N`, `timeout=SECONDS`).
    pub timeout: Duration,
    /// How often a call is made again (`retrans=N`).
    pub retrans: u32,
    /// Whether it is made again for ever (`hard`).
    pub hard: bool,
    /// The most content in one READ and one WRITE (`rsize=BYTES`, `wsize=BYTES`).
    pub sizes: [u32; 2],
    /// Whether a port below 1024 is used where that is permitted (`noresvport`).
    pub resvport: bool,
    /// The most bytes of memory that the names of all open directories may take (`max_listing=BYTES`).
    pub max_listing: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            port: None,
            mountport: None,
            timeout: Duration::from_secs(30),
            retrans: 2,
            hard: false,
            sizes: [IO_MAX; 2],
            resvport: true,
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
        let switch = || table.switch(key, value);
        let size = || table.bytes(key, value).map(|size: u32| size.clamp(1024, IO_MAX));
        let only = |word| table.one_of(key, value, &[(word, ())]);
        match table.name(key).unwrap_or(key) {
            // 0 stands for what the portmapper says.
            "port" => self.port = Some(table.number(key, value, ..)?).filter(|&port| port != 0),
            "mountport" => self.mountport = Some(table.number(key, value, ..)?).filter(|&port| port != 0),
            "timeo" => self.timeout = Duration::from_millis(table.number(key, value, 1..=1_000_000)? * 100),
            "timeout" => self.timeout = table.time_limit(key, value)?,
            "retrans" => self.retrans = table.number(key, value, 0..=1000)?,
            "hard" => self.hard = switch()?,
            "soft" => self.hard = !switch()?,
            "rsize" => self.sizes[0] = size()?,
            "wsize" => self.sizes[1] = size()?,
            "resvport" => self.resvport = switch()?,
            "noresvport" => self.resvport = !switch()?,
            "max_listing" => self.max_listing = table.bytes(key, value)?,
            "sec" => only("sys")?,
            "vers" => only("3")?,
            "proto" => only("tcp")?,
            "nolock" => _ = switch()?,
            _ => return Err(table.unknown_beside(key, INSTEAD, std::iter::empty())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    #[test]
    fn options_of_nfs_mean_the_same_or_name_ours() {
        let mut options = Options::default();
        for (key, value) in [
            ("nfsvers", "3"),
            ("proto", "tcp"),
            ("port", "0"),
            ("mountport", "20048"),
            ("timeo", "50"),
            ("hard", ""),
            ("rsize", "64k"),
            ("noresvport", ""),
            ("nolock", ""),
        ] {
            assert_eq!(options.set(key, value), Ok(()), "{key}");
        }
        let expected = Options {
            mountport: Some(20048),
            timeout: Duration::from_secs(5),
            hard: true,
            sizes: [64 << 10, IO_MAX],
            resvport: false,
            ..Options::default()
        };
        assert_eq!(options, expected);
        for (key, value, ours) in [
            ("vers", "4", "3"),
            ("sec", "krb5", "sys"),
            ("proto", "udp", "tcp"),
            ("actimeo", "3", "cache=SECONDS"),
            ("fsc", "", "disk_cache="),
            ("retran", "3", "retrans"),
            ("timeo", "0", "timeo"),
        ] {
            let refused = Options::default().set(key, value).unwrap_err();
            assert_eq!(refused.errno, Errno::EINVAL, "{key}");
            assert!(refused.to_string().contains(ours), "{refused}");
        }
    }
}
