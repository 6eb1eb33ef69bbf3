// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose.

use outrigger_core::option::option;
use outrigger_core::{OptionTable, Result};
use outrigger_toolkit_remote::{FILE_OPTIONS, FileOptions, unknown_file_option};

/// The options of a tree that is only read.
pub const OPTIONS: OptionTable = OptionTable { owner: "http", options: FILE_OPTIONS };
/// Those that it has beside these.
pub const INDEX: OptionTable = OptionTable {
    owner: "http",
    options: &[option(
        "index",
        "exact|trust",
        "exact",
        "whether sizes and times of an HTML index of nginx are taken as they are, in UTC and of whole minutes, or each file is asked about",
    )],
};
/// Those of one that can be changed.
pub const DAV_OPTIONS: OptionTable = OptionTable { owner: "dav", options: FILE_OPTIONS };

/// What was chosen.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// For any server of whole files.
    pub files: FileOptions,
    /// Sizes and times of HTML index pages of nginx are taken as they are.
    pub trusts_index: bool,
}

/// Options of httpdirfs(1) and of programs that use libcurl, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("httpproxy", PROXY),
    ("insecure-tls", "certificates are always checked; ca=FILE trusts the server's own"),
    ("max-conns", "connections=N limits them"),
    ("password", LOGIN),
    ("proxy", PROXY),
    ("proxy_user", PROXY),
    ("user", LOGIN),
    ("username", LOGIN),
];

const LOGIN: &str =
    "https://USER@HOST/ names the user; ~/.netrc or password_file=FILE keeps the password from ps(1)";
const PROXY: &str =
    "proxies are those of the environment: http_proxy, https_proxy and no_proxy, with the login in their URL";

/// Sets the option `key` of `table` as `-o key=value` names it.
///
/// # Errors
/// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
pub fn set(table: &OptionTable, options: &mut Options, key: &str, value: &str) -> Result<()> {
    if table.owner == INDEX.owner && INDEX.has(key) {
        options.trusts_index = INDEX.one_of(key, value, &[("exact", false), ("trust", true)])?;
        return Ok(());
    }
    match options.files.set(table, key, value)? {
        true => Ok(()),
        false => Err(unknown_file_option(&OptionTable { owner: table.owner, options: &[] }, key, INSTEAD)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_programs_name_ours() {
        for (key, ours) in
            [("proxy", "https_proxy"), ("username", "USER@HOST"), ("no_verify_peer", "ca=FILE")]
        {
            let why = set(&OPTIONS, &mut Options::default(), key, "x").unwrap_err().to_string();
            assert!(why.contains("http has no option") && why.contains(ours), "{why}");
        }
        let mut options = Options::default();
        set(&OPTIONS, &mut options, "connections", "7").expect("an option");
        set(&OPTIONS, &mut options, "index", "trust").expect("an option");
        assert_eq!((options.files.connections, options.trusts_index), (7, true));
        assert!(set(&OPTIONS, &mut options, "index", "yes").is_err());
        assert!(set(&DAV_OPTIONS, &mut options, "index", "trust").is_err(), "it lists without an index");
    }
}
