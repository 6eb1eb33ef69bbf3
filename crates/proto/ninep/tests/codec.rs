// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages byte by byte as the protocol has them, what is encoded decodes to the same, and bytes that are no messages.

use bytes::{Bytes, BytesMut};
use outrigger_proto_ninep::*;
use proptest::collection::vec;
use proptest::prelude::*;

const DIALECTS: [Dialect; 3] = [Dialect::Plain, Dialect::Unix, Dialect::Linux];

fn text(bytes: &[u8]) -> Text {
    Text::new(bytes.to_vec()).unwrap()
}

fn qid(path: u64) -> Qid {
    Qid { kind: QidKind::DIRECTORY, version: 1, path }
}

/// As version(5), walk(5) and clunk(5) of Plan 9 lay them out, and as Linux' client sends those of 9P2000.L.
#[test]
fn requests_look_as_the_protocol_has_them() {
    let version = Tversion { msize: 8192, version: text(b"9P2000.L") };
    let expected = b"\x15\0\0\0\x64\xff\xff\0\x20\0\0\x08\x009P2000.L";
    assert_eq!(Request::from(version).encode(NO_TAG, Dialect::Linux)[..], *expected);
    let names = List::new(vec![text(b"a"), text(b"bc")]).unwrap();
    let walk = Request::from(Twalk { fid: 1, newfid: 2, names });
    assert_eq!(
        walk.encode(3, Dialect::Linux)[..],
        *b"\x18\0\0\0\x6e\x03\0\x01\0\0\0\x02\0\0\0\x02\0\x01\0a\x02\0bc"
    );
    let getattr = Request::from(Tgetattr { fid: 5, mask: AttrMask::BASIC });
    assert_eq!(getattr.encode(1, Dialect::Linux)[..], *b"\x13\0\0\0\x18\x01\0\x05\0\0\0\xff\x07\0\0\0\0\0\0");
    let write = Request::from(Twrite { fid: 1, offset: 2, data: Bytes::from_static(b"xy") });
    let expected = b"\x19\0\0\0\x76\x09\0\x01\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0xy";
    assert_eq!(write.encode(9, Dialect::Linux)[..], *expected);
    assert_eq!(*expected, [&write_head(9, 1, 2, 2)[..], b"xy"].concat()[..]);
    let clunk = Request::from(Tclunk { fid: 7 });
    assert_eq!(clunk.encode(2, Dialect::Linux)[..], *b"\x0b\0\0\0\x78\x02\0\x07\0\0\0");
}

#[test]
fn replies_look_as_the_protocol_has_them() {
    let refused = Bytes::from_static(b"\x0b\0\0\0\x07\x05\0\x02\0\0\0");
    assert_eq!(Reply::decode(&refused, Dialect::Linux), Ok((5, Rlerror { ecode: 2 }.into())));
    let attached = Bytes::from_static(b"\x14\0\0\0\x69\x01\0\x80\x01\0\0\0\x09\0\0\0\0\0\0\0");
    assert_eq!(Reply::decode(&attached, Dialect::Linux), Ok((1, Rattach { qid: qid(9) }.into())));
    let said = Bytes::from_static(b"\x0e\0\0\0\x6b\x01\0\x05\0no way");
    assert_eq!(
        Reply::decode(&said, Dialect::Plain),
        Ok((1, Rerror { ename: text(b"no wa"), errno: None }.into()))
    );
    let said = Bytes::from_static(b"\x11\0\0\0\x6b\x01\0\x04\0oops\x02\0\0\0");
    let expected = Rerror { ename: text(b"oops"), errno: Some(2) };
    assert_eq!(Reply::decode(&said, Dialect::Unix), Ok((1, expected.into())));
}

