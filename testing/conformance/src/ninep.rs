// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases 9P2000.L cannot pass: through the driver `9p`, and through the client of a kernel.

use crate::mount::Exceptions;
use outrigger_core::{OpCode, OpSet};

/// The operations that a mount by such a client has.
pub const fn ops() -> OpSet {
    OpSet::all().without(OpSet::of(&[OpCode::TmpFile, OpCode::Fallocate]))
}

/// What cannot hold through the driver on diod, and why.
pub const DIOD: Exceptions = &[
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("owners/setgid_without_execute_survives_writing", "the server clears the bit"),
    ("xattrs/trusted_is_for_root", "the server gives these to everyone whom it serves"),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

/// What besides cannot hold where the service is asked, without the dentries of a kernel.
pub const SERVICE: Exceptions = &[
    ("directories/many_levels", "it holds, but takes 300000 round trips: each path is walked from the root"),
    ("rename/exchange_needs_both", EXCHANGE),
    ("owners/kill_setid_clears_for_anyone", "the server clears them, unless the superuser asks"),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
];

/// What besides cannot hold through a mount.
pub const MOUNTED: Exceptions = &[
    (
        "unlinked/its_name_can_be_used_again",
        "a kernel asks for attributes before it reads, and there is another file",
    ),
    ("fallocate/", "the protocol reserves no space"),
];

const EXCHANGE: &str = "the protocol cannot exchange names";

/// What cannot hold through the driver on our own door, and why.
pub const OWN: Exceptions = &[
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("rename/exchange_needs_both", EXCHANGE),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

/// What cannot hold through the client of a kernel, and why.
pub const CLIENT: Exceptions = &[
    ("rename/noreplace_moves_to_a_free_name", FLAGS),
    ("rename/exchange_swaps_files", FLAGS),
    ("rename/exchange_swaps_file_and_directory", FLAGS),
    ("holes/seek_finds_data_and_hole", HOLES),
    ("holes/a_file_that_is_a_hole", HOLES),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

const FLAGS: &str = "the protocol renames in one way only";
const HOLES: &str = "the protocol does not tell where holes are";
