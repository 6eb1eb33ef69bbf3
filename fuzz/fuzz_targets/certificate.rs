// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names in certificates: no bytes may panic, and no name is longer than them or has what a log or a terminal would obey.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_toolkit_tls::names;

fuzz_target!(|bytes: &[u8]| {
    let names = names(bytes);
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains(char::is_control)));
    // An address of IPv6 is longer as text than its 16 bytes.
    assert!(names.iter().map(String::len).sum::<usize>() <= 3 * bytes.len());
});
