// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages written by hand from RFC 1813 and RFC 1833, field by field, and how they print.

use crate::support;
use bytes::Bytes;
use outrigger_proto_nfs3::nfs::*;
use outrigger_proto_nfs3::results::*;
use outrigger_proto_nfs3::types::*;
use outrigger_proto_nfs3::xdr::{Array, Decoder, List, Messages, Text, Xdr};
use outrigger_proto_nfs3::xdr::{portmap, rpcbind};
use outrigger_proto_nfs3::{mount, nlm};
use std::net::SocketAddr;

fn handle(bytes: &[u8]) -> FileHandle {
    FileHandle::new(bytes).unwrap()
}

fn text<const MAX: usize>(bytes: &'static [u8]) -> Text<MAX> {
    Text::new(bytes).unwrap()
}

fn at(name: &'static [u8]) -> DirName {
    DirName { dir: handle(b"\xd1"), name: text(name) }
}

/// The bytes of a message: words in hexadecimal; characters in quotes with their padding.
fn wire(words: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in words.split_whitespace() {
        match word.strip_prefix('"') {
            Some(quoted) => {
                bytes.extend_from_slice(quoted.trim_end_matches('"').as_bytes());
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            None => bytes.extend_from_slice(&u32::from_str_radix(word, 16).unwrap().to_be_bytes()),
        }
    }
    bytes
}

/// Tests that a message has these bytes and this printed form.
macro_rules! check {
    ($($name:ident: $ty:ty;)*) => {$(
        fn $name(message: $ty, words: &str, shown: &str) {
            let bytes = Bytes::from(wire(words));
            assert_eq!(support::bytes(|out| message.encode(out)), bytes, "{message}");
            assert_eq!(message.to_string(), shown);
            assert_eq!(<$ty>::decode(message.procedure(), &mut Decoder::new(bytes)), Ok(message));
        }
    )*};
}
check! {
    call: Call;
    reply: Reply;
    mount_call: mount::Call;
    mount_reply: mount::Reply;
    portmap_call: portmap::Call;
    portmap_reply: portmap::Reply;
    rpcbind_call: rpcbind::Call;
    rpcbind_reply: rpcbind::Reply;
    lock_call: nlm::Call;
    lock_reply: nlm::Reply;
}

const ATTRS: Attrs = Attrs {
    kind: FileType::Char,
    mode: Mode(0o4755),
    nlink: 2,
    uid: 3,
    gid: 4,
    size: 0x5_0000_0006,
    used: 0x7_0000_0008,
    rdev: Device { major: 9, minor: 10 },
    fsid: 0xb_0000_000c,
    fileid: 0xd_0000_000e,
    atime: Time { seconds: 15, nanos: 16 },
    mtime: Time { seconds: 17, nanos: 18 },
    ctime: Time { seconds: 19, nanos: 20 },
};
const ATTRS_WIRE: &str = "4 9ed 2 3 4 5 6 7 8 9 a b c d e f 10 11 12 13 14";
const ATTRS_SHOWN: &str = "{kind=Char mode=4755 nlink=2 uid=3 gid=4 size=21474836486 used=30064771080 \
    rdev={major=9 minor=10} fsid=47244640268 fileid=55834574862 atime={seconds=15 nanos=16} \
    mtime={seconds=17 nanos=18} ctime={seconds=19 nanos=20}}";

const WCC: Wcc = Wcc {
    before: Some(WccAttrs {
        size: 1,
        mtime: Time { seconds: 2, nanos: 3 },
        ctime: Time { seconds: 4, nanos: 5 },
    }),
    after: None,
};
const WCC_SHOWN: &str = "{before={size=1 mtime={seconds=2 nanos=3} ctime={seconds=4 nanos=5}} after=-}";

#[test]
fn calls_about_one_file() {
    call(Call::Null(()), "", "Null -");
    call(Call::GetAttr(handle(b"\xd1\xd2\xd3\xd4\xd5")), "5 d1d2d3d4 d5000000", "GetAttr d1d2d3d4d5");
    let attrs = SetAttrs {
        mode: Some(Mode(0o600)),
        size: Some(7),
        atime: SetTime::Now,
        mtime: SetTime::To(Time { seconds: 8, nanos: 9 }),
        ..SetAttrs::NONE
    };
    call(
        Call::SetAttr(SetAttrArgs { object: handle(b""), attrs, guard: Some(Time { seconds: 1, nanos: 2 }) }),
        "0 1 180 0 0 1 0 7 1 2 8 9 1 1 2",
        "SetAttr {object=- attrs={mode=0600 uid=- gid=- size=7 atime=Now mtime=To {seconds=8 nanos=9}} \
         guard={seconds=1 nanos=2}}",
    );
    let access = Access::READ | Access::EXECUTE | Access::from_bits_retain(0x40);
    call(
        Call::Access(AccessArgs { object: handle(b"\xd1"), access }),
        "1 d1000000 61",
        "Access {object=d1 access=READ|EXECUTE|0x40}",
    );
    call(
        Call::Read(ReadArgs { file: handle(b"\xd1"), offset: 1 << 32, count: 4096 }),
        "1 d1000000 1 0 1000",
        "Read {file=d1 offset=4294967296 count=4096}",
    );
    let data = Content::new(&b"hello"[..]).unwrap();
    call(
        Call::Write(WriteArgs { file: handle(b"\xd1"), offset: 3, count: 5, stable: Stable::FileSync, data }),
        "1 d1000000 0 3 5 2 5 \"hello\"",
        "Write {file=d1 offset=3 count=5 stable=FileSync data=<5 bytes>}",
    );
    call(
        Call::Commit(CommitArgs { file: handle(b"\xd1"), offset: 3, count: 5 }),
        "1 d1000000 0 3 5",
        "Commit {file=d1 offset=3 count=5}",
    );
}

#[test]
fn calls_about_names() {
    call(Call::Lookup(at(b"a\n")), "1 d1000000 2 610a0000", r#"Lookup {dir=d1 name="a\n"}"#);
    let how = CreateHow::Exclusive(*b"\x01\x02\x03\x04\x05\x06\x07\x08");
    call(
        Call::Create(CreateArgs { at: at(b"a"), how }),
        "1 d1000000 1 \"a\" 2 01020304 05060708",
        r#"Create {at={dir=d1 name="a"} how=Exclusive 0102030405060708}"#,
    );
    let nothing = "{mode=- uid=- gid=- size=- atime=Keep mtime=Keep}";
    call(
        Call::Create(CreateArgs { at: at(b"a"), how: CreateHow::Guarded(SetAttrs::NONE) }),
        "1 d1000000 1 \"a\" 1 0 0 0 0 0 0",
        &format!(r#"Create {{at={{dir=d1 name="a"}} how=Guarded {nothing}}}"#),
    );
    call(
        Call::MkDir(MkDirArgs { at: at(b"a"), attrs: SetAttrs { uid: Some(5), ..SetAttrs::NONE } }),
        "1 d1000000 1 \"a\" 0 1 5 0 0 0 0",
        r#"MkDir {at={dir=d1 name="a"} attrs={mode=- uid=5 gid=- size=- atime=Keep mtime=Keep}}"#,
    );
    let attrs = SetAttrs { gid: Some(6), ..SetAttrs::NONE };
    call(
        Call::SymLink(SymLinkArgs { at: at(b"a"), attrs, target: text(b"../b") }),
        "1 d1000000 1 \"a\" 0 0 1 6 0 0 0 4 \"../b\"",
        r#"SymLink {at={dir=d1 name="a"} attrs={mode=- uid=- gid=6 size=- atime=Keep mtime=Keep} target="../b"}"#,
    );
    let device = NewDevice { attrs: SetAttrs::NONE, device: Device { major: 8, minor: 1 } };
    call(
        Call::MkNod(MkNodArgs { at: at(b"a"), what: MkNodWhat::Block(device) }),
        "1 d1000000 1 \"a\" 3 0 0 0 0 0 0 8 1",
        &format!(
            r#"MkNod {{at={{dir=d1 name="a"}} what=Block {{attrs={nothing} device={{major=8 minor=1}}}}}}"#
        ),
    );
    call(
        Call::MkNod(MkNodArgs { at: at(b"a"), what: MkNodWhat::Fifo(SetAttrs::NONE) }),
        "1 d1000000 1 \"a\" 7 0 0 0 0 0 0",
        &format!(r#"MkNod {{at={{dir=d1 name="a"}} what=Fifo {nothing}}}"#),
    );
    call(
        Call::MkNod(MkNodArgs { at: at(b"a"), what: MkNodWhat::Directory }),
        "1 d1000000 1 \"a\" 2",
        r#"MkNod {at={dir=d1 name="a"} what=Directory}"#,
    );
    call(
        Call::Rename(RenameArgs { from: at(b"a"), to: at(b"b") }),
        "1 d1000000 1 \"a\" 1 d1000000 1 \"b\"",
        r#"Rename {from={dir=d1 name="a"} to={dir=d1 name="b"}}"#,
    );
    call(
        Call::Link(LinkArgs { file: handle(b"\xf1"), link: at(b"b") }),
        "1 f1000000 1 d1000000 1 \"b\"",
        r#"Link {file=f1 link={dir=d1 name="b"}}"#,
    );
    let (dir, verifier) = (handle(b"\xd1"), [0xff; 8]);
    call(
        Call::ReadDir(ReadDirArgs { dir, cookie: 3, verifier, count: 4 }),
        "1 d1000000 0 3 ffffffff ffffffff 4",
        "ReadDir {dir=d1 cookie=3 verifier=ffffffffffffffff count=4}",
    );
    call(
        Call::ReadDirPlus(ReadDirPlusArgs { dir, cookie: 3, verifier, dir_count: 4, max_count: 5 }),
        "1 d1000000 0 3 ffffffff ffffffff 4 5",
        "ReadDirPlus {dir=d1 cookie=3 verifier=ffffffffffffffff dir_count=4 max_count=5}",
    );
}

#[test]
fn replies_about_one_file() {
    reply(Reply::GetAttr(Ok(ATTRS)), &format!("0 {ATTRS_WIRE}"), &format!("GetAttr OK {ATTRS_SHOWN}"));
    reply(Reply::GetAttr(Err(Status::STALE)), "46", "GetAttr STALE");
    reply(
        Reply::SetAttr(Err(WccFailed { status: Status::NOT_SYNC, wcc: WCC })),
        "2712 1 0 1 2 3 4 5 0",
        &format!("SetAttr {{status=NOT_SYNC wcc={WCC_SHOWN}}}"),
    );
    reply(
        Reply::Access(Ok(AccessOk { attrs: None, access: Access::empty() })),
        "0 0 0",
        "Access OK {attrs=- access=-}",
    );
    reply(
        Reply::ReadLink(Ok(ReadLinkOk { attrs: None, target: text(b"x") })),
        "0 0 1 \"x\"",
        r#"ReadLink OK {attrs=- target="x"}"#,
    );
    let data = Content::new(&b"abc"[..]).unwrap();
    reply(
        Reply::Read(Ok(ReadOk { attrs: Some(ATTRS), count: 3, eof: true, data })),
        &format!("0 1 {ATTRS_WIRE} 3 1 3 \"abc\""),
        &format!("Read OK {{attrs={ATTRS_SHOWN} count=3 eof=true data=<3 bytes>}}"),
    );
    let wcc = Wcc { before: None, after: Some(ATTRS) };
    reply(
        Reply::Write(Ok(WriteOk { wcc, count: 3, committed: Stable::DataSync, verifier: [1; 8] })),
        &format!("0 0 1 {ATTRS_WIRE} 3 1 01010101 01010101"),
        &format!(
            "Write OK {{wcc={{before=- after={ATTRS_SHOWN}}} count=3 committed=DataSync verifier={}}}",
            "01".repeat(8)
        ),
    );
    reply(
        Reply::Commit(Ok(Committed { wcc: Wcc::UNKNOWN, verifier: [2; 8] })),
        "0 0 0 02020202 02020202",
        "Commit OK {wcc={before=- after=-} verifier=0202020202020202}",
    );
}

#[test]
fn replies_about_names() {
    let looked_up = LookedUp { object: handle(b"\xf1"), attrs: None, dir_attrs: Some(ATTRS) };
    reply(
        Reply::Lookup(Ok(looked_up)),
        &format!("0 1 f1000000 0 1 {ATTRS_WIRE}"),
        &format!("Lookup OK {{object=f1 attrs=- dir_attrs={ATTRS_SHOWN}}}"),
    );
    reply(
        Reply::Lookup(Err(AttrsFailed { status: Status::NOENT, attrs: None })),
        "2 0",
        "Lookup {status=NOENT attrs=-}",
    );
    reply(
        Reply::MkNod(Ok(Created { object: Some(handle(b"\xf1")), attrs: None, dir: WCC })),
        "0 1 1 f1000000 0 1 0 1 2 3 4 5 0",
        &format!("MkNod OK {{object=f1 attrs=- dir={WCC_SHOWN}}}"),
    );
    reply(
        Reply::Rename(Ok(Renamed { from_dir: Wcc::UNKNOWN, to_dir: WCC })),
        "0 0 0 1 0 1 2 3 4 5 0",
        &format!("Rename OK {{from_dir={{before=- after=-}} to_dir={WCC_SHOWN}}}"),
    );
    reply(
        Reply::Link(Err(LinkFailed { status: Status::XDEV, attrs: None, dir: WCC })),
        "12 0 1 0 1 2 3 4 5 0",
        &format!("Link {{status=XDEV attrs=- dir={WCC_SHOWN}}}"),
    );
    let entry = |name, cookie| Entry { fileid: 7, name: text(name), cookie };
    let entries = List(vec![entry(b"a", 1), entry(b"bcdef", 2)]);
    reply(
        Reply::ReadDir(Ok(Entries { dir_attrs: None, verifier: [0; 8], entries, eof: true })),
        "0 0 0 0 1 0 7 1 \"a\" 0 1 1 0 7 5 \"bcdef\" 0 2 0 1",
        r#"ReadDir OK {dir_attrs=- verifier=0000000000000000 entries=[{fileid=7 name="a" cookie=1} {fileid=7 name="bcdef" cookie=2}] eof=true}"#,
    );
    let entry =
        EntryPlus { fileid: 7, name: text(b"a"), cookie: 1, attrs: None, object: Some(handle(b"\xf1")) };
    let entries = EntriesPlus { dir_attrs: None, verifier: [0; 8], entries: List(vec![entry]), eof: false };
    reply(
        Reply::ReadDirPlus(Ok(entries)),
        "0 0 0 0 1 0 7 1 \"a\" 0 1 0 1 1 f1000000 0 0",
        r#"ReadDirPlus OK {dir_attrs=- verifier=0000000000000000 entries=[{fileid=7 name="a" cookie=1 attrs=- object=f1}] eof=false}"#,
    );
}

#[test]
fn replies_about_file_systems() {
    let space = FsStat {
        attrs: None,
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_seconds: 7,
    };
    reply(
        Reply::FsStat(Ok(space)),
        "0 0 0 1 0 2 0 3 0 4 0 5 0 6 7",
        "FsStat OK {attrs=- total_bytes=1 free_bytes=2 available_bytes=3 total_files=4 free_files=5 \
         available_files=6 invariant_seconds=7}",
    );
    let info = FsInfo {
        attrs: None,
        read_max: 1,
        read_preferred: 2,
        read_multiple: 3,
        write_max: 4,
        write_preferred: 5,
        write_multiple: 6,
        read_dir_preferred: 7,
        file_size_max: 8,
        time_delta: Time { seconds: 9, nanos: 10 },
        properties: Properties::LINK | Properties::SYMLINK | Properties::HOMOGENEOUS | Properties::CANSETTIME,
    };
    reply(
        Reply::FsInfo(Ok(info)),
        "0 0 1 2 3 4 5 6 7 0 8 9 a 1b",
        "FsInfo OK {attrs=- read_max=1 read_preferred=2 read_multiple=3 write_max=4 write_preferred=5 \
         write_multiple=6 read_dir_preferred=7 file_size_max=8 time_delta={seconds=9 nanos=10} \
         properties=LINK|SYMLINK|HOMOGENEOUS|CANSETTIME}",
    );
    let limits = Pathconf {
        attrs: None,
        link_max: 1,
        name_max: 255,
        no_trunc: true,
        chown_restricted: false,
        case_insensitive: false,
        case_preserving: true,
    };
    reply(
        Reply::PathConf(Ok(limits)),
        "0 0 1 ff 1 0 0 1",
        "PathConf OK {attrs=- link_max=1 name_max=255 no_trunc=true chown_restricted=false \
         case_insensitive=false case_preserving=true}",
    );
}

#[test]
fn mounting() {
    mount_call(mount::Call::Mnt(text(b"/srv")), "4 \"/srv\"", r#"Mnt "/srv""#);
    let mounted = mount::Mounted { handle: handle(b"\xd1"), flavors: Array::new(vec![1, 390_003]).unwrap() };
    mount_reply(
        mount::Reply::Mnt(Ok(mounted)),
        "0 1 d1000000 2 1 5f373",
        "Mnt OK {handle=d1 flavors=[1 390003]}",
    );
    mount_reply(mount::Reply::Mnt(Err(mount::Status::ACCES)), "d", "Mnt ACCES");
    let entry = mount::MountEntry { host: text(b"h"), path: text(b"/p") };
    mount_reply(
        mount::Reply::Dump(List(vec![entry])),
        "1 1 \"h\" 2 \"/p\" 0",
        r#"Dump [{host="h" path="/p"}]"#,
    );
    let export = |groups: Vec<_>| mount::ExportEntry { path: text(b"/p"), groups: List(groups) };
    mount_reply(
        mount::Reply::Export(List(vec![export(vec![text(b"g"), text(b"h")]), export(vec![])])),
        "1 2 \"/p\" 1 1 \"g\" 1 1 \"h\" 0 1 2 \"/p\" 0 0",
        r#"Export [{path="/p" groups=["g" "h"]} {path="/p" groups=[]}]"#,
    );
    mount_reply(mount::Reply::Umnt(()), "", "Umnt -");
}

#[test]
fn ports_and_addresses() {
    let mapping = portmap::Mapping { program: 100_003, version: 3, protocol: portmap::TCP, port: 2049 };
    portmap_call(
        portmap::Call::GetPort(mapping),
        "186a3 3 6 801",
        "GetPort {program=100003 version=3 protocol=6 port=2049}",
    );
    portmap_reply(portmap::Reply::GetPort(2049), "801", "GetPort 2049");
    portmap_reply(
        portmap::Reply::Dump(List(vec![mapping])),
        "1 186a3 3 6 801 0",
        "Dump [{program=100003 version=3 protocol=6 port=2049}]",
    );
    let binding = rpcbind::Binding {
        program: 100_003,
        version: 3,
        netid: text(b"tcp"),
        address: text(b""),
        owner: text(b"me"),
    };
    rpcbind_call(
        rpcbind::Call::GetAddr(binding),
        "186a3 3 3 \"tcp\" 0 2 \"me\"",
        r#"GetAddr {program=100003 version=3 netid="tcp" address="" owner="me"}"#,
    );
    rpcbind_reply(rpcbind::Reply::GetVersAddr(text(b"::1.8.1")), "7 \"::1.8.1\"", r#"GetVersAddr "::1.8.1""#);
}

/// RFC 5665, 5.2.3.3 and 5.2.3.4.
#[test]
fn universal_addresses() {
    for (socket, universal) in [
        ("10.1.3.7:2049", "10.1.3.7.8.1"),
        ("[::1]:111", "::1.0.111"),
        ("[fe80::2]:65535", "fe80::2.255.255"),
    ] {
        let socket: SocketAddr = socket.parse().unwrap();
        assert_eq!(rpcbind::universal_address(socket), universal);
        assert_eq!(rpcbind::socket_address(universal.as_bytes()), Some(socket));
    }
    let wrong = [
        "",
        "10.1.3.7",
        "10.1.3.7.8",
        "10.1.3.7.8.256",
        "10.1.3.7.+8.1",
        "10.1.3.7.8.",
        "host.8.1",
        "1.2.3.8.1",
    ];
    for wrong in wrong {
        assert_eq!(rpcbind::socket_address(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(rpcbind::socket_address(b"\xff.8.1"), None);
}

#[test]
fn locks() {
    let object = |bytes: &'static [u8]| nlm::Object::new(bytes).unwrap();
    let lock = || nlm::Lock {
        host: text(b"h"),
        handle: object(b"\xf1"),
        owner: object(b"\x01"),
        svid: -1,
        offset: 2,
        len: 3,
    };
    let lock_shown = r#"{host="h" handle=f1 owner=01 svid=-1 offset=2 len=3}"#;
    let lock_wire = "1 \"h\" 1 f1000000 1 01000000 ffffffff 0 2 0 3";
    let cookie = || object(b"\xc0");
    let args = nlm::LockArgs {
        cookie: cookie(),
        block: true,
        exclusive: false,
        lock: lock(),
        reclaim: true,
        state: 5,
    };
    let shown = format!("{{cookie=c0 block=true exclusive=false lock={lock_shown} reclaim=true state=5}}");
    let words = format!("1 c0000000 1 0 {lock_wire} 1 5");
    lock_call(nlm::Call::Lock(args.clone()), &words, &format!("Lock {shown}"));
    lock_call(nlm::Call::NmLock(args), &words, &format!("NmLock {shown}"));
    lock_call(
        nlm::Call::Test(nlm::TestArgs { cookie: cookie(), exclusive: true, lock: lock() }),
        &format!("1 c0000000 1 {lock_wire}"),
        &format!("Test {{cookie=c0 exclusive=true lock={lock_shown}}}"),
    );
    lock_call(
        nlm::Call::Cancel(nlm::CancelArgs { cookie: cookie(), block: false, exclusive: true, lock: lock() }),
        &format!("1 c0000000 0 1 {lock_wire}"),
        &format!("Cancel {{cookie=c0 block=false exclusive=true lock={lock_shown}}}"),
    );
    lock_call(
        nlm::Call::Unlock(nlm::UnlockArgs { cookie: cookie(), lock: lock() }),
        &format!("1 c0000000 {lock_wire}"),
        &format!("Unlock {{cookie=c0 lock={lock_shown}}}"),
    );
    let holder = nlm::Holder { exclusive: true, svid: 9, owner: object(b"\x02"), offset: 0, len: 0 };
    lock_reply(
        nlm::Reply::Test(nlm::TestResults { cookie: cookie(), status: nlm::TestStatus::Denied(holder) }),
        "1 c0000000 1 1 9 1 02000000 0 0 0 0",
        "Test {cookie=c0 status=Denied {exclusive=true svid=9 owner=02 offset=0 len=0}}",
    );
    lock_reply(
        nlm::Reply::Lock(nlm::Results { cookie: cookie(), status: nlm::Status::GracePeriod }),
        "1 c0000000 4",
        "Lock {cookie=c0 status=GracePeriod}",
    );
}

#[test]
fn reservations_of_files() {
    let object = |bytes: &'static [u8]| nlm::Object::new(bytes).unwrap();
    let share = nlm::ShareArgs {
        cookie: object(b"\xc0"),
        host: text(b"h"),
        handle: object(b"\xf1"),
        owner: object(b"\x01"),
        mode: nlm::ShareMode::DenyWrite,
        access: nlm::ShareAccess::Both,
        reclaim: false,
    };
    lock_call(
        nlm::Call::Share(share),
        "1 c0000000 1 \"h\" 1 f1000000 1 01000000 2 3 0",
        r#"Share {cookie=c0 host="h" handle=f1 owner=01 mode=DenyWrite access=Both reclaim=false}"#,
    );
    let results = nlm::ShareResults { cookie: object(b"\xc0"), status: nlm::Status::Failed, sequence: -2 };
    lock_reply(
        nlm::Reply::Unshare(results),
        "1 c0000000 9 fffffffe",
        "Unshare {cookie=c0 status=Failed sequence=-2}",
    );
    lock_call(
        nlm::Call::FreeAll(nlm::Notify { host: text(b"h"), state: 3 }),
        "1 \"h\" 3",
        r#"FreeAll {host="h" state=3}"#,
    );
    lock_reply(nlm::Reply::FreeAll(()), "", "FreeAll -");
}

/// What a peer can put into a message, and what it cannot.
#[test]
fn lengths_have_limits() {
    let long = |len: usize| {
        let mut bytes = wire("1 d1000000");
        bytes.extend_from_slice(&(len as u32).to_be_bytes());
        bytes.resize(bytes.len() + len.next_multiple_of(4), b'a');
        Call::decode(3, &mut Decoder::new(bytes.into()))
    };
    assert!(long(NAME_MAX).is_ok(), "for the tree to refuse");
    assert!(long(NAME_MAX + 1).is_err());
    let handle = |len: u32| {
        let bytes = [&len.to_be_bytes()[..], &[1; 68]].concat();
        Call::decode(1, &mut Decoder::new(bytes.into()))
    };
    assert!(handle(64).is_ok());
    assert!(handle(65).is_err());
    let promised = [wire("1 d1000000 0 0 5 0"), u32::MAX.to_be_bytes().to_vec()].concat();
    assert!(Call::decode(7, &mut Decoder::new(promised.into())).is_err());
}

/// Elements of lists take little more memory than room on the wire; a vector that grows has up to twice of it.
#[test]
fn lists_take_memory_in_proportion_to_their_bytes() {
    fn check<T: Xdr>() {
        let (memory, wire) = (size_of::<T>(), 4 + T::MIN_LEN);
        assert!(2 * memory <= 16 * wire, "{}: {memory} bytes for {wire}", std::any::type_name::<T>());
    }
    check::<Entry>();
    check::<EntryPlus>();
    check::<mount::MountEntry>();
    check::<mount::ExportEntry>();
    check::<mount::HostName>();
    check::<portmap::Mapping>();
    check::<rpcbind::Binding>();
}

#[test]
fn the_length_of_a_listing_is_known_beforehand() {
    let entry = |name| EntryPlus { fileid: 7, name: text(name), cookie: 1, attrs: Some(ATTRS), object: None };
    let list =
        |entries| EntriesPlus { dir_attrs: None, verifier: [0; 8], entries: List(entries), eof: false };
    let (one, other) = (entry(b"a"), entry(b"bcdef"));
    let expected = list(vec![]).encoded_len() + 4 + one.encoded_len() + 4 + other.encoded_len();
    assert_eq!(support::bytes(|out| list(vec![one, other]).encode(out)).len(), expected);
}
