// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies, notifications, directory packing, INIT, and random input.
use outrigger_proto_fuse::*;
use proptest::prelude::*;

#[test]
fn structures_have_the_sizes_of_the_kernel_header() {
    let table = [
        (InHeader::SIZE, 40),
        (OutHeader::SIZE, 16),
        (Attr::SIZE, 88),
        (EntryOut::SIZE, 128),
        (AttrOut::SIZE, 104),
        (StatxOut::SIZE, 288),
        (OpenOut::SIZE, 16),
        (StatfsOut::SIZE, 80),
        (SetattrIn::SIZE, 88),
        (ReadIn::SIZE, 40),
        (WriteIn::SIZE, 40),
        (LkIn::SIZE, 48),
        (CopyFileRangeIn::SIZE, 56),
        (device::BackingMap::SIZE, 16),
    ];
    for (ours, theirs) in table {
        assert_eq!(ours, theirs);
    }
    assert_eq!(device::IOC_CLONE, 0x8004_e500);
    assert_eq!(device::IOC_BACKING_OPEN, 0x4010_e501);
    assert_eq!(device::IOC_BACKING_CLOSE, 0x4004_e502);
}

#[test]
fn fields_are_where_the_kernel_expects_them() {
    let attr = Attr { ino: 1, mode: 0o40755, blksize: 4096, flags: 9, ..Attr::default() };
    let entry = EntryOut { nodeid: 2, attr_valid_nsec: 3, attr, ..EntryOut::default() }.encode();
    let u32_at = |at: usize| u32::from_ne_bytes(entry[at..at + 4].try_into().unwrap());
    assert_eq!(
        (u32_at(0), u32_at(36), u32_at(40), u32_at(100), u32_at(120), u32_at(124)),
        (2, 3, 1, 0o40755, 4096, 9)
    );
}

#[test]
fn negotiation() {
    let kernel = |major, minor, flags| InitIn { major, minor, max_readahead: 4096, flags };
    let wanted = InitFlags::PASSTHROUGH | InitFlags::BIG_WRITES;
    let offered = InitFlags::all();
    let cases = [
        (kernel(7, 45, offered), Ok((45, wanted | InitFlags::INIT_EXT))),
        (kernel(7, 99, offered), Ok((45, wanted | InitFlags::INIT_EXT))),
        (kernel(7, 31, InitFlags::BIG_WRITES), Ok((31, InitFlags::BIG_WRITES))),
        (kernel(7, 30, offered), Err(DecodeError::Version { major: 7, minor: 30 })),
        (kernel(6, 45, offered), Err(DecodeError::Version { major: 6, minor: 45 })),
    ];
    for (init, expected) in cases {
        let result = negotiate(&init, wanted).map(|chosen| match chosen {
            Negotiation::Use(dialect) => (dialect.minor, dialect.flags),
            Negotiation::Retry => panic!("retry for {init:?}"),
        });
        assert_eq!(result, expected, "{init:?}");
    }
    assert_eq!(negotiate(&kernel(8, 0, offered), wanted), Ok(Negotiation::Retry));
}

#[test]
fn init_of_old_and_new_kernels() {
    let old =
        InitIn { major: 7, minor: 31, max_readahead: 1, flags: InitFlags::ASYNC_READ | InitFlags::MAX_PAGES };
    assert_eq!(old.encode().len(), 16);
    assert_eq!(InitIn::decode(&old.encode()), Ok(old));
    let new = InitIn { minor: 45, flags: old.flags | InitFlags::INIT_EXT | InitFlags::PASSTHROUGH, ..old };
    assert_eq!(new.encode().len(), 64);
    assert_eq!(InitIn::decode(&new.encode()), Ok(new));

    let reply =
        InitOut { minor: 45, flags: new.flags, max_write: 1 << 20, max_pages: 256, ..Default::default() };
    assert_eq!(InitOut::decode(&reply.encode()), Ok(reply));
    assert_eq!(InitOut::decode(&reply.encode()[..24]).unwrap().max_pages, 0);
    assert!(InitOut::decode(&reply.encode()[..23]).is_err());
}

