// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of an encrypted tree, headers and names: what an attacker has written is refused, and costs no more than it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_layer_crypt::{Config, Keys, Master, Reader};
use std::sync::OnceLock;

static READER: OnceLock<Reader> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = Config::parse(data) {
        // What was understood is printed so that it is understood again.
        assert_eq!(Config::parse(&config.print()).as_ref(), Ok(&config));
        assert!(config.cost().memory_kib <= 4 << 20);
    }
    let master = || Master::of(&[7; 32]).expect("the length of a key");
    let reader = READER.get_or_init(|| Reader::new(Keys::of(&master())));
    // Nobody who has not the key makes any of these.
    assert!(reader.header(data).is_none());
    assert!(reader.directory(data).is_none());
    assert!(reader.name(&[0; 16], data).is_none());
    assert!(reader.target(data).is_none());
});
