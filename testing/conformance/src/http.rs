// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases HTTP and WebDAV cannot pass.

use crate::mount::Exceptions;

/// What the sample tree cannot show over HTTP, and why.
pub const HTTP: Exceptions = &[
    ("sample/every_path_has_its_kind_and_mode", "the protocol does not tell permissions"),
    ("sample/every_symlink_has_its_target", LINKS),
    ("sample/hard_links_are_one_file", LINKS),
    ("sample/looking_again_finds_the_same", "a link that leads nowhere is listed, and cannot be looked at"),
    ("sample/modification_times", "no time is told of directories"),
    (
        "service/undeclared_operations_are_enosys",
        "a server that is only read refuses these changes as all others",
    ),
];

/// What besides does not hold through a mount.
pub const HTTP_MOUNTED: Exceptions = &[(
    "sample/listing_in_small_pieces",
    "a link that leads nowhere is in the index of the server, and left out once it was looked for in vain",
)];

/// What WebDAV cannot show, and why.
pub const DAV: Exceptions = &[
    ("directories/many_levels", "it holds, but takes 90000 requests"),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
    ("directories/mkdir_gives_kind_and_mode", MODE),
    ("directories/sticky_bit_is_kept", MODE),
    ("directories/links_count_subdirectories", LINKS),
    ("directories/files_do_not_change_its_links", LINKS),
    ("rename/link_counts_follow_a_moved_directory", LINKS),
    ("rename/link_counts_after_replacing_a_directory", LINKS),
    ("rename/back_and_forth_many_times", LINKS),
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("special/", "the protocol makes no pipes, sockets and devices"),
    ("holes/take_no_space", "the protocol does not tell what a file takes"),
    ("holes/files_larger_than_any_memory", "a file is sent as a whole"),
    ("times/", "the protocol tells times in seconds, no time of access or of change, and sets none"),
    ("owners/", "the protocol has no owners and no permissions"),
];

/// What besides cannot hold where the service is asked, without a kernel.
pub const DAV_SERVICE: Exceptions = &[
    ("rename/exchange_needs_both", EXCHANGE),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
    ("service/attributes_in_entries_are_current", MODE),
];

const MODE: &str = "the protocol has no permissions";
const LINKS: &str = "the protocol does not tell links";
const EXCHANGE: &str = "the protocol cannot exchange names";
