// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of records (RFC 5531, 11), in whatever pieces they arrive.

use bytes::Bytes;
use outrigger_proto_xdr::record::{MARK_LEN, RecordTooLong, Records, contents, frame_len, mark};
use proptest::collection::vec;
use proptest::prelude::*;

const MAX: usize = 1000;

/// The stream of a message in fragments.
fn record(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    for (index, fragment) in fragments.iter().enumerate() {
        let last = u32::from(index + 1 == fragments.len()) << 31;
        stream.extend_from_slice(&(last | fragment.len() as u32).to_be_bytes());
        stream.extend_from_slice(fragment);
    }
    stream
}

fn feed(records: &mut Records, bytes: &[u8]) -> Result<Vec<Bytes>, RecordTooLong> {
    records.space().extend_from_slice(bytes);
    let mut messages = Vec::new();
    while let Some(message) = records.next()? {
        messages.push(message);
    }
    Ok(messages)
}

#[test]
fn a_mark_says_last_and_length() {
    assert_eq!(mark(5), Some([0x80, 0, 0, 5]));
    assert_eq!(mark(0x7fff_ffff), Some([0xff; 4]));
    assert_eq!(mark(0x8000_0000), None);
}

#[test]
fn a_record_of_one_fragment_is_not_copied() {
    let mut records = Records::new(MAX);
    let space = records.space();
    space.extend_from_slice(b"\x80\0\0\x05hello\x80\0\0\x02me");
    let at = space.as_ptr();
    let first = records.next().unwrap().unwrap();
    assert_eq!((first.as_ref(), first.as_ptr()), (&b"hello"[..], at.wrapping_add(MARK_LEN)));
    assert_eq!(records.next(), Ok(Some(Bytes::from_static(b"me"))));
    assert_eq!(records.next(), Ok(None));
    let frame = Bytes::from_static(b"\x80\0\0\x05hello");
    assert_eq!(contents(frame.clone()).unwrap().as_ptr(), frame[MARK_LEN..].as_ptr());
}

#[test]
fn a_record_that_is_too_long_is_refused_when_that_is_known() {
    let too_long = Err(RecordTooLong { len: MAX + 1, max: MAX });
    let mut records = Records::new(MAX);
    assert_eq!(feed(&mut records, b"\x80\0\x03\xe9"), too_long, "by its mark alone");
    let half = vec![0; MAX / 2];
    let mut records = Records::new(MAX);
    let mut stream = record(&[half, vec![0; MAX / 2 + 1], vec![]]);
    stream.truncate(MARK_LEN + MAX / 2 + MARK_LEN);
    assert_eq!(feed(&mut records, &stream), too_long, "by the mark of its second fragment");
    let message = record(&[vec![1; MAX]]);
    assert_eq!(feed(&mut Records::new(MAX), &message).unwrap()[0].len(), MAX, "just as long as allowed");
}

/// Neither a large length nor many connections that promise one cost memory.
#[test]
fn room_comes_with_what_arrives() {
    let mut records = Records::new(1 << 30);
    assert!(records.space().capacity() <= 16 << 10);
    records.space().extend_from_slice(&mark(1 << 29).unwrap());
    assert_eq!(records.next(), Ok(None));
    assert!(records.space().capacity() <= 128 << 10, "for a promise");
    records.space().extend_from_slice(&[0; 64 << 10]);
    assert_eq!(records.next(), Ok(None));
    assert!(records.space().capacity() >= 1 << 29, "for one that is being kept");
    let mut records = Records::new(MAX);
    feed(&mut records, &record(&[vec![1; 10]])).unwrap();
    assert!(records.is_between());
    records.release();
    assert!(records.space().capacity() <= 16 << 10);
}

/// Fragments without content end somewhere, and are not kept.
#[test]
fn endless_empty_fragments_cost_nothing() {
    let mut records = Records::new(MAX);
    for _ in 0..10_000 {
        assert_eq!(feed(&mut records, &[0; 16]).unwrap().len(), 0);
    }
    assert!(records.space().capacity() <= 32 << 10);
    assert_eq!(frame_len(&[0; 100], 64), Err(RecordTooLong { len: 68, max: 64 }));
    assert_eq!(frame_len(&[0; 64], 64), Err(RecordTooLong { len: 64, max: 60 }), "no mark fits after it");
}

#[test]
fn frames_are_whole_records() {
    assert_eq!(frame_len(b"\x80\0\0", 64), Ok(None));
    assert_eq!(frame_len(b"\x80\0\0\x05", 64), Ok(Some(9)));
    assert_eq!(frame_len(b"\0\0\0\x02ab\x80\0", 64), Ok(None));
    assert_eq!(frame_len(b"\0\0\0\x02ab\x80\0\0\x01", 64), Ok(Some(11)));
    assert_eq!(frame_len(b"\xff\xff\xff\xff", 64), Err(RecordTooLong { len: 0x8000_0003, max: 64 }));
    assert_eq!(contents(Bytes::from_static(b"\0\0\0\x02ab\x80\0\0\x01c")), Some(Bytes::from_static(b"abc")));
    for part in [&b"\0\0\0\x02ab"[..], b"\x80\0\0\x05four", b"\x80\0\0\x01ab", b"\x80\0", b""] {
        assert_eq!(contents(Bytes::copy_from_slice(part)), None, "{part:?}");
    }
}

proptest! {
    #[test]
    fn messages_come_out_as_they_went_in(
        messages in vec(vec(vec(any::<u8>(), 0..40), 1..5), 1..6),
        sizes in vec(1_usize..50, 1..20),
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(|fragments| record(fragments)).collect();
        let expected: Vec<Vec<u8>> = messages.iter().map(|fragments| fragments.concat()).collect();
        let (mut records, mut rest, mut found) = (Records::new(MAX), &stream[..], Vec::new());
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let piece;
            (piece, rest) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            found.extend(feed(&mut records, piece).unwrap());
        }
        prop_assert_eq!(found, expected.clone());
        prop_assert!(records.is_between());
        let mut rest = Bytes::from(stream);
        for message in expected {
            let len = frame_len(&rest, 4096).unwrap().unwrap();
            prop_assert_eq!(frame_len(&rest[..len - 1], 4096).unwrap().filter(|&l| l < len), None);
            prop_assert_eq!(contents(rest.split_to(len)), Some(Bytes::from(message)));
        }
    }

    #[test]
    fn random_streams_do_no_harm(stream in vec(any::<u8>(), 0..300)) {
        let _ = feed(&mut Records::new(MAX), &stream);
        let _ = (frame_len(&stream, MAX), contents(Bytes::from(stream)));
    }
}
