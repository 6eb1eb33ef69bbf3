// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which cases the driver `9p` cannot pass on diod.

use crate::mount::Exceptions;

/// What cannot hold, and why.
pub const DIOD: Exceptions = &[
    ("rename/exchange_swaps_files", EXCHANGE),
    ("rename/exchange_swaps_file_and_directory", EXCHANGE),
    ("rename/exchange_needs_both", EXCHANGE),
    ("limits/a_path_of_1000_directories", "it holds, but takes half a million round trips"),
];

const EXCHANGE: &str = "the protocol cannot exchange names";
