// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of 9P from both sides, and listings. The first byte chooses the dialect. Nothing may panic, and what was read says the same
//! when it is written.
#![no_main]
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outrigger_proto_ninep::{Dialect, Reply, Request, entries, frame_len, stats, tag};

fuzz_target!(|bytes: &[u8]| {
    let [which, message @ ..] = bytes else { return };
    let dialect = [Dialect::Plain, Dialect::Unix, Dialect::Linux][usize::from(which % 3)];
    let whole = Bytes::copy_from_slice(message);
    let _ = (frame_len(message, 1 << 20), tag(message), entries(whole.clone()));
    if let Ok(listed) = stats(whole.clone(), dialect) {
        let again: Vec<u8> = listed.iter().flat_map(|stat| stat.encode(dialect)).collect();
        assert!(again.len() <= whole.len());
        assert_eq!(stats(again.into(), dialect), Ok(listed));
    }
    if let Ok((tag, request)) = Request::decode(&whole, dialect) {
        let again = request.encode(tag, dialect).freeze();
        assert!(again.len() <= whole.len());
        assert_eq!(Request::decode(&again, dialect), Ok((tag, request)));
    }
    if let Ok((tag, reply)) = Reply::decode(&whole, dialect) {
        let again = reply.encode(tag, dialect).freeze();
        assert!(again.len() <= whole.len());
        assert_eq!(Reply::decode(&again, dialect), Ok((tag, reply)));
    }
});