#[test]
fn dialects_differ_in_their_fields() {
    let attach = Tattach { fid: 1, afid: NO_FID, uname: text(b"u"), aname: text(b""), n_uname: Some(7) };
    let attach = Request::from(attach);
    let plain = b"\x14\0\0\0\x68\x01\0\x01\0\0\0\xff\xff\xff\xff\x01\0u\0\0";
    assert_eq!(attach.encode(1, Dialect::Plain)[..], *plain);
    assert_eq!(attach.encode(1, Dialect::Linux)[4..], [&plain[4..], b"\x07\0\0\0"].concat());
    let stat = Stat { name: text(b"f"), extension: Some(text(b"x")), n_uid: Some(1), ..Stat::default() };
    let lengths = DIALECTS
        .map(|dialect| Request::from(Twstat { fid: 1, len: 0, stat: stat.clone() }).encode(1, dialect).len());
    assert_eq!(lengths, [63, 78, 75]);
    for dialect in DIALECTS {
        assert_eq!(Dialect::of(dialect.name().as_bytes()), Some(dialect));
    }
    assert_eq!(Dialect::of(b"9P2000.X"), None);
}

#[test]
fn lengths_and_counts_are_checked_against_the_message() {
    assert_eq!(frame_len(b"\x07\0\0", 100), Ok(None));
    assert_eq!(frame_len(b"\x06\0\0\0", 100), Err(DecodeError::Length(6)), "too short for a tag");
    assert_eq!(frame_len(b"\x65\0\0\0", 100), Err(DecodeError::Length(101)));
    assert_eq!(frame_len(b"\x64\0\0\0", 100), Ok(Some(100)));
    let decode = |bytes: &'static [u8]| Reply::decode(&Bytes::from_static(bytes), Dialect::Linux);
    assert_eq!(decode(b"\x0b\0\0\0\x75\x01\0\xff\xff\xff\xff"), Err(DecodeError::Short), "content");
    assert_eq!(decode(b"\x09\0\0\0\x17\x01\0\xff\xff"), Err(DecodeError::Short), "a string");
    assert_eq!(decode(b"\x09\0\0\0\x6f\x01\0\x11\0"), Err(DecodeError::Count(17)));
    assert_eq!(decode(b"\x09\0\0\0\x6f\x01\0\x10\0"), Err(DecodeError::Short), "identities");
    assert_eq!(decode(b"\x07\0\0\0\x06\x01\0"), Err(DecodeError::Kind(6)));
    assert_eq!(decode(b"\x07\0\0\0\x78\x01\0"), Err(DecodeError::Kind(0x78)), "a request");
    assert_eq!(decode(b"\x07\0\0\0"), Err(DecodeError::Short));
    assert!(Text::new(vec![0; 65_536]).is_none() && List::new(vec![0; WALK_MAX + 1]).is_none());
}

#[test]
fn a_listing_is_taken_apart() {
    let mut data = BytesMut::new();
    let all = [b"a", b"b"].map(|name| Entry { qid: qid(3), offset: 5, kind: 8, name: text(name) });
    all.iter().for_each(|entry| put_entry(&mut data, entry));
    assert_eq!(data[..25], *b"\x80\x01\0\0\0\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x08\x01\0a");
    assert_eq!(entries(data.clone().freeze()), Ok(all.to_vec()));
    assert_eq!(entries(data.freeze().slice(..30)), Err(DecodeError::Short));
}

#[test]
fn the_content_of_a_directory_is_taken_apart() {
    let of = |name: &[u8], extension, id| {
        let texts = (text(b"glenda"), text(b"sys"));
        let stat =
            Stat { qid: qid(3), name: text(name), uid: texts.0.clone(), gid: texts.1, ..Stat::default() };
        Stat { muid: texts.0, extension, n_uid: id, n_gid: id, n_muid: id, ..stat }
    };
    for (dialect, extension, id) in
        [(Dialect::Plain, None, None), (Dialect::Unix, Some(text(b"b 8 1")), Some(7))]
    {
        let all = [b"a", b"b"].map(|name| of(name, extension.clone(), id));
        let data = Bytes::from(all.iter().flat_map(|stat| stat.encode(dialect)).collect::<Vec<u8>>());
        assert_eq!(stats(data.clone(), dialect), Ok(all.to_vec()));
        assert_eq!(stats(data.slice(..data.len() - 1), dialect), Err(DecodeError::Short));
    }
    assert_eq!(
        stats(Bytes::from_static(b"\x02\0\0\0"), Dialect::Plain),
        Err(DecodeError::Short),
        "no room for its fields"
    );
    assert_eq!(stats(Bytes::new(), Dialect::Plain), Ok(vec![]));
}

