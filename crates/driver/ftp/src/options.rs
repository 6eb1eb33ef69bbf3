// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose, and how a server is named.

use outrigger_core::option::option;
use outrigger_core::{Errno, OptionTable, Result, amount};
use std::path::PathBuf;
use std::time::Duration;

/// What [`Options::set`] takes.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "ftp",
    options: &[
        option("timeout", "SECONDS", "30", "how long the server may say nothing while something is expected"),
        option("connections", "N", "4", "the most control connections"),
        option("tls", "", "", "the same as ftps://: the login and all content go over TLS, or nothing does"),
        option(
            "ca",
            "FILE",
            "",
            "certificates in PEM to trust in place of the system's; also the server's own",
        ),
        option("netrc", "FILE", "~/.netrc", "where logins are that the LOCATION does not have"),
        option("no_netrc", "", "", "no file is asked for logins"),
        option(
            "upload",
            "temporary|direct",
            "temporary",
            "whether a file is sent under a temporary name and then renamed, so that a broken upload destroys nothing",
        ),
        option("spool", "BYTES", "16g", "the most space on this machine for files that are being written"),
        option("spool_dir", "DIR", "$TMPDIR or /var/tmp", "where these are, without names"),
        option("max_listing", "BYTES", "256m", "the longest listing of a directory that is taken"),
        option("no_mlsd", "", "", "directories are listed with LIST, also where the server has MLSD"),
        option("no_utf8", "", "", "the server is not asked for names in UTF-8"),
        option(
            "contain_symlinks",
            "",
            "",
            "EPERM for symbolic links that lead out of the tree; mounts do this",
        ),
        option("no_contain_symlinks", "", "", "symbolic links as the server has them, also in mounts"),
    ],
};

/// Options of an [`crate::Ftp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long the server may say nothing while something is expected (`timeout=SECONDS`).
    pub timeout: Duration,
    /// The most control connections (`connections=N`).
    pub connections: usize,
    /// Whether everything goes over TLS (`tls`, or `ftps://`).
    pub tls: bool,
    /// Certificates to trust in place of the system's (`ca=FILE`).
    pub ca: Option<PathBuf>,
    /// Where logins are (`netrc=FILE`, `no_netrc`).
    pub netrc: Option<PathBuf>,
    /// Whether files are sent under a temporary name (`upload=temporary|direct`).
    pub temporary: bool,
    /// The most bytes of spool files (`spool=BYTES`).
    pub spool: u64,
    /// Where these are (`spool_dir=DIR`).
    pub spool_dir: PathBuf,
    /// The longest listing in bytes (`max_listing=BYTES`).
    pub max_listing: usize,
    /// Whether MLSD is used where it is offered (`no_mlsd`).
    pub mlsd: bool,
    /// Whether the server is asked for UTF-8 (`no_utf8`).
    pub utf8: bool,
    /// Whether symbolic links that lead out of the tree are refused (`contain_symlinks`).
    pub contain_symlinks: bool,
}

impl Default for Options {
    fn default() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Options {
            timeout: Duration::from_secs(30),
            connections: 4,
            tls: false,
            ca: None,
            netrc: variable("HOME").map(|home| home.join(".netrc")),
            temporary: true,
            spool: 16 << 30,
            spool_dir: variable("TMPDIR").unwrap_or_else(|| "/var/tmp".into()),
            max_listing: 256 << 20,
            mlsd: true,
            utf8: true,
            contain_symlinks: false,
        }
    }
}

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let unfit = || OPTIONS.unfit(key, value);
        let switch = || value.is_empty().then_some(true).ok_or_else(unfit);
        let file = || match value {
            "" => Err(unfit()),
            path => Ok(std::path::absolute(path)?),
        };
        match key {
            "timeout" => {
                let seconds = value.parse().ok().filter(|seconds| (0.001..1e6).contains(seconds));
                self.timeout = Duration::from_secs_f64(seconds.ok_or_else(unfit)?);
            }
            "connections" => {
                let number = value.parse().ok().filter(|number| (1..=64).contains(number));
                self.connections = number.ok_or_else(unfit)?;
            }
            "tls" => self.tls = switch()?,
            "ca" => self.ca = Some(file()?),
            "netrc" => self.netrc = Some(file()?),
            "no_netrc" => self.netrc = (!switch()?).then(PathBuf::new),
            "upload" if matches!(value, "temporary" | "direct") => self.temporary = value == "temporary",
            "spool" => self.spool = amount(value).ok_or_else(unfit)?,
            "spool_dir" => self.spool_dir = file()?,
            "max_listing" => {
                self.max_listing = amount(value).and_then(|bytes| bytes.try_into().ok()).ok_or_else(unfit)?;
            }
            "no_mlsd" => self.mlsd = !switch()?,
            "no_utf8" => self.utf8 = !switch()?,
            "contain_symlinks" => self.contain_symlinks = switch()?,
            "no_contain_symlinks" => self.contain_symlinks = !switch()?,
            _ => return Err(if OPTIONS.has(key) { unfit() } else { OPTIONS.unknown(key) }),
        }
        Ok(())
    }
}

/// A server, and who logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password, if one is.
    pub password: Option<String>,
    /// Whether the tree begins at the root of the server, not at the directory of the user.
    pub from_root: bool,
}

impl Server {
    /// Reads `[USER[:PASSWORD]@]HOST[:PORT][//]` as it stands in a URL.
    ///
    /// # Errors
    /// `EINVAL` for what is no such thing.
    pub fn parse(text: &str) -> Result<Self> {
        let odd = |what: &str| {
            Errno::EINVAL.because(format!("ftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH is needed: {what}"))
        };
        let (place, from_root) = text.strip_suffix("//").map_or((text, false), |place| (place, true));
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let (user, password) = match login.map(|login| (login, login.split_once(':'))) {
            Some((_, Some((user, password)))) => (Some(decoded(user)), Some(decoded(password))),
            Some((user, None)) => (Some(decoded(user)), None),
            None => (None, None),
        };
        let (host, port) = match place.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| odd("the port is no number"))?),
            None => (place, 21),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let control = |text: &Option<String>| text.iter().any(|text| text.contains(['\r', '\n', '\0']));
        if host.is_empty() || control(&user) || control(&password) {
            return Err(odd("the host is missing, or there is a line break"));
        }
        Ok(Server { host: host.to_owned(), port, user, password, from_root })
    }
}

/// With `%41` as `A`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| byte == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        let decoded = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_as_in_urls() {
        let server = |host: &str, port, user: Option<&str>, password: Option<&str>, from_root| Server {
            host: host.into(),
            port,
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
            from_root,
        };
        for (text, expected) in [
            ("h", server("h", 21, None, None, false)),
            ("u@h:2121//", server("h", 2121, Some("u"), None, true)),
            ("u%40x:p%3a%2F@[::1]:21", server("::1", 21, Some("u@x"), Some("p:/"), false)),
            ("u:@h", server("h", 21, Some("u"), Some(""), false)),
        ] {
            assert_eq!(Server::parse(text), Ok(expected), "{text}");
        }
        for text in ["", "u@", "h:x", "u%0aDELE:p@h"] {
            assert_eq!(Server::parse(text).unwrap_err().errno, Errno::EINVAL, "{text}");
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for (key, value) in [
            ("timeout", "0"),
            ("connections", "0"),
            ("upload", "maybe"),
            ("spool", "x"),
            ("tls", "yes"),
            ("netrc", ""),
            ("port", "1"),
        ] {
            assert_eq!(Options::default().set(key, value).unwrap_err().errno, Errno::EINVAL, "{key}");
        }
    }
}
