// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames and greetings of the wire protocol: whatever decodes encodes to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_core::Reply;
use outrigger_core::wire::{Body, Frame, Hello, Input};

fuzz_target!(|data: &[u8]| {
    let input = Input::copy_from_slice(data);
    let is_greeting = Hello::check(input.clone()).is_ok();
    assert_eq!(is_greeting, data.starts_with(&Hello::bytes()));
    let Ok(frame) = Frame::decode(input) else { return };
    let bytes = frame.clone().encode().expect("what came in a frame fits one");
    let body = Input::from(bytes).slice(4..);
    assert_eq!(Frame::decode(body.clone()).as_ref(), Ok(&frame));
    // An error's reason that is no UTF-8 is mended.
    if !matches!(frame.body, Body::Reply(Reply::Error(_))) {
        assert_eq!(body, data);
    }
});