#[test]
fn tags_are_changed_in_place() {
    let mut message = Request::from(Tclunk { fid: 7 }).encode(1, Dialect::Linux);
    set_tag(&mut message, 0xbeef);
    assert_eq!((tag(&message), tag(b"\x07\0\0\0\x78\x01")), (Some(0xbeef), None));
}

proptest! {
    /// Whatever bytes come, decoding ends, and what was understood is written as something that means the same.
    #[test]
    fn what_was_read_says_the_same_when_it_is_written(kind in any::<u8>(), body in vec(any::<u8>(), 0..300), which in 0..3_usize) {
        let whole = Bytes::from([&[0, 0, 0, 0, kind, 1, 0], &body[..]].concat());
        if let Ok((number, request)) = Request::decode(&whole, DIALECTS[which]) {
            let again = request.encode(number, DIALECTS[which]).freeze();
            prop_assert!(again.len() <= whole.len());
            prop_assert_eq!(Request::decode(&again, DIALECTS[which]), Ok((number, request)));
        }
        if let Ok((number, reply)) = Reply::decode(&whole, DIALECTS[which]) {
            let again = reply.encode(number, DIALECTS[which]).freeze();
            prop_assert!(again.len() <= whole.len());
            prop_assert_eq!(Reply::decode(&again, DIALECTS[which]), Ok((number, reply)));
        }
        let _ = (stats(Bytes::from(body.clone()), DIALECTS[which]), entries(Bytes::from(body)));
    }

    #[test]
    fn what_is_written_is_read(name in vec(any::<u8>(), 0..40), fid in any::<u32>(), data in vec(any::<u8>(), 0..100), words in any::<[u64; 4]>()) {
        let (name, data) = (text(&name), Bytes::from(data));
        let attrs = SetAttrs { valid: SetMask::from_bits_retain(fid), size: words[0], mtime: Timespec { secs: words[1], nanos: words[2] }, ..SetAttrs::default() };
        let lock = Lock { kind: 1, start: words[0], length: words[1], proc_id: fid, client_id: name.clone() };
        let requests: [Request; 7] = [
            Tlcreate { fid, name: name.clone(), flags: 1, mode: 2, gid: 3 }.into(),
            Tsetattr { fid, attrs }.into(),
            Tgetlock { fid, lock }.into(),
            Twrite { fid, offset: words[3], data: data.clone() }.into(),
            Tcreate { fid, name: name.clone(), perm: 1, mode: 2, extension: Some(name.clone()) }.into(),
            Trenameat { old_dfid: fid, old_name: name.clone(), new_dfid: 1, new_name: name.clone() }.into(),
            Twalk { fid, newfid: 1, names: List::new(vec![name.clone(); 16]).unwrap() }.into(),
        ];
        for request in requests {
            let again = request.encode(7, Dialect::Unix).freeze();
            prop_assert_eq!(frame_len(&again, again.len()), Ok(Some(again.len())));
            prop_assert_eq!(Request::decode(&again, Dialect::Unix), Ok((7, request)));
        }
        let told = Attrs { size: words[0], nlink: words[1], generation: words[2], qid: qid(words[3]), ..Attrs::default() };
        let replies: [Reply; 3] = [Rgetattr { attrs: told }.into(), Rread { data }.into(), Rreadlink { target: name }.into()];
        for reply in replies {
            let again = reply.encode(7, Dialect::Linux).freeze();
            prop_assert_eq!(Reply::decode(&again, Dialect::Linux), Ok((7, reply)));
        }
    }
}

/// The corpus of the fuzz target: the first byte of each file is the dialect.
#[test]
fn the_corpus_is_decoded_without_a_panic_and_forged_messages_are_refused() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/ninep");
    let mut refused = Vec::new();
    for file in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let bytes = Bytes::from(std::fs::read(file.path()).unwrap());
        let (dialect, whole) = (DIALECTS[usize::from(bytes[0] % 3)], bytes.slice(1..));
        let is_none = Request::decode(&whole, dialect).is_err() && Reply::decode(&whole, dialect).is_err();
        if is_none && entries(whole.clone()).is_err() && stats(whole, dialect).is_err() {
            refused.push(file.file_name().into_string().unwrap());
        }
    }
    refused.sort();
    assert_eq!(refused, ["forged-content", "walked-too-many"]);
}
