// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases SFTP cannot pass.

use crate::mount::Exceptions;

/// What cannot hold where files are reached over SFTP version 3 and OpenSSH's extensions, and why.
pub const SFTP: Exceptions = &[
    ("directories/files_do_not_change_its_links", LINKS),
    ("directories/links_count_subdirectories", LINKS),
    ("rename/link_counts_follow_a_moved_directory", LINKS),
    ("rename/link_counts_after_replacing_a_directory", LINKS),
    ("rename/back_and_forth_many_times", LINKS),
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("listing/shows_kind_and_inode", SPECIAL),
    ("special/", SPECIAL),
    ("owners/copying_ranges_clears_set_id_bits", "the server copies with its own rights"),
    ("holes/take_no_space", "the protocol does not tell what a file takes"),
    ("times/utimens_sets_to_the_nanosecond", "times have whole seconds"),
    ("times/before_1970_and_after_2106", "times are unsigned seconds of 32 bits"),
    ("times/chmod_marks_ctime_only", CTIME),
    ("times/link_marks_ctime", CTIME),
    ("times/unlink_marks_ctime_of_the_rest", CTIME),
    ("owners/new_files_belong_to_their_maker", MAKER),
    ("owners/setgid_directories_pass_on_their_group", MAKER),
];

/// What besides cannot hold where the service is asked, without a kernel.
pub const SERVICE: Exceptions = &[
    ("rename/exchange_needs_both", EXCHANGE),
    ("holes/files_larger_than_any_memory", "the protocol does not tell what a file takes"),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
    ("times/noatime_is_respected", "the server reads as it likes"),
];

/// What cannot hold beside [`SFTP`] on a mount: a kernel asks for more than the driver takes by itself.
pub const MOUNTED: Exceptions = &[
    ("holes/seek_finds_data_and_hole", HOLES),
    ("holes/a_file_that_is_a_hole", HOLES),
    ("fallocate/", "the protocol reserves no space"),
    ("xattrs/", "the protocol has no extended attributes"),
    ("times/creation_sets_all", "times have whole seconds"),
    ("owners/sticky_directories_protect_names", MAKER),
    ("owners/an_open_file_outlives_its_permissions", MAKER),
];

const LINKS: &str = "the protocol does not tell the links of a directory";
const SPECIAL: &str = "the protocol makes no pipes, sockets and devices";
const CTIME: &str = "the protocol does not tell the time of change";
const MAKER: &str = "everything is made by the user who logged in";
const EXCHANGE: &str = "the protocol cannot exchange names";
const HOLES: &str = "the protocol does not tell where holes are";
