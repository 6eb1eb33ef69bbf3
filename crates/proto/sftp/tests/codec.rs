// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets as OpenSSH has them, what is encoded decodes to the same, and bytes that are no packets.

use bytes::{Bytes, BytesMut};
use outrigger_proto_sftp::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn body(packet: BytesMut) -> Bytes {
    assert_eq!(packet_len(&packet), Ok(Some(packet.len())));
    packet.freeze().slice(4..)
}

/// Recorded from sftp(1) and sftp-server(8) of OpenSSH 9.
#[test]
fn packets_look_as_openssh_has_them() {
    assert_eq!(Request::Init.encode(9)[..], *b"\0\0\0\x05\x01\0\0\0\x03");
    let open = Request::Open { path: b"/a", flags: OpenFlags::READ, attrs: Attrs::NONE };
    assert_eq!(open.encode(7)[..], *b"\0\0\0\x13\x03\0\0\0\x07\0\0\0\x02/a\0\0\0\x01\0\0\0\0");
    let rename = Request::PosixRename { from: b"a", to: b"b" };
    let expected = b"\0\0\0\x2b\xc8\0\0\0\x01\0\0\0\x18posix-rename@openssh.com\0\0\0\x01a\0\0\0\x01b";
    assert_eq!(rename.encode(1)[..], *expected);
    let write = Request::Write { handle: b"\0\0\0\0", offset: 5, data: b"xy" };
    let expected = b"\0\0\0\x1b\x06\0\0\0\x02\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\x02xy";
    assert_eq!(write.encode(2)[..], *expected);
    let version = Bytes::from_static(
        b"\x02\0\0\0\x03\0\0\0\x18posix-rename@openssh.com\0\0\0\x011\0\0\0\x13statvfs@openssh.com\0\0\0\x011",
    );
    let version = Version::decode(&version).unwrap();
    assert_eq!((version.version, version.extensions.len()), (3, 2));
    assert_eq!(version.promised(), Extensions::POSIX_RENAME, "statvfs has another revision than ours");
    let status = Bytes::from_static(b"\x65\0\0\0\x09\0\0\0\x02\0\0\0\x0cNo such file\0\0\0\0");
    let expected = Status { code: StatusCode::NoSuchFile, message: Bytes::from_static(b"No such file") };
    assert_eq!(Reply::decode(&status), Ok((9, Reply::Status(expected))));
}

#[test]
fn a_status_without_words_and_attributes_with_extended_ones_are_read() {
    let status = Bytes::from_static(b"\x65\0\0\0\x01\0\0\0\x04");
    assert_eq!(Reply::decode(&status), Ok((1, Reply::status(StatusCode::Failure))));
    let attrs =
        Bytes::from_static(b"\x69\0\0\0\x01\x80\0\0\x01\0\0\0\0\0\0\0\x05\0\0\0\x01\0\0\0\x01k\0\0\0\x01v");
    let expected = Attrs { size: Some(5), ..Attrs::NONE };
    assert_eq!(Reply::decode(&attrs), Ok((1, Reply::Attrs(expected))));
}

#[test]
fn the_length_a_packet_gives_is_checked() {
    assert_eq!(packet_len(b"\0\0\0"), Ok(None));
    assert_eq!(packet_len(b"\0\0\0\x04"), Err(DecodeError::Length(8)), "too short for a number");
    assert_eq!(packet_len(&[0xff; 4]), Err(DecodeError::Length(4 + u32::MAX as usize)));
    assert_eq!(packet_len(&((PACKET_MAX - 4) as u32).to_be_bytes()), Ok(Some(PACKET_MAX)));
    let many_names = Bytes::from_static(b"\x68\0\0\0\x01\xff\xff\xff\xff");
    assert_eq!(Reply::decode(&many_names), Err(DecodeError::Short));
}

#[test]
fn the_number_can_be_changed() {
    let mut packet = Request::Limits.encode(1);
    set_number(&mut packet, 0xdead_beef);
    assert_eq!(number(&packet), Some(0xdead_beef));
    assert_eq!(Request::decode(&body(packet)), Ok((0xdead_beef, Request::Limits)));
    assert_eq!(number(b"\0\0\0\x04\x01"), None);
}

