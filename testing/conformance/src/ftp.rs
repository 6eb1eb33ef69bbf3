// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases FTP cannot pass.

use crate::mount::Exceptions;

/// What cannot hold where files are reached over FTP, and why.
pub const FTP: Exceptions = &[
    ("names/any_byte_but_slash_and_nul", "a line break ends a command, and servers drop other control bytes"),
    ("names/not_utf8_is_kept", "servers differ in how they take the byte 255, which is Telnet's escape"),
    ("names/dots_and_spaces", "a line break ends a command"),
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
    ("times/", "servers tell times in days, minutes or seconds, and no time of access or of change"),
    (
        "owners/",
        "the protocol does not tell owners and cannot change them, and servers keep some permissions only",
    ),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

/// What besides cannot hold where the service is asked, without a kernel.
pub const SERVICE: Exceptions = &[
    ("rename/exchange_needs_both", EXCHANGE),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
];

/// What besides cannot hold on vsftpd.
pub const VSFTPD: Exceptions = &[
    ("directories/sticky_bit_is_kept", "its SITE CHMOD sets nine bits"),
    (
        "listing/3000_names",
        "it holds, but each new name takes a listing of all, since the server has no MLST",
    ),
];

const LINKS: &str = "the protocol does not tell links";
const EXCHANGE: &str = "the protocol cannot exchange names";
