// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases NFS version 3 cannot pass.

use crate::mount::Exceptions;

/// What cannot hold where files are reached over NFS, and why.
pub const NFS: Exceptions = &[
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("rename/exchange_needs_both", EXCHANGE),
    ("times/before_1970_and_after_2106", "times have 32 bits, without a sign"),
    ("times/noatime_is_respected", "the protocol does not know who does not want it to change"),
    ("owners/truncating_clears_set_id_bits", SET_ID),
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
