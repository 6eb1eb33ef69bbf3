// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options that all drivers of servers of whole files have.

use outrigger_core::option::{OptionInfo, option};
use outrigger_core::registry::Site;
use outrigger_core::{Errno, Error, OptionTable, Result};
use std::path::PathBuf;
use std::time::Duration;

/// What [`FileOptions::set`] takes.
pub const FILE_OPTIONS: &[OptionInfo] = &[
    option(
        "timeout",
        "SECONDS",
        "30",
        "how long the server may say nothing while something is expected, and how long one that was there may be gone",
    ),
    option("connections", "N", "4", "the most connections for requests"),
    option("tls", "", "", "the login and all content go over TLS, or nothing does").also(&["ssl"]),
    option("ca", "FILE", "", "certificates in PEM to trust in place of the system's; also the server's own")
        .also(&["cacert"]),
    option("netrc", "FILE", "~/.netrc", "where logins are that the LOCATION does not have"),
    option("no_netrc", "", "", "no file is asked for logins"),
    option(
        "password_file",
        "FILE",
        "",
        "the password is the first line of this file, which only its owner can read",
    ),
    option(
        "upload",
        "temporary|direct",
        "temporary",
        "whether a file is sent under a temporary name and then renamed, so that a broken upload destroys nothing; a WebDAV server is always sent the file itself",
    ),
    option(
        "attrs",
        "refuse|ignore",
        "refuse",
        "what setting permissions and times does where the server has none: fail, or succeed without effect",
    ),
    option("spool", "BYTES", "16g", "the most space on this machine for files that are being written"),
    option("spool_dir", "DIR", "$TMPDIR or /var/tmp", "where these are, without names"),
    option("max_listing", "BYTES", "1g", "the most memory that the names of one directory may take"),
];

/// Options of programs that reach servers by libcurl, as curlftpfs(1) does, that no driver here has, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("capath", "ca=FILE takes any number of certificates in one file"),
    ("cert", CLIENT),
    ("cert_type", CLIENT),
    ("ciphers", MODERN),
    ("codepage", NAMES),
    ("connect_timeout", "timeout=SECONDS limits connecting, too"),
    ("engine", MODERN),
    ("ftpfs_debug", "OUTRIGGER_LOG=debug, or `outrigger trace`, shows what is done"),
    ("httpproxy", PROXY),
    ("interface", "the routes of the system say by which interface a host is reached: leave it out"),
    ("iocharset", NAMES),
    ("ipv4", FAMILY),
    ("ipv6", FAMILY),
    ("key", CLIENT),
    ("key_type", CLIENT),
    ("krb4", "tls protects the login"),
    ("no_verify_hostname", PINNED),
    ("no_verify_peer", PINNED),
    ("pass", "the password is in ~/.netrc, or in the file of password_file=FILE"),
    ("proxy", PROXY),
    ("proxy_anyauth", PROXY),
    ("proxy_basic", PROXY),
    ("proxy_digest", PROXY),
    ("proxy_ntlm", PROXY),
    ("proxy_user", PROXY),
    ("proxytunnel", PROXY),
    ("socks4", PROXY),
    ("socks5", PROXY),
    ("ssl_control", "tls encrypts the login and all content"),
    ("ssl_try", "tls encrypts everything, or the tree is not opened"),
    ("sslv3", MODERN),
    ("tcp_nodelay", "that is always so: leave it out"),
    ("tlsv1", MODERN),
];

const CLIENT: &str = "servers that want a certificate of the client are not supported";
const FAMILY: &str = "addresses of both kinds are tried: name the address in place of the host, [ADDRESS] for IPv6, for one of them";
const MODERN: &str = "TLS 1.2 and 1.3 are used with their safe ciphers: leave it out";
const NAMES: &str = "names are bytes as the server has them: leave it out";
const PINNED: &str = "certificates are always checked; ca=FILE trusts the server's own";
const PROXY: &str = "proxies are not supported";

/// Options of a [`crate::FileTree`] and of the connections to its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// How long the server may say nothing while something is expected, and how long one that was there may be gone
    /// (`timeout=SECONDS`).
    pub timeout: Duration,
    /// The most connections for requests (`connections=N`).
    pub connections: usize,
    /// Whether everything goes over TLS (`tls`).
    pub tls: bool,
    /// Certificates to trust in place of the system's (`ca=FILE`).
    pub ca: Option<PathBuf>,
    /// Where logins are (`netrc=FILE`, `no_netrc`).
    pub netrc: Option<PathBuf>,
    /// Where the password is (`password_file=FILE`).
    pub password_file: Option<PathBuf>,
    /// Whether files are sent under a temporary name (`upload=temporary|direct`).
    pub temporary: bool,
    /// Whether permissions and times are as good as set where the server has none (`attrs=refuse|ignore`).
    pub ignores_attrs: bool,
    /// The most bytes of spool files (`spool=BYTES`).
    pub spool: u64,
    /// Where these are (`spool_dir=DIR`).
    pub spool_dir: PathBuf,
    /// The most bytes of memory that the names of one directory may take (`max_listing=BYTES`).
    pub max_listing: usize,
    /// The server need not be reached before it is asked for something ([`Site::is_known`]).
    pub is_known: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        FileOptions {
            timeout: Duration::from_secs(30),
            connections: 4,
            tls: false,
            ca: None,
            netrc: variable("HOME").map(|home| home.join(".netrc")),
            password_file: None,
            temporary: true,
            ignores_attrs: false,
            spool: 16 << 30,
            spool_dir: variable("TMPDIR").unwrap_or_else(|| "/var/tmp".into()),
            max_listing: 1 << 30,
            is_known: false,
        }
    }
}

