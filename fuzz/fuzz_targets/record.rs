// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the process of the kernel code has recorded, each event behind its length: whoever follows it, and goes on, does not fall
//! over it, whatever it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_core::wire::{Input, Wire};
use outrigger_core::{Errno, Error, Reply};
use outrigger_succession::record::Event;
use outrigger_succession::{Role, State};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::copy_from_slice(data);
    let mut copy = State::new(Role::Copied, 8).expect("memory");
    while let Ok(mut bytes) = Input::get(&mut input) {
        let Ok(event) = Event::get(&mut bytes) else { return };
        copy.follow(event);
    }
    copy.take_over();
    copy.died(true, &Error::from(Errno::EIO));
    copy.serves = true;
    copy.go_on();
    let outgoing = std::mem::take(&mut copy.outgoing);
    outgoing.into_iter().for_each(|task| copy.receive(task.id, Reply::Error(Errno::EIO.into())));
});
