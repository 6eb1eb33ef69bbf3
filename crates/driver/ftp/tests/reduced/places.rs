// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where in a file a server begins, and when it has an empty one.

use super::{USUAL, content, name, open, put};
use crate::server::Server;
use outrigger_client::Follow;
use outrigger_core::SetAttrs;
use outrigger_core::ops::{OpenFlags, SetAttr};
use std::fs;

#[test]
fn a_server_that_ignores_rest_far_from_the_end_is_read_from_the_front() {
    let server = Server::start(USUAL, &[]);
    let data = content(1_000_000);
    put(&server, "f", &data, 0);
    server.change(|ways| ways.ignores_rest = true);
    for first in [100_000, 999_000] {
        let far = open(&server);
        let file = far.file("/f", OpenFlags::empty());
        for at in [first, 500_000, 10, 999_990] {
            let piece = file.read_at(at, 10).expect("read");
            assert_eq!(piece, data[at as usize..][..10], "{first}: {at}");
        }
        assert!(file.read_at(1_000_000, 10).expect("the end").is_empty(), "{first}");
    }
}

#[test]
fn whether_rest_is_obeyed_is_tried_out_once() {
    let server = Server::start(USUAL, &[]);
    let data = content(4_000_000);
    put(&server, "f", &data, 0);
    put(&server, "g", &data, 0);
    let far = open(&server);
    let file = far.file("/f", OpenFlags::empty());
    assert_eq!(file.read_at(0, 10).expect("read"), data[..10]);
    assert_eq!(server.asked("RETR"), 1, "from the front there is no question");
    assert_eq!(file.read_at(3_000_000, 10).expect("read"), data[3_000_000..][..10]);
    assert_eq!((server.asked("RETR"), server.asked("USER")), (3, 2), "the trial, and the transfer");
    let other = far.file("/g", OpenFlags::empty());
    assert_eq!(other.read_at(2_000_000, 10).expect("read"), data[2_000_000..][..10]);
    assert_eq!(server.asked("RETR"), 4);
}

/// It grows between the look and the trial, as logs do.
#[test]
fn a_file_that_grows_does_not_make_the_server_one_that_ignores_rest() {
    let server = Server::start(USUAL, &[]);
    let data = content(1_000_000);
    put(&server, "f", &data, 0);
    let far = open(&server);
    let file = far.file("/f", OpenFlags::empty());
    server.change(|ways| ways.told_once = Some(999_000));
    assert_eq!(file.read_at(100_000, 10).expect("read"), data[100_000..][..10]);
    assert_eq!((server.asked("RETR"), server.last("REST")), (3, "REST 100000".to_owned()));
}

/// As the kernel opens a file with O_TRUNC: open, and then its size by the node.
#[test]
fn an_overwritten_file_has_its_old_content_at_the_server_until_the_new_one_is_there() {
    let server = Server::start(USUAL, &[]);
    put(&server, "f", b"old", 0);
    let far = open(&server);
    let inode = far.client.walk(b"/f", Follow::Yes).expect("found");
    let file = inode.open(OpenFlags::WRITE_ONLY).expect("opened");
    let empty = || {
        let attrs = SetAttrs { size: Some(0), ..SetAttrs::default() };
        far.client.call(SetAttr { node: inode.node(), handle: None, attrs }).expect("emptied")
    };
    assert_eq!(empty().attr.size, 0);
    assert_eq!(fs::read(server.at("f")).expect("there"), b"old");
    file.write_all_at(0, b"new".to_vec().into()).expect("staged");
    file.close().expect("stored");
    assert_eq!((server.asked("STOR"), fs::read(server.at("f")).expect("there")), (1, b"new".to_vec()));
    let file = inode.open(OpenFlags::WRITE_ONLY).expect("opened");
    empty();
    file.close().expect("stored");
    assert_eq!(fs::read(server.at("f")).expect("there"), b"");
    // A file that nobody has open for writing is emptied at once, as truncate(2) does it.
    put(&server, "f", b"more", 1);
    let mut inode = far.root().lookup(&name("f")).expect("found");
    let reader = inode.open(OpenFlags::empty()).expect("opened");
    inode.set(SetAttrs { size: Some(0), ..SetAttrs::default() }).expect("emptied");
    assert_eq!(fs::read(server.at("f")).expect("there"), b"");
    reader.close().expect("nothing is left to do");
}
