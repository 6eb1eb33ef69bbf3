// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{Errno, OptionTable, Result};
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
    ],
};

/// Options of curlftpfs(1) that there are not here, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("cert", "no certificate of the user is shown to the server; the login is a name and a password"),
    ("codepage", "names are those of the server, in UTF-8 unless no_utf8 is given"),
    ("connect_timeout", "timeout=SECONDS limits connecting, too"),
    ("disable_eprt", "connections are passive: leave it out"),
    ("disable_epsv", "PASV is used where the server does not have EPSV: leave it out"),
    ("enable_epsv", "EPSV is used where the server has it: leave it out"),
    ("ftp_method", "the path of each command is complete: leave it out"),
    ("ftp_port", "the server cannot connect to this machine, all connections are passive: leave it out"),
    ("httpproxy", "there are no proxies"),
    ("iocharset", "names are those of the server, in UTF-8 unless no_utf8 is given"),
    ("no_verify_hostname", "certificates are always checked; ca=FILE trusts the server's own"),
    ("no_verify_peer", "certificates are always checked; ca=FILE trusts the server's own"),
    ("pass", "the password is in ~/.netrc, or in the file of password_file=FILE"),
    ("proxy", "there are no proxies"),
    ("skip_pasv_ip", "data connections always go to the host of the LOCATION: leave it out"),
    ("ssl_control", "tls encrypts the login and all content"),
    ("ssl_try", "tls encrypts everything, or the tree is not opened"),
    ("sslv3", "tls chooses the newest version that both sides have"),
    ("tcp_nodelay", "it is always so: leave it out"),
    ("tlsv1", "tls chooses the newest version that both sides have"),
    (
        "user",
        "ftp://USER@HOST/ names the user, and the password is in ~/.netrc, or in the file of password_file=FILE",
    ),
];

/// Options of an [`crate::Ftp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Those that all drivers of whole files have.
    pub files: FileOptions,
    /// Whether MLSD is used where it is offered (`no_mlsd`).
    pub mlsd: bool,
    /// Whether the server is asked for UTF-8 (`no_utf8`).
    pub utf8: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { files: FileOptions::default(), mlsd: true, utf8: true }
    }
}

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "no_mlsd" => self.mlsd = !OPTIONS.switch(key, value)?,
            "no_utf8" => self.utf8 = !OPTIONS.switch(key, value)?,
            "utf8" => self.utf8 = OPTIONS.switch(key, value)?,
            _ if self.files.set(&SHARED, key, value)? => {}
            _ => match INSTEAD.iter().find(|(other, _)| *other == key) {
                // Without the value, which may be a password.
                Some((_, instead)) => {
                    return Err(Errno::EINVAL.because(format!("ftp has no option {key}: {instead}")));
                }
                None => {
                    let others = OPTIONS.options.iter().map(|option| option.name);
                    return Err(SHARED.unknown_beside(key, others));
                }
            },
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
        for (key, value) in [("ssl", ""), ("cacert", "/ca.pem"), ("utf8", "")] {
            assert_eq!(options.set(key, value), Ok(()), "{key}");
        }
        assert!(options.files.tls && options.files.ca.is_some_and(|file| file.ends_with("ca.pem")));
        for (key, value, ours) in [
            ("user", "me:secret", "password_file="),
            ("no_verify_peer", "", "ca=FILE"),
            ("ssl_control", "", "tls"),
        ] {
            let why = Options::default().set(key, value).unwrap_err().to_string();
            assert!(why.contains(ours) && !why.contains("secret"), "{why}");
        }
    }
}
