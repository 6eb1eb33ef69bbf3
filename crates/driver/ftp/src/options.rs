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
    ],
};

/// Options of curlftpfs(1) that there are not here, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("connect_timeout", "timeout=SECONDS limits connecting, too"),
    ("ftp_port", "all connections are passive: leave it out"),
    ("no_verify_hostname", "certificates are always checked; ca=FILE trusts the server's own"),
    ("no_verify_peer", "certificates are always checked; ca=FILE trusts the server's own"),
    ("pass", "the password is in ~/.netrc, or in the file of password_file=FILE"),
    ("ssl_control", "tls encrypts the login and all content"),
    ("ssl_try", "tls encrypts everything, or the tree is not opened"),
    ("user", "ftp://USER@HOST/ names the user, ~/.netrc or password_file=FILE has the password"),
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
