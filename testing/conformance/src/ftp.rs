// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases FTP cannot pass.

use crate::mount::Exceptions;

/// What cannot hold where files are reached over FTP, and why.
pub const FTP: Exceptions = &[
    ("names/any_byte_but_slash_and_nul", "a line break ends a command, and servers drop other control bytes"),
    ("names/not_utf8_is_kept", "vsftpd does not undo the doubling of Telnet's escape byte"),
    ("names/dots_and_spaces", "a line break ends a command"),
    ("directories/sticky_bit_is_kept", MODE),
    ("directories/links_count_subdirectories", LINKS),
    ("directories/files_do_not_change_its_links", LINKS),
    ("rename/link_counts_follow_a_moved_directory", LINKS),
    ("rename/link_counts_after_replacing_a_directory", LINKS),
    ("rename/back_and_forth_many_times", LINKS),
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("rename/exchange_needs_both", EXCHANGE),
    ("special/", "the protocol makes no pipes, sockets and devices"),
    ("holes/take_no_space", "the protocol does not tell what a file takes"),
    ("holes/files_larger_than_any_memory", "a file is sent as a whole"),
    ("times/", "servers tell times in days, minutes or seconds, and no time of access or of change"),
    (
        "owners/",
        "the protocol does not tell owners and cannot change them, and servers keep some permissions only",
    ),
    ("service/a_referenced_node_outlives_its_name", "the server has no file without a name to ask about"),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

const MODE: &str = "SITE CHMOD of vsftpd sets nine bits";
const LINKS: &str = "the protocol does not tell links";
const EXCHANGE: &str = "the protocol cannot exchange names";
