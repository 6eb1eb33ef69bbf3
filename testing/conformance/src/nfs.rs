// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases NFS version 3 cannot pass: through the client of a kernel, and through the driver `nfs`.

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

/// What cannot hold through the driver `nfs`, and why.
pub const DRIVER: Exceptions = &[
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("times/before_1970_and_after_2106", "times have 32 bits, without a sign"),
    ("owners/truncating_clears_set_id_bits", SET_ID),
];

/// What besides cannot hold where the service is asked, without a kernel.
pub const SERVICE: Exceptions = &[
    ("rename/exchange_needs_both", EXCHANGE),
    ("times/noatime_is_respected", "the protocol does not know who does not want it to change"),
    ("owners/kill_setid_clears_for_anyone", SET_ID),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

/// What besides cannot hold on nfs-ganesha with its VFS.
pub const GANESHA: Exceptions = &[
    ("times/of_a_symlink", "it leaves the times of symbolic links alone"),
    ("stateless/new_files_have_their_first_attributes", "it leaves out the times of CREATE"),
];

const EXCHANGE: &str = "the protocol cannot exchange names";
const SET_ID: &str = "the server clears them, unless the superuser asks";
