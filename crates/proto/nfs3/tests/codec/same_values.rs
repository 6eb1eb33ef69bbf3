// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another implementation, `nfs3_types`, has the same bytes for the same values: each field of each procedure of NFS.

use crate::support::{self, pack};
use nfs3_types::nfs3::{self as theirs, Nfs3Option, Nfs3Result, nfsstat3};
use nfs3_types::xdr_codec::{List as TheirList, Opaque, Pack, Void};
use outrigger_proto_nfs3::nfs::*;
use outrigger_proto_nfs3::results::*;
use outrigger_proto_nfs3::types::*;
use outrigger_proto_nfs3::xdr::{List, Messages, Text};

fn call(ours: Call, theirs: &impl Pack) {
    assert_eq!(support::bytes(|out| ours.encode(out))[..], pack(theirs), "{ours}");
}

/// The same for both outcomes of a procedure.
fn reply<T: Pack, F: Pack>(ours: [Reply; 2], (ok, failed): (T, F)) {
    let [succeeds, fails] = ours;
    let status = nfsstat3::NFS3ERR_NOTEMPTY;
    for (ours, theirs) in [(succeeds, Nfs3Result::<T, F>::Ok(ok)), (fails, Nfs3Result::Err((status, failed)))]
    {
        assert_eq!(support::bytes(|out| ours.encode(out))[..], pack(&theirs), "{ours}");
    }
}

const FAILED: Status = Status::NOTEMPTY;
const VERIFIER: [u8; 8] = *b"\x01\x02\x03\x04\x05\x06\x07\x08";

fn fh() -> FileHandle {
    FileHandle::new(b"handle").unwrap()
}

fn their_fh() -> theirs::nfs_fh3 {
    theirs::nfs_fh3 { data: Opaque::borrowed(b"handle") }
}

fn text<const MAX: usize>(bytes: &'static [u8]) -> Text<MAX> {
    Text::new(bytes).unwrap()
}

fn at(name: &'static [u8]) -> DirName {
    DirName { dir: fh(), name: text(name) }
}

