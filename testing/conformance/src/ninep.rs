// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases the driver `9p` cannot pass.

use crate::mount::Exceptions;

pub use crate::cases::owners::{GROUP, USER};

/// What cannot hold on any server, and why.
pub const DRIVER: Exceptions = &[
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

/// What besides cannot hold on diod.
pub const DIOD: Exceptions = &[
    ("owners/setgid_without_execute_survives_writing", "the server clears the bit"),
    ("xattrs/trusted_is_for_root", "the server gives these to everyone whom it serves"),
];

/// What besides cannot hold where the service is asked, without the dentries of a kernel.
pub const SERVICE: Exceptions = &[
    ("rename/exchange_needs_both", EXCHANGE),
    ("owners/kill_setid_clears_for_anyone", "the server clears them, unless the superuser asks"),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
];

/// What besides cannot hold through a mount.
pub const MOUNTED: Exceptions = &[("fallocate/", "the protocol reserves no space")];

const EXCHANGE: &str = "the protocol cannot exchange names";