#[test]
fn codes_and_extensions_have_numbers_and_names() {
    for number in 0..20 {
        assert_eq!(StatusCode::of(number).number(), number);
    }
    assert_eq!(StatusCode::of(4), StatusCode::Failure);
    let names = |set: Extensions| set.names().map(|(n, r)| (n.as_bytes(), r.as_bytes())).collect::<Vec<_>>();
    assert_eq!(Extensions::promised(names(Extensions::all())), Extensions::all());
    assert_eq!(names(Extensions::FSYNC), [(&b"fsync@openssh.com"[..], &b"1"[..])]);
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn attrs() -> impl Strategy<Value = Attrs> {
    let owner = option::of(any::<(u32, u32)>().prop_map(|(uid, gid)| Owner { uid, gid }));
    let times = option::of(any::<(u32, u32)>().prop_map(|(atime, mtime)| Times { atime, mtime }));
    (option::of(any::<u64>()), owner, option::of(any::<u32>()), times)
        .prop_map(|(size, owner, permissions, times)| Attrs { size, owner, permissions, times })
}

/// Every request, made of these parts.
fn requests<'a>(a: &'a [u8], b: &'a [u8], attrs: Attrs, n: (u64, u64, u32)) -> Vec<Request<'a>> {
    let ids = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte) << 20).collect::<Vec<_>>();
    vec![
        Request::Open { path: a, flags: OpenFlags::from_bits_retain(n.2), attrs },
        Request::Close { handle: a },
        Request::Read { handle: a, offset: n.0, len: n.2 },
        Request::Write { handle: a, offset: n.0, data: b },
        Request::LStat { path: a },
        Request::FStat { handle: a },
        Request::SetStat { path: a, attrs },
        Request::FSetStat { handle: a, attrs },
        Request::OpenDir { path: a },
        Request::ReadDir { handle: a },
        Request::Remove { path: a },
        Request::MkDir { path: a, attrs },
        Request::RmDir { path: a },
        Request::RealPath { path: a },
        Request::Stat { path: a },
        Request::Rename { from: a, to: b },
        Request::ReadLink { path: a },
        Request::SymLink { target: a, path: b },
        Request::PosixRename { from: a, to: b },
        Request::HardLink { from: a, to: b },
        Request::FSync { handle: a },
        Request::StatVfs { path: a },
        Request::FStatVfs { handle: a },
        Request::LSetStat { path: a, attrs },
        Request::Limits,
        Request::ExpandPath { path: a },
        Request::CopyData { from: a, offset: n.0, len: n.1, to: b, to_offset: n.1 },
        Request::HomeDirectory { user: a },
        Request::PersonNames { uids: ids(a), gids: ids(b) },
        Request::Extended { name: b"else@example.org", body: a },
    ]
}

fn replies() -> impl Strategy<Value = Reply> {
    let text = || bytes().prop_map(Bytes::from);
    let named = (text(), text(), attrs()).prop_map(|(name, line, attrs)| Named { name, line, attrs });
    prop_oneof![
        (any::<u32>().prop_map(StatusCode::of), text())
            .prop_map(|(code, message)| Reply::Status(Status { code, message })),
        text().prop_map(Reply::Handle),
        text().prop_map(Reply::Data),
        vec(named, 0..5).prop_map(Reply::Names),
        attrs().prop_map(Reply::Attrs),
        text().prop_map(Reply::Extended),
    ]
}

proptest! {
    #[test]
    fn requests_round_trip(a in bytes(), b in bytes(), attrs in attrs(), n in any::<(u64, u64, u32)>(), number: u32) {
        for request in requests(&a, &b, attrs, n) {
            let packet = body(request.encode(number));
            prop_assert_eq!(Request::decode(&packet), Ok((number, request.clone())));
            if !matches!(request, Request::Extended { .. }) {
                prop_assert!(Request::decode(&packet[..packet.len() - 1]).is_err(), "cut: {:?}", request);
            }
        }
    }

    #[test]
    fn replies_round_trip(reply in replies(), number: u32) {
        let packet = body(reply.encode(number));
        prop_assert_eq!(Reply::decode(&packet), Ok((number, reply)));
        for cut in 0..packet.len() {
            let _ = Reply::decode(&packet.slice(..cut));
        }
    }

    #[test]
    fn bodies_of_extended_replies_round_trip(n in any::<[u64; 11]>(), users in vec(bytes(), 0..4), groups in vec(bytes(), 0..4)) {
        let [bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag, namemax] = n;
        let space = StatVfs { bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag, namemax };
        prop_assert_eq!(StatVfs::decode(&space.encode()), Ok(space));
        let limits = Limits { packet: bsize, read: frsize, write: blocks, handles: bfree };
        prop_assert_eq!(Limits::decode(&limits.encode()), Ok(limits));
        let names = |list: Vec<Vec<u8>>| list.into_iter().map(Bytes::from).collect();
        let names = PersonNames { users: names(users), groups: names(groups) };
        prop_assert_eq!(PersonNames::decode(&names.encode()), Ok(names));
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = (Request::decode(&bytes), Reply::decode(&bytes), Version::decode(&bytes), packet_len(&bytes));
        let _ = (StatVfs::decode(&bytes), Limits::decode(&bytes), PersonNames::decode(&bytes), number(&bytes));
    }

    #[test]
    fn a_version_round_trips(pairs in vec((bytes(), bytes()), 0..4), version: u32) {
        let extensions = pairs.into_iter().map(|(name, revision)| (name.into(), revision.into())).collect();
        let version = Version { version, extensions };
        prop_assert_eq!(Version::decode(&body(version.encode())), Ok(version));
    }
}
