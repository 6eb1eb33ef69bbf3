// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{OptionTable, Result};
use outrigger_toolkit_remote::{FILE_OPTIONS, FileOptions};

/// What [`Options::set`] takes, but for those of the protocol.
pub const SHARED: OptionTable = OptionTable { owner: "ftp", options: FILE_OPTIONS };

/// What [`Options::set`] takes beside those that all drivers of whole files have.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "ftp",
    options: &[
        option("no_mlsd", "", "", "directories are listed with LIST, also where the server has MLSD"),
        option("no_utf8", "", "", "the server is not asked for names in UTF-8"),
        option("utf8", "", "", "the opposite of no_utf8"),
        option("no_epsv", "", "", "PASV opens data connections, also where the server has EPSV")
            .also(&["disable_epsv"]),
    ],
};

/// Options of curlftpfs(1) that there are not here, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("capath", "ca=FILE takes any number of certificates in one file"),
    ("cert", CLIENT),
    ("cert_type", CLIENT),
    ("ciphers", MODERN),
    ("codepage", NAMES),
    ("connect_timeout", "timeout=SECONDS limits connecting, too"),
    ("custom_list", "LIST -a is used where the server knows it, and MLSD where it has that (no_mlsd)"),
    ("disable_eprt", PASSIVE),
    ("enable_epsv", "EPSV is used where the server knows it: leave it out"),
    ("engine", MODERN),
    ("ftp_method", "whole paths are sent, and CWD only for LIST: leave it out"),
    ("ftp_port", PASSIVE),
    ("ftpfs_debug", "OUTRIGGER_LOG=debug, or `outrigger trace`, shows what is done"),
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
    ("proxytunnel", PROXY),
    ("proxy_anyauth", PROXY),
    ("proxy_basic", PROXY),
    ("proxy_digest", PROXY),
    ("proxy_ntlm", PROXY),
    ("proxy_user", PROXY),
    ("httpproxy", PROXY),
    ("skip_pasv_ip", "data connections always go to the host of the control connection: leave it out"),
    ("socks4", PROXY),
    ("socks5", PROXY),
    ("ssl_control", "tls encrypts the login and all content"),
    ("ssl_try", "tls encrypts everything, or the tree is not opened"),
    ("sslv3", MODERN),
    ("tcp_nodelay", "that is always so: leave it out"),
    ("tlsv1", MODERN),
    ("transform_symlinks", "in mounts that is always so: leave it out"),
    (
        "user",
        "ftp://USER@HOST/ or ftp://USER:PASSWORD@HOST/ names the user; ~/.netrc or password_file=FILE keeps the password from ps(1)",
    ),
];

const CLIENT: &str = "servers that want a certificate of the client are not supported";
const FAMILY: &str =
    "addresses of both kinds are tried: name the address in ftp://[ADDRESS]/ for one of them";
const MODERN: &str = "TLS 1.2 and 1.3 are used with their safe ciphers: leave it out";
const NAMES: &str = "names are bytes as the server has them; utf8 and no_utf8 say whether UTF-8 is asked for";
const PASSIVE: &str = "all connections are passive: leave it out";
const PINNED: &str = "certificates are always checked; ca=FILE trusts the server's own";
const PROXY: &str = "proxies are not supported";

/// Options of an [`crate::Ftp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Those that all drivers of whole files have.
    pub files: FileOptions,
    /// Whether MLSD is used where it is offered (`no_mlsd`).
    pub mlsd: bool,
    /// Whether the server is asked for UTF-8 (`no_utf8`).
    pub utf8: bool,
    /// Whether EPSV is used where it is known (`no_epsv`).
    pub epsv: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { files: FileOptions::default(), mlsd: true, utf8: true, epsv: true }
    }
}

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match OPTIONS.name(key).unwrap_or(key) {
            "no_epsv" => self.epsv = !OPTIONS.switch(key, value)?,
            "no_mlsd" => self.mlsd = !OPTIONS.switch(key, value)?,
            "no_utf8" => self.utf8 = !OPTIONS.switch(key, value)?,
            "utf8" => self.utf8 = OPTIONS.switch(key, value)?,
            _ if self.files.set(&SHARED, key, value)? => {}
            _ => {
                let others = OPTIONS.options.iter().map(|option| option.name);
                return Err(SHARED.unknown_beside(key, INSTEAD, others));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_curlftpfs_mean_the_same_or_name_ours() {
        let mut options = Options::default();
        for (key, value) in [("ssl", ""), ("cacert", "/ca.pem"), ("utf8", ""), ("disable_epsv", "")] {
            assert_eq!(options.set(key, value), Ok(()), "{key}");
        }
        assert!(
            options.files.tls
                && !options.epsv
                && options.files.ca.is_some_and(|file| file.ends_with("ca.pem"))
        );
        for (key, value, ours) in [
            ("user", "me:secret", "ftp://USER:PASSWORD@HOST/"),
            ("skip_pasv_ip", "", "leave it out"),
            ("ftp_port", "-", "passive"),
            ("connect_timeout", "5", "timeout=SECONDS"),
            ("proxy_user", "me:secret", "not supported"),
            ("no_verify_peer", "", "ca=FILE"),
            ("ssl_control", "", "tls"),
        ] {
            let why = Options::default().set(key, value).unwrap_err().to_string();
            assert!(why.contains(ours) && !why.contains("secret"), "{why}");
        }
    }
}
