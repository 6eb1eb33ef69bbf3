// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Linux 6.1, libnfs 4 and rpcinfo(8) said to nfs-ganesha 4.3 and rpcbind 1.2, and what these answered: the corpus of the fuzz
//! targets (the messages of NLM there are written by hand).

use crate::support;
use bytes::Bytes;
use outrigger_proto_nfs3::xdr::record::Records;
use outrigger_proto_nfs3::xdr::rpc::{Body, Message};
use outrigger_proto_nfs3::xdr::{Decoder, Messages, Xdr};
use outrigger_proto_nfs3::xdr::{portmap, rpcbind};
use outrigger_proto_nfs3::{mount, nfs, nlm};
use std::collections::BTreeMap;
use std::path::Path;

/// The files of a corpus by their names.
fn corpus(target: &str) -> BTreeMap<String, Bytes> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap().into())
    };
    std::fs::read_dir(folder).unwrap().map(file).collect()
}

/// Reads a whole message and writes the same bytes again; gives its printed form.
fn read<M: Messages>(name: &str, procedure: u32, bytes: Bytes) -> String {
    let mut input = Decoder::new(bytes.clone());
    let message = M::decode(procedure, &mut input).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(input.remaining(), 0, "{name}: {message}");
    assert_eq!(support::bytes(|out| message.encode(out)), bytes, "{name}: {message}");
    message.to_string()
}

#[test]
fn recorded_messages_are_read_and_written_the_same() {
    let mut shown = BTreeMap::new();
    for (name, file) in corpus("nfs3") {
        let (procedure, body) = (file[1].into(), file.slice(2..));
        let read = match file[0] {
            0 => read::<nfs::Call>,
            1 => read::<nfs::Reply>,
            2 => read::<mount::Call>,
            3 => read::<mount::Reply>,
            4 => read::<nlm::Call>,
            5 => read::<nlm::Reply>,
            6 => read::<portmap::Call>,
            7 => read::<portmap::Reply>,
            8 => read::<rpcbind::Call>,
            9 => read::<rpcbind::Reply>,
            other => panic!("{name}: {other}"),
        };
        let line = read(&name, procedure, body);
        shown.insert(name, line);
    }
    let procedures = shown.keys().filter(|name| name.starts_with("nfs-")).count();
    assert!(procedures >= 42, "calls and replies of all procedures but NULL: {procedures}");
    let has = |name: &str, parts: &[&str]| {
        parts
            .iter()
            .for_each(|part| assert!(shown[name].contains(part), "{name}: {part} in {}", shown[name]));
    };
    has(
        "nfs-readdirplus-reply",
        &[r#"name=".." "#, r#"name="n\n\xffx""#, "kind=Symlink mode=0777", "eof=true"],
    );
    has("nfs-readlink-reply", &[r#"target="a""#]);
    has("nfs-lookup-failed", &["{status=NOENT attrs={kind=Directory"]);
    has("nfs-mknod-call", &["what=Fifo {mode="]);
    has("nfs-fsinfo-reply", &["properties=LINK|SYMLINK|HOMOGENEOUS|CANSETTIME"]);
    has("mount-export-reply", &[r#"path="/srv/"#]);
    has("portmap-dump-reply", &["{program=100003 version=3 protocol=6 port=2050}"]);
    has("rpcbind-getaddr-reply", &[r#"GetAddr "127.0.0.1."#]);
}

#[test]
fn recorded_headers_are_read_and_written_the_same() {
    let mut calls = 0;
    for (name, stream) in corpus("rpc") {
        let mut records = Records::new(1 << 16);
        records.space().extend_from_slice(&stream);
        while let Some(record) = records.next().unwrap() {
            let mut input = Decoder::new(record.clone());
            let header = Message::decode(&mut input).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(support::bytes(|out| header.encode(out)), record[..input.at()], "{name}: {header}");
            if let Body::Call(call) = header.body {
                calls += 1;
                assert!(call.credential.flavor == 0 || call.credential.sys().is_ok(), "{name}: {call}");
            }
        }
        assert!(records.is_between(), "{name}");
    }
    assert!(calls > 10, "{calls}");
}
