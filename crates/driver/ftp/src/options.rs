// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{OptionTable, Result};
use outrigger_toolkit_remote::{FILE_OPTIONS, FileOptions, unknown_file_option};

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
        option(
            "implicit_tls",
            "",
            "",
            "TLS begins before the server's greeting, as it always does at port 990",
        ),
    ],
};

/// Options of curlftpfs(1) about FTP that there are not here, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("custom_list", "LIST -a is used where the server knows it, and MLSD where it has that (no_mlsd)"),
    ("disable_eprt", PASSIVE),
    ("enable_epsv", "EPSV is used where the server knows it: leave it out"),
    ("ftp_method", "whole paths are sent, and CWD only for LIST: leave it out"),
    ("ftp_port", PASSIVE),
    ("skip_pasv_ip", "data connections always go to the host of the control connection: leave it out"),
    (
        "user",
        "ftp://USER@HOST/ or ftp://USER:PASSWORD@HOST/ names the user; ~/.netrc or password_file=FILE keeps the password from ps(1)",
    ),
];

const PASSIVE: &str = "all connections are passive: leave it out";

/// Options of an [`crate::Ftp`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Those that all drivers of whole files have.
    pub files: FileOptions,
    /// Whether TLS begins at once (`implicit_tls`).
    pub implicit_tls: bool,
    /// Whether MLSD is left alone also where it is offered (`no_mlsd`).
    pub no_mlsd: bool,
    /// Whether the server is not asked for UTF-8 (`no_utf8`).
    pub no_utf8: bool,
    /// Whether EPSV is left alone also where it is known (`no_epsv`).
    pub no_epsv: bool,
}

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match OPTIONS.name(key).unwrap_or(key) {
            "implicit_tls" => self.implicit_tls = OPTIONS.switch(key, value)?,
            "no_epsv" => self.no_epsv = OPTIONS.switch(key, value)?,
            "no_mlsd" => self.no_mlsd = OPTIONS.switch(key, value)?,
            "no_utf8" => self.no_utf8 = OPTIONS.switch(key, value)?,
            "utf8" => self.no_utf8 = !OPTIONS.switch(key, value)?,
            _ if self.files.set(&SHARED, key, value)? => {}
            _ => return Err(unknown_file_option(&OPTIONS, key, INSTEAD)),
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
                && options.no_epsv
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
