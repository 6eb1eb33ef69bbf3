// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases the driver `9p` cannot pass on diod.

use crate::mount::Exceptions;

/// What cannot hold, and why.
pub const DIOD: Exceptions = &[
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("rename/exchange_needs_both", EXCHANGE),
    ("owners/setgid_without_execute_survives_writing", "the server clears the bit"),
    ("owners/kill_setid_clears_for_anyone", "the server clears them, unless the superuser asks"),
    ("xattrs/trusted_is_for_root", "the server gives these to everyone whom it serves"),
    ("unlinked/an_open_file_lives_on", BY_PATH),
    ("unlinked/an_open_file_can_still_change", BY_PATH),
    ("unlinked/replaced_by_rename_lives_on", BY_PATH),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

const EXCHANGE: &str = "the protocol cannot exchange names";
const BY_PATH: &str =
    "the server has the content of the open file, and looks for its attributes under the name that it had";