fn their_at(name: &'static [u8]) -> theirs::diropargs3<'static> {
    theirs::diropargs3 { dir: their_fh(), name: name.into() }
}

fn time(seconds: u32) -> Time {
    Time { seconds, nanos: seconds + 100 }
}

fn their_time(seconds: u32) -> theirs::nfstime3 {
    theirs::nfstime3 { seconds, nseconds: seconds + 100 }
}

const ATTRS: Attrs = Attrs {
    kind: FileType::Block,
    mode: Mode(2),
    nlink: 3,
    uid: 4,
    gid: 5,
    size: 6,
    used: 7,
    rdev: Device { major: 8, minor: 9 },
    fsid: 10,
    fileid: 11,
    atime: Time { seconds: 12, nanos: 112 },
    mtime: Time { seconds: 13, nanos: 113 },
    ctime: Time { seconds: 14, nanos: 114 },
};

fn their_attrs() -> theirs::fattr3 {
    theirs::fattr3 {
        type_: theirs::ftype3::NF3BLK,
        mode: 2,
        nlink: 3,
        uid: 4,
        gid: 5,
        size: 6,
        used: 7,
        rdev: theirs::specdata3 { specdata1: 8, specdata2: 9 },
        fsid: 10,
        fileid: 11,
        atime: their_time(12),
        mtime: their_time(13),
        ctime: their_time(14),
    }
}

const SET: SetAttrs = SetAttrs {
    mode: Some(Mode(1)),
    uid: Some(2),
    gid: Some(3),
    size: Some(4),
    atime: SetTime::Now,
    mtime: SetTime::To(Time { seconds: 5, nanos: 105 }),
};

fn their_set() -> theirs::sattr3 {
    theirs::sattr3 {
        mode: Nfs3Option::Some(1),
        uid: Nfs3Option::Some(2),
        gid: Nfs3Option::Some(3),
        size: Nfs3Option::Some(4),
        atime: theirs::set_atime::SET_TO_SERVER_TIME,
        mtime: theirs::set_mtime::SET_TO_CLIENT_TIME(their_time(5)),
    }
}

/// `n` tells apart several of them in one message.
fn wcc(n: u64) -> Wcc {
    Wcc { before: Some(WccAttrs { size: n, mtime: time(2), ctime: time(3) }), after: Some(ATTRS) }
}

fn their_wcc(n: u64) -> theirs::wcc_data {
    theirs::wcc_data {
        before: Nfs3Option::Some(theirs::wcc_attr { size: n, mtime: their_time(2), ctime: their_time(3) }),
        after: Nfs3Option::Some(their_attrs()),
    }
}

fn some_attrs() -> theirs::post_op_attr {
    Nfs3Option::Some(their_attrs())
}

fn attrs_failed() -> AttrsFailed {
    AttrsFailed { status: FAILED, attrs: Some(ATTRS) }
}

fn wcc_failed() -> WccFailed {
    WccFailed { status: FAILED, wcc: wcc(9) }
}

#[test]
fn arguments_about_one_file() {
    call(Call::Null(()), &Void);
    call(Call::GetAttr(fh()), &theirs::GETATTR3args { object: their_fh() });
    call(
        Call::SetAttr(SetAttrArgs { object: fh(), attrs: SET, guard: Some(time(6)) }),
        &theirs::SETATTR3args {
            object: their_fh(),
            new_attributes: their_set(),
            guard: Nfs3Option::Some(their_time(6)),
        },
    );
    let access = Access::MODIFY | Access::DELETE;
    let their_access = theirs::ACCESS3_MODIFY | theirs::ACCESS3_DELETE;
    call(
        Call::Access(AccessArgs { object: fh(), access }),
        &theirs::ACCESS3args { object: their_fh(), access: their_access },
    );
    call(Call::ReadLink(fh()), &theirs::READLINK3args { symlink: their_fh() });
    call(
        Call::Read(ReadArgs { file: fh(), offset: 1, count: 2 }),
        &theirs::READ3args { file: their_fh(), offset: 1, count: 2 },
    );
    let data = Content::new(&b"content"[..]).unwrap();
    call(
        Call::Write(WriteArgs { file: fh(), offset: 1, count: 7, stable: Stable::DataSync, data }),
        &theirs::WRITE3args {
            file: their_fh(),
            offset: 1,
            count: 7,
            stable: theirs::stable_how::DATA_SYNC,
            data: Opaque::borrowed(b"content"),
        },
    );
    call(Call::FsStat(fh()), &theirs::FSSTAT3args { fsroot: their_fh() });
    call(Call::FsInfo(fh()), &theirs::FSINFO3args { fsroot: their_fh() });
    call(Call::PathConf(fh()), &theirs::PATHCONF3args { object: their_fh() });
    call(
        Call::Commit(CommitArgs { file: fh(), offset: 1, count: 2 }),
        &theirs::COMMIT3args { file: their_fh(), offset: 1, count: 2 },
    );
}

#[test]
fn arguments_that_make_files() {
    for (how, their_how) in [
        (CreateHow::Unchecked(SET), theirs::createhow3::UNCHECKED(their_set())),
        (CreateHow::Guarded(SET), theirs::createhow3::GUARDED(their_set())),
        (CreateHow::Exclusive(VERIFIER), theirs::createhow3::EXCLUSIVE(theirs::createverf3(VERIFIER))),
    ] {
        call(
            Call::Create(CreateArgs { at: at(b"a"), how }),
            &theirs::CREATE3args { where_: their_at(b"a"), how: their_how },
        );
    }
    call(
        Call::MkDir(MkDirArgs { at: at(b"a"), attrs: SET }),
        &theirs::MKDIR3args { where_: their_at(b"a"), attributes: their_set() },
    );
    call(
        Call::SymLink(SymLinkArgs { at: at(b"a"), attrs: SET, target: text(b"to") }),
        &theirs::SYMLINK3args {
            where_: their_at(b"a"),
            symlink: theirs::symlinkdata3 { symlink_attributes: their_set(), symlink_data: b"to"[..].into() },
        },
    );
    let device = NewDevice { attrs: SET, device: Device { major: 1, minor: 2 } };
    let their_device = || theirs::devicedata3 {
        dev_attributes: their_set(),
        spec: theirs::specdata3 { specdata1: 1, specdata2: 2 },
    };
    for (what, their_what) in [
        (MkNodWhat::Block(device), theirs::mknoddata3::NF3BLK(their_device())),
        (MkNodWhat::Char(device), theirs::mknoddata3::NF3CHR(their_device())),
        (MkNodWhat::Socket(SET), theirs::mknoddata3::NF3SOCK(their_set())),
        (MkNodWhat::Fifo(SET), theirs::mknoddata3::NF3FIFO(their_set())),
    ] {
        call(
            Call::MkNod(MkNodArgs { at: at(b"a"), what }),
            &theirs::MKNOD3args { where_: their_at(b"a"), what: their_what },
        );
    }
}

#[test]
fn arguments_about_names() {
    call(Call::Lookup(at(b"a")), &theirs::LOOKUP3args { what: their_at(b"a") });
    call(Call::Remove(at(b"a")), &theirs::REMOVE3args { object: their_at(b"a") });
    call(Call::RmDir(at(b"a")), &theirs::RMDIR3args { object: their_at(b"a") });
    call(
        Call::Rename(RenameArgs { from: at(b"a"), to: at(b"bc") }),
        &theirs::RENAME3args { from: their_at(b"a"), to: their_at(b"bc") },
    );
    call(
        Call::Link(LinkArgs { file: fh(), link: at(b"bc") }),
        &theirs::LINK3args { file: their_fh(), link: their_at(b"bc") },
    );
    let cookieverf = theirs::cookieverf3(VERIFIER);
    call(
        Call::ReadDir(ReadDirArgs { dir: fh(), cookie: 1, verifier: VERIFIER, count: 2 }),
        &theirs::READDIR3args { dir: their_fh(), cookie: 1, cookieverf, count: 2 },
    );
    call(
        Call::ReadDirPlus(ReadDirPlusArgs {
            dir: fh(),
            cookie: 1,
            verifier: VERIFIER,
            dir_count: 2,
            max_count: 3,
        }),
        &theirs::READDIRPLUS3args { dir: their_fh(), cookie: 1, cookieverf, dircount: 2, maxcount: 3 },
    );
}

#[test]
fn results_about_one_file() {
    reply(
        [Reply::GetAttr(Ok(ATTRS)), Reply::GetAttr(Err(FAILED))],
        (theirs::GETATTR3resok { obj_attributes: their_attrs() }, Void),
    );
    reply(
        [Reply::SetAttr(Ok(WccOk { wcc: wcc(1) })), Reply::SetAttr(Err(wcc_failed()))],
        (theirs::SETATTR3resok { obj_wcc: their_wcc(1) }, theirs::SETATTR3resfail { obj_wcc: their_wcc(9) }),
    );
    reply(
        [
            Reply::Access(Ok(AccessOk { attrs: Some(ATTRS), access: Access::EXTEND })),
            Reply::Access(Err(attrs_failed())),
        ],
        (
            theirs::ACCESS3resok { obj_attributes: some_attrs(), access: theirs::ACCESS3_EXTEND },
            theirs::ACCESS3resfail { obj_attributes: some_attrs() },
        ),
    );
    reply(
        [
            Reply::ReadLink(Ok(ReadLinkOk { attrs: Some(ATTRS), target: text(b"to") })),
            Reply::ReadLink(Err(attrs_failed())),
        ],
        (
            theirs::READLINK3resok { symlink_attributes: some_attrs(), data: b"to"[..].into() },
            theirs::READLINK3resfail { symlink_attributes: some_attrs() },
        ),
    );
    let data = Content::new(&b"content"[..]).unwrap();
    reply(
        [
            Reply::Read(Ok(ReadOk { attrs: Some(ATTRS), count: 7, eof: true, data })),
            Reply::Read(Err(attrs_failed())),
        ],
        (
            theirs::READ3resok {
                file_attributes: some_attrs(),
                count: 7,
                eof: true,
                data: Opaque::borrowed(b"content"),
            },
            theirs::READ3resfail { file_attributes: some_attrs() },
        ),
    );
    let verf = theirs::writeverf3(VERIFIER);
    let written = WriteOk { wcc: wcc(1), count: 7, committed: Stable::FileSync, verifier: VERIFIER };
    reply(
        [Reply::Write(Ok(written)), Reply::Write(Err(wcc_failed()))],
        (
            theirs::WRITE3resok {
                file_wcc: their_wcc(1),
                count: 7,
                committed: theirs::stable_how::FILE_SYNC,
                verf,
            },
            theirs::WRITE3resfail { file_wcc: their_wcc(9) },
        ),
    );
    let committed = Committed { wcc: wcc(1), verifier: VERIFIER };
    reply(
        [Reply::Commit(Ok(committed)), Reply::Commit(Err(wcc_failed()))],
        (
            theirs::COMMIT3resok { file_wcc: their_wcc(1), verf },
            theirs::COMMIT3resfail { file_wcc: their_wcc(9) },
        ),
    );
}

/// The four procedures that make files have the same results.
macro_rules! created {
    ($($procedure:ident: $resok:ident, $resfail:ident;)*) => {$(
        reply(
            [
                Reply::$procedure(Ok(Created { object: Some(fh()), attrs: Some(ATTRS), dir: wcc(1) })),
                Reply::$procedure(Err(wcc_failed())),
            ],
            (
                theirs::$resok {
                    obj: Nfs3Option::Some(their_fh()),
                    obj_attributes: some_attrs(),
                    dir_wcc: their_wcc(1),
                },
                theirs::$resfail { dir_wcc: their_wcc(9) },
            ),
        );
    )*};
}

#[test]
fn results_about_names() {
    reply(
        [
            Reply::Lookup(Ok(LookedUp { object: fh(), attrs: None, dir_attrs: Some(ATTRS) })),
            Reply::Lookup(Err(attrs_failed())),
        ],
        (
            theirs::LOOKUP3resok {
                object: their_fh(),
                obj_attributes: Nfs3Option::None,
                dir_attributes: some_attrs(),
            },
            theirs::LOOKUP3resfail { dir_attributes: some_attrs() },
        ),
    );
    created! {
        Create: CREATE3resok, CREATE3resfail;
        MkDir: MKDIR3resok, MKDIR3resfail;
        SymLink: SYMLINK3resok, SYMLINK3resfail;
        MkNod: MKNOD3resok, MKNOD3resfail;
    }
    reply(
        [Reply::Remove(Ok(WccOk { wcc: wcc(1) })), Reply::Remove(Err(wcc_failed()))],
        (theirs::REMOVE3resok { dir_wcc: their_wcc(1) }, theirs::REMOVE3resfail { dir_wcc: their_wcc(9) }),
    );
    reply(
        [Reply::RmDir(Ok(WccOk { wcc: wcc(1) })), Reply::RmDir(Err(wcc_failed()))],
        (theirs::RMDIR3resok { dir_wcc: their_wcc(1) }, theirs::RMDIR3resfail { dir_wcc: their_wcc(9) }),
    );
    reply(
        [
            Reply::Rename(Ok(Renamed { from_dir: wcc(1), to_dir: wcc(2) })),
            Reply::Rename(Err(RenameFailed { status: FAILED, from_dir: wcc(1), to_dir: wcc(2) })),
        ],
        (
            theirs::RENAME3resok { fromdir_wcc: their_wcc(1), todir_wcc: their_wcc(2) },
            theirs::RENAME3resfail { fromdir_wcc: their_wcc(1), todir_wcc: their_wcc(2) },
        ),
    );
    reply(
        [
            Reply::Link(Ok(Linked { attrs: Some(ATTRS), dir: wcc(1) })),
            Reply::Link(Err(LinkFailed { status: FAILED, attrs: Some(ATTRS), dir: wcc(2) })),
        ],
        (
            theirs::LINK3resok { file_attributes: some_attrs(), linkdir_wcc: their_wcc(1) },
            theirs::LINK3resfail { file_attributes: some_attrs(), linkdir_wcc: their_wcc(2) },
        ),
    );
}

#[test]
fn listings() {
    let entry = |n: u64| Entry { fileid: n, name: text(b"name"), cookie: n + 1 };
    let their_entry = |n: u64| theirs::entry3 { fileid: n, name: b"name"[..].into(), cookie: n + 1 };
    let cookieverf = theirs::cookieverf3(VERIFIER);
    let entries = Entries {
        dir_attrs: Some(ATTRS),
        verifier: VERIFIER,
        entries: List(vec![entry(1), entry(5)]),
        eof: true,
    };
    reply(
        [Reply::ReadDir(Ok(entries)), Reply::ReadDir(Err(attrs_failed()))],
        (
            theirs::READDIR3resok {
                dir_attributes: some_attrs(),
                cookieverf,
                reply: theirs::dirlist3 {
                    entries: TheirList(vec![their_entry(1), their_entry(5)]),
                    eof: true,
                },
            },
            theirs::READDIR3resfail { dir_attributes: some_attrs() },
        ),
    );
    let entry =
        EntryPlus { fileid: 1, name: text(b"name"), cookie: 2, attrs: Some(ATTRS), object: Some(fh()) };
    let their_entry = theirs::entryplus3 {
        fileid: 1,
        name: b"name"[..].into(),
        cookie: 2,
        name_attributes: some_attrs(),
        name_handle: Nfs3Option::Some(their_fh()),
    };
    let entries =
        EntriesPlus { dir_attrs: Some(ATTRS), verifier: VERIFIER, entries: List(vec![entry]), eof: false };
    reply(
        [Reply::ReadDirPlus(Ok(entries)), Reply::ReadDirPlus(Err(attrs_failed()))],
        (
            theirs::READDIRPLUS3resok {
                dir_attributes: some_attrs(),
                cookieverf,
                reply: theirs::dirlistplus3 { entries: TheirList(vec![their_entry]), eof: false },
            },
            theirs::READDIRPLUS3resfail { dir_attributes: some_attrs() },
        ),
    );
}

#[test]
fn space_and_limits() {
    let space = FsStat {
        attrs: Some(ATTRS),
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_seconds: 7,
    };
    let their_space = theirs::FSSTAT3resok {
        obj_attributes: some_attrs(),
        tbytes: 1,
        fbytes: 2,
        abytes: 3,
        tfiles: 4,
        ffiles: 5,
        afiles: 6,
        invarsec: 7,
    };
    reply(
        [Reply::FsStat(Ok(space)), Reply::FsStat(Err(attrs_failed()))],
        (their_space, theirs::FSSTAT3resfail { obj_attributes: some_attrs() }),
    );
    let limits = Pathconf {
        attrs: Some(ATTRS),
        link_max: 1,
        name_max: 2,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: false,
        case_preserving: true,
    };
    let their_limits = theirs::PATHCONF3resok {
        obj_attributes: some_attrs(),
        linkmax: 1,
        name_max: 2,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: false,
        case_preserving: true,
    };
    reply(
        [Reply::PathConf(Ok(limits)), Reply::PathConf(Err(attrs_failed()))],
        (their_limits, theirs::PATHCONF3resfail { obj_attributes: some_attrs() }),
    );
}

#[test]
fn what_a_file_system_can_do() {
    let info = FsInfo {
        attrs: Some(ATTRS),
        read_max: 1,
        read_preferred: 2,
        read_multiple: 3,
        write_max: 4,
        write_preferred: 5,
        write_multiple: 6,
        read_dir_preferred: 7,
        file_size_max: 8,
        time_delta: time(9),
        properties: Properties::HOMOGENEOUS | Properties::CANSETTIME,
    };
    let their_info = theirs::FSINFO3resok {
        obj_attributes: some_attrs(),
        rtmax: 1,
        rtpref: 2,
        rtmult: 3,
        wtmax: 4,
        wtpref: 5,
        wtmult: 6,
        dtpref: 7,
        maxfilesize: 8,
        time_delta: their_time(9),
        properties: theirs::FSF3_HOMOGENEOUS | theirs::FSF3_CANSETTIME,
    };
    reply(
        [Reply::FsInfo(Ok(info)), Reply::FsInfo(Err(attrs_failed()))],
        (their_info, theirs::FSINFO3resfail { obj_attributes: some_attrs() }),
    );
}
