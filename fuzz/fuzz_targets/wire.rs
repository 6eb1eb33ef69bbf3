// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames and greetings of the wire protocol: whatever decodes encodes to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_core::Reply;
use outrigger_core::wire::peer::{self, Offered, Recall, Said, Wanted};
use outrigger_core::wire::{Body, Frame, Hello, Input};
use outrigger_core::{Abilities, OpSet, Wire};

fuzz_target!(|data: &[u8]| {
    let input = Input::copy_from_slice(data);
    let is_greeting = Hello::check(input.clone()).is_ok();
    assert_eq!(is_greeting, data.starts_with(&Hello::bytes()));
    beginning(&input);
    let Ok(frame) = Frame::decode(input) else { return };
    let bytes = frame.clone().encode().expect("what came in a frame fits one");
    let body = Input::from(bytes).slice(4..);
    assert_eq!(Frame::decode(body.clone()).as_ref(), Ok(&frame));
    // An error's reason that is no UTF-8 is mended.
    if !matches!(frame.body, Body::Reply(Reply::Error(_))) {
        assert_eq!(body, data);
    }
});

/// What sites say first, and of leases: anything may come, and what is taken of it makes sense.
fn beginning(input: &Input) {
    if let Ok(wanted) = peer::unframed::<Wanted>(input.clone()) {
        let spoken = peer::spoken(OpSet::all(), &wanted.operations);
        let _ = peer::check_spoken(spoken, ("fuzz", &wanted.release));
    }
    if let Ok(said) = Said::of(input.clone()) {
        assert_eq!(Said::of(said.bytes()), Ok(said));
    }
    if let Ok(Recall { dir }) = Recall::get(&mut input.clone()) {
        assert_eq!(input[..8], dir.0.to_le_bytes());
    }
    if let Ok(offered) = peer::unframed::<Offered>(input.clone()) {
        let mut tree = Abilities::new("fuzz", "", OpSet::all());
        peer::take_facts(&mut tree, &offered.facts);
        assert!(tree.time_unit > 0 && (4 << 10..=1 << 20).contains(&tree.max_io));
    }
}
