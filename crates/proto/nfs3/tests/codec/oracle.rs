// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another implementation, `nfs3_types`, reads whatever is written here, and has the same bytes for headers, mounts and ports.

use crate::support::{self, Words, pack};
use nfs3_types::nfs3::{self as theirs, nfsstat3};
use nfs3_types::rpc as their_rpc;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack, Void};
use nfs3_types::{mount as their_mount, portmap as their_portmap};
use outrigger_proto_nfs3::types::{FileHandle, Status};
use outrigger_proto_nfs3::xdr::portmap;
use outrigger_proto_nfs3::xdr::{Array, Messages, Text, Xdr, rpc};
use outrigger_proto_nfs3::{mount, nfs};
use proptest::prelude::*;

fn fh() -> FileHandle {
    FileHandle::new(b"handle").unwrap()
}

fn text<const MAX: usize>(bytes: &'static [u8]) -> Text<MAX> {
    Text::new(bytes).unwrap()
}

#[test]
fn every_status_has_the_same_number() {
    let mut known = 0;
    for code in 1..10_100 {
        let ours = Status::new(code).unwrap().to_string();
        let theirs = nfsstat3::unpack(&mut &code.to_be_bytes()[..]).map(|(status, _)| status.to_string());
        match theirs {
            Ok(theirs) => {
                known += 1;
                assert_eq!(format!("NFS3ERR_{ours}"), theirs);
            }
            Err(_) => assert_eq!(ours, code.to_string(), "no name"),
        }
    }
    assert_eq!(known, 28, "all of RFC 1813, 2.6");
}

#[test]
fn calls_with_credentials() {
    let caller = rpc::AuthSys {
        stamp: 1,
        machine: text(b"host"),
        uid: 2,
        gid: 3,
        gids: Array::new(vec![4, 5]).unwrap(),
    };
    let their_caller = their_rpc::auth_unix {
        stamp: 1,
        machinename: Opaque::borrowed(b"host"),
        uid: 2,
        gid: 3,
        gids: vec![4, 5],
    };
    let their_fh = theirs::nfs_fh3 { data: Opaque::borrowed(b"handle") };
    let record = rpc::call::<nfs::procedure::GetAttr>(6, &rpc::Auth::from(&caller), &fh());
    let header = their_rpc::call_body {
        rpcvers: their_rpc::RPC_VERSION_2,
        prog: theirs::PROGRAM,
        vers: theirs::VERSION,
        proc: theirs::NFS_PROGRAM::NFSPROC3_GETATTR as u32,
        cred: their_rpc::opaque_auth::auth_unix(&their_caller),
        verf: their_rpc::opaque_auth::default(),
    };
    let header = their_rpc::rpc_msg { xid: 6, body: their_rpc::msg_body::CALL(header) };
    let body = [pack(&header), pack(&their_fh)].concat();
    let mark = their_rpc::fragment_header::new(body.len() as u32, true).into_xdr_buf();
    assert_eq!(record.finish().into_bytes(), [&mark[..], &body].concat());
}

#[test]
fn mounts_and_ports() {
    let call = |ours: mount::Call, theirs: Vec<u8>| {
        assert_eq!(support::bytes(|out| ours.encode(out))[..], theirs, "{ours}");
    };
    call(mount::Call::Mnt(text(b"/srv")), pack(&their_mount::dirpath(Opaque::borrowed(b"/srv"))));
    let mounted = mount::Mounted { handle: fh(), flavors: Array::new(vec![1, 2]).unwrap() };
    let their_mounted = their_mount::mountres3_ok {
        fhandle: their_mount::fhandle3(Opaque::borrowed(b"handle")),
        auth_flavors: vec![1, 2],
    };
    let reply = support::bytes(|out| mount::Reply::Mnt(Ok(mounted)).encode(out));
    assert_eq!(reply[..], pack(&their_mount::mountres3::Ok(their_mounted)));
    let mapping = portmap::Mapping { program: 1, version: 2, protocol: portmap::UDP, port: 3 };
    let theirs = their_portmap::mapping { prog: 1, vers: 2, prot: their_portmap::IPPROTO_UDP, port: 3 };
    assert_eq!(support::bytes(|out| mapping.encode(out))[..], pack(&theirs));
    let their_numbers = [
        (theirs::PROGRAM, theirs::VERSION),
        (their_mount::PROGRAM, their_mount::VERSION),
        (their_portmap::PROGRAM, their_portmap::VERSION),
    ];
    let numbers = [
        (nfs::PROGRAM, nfs::VERSION),
        (mount::PROGRAM, mount::VERSION),
        (portmap::PROGRAM, portmap::VERSION),
    ];
    assert_eq!(numbers, their_numbers);
}

