// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a mount that is left to the next process of the kernel code: whatever it says, it is refused or taken as it is.
//! It comes from the process that has made the mount, so the numbers in it are believed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_core::wire::Input;
use outrigger_succession::{Role, State};

fuzz_target!(|data: &[u8]| {
    if let Ok(mut state) = State::restored(Role::Own, Input::copy_from_slice(data)) {
        state.leave().expect("nothing is being done");
    }
});
