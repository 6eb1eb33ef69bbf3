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
    ("xattrs/empty_values", "the server takes an empty value for none, and that is said"),
    ("xattrs/trusted_is_for_root", "the server gives these to everyone whom it serves"),
];

/// What besides cannot hold where the service is asked, without the dentries of a kernel.
pub const SERVICE: Exceptions = &[
    ("rename/exchange_needs_both", EXCHANGE),
    ("owners/kill_setid_clears_for_anyone", "the server clears them, unless the superuser asks"),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
];

/// What besides cannot hold on a server that speaks 9P2000.u or 9P2000.
pub const OTHER_DIALECTS: Exceptions = &[
    ("directories/links_count_subdirectories", LINKS),
    ("directories/files_do_not_change_its_links", LINKS),
    ("rename/moves_between_directories", WITHIN),
    ("rename/refuses_a_directory_into_itself", WITHIN),
    ("rename/refuses_to_replace_an_ancestor", WITHIN),
    ("rename/moves_a_tree", WITHIN),
    ("rename/dot_dot_follows_a_moved_directory", WITHIN),
    ("rename/link_counts_follow_a_moved_directory", WITHIN),
    ("rename/link_counts_after_replacing_a_directory", WITHIN),
    ("rename/open_file_follows", WITHIN),
    ("rename/back_and_forth_many_times", WITHIN),
    ("rename/onto_another_link_does_nothing", LINKS),
    ("holes/take_no_space", "the dialect does not tell what a file takes"),
    ("holes/files_larger_than_any_memory", "the dialect does not tell what a file takes"),
    ("times/utimens_sets_to_the_nanosecond", SECONDS),
    ("times/before_1970_and_after_2106", SECONDS),
    ("times/noatime_is_respected", "the dialect cannot open a file without an access"),
    ("times/chmod_marks_ctime_only", CTIME),
    ("times/rename_marks_both_directories", WITHIN),
    ("stateless/attributes_around_a_change_are_exact", WITHIN),
];

/// What besides cannot hold on one that speaks 9P2000.u.
pub const UNIX: Exceptions = &[
    ("links/counts_go_up_and_down", LINKS),
    ("links/of_a_symlink_is_of_the_link_itself", LINKS),
    ("limits/500_links_to_one_file", LINKS),
    ("times/link_marks_ctime", CTIME),
    ("times/unlink_marks_ctime_of_the_rest", CTIME),
];

/// What besides cannot hold on one that speaks 9P2000.
pub const PLAIN: Exceptions = &[
    ("directories/sticky_bit_is_kept", "the dialect has permissions of nine bits"),
    ("times/utimens_omit_leaves_alone", "the time of access is the server's"),
    ("times/rename_keeps_mtime", CTIME),
    ("owners/", "all requests are made as one user, and the dialect has permissions of nine bits"),
];

/// What besides cannot hold through a mount.
pub const MOUNTED: Exceptions = &[
    ("fallocate/", "the protocol reserves no space"),
    (
        "locks/closing_releases",
        "the kernel does not say at once that locks of an open file (F_OFD_SETLK) end",
    ),
];

const EXCHANGE: &str = "the protocol cannot exchange names";
const LINKS: &str = "the dialect does not tell links";
const WITHIN: &str = "the dialect moves files within a directory only";
const SECONDS: &str = "times have whole seconds, 32 bits of them";
const CTIME: &str = "the dialect does not tell when attributes were changed";
