// SPDX-License-Identifier: MIT OR Apache-2.0
//! tar archives.
#![no_main]

mod archive_common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| archive_common::open_and_read("x.tar", data));