/// Reads bytes with the other implementation, and writes them again.
fn again<T: Pack + Unpack>(bytes: &[u8]) -> Vec<u8> {
    let (value, len) = T::unpack(&mut &*bytes).unwrap();
    assert_eq!(len, bytes.len(), "all of it is read");
    pack(&value)
}

type Reader = fn(&[u8]) -> Vec<u8>;

/// By procedure: arguments and results.
const NFS: [(Reader, Reader); 22] = {
    use theirs::*;
    [
        (again::<Void>, again::<Void>),
        (again::<GETATTR3args>, again::<GETATTR3res>),
        (again::<SETATTR3args>, again::<SETATTR3res>),
        (again::<LOOKUP3args<'static>>, again::<LOOKUP3res>),
        (again::<ACCESS3args>, again::<ACCESS3res>),
        (again::<READLINK3args>, again::<READLINK3res<'static>>),
        (again::<READ3args>, again::<READ3res<'static>>),
        (again::<WRITE3args<'static>>, again::<WRITE3res>),
        (again::<CREATE3args<'static>>, again::<CREATE3res>),
        (again::<MKDIR3args<'static>>, again::<MKDIR3res>),
        (again::<SYMLINK3args<'static>>, again::<SYMLINK3res>),
        (again::<MKNOD3args<'static>>, again::<MKNOD3res>),
        (again::<REMOVE3args<'static>>, again::<REMOVE3res>),
        (again::<RMDIR3args<'static>>, again::<RMDIR3res>),
        (again::<RENAME3args<'static, 'static>>, again::<RENAME3res>),
        (again::<LINK3args<'static>>, again::<LINK3res>),
        (again::<READDIR3args>, again::<READDIR3res<'static>>),
        (again::<READDIRPLUS3args>, again::<READDIRPLUS3res<'static>>),
        (again::<FSSTAT3args>, again::<FSSTAT3res>),
        (again::<FSINFO3args>, again::<FSINFO3res>),
        (again::<PATHCONF3args>, again::<PATHCONF3res>),
        (again::<COMMIT3args>, again::<COMMIT3res>),
    ]
};

const MOUNT: [(Reader, Reader); 6] = {
    use their_mount::*;
    [
        (again::<Void>, again::<Void>),
        (again::<dirpath<'static>>, again::<mountres3<'static>>),
        (again::<Void>, again::<mountlist<'static, 'static>>),
        (again::<dirpath<'static>>, again::<Void>),
        (again::<Void>, again::<Void>),
        (again::<Void>, again::<exports<'static, 'static>>),
    ]
};

const PORTMAP: [(Reader, Reader); 5] = {
    use their_portmap::*;
    [
        (again::<Void>, again::<Void>),
        (again::<mapping>, again::<bool>),
        (again::<mapping>, again::<bool>),
        (again::<mapping>, again::<u32>),
        (again::<Void>, again::<pmaplist>),
    ]
};

fn read_by_them<C: Messages, R: Messages>(words: &mut Words, theirs: &[(Reader, Reader)]) {
    for &procedure in C::PROCEDURES {
        let (read_call, read_reply) = theirs[procedure as usize];
        let call = words.value(|input| C::decode(procedure, input));
        let bytes = support::bytes(|out| call.encode(out));
        // The other implementation cannot write the kinds that MKNOD does not make.
        if !["Regular}", "Directory}", "Symlink}"].iter().any(|kind| call.to_string().ends_with(kind)) {
            assert_eq!(read_call(&bytes), bytes, "{call}");
        }
        let reply = words.value(|input| R::decode(procedure, input));
        let bytes = support::bytes(|out| reply.encode(out));
        // Nor does it keep a status that it does not know.
        if !has_unknown_status(&reply.to_string()) {
            assert_eq!(read_reply(&bytes), bytes, "{reply}");
        }
    }
}

/// `NAME 99` and `NAME {status=99 ...`: where a status has a name, that is printed.
fn has_unknown_status(reply: &str) -> bool {
    let status = reply.split_once(' ').unwrap().1.trim_start_matches("{status=");
    status.starts_with(|first: char| first.is_ascii_digit()) && !reply.starts_with("GetPort")
}

proptest! {
    #[test]
    fn the_other_implementation_reads_everything(seed: u64) {
        let mut words = Words(seed);
        read_by_them::<nfs::Call, nfs::Reply>(&mut words, &NFS);
        read_by_them::<mount::Call, mount::Reply>(&mut words, &MOUNT);
        read_by_them::<portmap::Call, portmap::Reply>(&mut words, &PORTMAP);
    }
}
