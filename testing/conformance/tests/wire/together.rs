// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several clients of one server, and others who change what is served.

use crate::support::Far;
use outrigger_conformance::Direct;
use outrigger_conformance::{Flags, Subject};
use outrigger_core::{Errno, HeapKeep, Keep, Notice};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn read(direct: &Direct, path: &str) -> Vec<u8> {
    let file = direct.open(Path::new(path), Flags::READ, 0).expect("opened");
    let data = direct.read_at(file, 0, 1 << 20).expect("read");
    direct.close(file).expect("closed");
    data
}

fn write(direct: &Direct, path: &str, data: &[u8]) {
    let file = direct.open(Path::new(path), Flags::NEW, 0o644).expect("made");
    assert_eq!(direct.write_at(file, 0, data), Ok(data.len()));
    direct.close(file).expect("closed");
}

fn is_content(notice: &Notice) -> bool {
    matches!(notice, Notice::InvalidateNode { offset: 0, .. })
}

fn is_name(notice: &Notice, expected: &str) -> bool {
    matches!(notice, Notice::InvalidateEntry { name, .. } if name.as_bytes() == expected.as_bytes())
}

#[test]
fn a_change_by_one_client_is_told_to_the_others_and_not_to_itself() {
    let far = Far::local();
    let ((one, told_one), (other, told_other)) = (far.told(), far.told());
    write(&one, "f", b"first");
    told_other.wait(|notice| is_name(notice, "f"));
    assert_eq!(read(&other, "f"), b"first");
    let held = other.open(Path::new("f"), Flags::READ, 0).expect("opened");
    told_other.clear();
    let file = one.open(Path::new("f"), Flags::BOTH, 0).expect("opened");
    one.write_at(file, 0, b"FIRST").expect("written");
    told_other.wait(is_content);
    assert_eq!(read(&other, "f"), b"FIRST");
    one.close(file).expect("closed");
    other.close(held).expect("closed");
    other.rename(Path::new("f"), Path::new("g"), Default::default()).expect("renamed");
    told_one.wait(|notice| is_name(notice, "g"));
    assert!(!told_one.all().iter().any(is_content), "its own: {:?}", told_one.all());
}

#[test]
fn what_other_programs_change_in_the_directory_is_told() {
    let far = Far::local();
    fs::write(far.at("f"), "first").unwrap();
    let (near, told) = far.told();
    let held = near.open(Path::new("f"), Flags::READ, 0).expect("opened");
    assert_eq!(near.read_at(held, 0, 100).expect("read"), b"first");
    fs::write(far.at("new"), "").unwrap();
    told.wait(|notice| is_name(notice, "new"));
    fs::write(far.at("f"), "second").unwrap();
    told.wait(is_content);
    assert_eq!(near.read_at(held, 0, 100).expect("read"), b"second");
    near.close(held).expect("closed");
    fs::remove_file(far.at("f")).unwrap();
    told.wait(|notice| is_name(notice, "f"));
}

#[test]
fn a_client_that_loses_its_connection_goes_on_with_open_files() {
    let mut far = Far::local();
    let (near, told) = far.told();
    write(&near, "f", b"content");
    write(&near, "gone", b"content");
    let file = near.open(Path::new("f"), Flags::BOTH, 0).expect("opened");
    let gone = near.open(Path::new("gone"), Flags::READ, 0).expect("opened");
    near.unlink(Path::new("gone")).expect("removed");
    assert_eq!(near.read_at(gone, 0, 100).expect("it is open"), b"content");
    far.cut();
    assert_eq!(near.read_at(file, 0, 100).expect("opened again"), b"content");
    told.wait(|notice| *notice == Notice::InvalidateAll);
    assert_eq!(near.read_at(gone, 0, 100), Err(Errno::ESTALE));
    fs::rename(far.at("f"), far.at("moved")).unwrap();
    fs::write(far.at("f"), "another").unwrap();
    far.cut();
    assert_eq!(near.read_at(file, 0, 100), Err(Errno::ESTALE), "another file has its name");
}

#[test]
fn a_process_that_takes_over_goes_on_with_open_files() {
    let far = Far::local();
    let keep = Arc::new(HeapKeep::default()) as Arc<dyn Keep>;
    fs::write(far.at("f"), "content").unwrap();
    let connect = || Direct::new(Arc::new(far.connect(Default::default(), Some(Arc::clone(&keep))).unwrap()));
    let near = connect();
    let ino = near.stat(Path::new("f")).expect("told").ino;
    drop(near);
    let near = connect();
    assert_eq!(near.stat(Path::new("f")).expect("told").ino, ino);
    assert_eq!(read(&near, "f"), b"content");
}

#[test]
fn another_tree_at_the_same_place_is_refused() {
    let mut far = Far::local();
    let near = far.direct();
    fs::write(far.at("f"), "content").unwrap();
    assert_eq!(read(&near, "f"), b"content");
    let other = Far::local();
    far.replace(&other);
    assert_eq!(near.stat(Path::new("f")).map(|stat| stat.ino), Err(Errno::ESTALE));
}
