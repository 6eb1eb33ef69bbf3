// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every request, built as the kernel builds it and read back; and what malformed ones give.
use outrigger_proto_fuse::*;

fn header() -> InHeader {
    InHeader { unique: 0x1234, nodeid: 7, uid: 1000, gid: 100, pid: 42, ..InHeader::default() }
}

fn read(opcode: Opcode, parts: &[&[u8]], dialect: Dialect) -> Result<Operation<'static>, DecodeError> {
    let message = Box::leak(encode_request(header(), opcode, parts).into_boxed_slice());
    Request::decode(message, dialect).map(|request| {
        assert_eq!(request.header.unique, 0x1234);
        assert_eq!(request.header.nodeid, 7);
        request.operation
    })
}

/// Operation, parts of the body, dialect, and what is read back.
type Row = (Opcode, Vec<Vec<u8>>, Dialect, Operation<'static>);

fn b(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

/// About names, attributes and the whole.
#[rustfmt::skip]
fn tree_requests() -> Vec<Row> {
    let create = CreateIn { flags: 0o102, mode: 0o100644, umask: 0o22, open_flags: 0 };
    let init = InitIn { major: 7, minor: 45, max_readahead: 1 << 17, flags: InitFlags::all() };
    let retrieve = RetrieveIn { offset: 5, size: 2 };
    let setattr = SetattrIn { valid: 8, size: 77, mode: 0o644, uid: 5, gid: 6, ..SetattrIn::default() };
    let setxattr = SetxattrIn { size: 3, flags: 1, setxattr_flags: 0 };
    let setxattr_ext = SetxattrIn { setxattr_flags: 1, ..setxattr };
    let extended = Dialect { minor: 45, flags: InitFlags::SETXATTR_EXT };
    let plain = Dialect::default();
    vec![
        (Opcode::Lookup, vec![b(b"a\0")], plain, Operation::Lookup { name: b"a" }),
        (Opcode::Forget, vec![b(&ForgetIn { nlookup: 3 }.encode())], plain, Operation::Forget(ForgetIn { nlookup: 3 })),
        (Opcode::Getattr, vec![b(&GetattrIn { getattr_flags: 1, fh: 5 }.encode())], plain, Operation::Getattr(GetattrIn { getattr_flags: 1, fh: 5 })),
        (Opcode::Setattr, vec![b(&setattr.encode())], plain, Operation::Setattr(setattr)),
        (Opcode::Readlink, vec![], plain, Operation::Readlink),
        (Opcode::Symlink, vec![b(b"l\0/t\0")], plain, Operation::Symlink { name: b"l", target: b"/t" }),
        (Opcode::Mknod, vec![b(&MknodIn { mode: 1, rdev: 2, umask: 3 }.encode()), b(b"n\0")], plain, Operation::Mknod { args: MknodIn { mode: 1, rdev: 2, umask: 3 }, name: b"n" }),
        (Opcode::Mkdir, vec![b(&MkdirIn { mode: 1, umask: 3 }.encode()), b(b"\xff\0")], plain, Operation::Mkdir { args: MkdirIn { mode: 1, umask: 3 }, name: b"\xff" }),
        (Opcode::Unlink, vec![b(b"u\0")], plain, Operation::Unlink { name: b"u" }),
        (Opcode::Rmdir, vec![b(b"r\0")], plain, Operation::Rmdir { name: b"r" }),
        (Opcode::Rename, vec![b(&RenameIn { newdir: 8 }.encode()), b(b"o\0n\0")], plain, Operation::Rename { newdir: 8, flags: 0, name: b"o", newname: b"n" }),
        (Opcode::Rename2, vec![b(&Rename2In { newdir: 8, flags: 2 }.encode()), b(b"o\0n\0")], plain, Operation::Rename { newdir: 8, flags: 2, name: b"o", newname: b"n" }),
        (Opcode::Link, vec![b(&LinkIn { oldnodeid: 8 }.encode()), b(b"n\0")], plain, Operation::Link { oldnodeid: 8, name: b"n" }),
        (Opcode::Statfs, vec![], plain, Operation::Statfs),
        (Opcode::Setxattr, vec![b(&SetxattrCompatIn { size: 3, flags: 1 }.encode()), b(b"user.a\0xyz")], plain, Operation::Setxattr { args: setxattr, name: b"user.a", value: b"xyz" }),
        (Opcode::Setxattr, vec![b(&setxattr_ext.encode()), b(b"user.a\0xyz")], extended, Operation::Setxattr { args: setxattr_ext, name: b"user.a", value: b"xyz" }),
        (Opcode::Getxattr, vec![b(&GetxattrIn { size: 9 }.encode()), b(b"user.a\0")], plain, Operation::Getxattr { args: GetxattrIn { size: 9 }, name: b"user.a" }),
        (Opcode::Listxattr, vec![b(&GetxattrIn { size: 9 }.encode())], plain, Operation::Listxattr(GetxattrIn { size: 9 })),
        (Opcode::Removexattr, vec![b(b"user.a\0")], plain, Operation::Removexattr { name: b"user.a" }),
        (Opcode::Init, vec![init.encode()], plain, Operation::Init(init)),
        (Opcode::Access, vec![b(&AccessIn { mask: 4 }.encode())], plain, Operation::Access(AccessIn { mask: 4 })),
        (Opcode::Create, vec![b(&create.encode()), b(b"c\0")], plain, Operation::Create { args: create, name: b"c" }),
        (Opcode::Tmpfile, vec![b(&create.encode()), b(b"/\0")], plain, Operation::Tmpfile { args: create, name: b"/" }),
        (Opcode::Interrupt, vec![b(&InterruptIn { unique: 6 }.encode())], plain, Operation::Interrupt(InterruptIn { unique: 6 })),
        (Opcode::Destroy, vec![], plain, Operation::Destroy),
        (Opcode::NotifyReply, vec![b(&retrieve.encode()), b(b"ok")], plain, Operation::NotifyReply { args: retrieve, data: b"ok" }),
        (Opcode::Syncfs, vec![b(&[0; 8])], plain, Operation::Syncfs),
        (Opcode::Statx, vec![b(&StatxIn { getattr_flags: 1, fh: 2, sx_flags: 3, sx_mask: 4 }.encode())], plain, Operation::Statx(StatxIn { getattr_flags: 1, fh: 2, sx_flags: 3, sx_mask: 4 })),
    ]
}

/// About open files.
#[rustfmt::skip]
fn file_requests() -> Vec<Row> {
    let copy =
        CopyFileRangeIn { fh_in: 1, off_in: 2, nodeid_out: 3, fh_out: 4, off_out: 5, len: 6, flags: 0 };
    let lk = LkIn { fh: 1, owner: 2, lk: FileLock { start: 3, end: 4, kind: 1, pid: 5 }, lk_flags: LK_FLOCK };
    let read_in = ReadIn { fh: 1, offset: 4096, size: 65536, read_flags: 0, lock_owner: 0, flags: 0 };
    let release = ReleaseIn { fh: 9, flags: 2, release_flags: RELEASE_FLUSH, lock_owner: 3 };
    let write = WriteIn { fh: 1, offset: 10, size: 3, write_flags: 1, lock_owner: 0, flags: 1 };
    let ioctl = IoctlIn { fh: 1, flags: 0, cmd: 0x5401, arg: 8, in_size: 2, out_size: 4 };
    let poll = PollIn { fh: 1, kh: 2, flags: 1, events: 3 };
    let fallocate = FallocateIn { fh: 1, offset: 2, length: 3, mode: 4 };
    let plain = Dialect::default();
    vec![
        (Opcode::Open, vec![b(&OpenIn { flags: 2, open_flags: 1 }.encode())], plain, Operation::Open(OpenIn { flags: 2, open_flags: 1 })),
        (Opcode::Read, vec![b(&read_in.encode())], plain, Operation::Read(read_in)),
        (Opcode::Write, vec![b(&write.encode()), b(b"abc")], plain, Operation::Write { args: write, data: b"abc" }),
        (Opcode::Release, vec![b(&release.encode())], plain, Operation::Release(release)),
        (Opcode::Fsync, vec![b(&FsyncIn { fh: 1, fsync_flags: 1 }.encode())], plain, Operation::Fsync(FsyncIn { fh: 1, fsync_flags: 1 })),
        (Opcode::Flush, vec![b(&FlushIn { fh: 1, lock_owner: 2 }.encode())], plain, Operation::Flush(FlushIn { fh: 1, lock_owner: 2 })),
        (Opcode::Opendir, vec![b(&OpenIn { flags: 0, open_flags: 0 }.encode())], plain, Operation::Opendir(OpenIn::default())),
        (Opcode::Readdir, vec![b(&read_in.encode())], plain, Operation::Readdir(read_in)),
        (Opcode::Releasedir, vec![b(&release.encode())], plain, Operation::Releasedir(release)),
        (Opcode::Fsyncdir, vec![b(&FsyncIn { fh: 1, fsync_flags: 0 }.encode())], plain, Operation::Fsyncdir(FsyncIn { fh: 1, fsync_flags: 0 })),
        (Opcode::Getlk, vec![b(&lk.encode())], plain, Operation::Getlk(lk)),
        (Opcode::Setlk, vec![b(&lk.encode())], plain, Operation::Setlk(lk)),
        (Opcode::Setlkw, vec![b(&lk.encode())], plain, Operation::Setlkw(lk)),
        (Opcode::Bmap, vec![b(&BmapIn { block: 1, blocksize: 512 }.encode())], plain, Operation::Bmap(BmapIn { block: 1, blocksize: 512 })),
        (Opcode::Ioctl, vec![b(&ioctl.encode()), b(b"hi")], plain, Operation::Ioctl { args: ioctl, data: b"hi" }),
        (Opcode::Poll, vec![b(&poll.encode())], plain, Operation::Poll(poll)),
        (Opcode::Fallocate, vec![b(&fallocate.encode())], plain, Operation::Fallocate(fallocate)),
        (Opcode::Readdirplus, vec![b(&read_in.encode())], plain, Operation::Readdirplus(read_in)),
        (Opcode::Lseek, vec![b(&LseekIn { fh: 1, offset: 2, whence: 3 }.encode())], plain, Operation::Lseek(LseekIn { fh: 1, offset: 2, whence: 3 })),
        (Opcode::CopyFileRange, vec![b(&copy.encode())], plain, Operation::CopyFileRange(copy)),
        (Opcode::CopyFileRange64, vec![b(&copy.encode())], plain, Operation::CopyFileRange64(copy)),
        (Opcode::Setupmapping, vec![b(&[0; 40])], plain, Operation::Setupmapping(SetupmappingIn::default())),
        (Opcode::Removemapping, vec![b(&[0; 4])], plain, Operation::Removemapping(RemovemappingIn::default())),
    ]
}

#[test]
fn every_request_is_read_back() {
    let table = [tree_requests(), file_requests()].concat();
    for (opcode, parts, dialect, expected) in &table {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        assert_eq!(read(*opcode, &parts, *dialect).as_ref(), Ok(expected), "{opcode:?}");
    }
    let forgets: Vec<u8> =
        [ForgetOne { nodeid: 2, nlookup: 3 }.encode(), ForgetOne { nodeid: 4, nlookup: 5 }.encode()].concat();
    let forgets =
        read(Opcode::BatchForget, &[&BatchForgetIn { count: 2 }.encode(), &forgets], Dialect::default());
    let Ok(Operation::BatchForget(forgets)) = forgets else { panic!("{forgets:?}") };
    assert_eq!(forgets.map(|one| (one.nodeid, one.nlookup)).collect::<Vec<_>>(), [(2, 3), (4, 5)]);
    for opcode in Opcode::ALL {
        let covered = table.iter().any(|row| row.0 == *opcode) || *opcode == Opcode::BatchForget;
        assert!(covered, "{opcode:?} is not in the table");
        assert_eq!(Opcode::from_u32(*opcode as u32), Some(*opcode));
    }
}

#[test]
fn truncated_requests_are_errors() {
    let cases: [(Opcode, &[u8]); 8] = [
        (Opcode::Lookup, b"no terminator"),
        (Opcode::Lookup, b"\0"),
        (Opcode::Getattr, &[0; 15]),
        (Opcode::Write, &[0; 39]),
        (Opcode::Symlink, b"name\0target"),
        (Opcode::Rename2, &[0; 16]),
        (Opcode::BatchForget, &[0xff; 8]),
        (Opcode::Ioctl, &[0xff; 32]),
    ];
    for (opcode, body) in cases {
        assert!(read(opcode, &[body], Dialect::default()).is_err(), "{opcode:?}");
    }
}

#[test]
fn a_wrong_length_and_an_unknown_operation_are_named() {
    let mut message = encode_request(header(), Opcode::Statfs, &[]);
    message.push(0);
    assert_eq!(
        Request::decode(&message, Dialect::default()),
        Err(DecodeError::Length { header: 40, actual: 41 })
    );
    let message = InHeader { len: 40, opcode: 99, ..header() }.encode();
    assert_eq!(Request::decode(&message, Dialect::default()), Err(DecodeError::Opcode(99)));
    assert!(matches!(Request::decode(&message[..39], Dialect::default()), Err(DecodeError::Short { .. })));
}

#[test]
fn supplementary_groups_are_found_after_the_name() {
    let mut extension = Vec::new();
    for word in [16u32, 32, 1, 4242] {
        extension.extend_from_slice(&word.to_ne_bytes());
    }
    let with_groups = InHeader { total_extlen: 2, ..header() };
    let args = MkdirIn { mode: 0o755, umask: 0 }.encode();
    let message = encode_request(with_groups, Opcode::Mkdir, &[&args, b"dir\0", &extension]);
    let request = Request::decode(&message, Dialect::default()).unwrap();
    assert_eq!(request.operation, Operation::Mkdir { args: MkdirIn { mode: 0o755, umask: 0 }, name: b"dir" });
    assert_eq!(request.extensions.groups().collect::<Vec<_>>(), [4242]);

    for lie in [0u32, 7, 17, u32::MAX] {
        extension[..4].copy_from_slice(&lie.to_ne_bytes());
        let message = encode_request(with_groups, Opcode::Mkdir, &[&args, b"dir\0", &extension]);
        assert_eq!(Request::decode(&message, Dialect::default()), Err(DecodeError::Extension), "{lie}");
    }
}

#[test]
fn a_repeated_request_keeps_its_identity() {
    let first = header();
    let again = InHeader { unique: first.unique | UNIQUE_RESEND, ..first };
    assert!(again.is_resend() && !first.is_resend());
    assert_eq!(again.request_id(), first.request_id());
}