impl FileOptions {
    /// What holds where a user chooses nothing, for a tree at a site whose scheme says whether everything goes over TLS.
    pub fn at(site: &Site<'_>, tls: bool) -> Self {
        let usual = FileOptions::default();
        FileOptions { tls, timeout: site.limit(usual.timeout), is_known: site.is_known, ..usual }
    }

    /// Whether they make sense together; `scheme` is the one with TLS.
    ///
    /// # Errors
    /// `EINVAL` when they do not.
    pub fn check(&self, scheme: &str) -> Result<()> {
        if self.ca.is_some() && !self.tls {
            return Err(Errno::EINVAL.because(format!(
                "option ca: it checks a certificate, and without TLS all is sent in clear: use {scheme}HOST, or the option tls"
            )));
        }
        Ok(())
    }

    /// Sets the option `key` as `-o key=value` names it, if it is one of these; whether it is. `table` is the driver's, which
    /// messages name.
    ///
    /// # Errors
    /// `EINVAL` for a value it does not take; the reason says which are taken.
    pub fn set(&mut self, table: &OptionTable, key: &str, value: &str) -> Result<bool> {
        let table = &OptionTable { owner: table.owner, options: FILE_OPTIONS };
        match table.name(key).unwrap_or(key) {
            "timeout" => self.timeout = table.time_limit(key, value)?,
            "connections" => self.connections = table.number(key, value, 1..=64)?,
            "tls" => self.tls = table.switch(key, value)?,
            "ca" => self.ca = Some(file_option(table, key, value)?),
            "netrc" => self.netrc = Some(file_option(table, key, value)?),
            "no_netrc" => {
                if table.switch(key, value)? {
                    self.netrc = None;
                }
            }
            "password_file" => self.password_file = Some(file_option(table, key, value)?),
            "upload" => {
                self.temporary = table.one_of(key, value, &[("temporary", true), ("direct", false)])?;
            }
            "attrs" => {
                self.ignores_attrs = table.one_of(key, value, &[("refuse", false), ("ignore", true)])?;
            }
            "spool" => self.spool = table.bytes(key, value)?,
            "spool_dir" => self.spool_dir = file_option(table, key, value)?,
            "max_listing" => self.max_listing = table.bytes(key, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// `EINVAL`: neither the driver, which has the options `own`, nor all drivers of whole files have an option `key`. `instead` names options
/// of another program that the driver does not have, and what to do instead; those of libcurl's need not be among them.
pub fn unknown_file_option(own: &OptionTable, key: &str, instead: &[(&str, &str)]) -> Error {
    let shared = OptionTable { owner: own.owner, options: FILE_OPTIONS };
    let others = own.options.iter().map(|option| option.name);
    shared.unknown_beside(key, &[instead, INSTEAD].concat(), others)
}

/// The name of a file as the value of an option. It is found from every directory, and `~/` is the home of the user, since shells
/// leave it alone after a `=`.
///
/// # Errors
/// `EINVAL` for no name.
pub fn file_option(table: &OptionTable, key: &str, value: &str) -> Result<PathBuf> {
    let path = match value.strip_prefix("~/") {
        Some(rest) => std::env::home_dir().map(|home| home.join(rest)),
        None => std::path::absolute(value).ok(),
    };
    path.ok_or_else(|| table.unfit(key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: OptionTable = OptionTable { owner: "tree", options: &[] };

    #[test]
    fn options_of_other_programs_name_ours() {
        for (key, ours) in [
            ("codepage", NAMES),
            ("connect_timeout", "timeout=SECONDS"),
            ("proxy_user", "not supported"),
            ("no_verify_peer", "ca=FILE"),
            ("user", "ours"),
            ("colour", "lists them"),
        ] {
            let why = unknown_file_option(&TABLE, key, &[("user", "ours")]).to_string();
            assert!(why.contains("tree has no option") && why.contains(ours), "{why}");
        }
    }

    #[test]
    fn every_option_is_taken_and_values_that_make_no_sense_are_refused() {
        let mut options = FileOptions::default();
        for OptionInfo { name, value, .. } in FILE_OPTIONS {
            let value = match *value {
                "" => "",
                "FILE" | "DIR" => "name",
                "temporary|direct" => "direct",
                "refuse|ignore" => "ignore",
                _ => "7",
            };
            assert_eq!(options.set(&TABLE, name, value), Ok(true), "{name}");
        }
        assert_eq!(options.set(&TABLE, "colour", "red"), Ok(false));
        assert!(options.ca.is_some_and(|path| path.is_absolute()) && !options.temporary);
        for (key, value) in [
            ("timeout", "0"),
            ("connections", "0"),
            ("upload", "maybe"),
            ("spool", "x"),
            ("tls", "maybe"),
            ("netrc", ""),
        ] {
            let error = FileOptions::default().set(&TABLE, key, value).unwrap_err();
            assert_eq!(error.errno, Errno::EINVAL, "{key}");
            assert!(error.reason.is_some_and(|why| why.starts_with("tree: option")), "{key}");
        }
    }
}