#[test]
fn notifications_are_read_back() {
    let table = [
        (Notification::Poll { kh: 3 }, 24),
        (Notification::InvalInode { nodeid: 1, off: -1, len: 0 }, 40),
        (Notification::InvalEntry { parent: 1, name: b"x", expire_only: true }, 34),
        (Notification::Store { nodeid: 1, offset: 2, data: b"data" }, 44),
        (Notification::Retrieve { notify_unique: 1, nodeid: 2, offset: 3, size: 4 }, 48),
        (Notification::Delete { parent: 1, child: 2, name: b"xy" }, 43),
        (Notification::Resend, 16),
        (Notification::IncEpoch, 16),
        (Notification::Prune { nodes: vec![4, 5] }, 48),
    ];
    for (notification, length) in table {
        let message = notification.encode();
        assert_eq!(message.len(), length, "{notification:?}");
        let (header, body) = OutHeader::decode(&message).unwrap();
        assert_eq!((header.len as usize, header.unique), (length, 0));
        assert_eq!(header.error, notification.code() as i32);
        assert_eq!(Notification::decode(header.error, body), Ok(notification));
    }
    assert_eq!(Notification::decode(10, b""), Err(DecodeError::NotifyCode(10)));
    assert!(Notification::decode(3, &[0xff; 20]).is_err());
}

#[test]
fn a_full_directory_buffer_takes_nothing_more() {
    let entry = |name| Dirent { ino: 1, off: 2, kind: 4, name };
    let mut out = b"header".to_vec();
    let mut buf = DirBuf::new(&mut out, 64);
    assert!(buf.push(&entry(b"12345678")));
    assert!(buf.push(&entry(b"1")));
    assert!(!buf.push(&entry(b"2")));
    assert_eq!(out.len(), 6 + 64);
    let mut out = Vec::new();
    assert!(!DirBuf::new(&mut out, direntplus_size(b"a") - 1).push_plus(&entry(b"a"), &EntryOut::default()));
    assert!(out.is_empty());
    assert!(DirBuf::new(&mut out, direntplus_size(b"a")).push_plus(&entry(b"a"), &EntryOut::default()));
    assert_eq!(out.len(), direntplus_size(b"a"));
}

#[test]
fn malformed_directory_listings_end() {
    let mut out = Vec::new();
    assert!(DirBuf::new(&mut out, 4096).push(&Dirent { ino: 1, off: 2, kind: 4, name: b"name" }));
    out[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
    let read: Vec<_> = Dirents::new(&out).collect();
    assert_eq!(read, [Err(DecodeError::Name("readdir"))]);
    assert_eq!(DirentsPlus::new(&[1; 130]).count(), 1);
}

proptest! {
    #[test]
    fn random_messages_never_panic(
        opcode in 0u32..60,
        extlen: u16,
        ext: bool,
        body in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let flags = if ext { InitFlags::SETXATTR_EXT } else { InitFlags::empty() };
        let header = InHeader {
            len: (InHeader::SIZE + body.len()) as u32,
            opcode,
            total_extlen: extlen % 8,
            ..InHeader::default()
        };
        let message = [&header.encode()[..], &body].concat();
        if let Ok(request) = Request::decode(&message, Dialect { minor: 45, flags }) {
            prop_assert!(request.extensions.count() <= body.len());
        }
        let _ = Notification::decode(opcode as i32, &body);
        let _ = InitOut::decode(&body);
        prop_assert!(Dirents::new(&body).count() <= body.len());
        prop_assert!(DirentsPlus::new(&body).count() <= body.len());
    }

    #[test]
    fn directory_entries_survive_packing(
        names in prop::collection::vec(prop::collection::vec(1u8.., 1..255), 0..20),
        plus: bool,
    ) {
        let mut out = Vec::new();
        let mut buf = DirBuf::new(&mut out, 2048);
        let mut packed = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let entry = Dirent { ino: index as u64, off: index as u64 + 1, kind: 8, name };
            let node = EntryOut { nodeid: index as u64, ..EntryOut::default() };
            let fits = if plus { buf.push_plus(&entry, &node) } else { buf.push(&entry) };
            if !fits {
                break;
            }
            packed.push((entry, node));
        }
        prop_assert!(out.len() <= 2048);
        let read: Vec<_> = if plus {
            DirentsPlus::new(&out).map(Result::unwrap).collect()
        } else {
            Dirents::new(&out).map(Result::unwrap).map(|d| (d, EntryOut { nodeid: d.ino, ..Default::default() })).collect()
        };
        prop_assert_eq!(read, packed);
    }
}
