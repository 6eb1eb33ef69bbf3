// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases a kernel's client of NFS version 3 cannot pass.

use crate::mount::Exceptions;
use outrigger_core::{OpCode, OpSet};

/// What the protocol has no procedure for.
const LACKS: OpSet = OpSet::of(&[
    OpCode::TmpFile,
    OpCode::Fallocate,
    OpCode::CopyRange,
    OpCode::GetXattr,
    OpCode::SetXattr,
    OpCode::ListXattr,
    OpCode::RemoveXattr,
    OpCode::GetLock,
    OpCode::SetLock,
]);

/// The operations that a mount by such a client has.
pub const fn ops() -> OpSet {
    OpSet::all().without(LACKS)
}

/// What cannot hold on it, and why.
pub const CLIENT: Exceptions = &[
    ("times/before_1970_and_after_2106", "times are unsigned seconds of 32 bits"),
    ("holes/seek_finds_data_and_hole", HOLES),
    ("holes/a_file_that_is_a_hole", HOLES),
    ("rename/noreplace_moves_to_a_free_name", FLAGS),
    ("rename/exchange_swaps_files", FLAGS),
    ("rename/exchange_swaps_file_and_directory", FLAGS),
    ("unlinked/an_open_file_lives_on", HIDDEN),
    ("unlinked/replaced_by_rename_lives_on", HIDDEN),
    ("unlinked/cannot_be_named_again", HIDDEN),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

const HIDDEN: &str =
    "the client renames a file that loses its name while it is open, so that it has one still";
const HOLES: &str = "the protocol does not tell where holes are";
const FLAGS: &str = "the protocol renames in one way only";
