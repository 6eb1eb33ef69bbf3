// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients of Plan 9 (9P2000), and of its dialect for Unix (9P2000.u).

use crate::support::*;
use bytes::Bytes;
use outrigger_proto_ninep::*;

const DIR: u32 = 1 << 31;

fn start(dialect: Dialect) -> (Running, Client) {
    let running = serve(vec![("/", checked(mem()))], &callers());
    let mut root = Client::new(running.address);
    root.call(Tmkdir { dfid: 0, name: text("home"), mode: 0o777, gid: 0 }).unwrap();
    let mut client = Client::speaking(running.address, dialect);
    client.attach(0, "/home", None).unwrap();
    (running, client)
}

fn create(client: &mut Client, fid: u32, name: &str, perm: u32, mode: u8) -> Result<Qid, Refused> {
    client.walk(0, fid, &[]).unwrap();
    let made = client.call(Tcreate { fid, name: text(name), perm, mode, extension: Some(text("")) });
    made.map(|made| made.qid)
}

fn stat(client: &mut Client, fid: u32) -> Stat {
    client.call(Tstat { fid }).unwrap().stat
}

fn wstat(client: &mut Client, fid: u32, stat: Stat) -> Result<Rwstat, Refused> {
    let len = stat.encode(client.dialect).len() as u16;
    client.call(Twstat { fid, len, stat })
}

/// The entries of an open directory, with `count` bytes at a time.
fn listed(client: &mut Client, fid: u32, count: u32) -> Vec<String> {
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let data = client.read(fid, offset, count).unwrap();
        if data.is_empty() {
            return names;
        }
        offset += data.len() as u64;
        let mut rest = data;
        while !rest.is_empty() {
            let len = usize::from(u16::from_le_bytes([rest[0], rest[1]])) + 2;
            let entry = rest.split_to(len);
            // The name is behind 39 bytes of numbers and its own length.
            let end = 43 + usize::from(u16::from_le_bytes([entry[41], entry[42]]));
            names.push(String::from_utf8(entry[43..end].to_vec()).unwrap());
        }
    }
}

#[test]
fn files_are_made_read_told_of_and_removed() {
    let (_running, mut client) = start(Dialect::Plain);
    assert_eq!(create(&mut client, 1, "d", DIR | 0o755, 0).unwrap().kind, QidKind::DIRECTORY);
    create(&mut client, 2, "f", 0o664, 2).unwrap();
    client.write(2, 0, b"content").unwrap();
    assert_eq!(client.read(2, 3, 100).unwrap(), "tent");
    let told = stat(&mut client, 2);
    assert_eq!(
        (told.length, &told.name[..], &told.uid[..], &told.gid[..]),
        (7, &b"f"[..], &b"glenda"[..], &b"bunnies"[..])
    );
    assert_eq!(told.mode, 0o664);
    assert_eq!(&stat(&mut client, 0).name[..], b"/");
    assert_eq!(stat(&mut client, 1).mode, DIR | 0o755);
    assert!(create(&mut client, 3, "f", 0o644, 2).is_err(), "it is there");
    client.clunk(3).unwrap();
    assert!(create(&mut client, 3, "x", 1 << 30 | 0o644, 2).is_err(), "no files for appending");
    client.clunk(3).unwrap();
    client.walk(0, 3, &["f"]).unwrap();
    client.call(Topen { fid: 3, mode: 0x11 }).unwrap();
    assert_eq!(stat(&mut client, 3).length, 0, "it was emptied");
    client.call(Tremove { fid: 3 }).unwrap();
    assert!(client.walk(0, 3, &["f"]).is_err());
}

#[test]
fn a_file_is_removed_at_its_end_where_that_was_wanted() {
    let (_running, mut client) = start(Dialect::Plain);
    create(&mut client, 1, "f", 0o644, 0x41).unwrap();
    client.walk(0, 2, &["f"]).unwrap();
    client.clunk(1).unwrap();
    assert!(client.walk(0, 1, &["f"]).is_err());
}

#[test]
fn directories_are_read_from_their_beginning_to_their_end() {
    let (_running, mut client) = start(Dialect::Plain);
    for number in 0..60 {
        create(&mut client, 1, &format!("name {number}"), 0o644, 0).unwrap();
        client.clunk(1).unwrap();
    }
    client.walk(0, 1, &[]).unwrap();
    client.call(Topen { fid: 1, mode: 0 }).unwrap();
    for count in [100, 1000, 8192] {
        let mut names = listed(&mut client, 1, count);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 60, "{count}");
    }
    assert!(client.read(1, 0, 20).is_err(), "no room for a name");
    assert!(client.read(1, 5, 1000).is_err(), "in the middle of a name");
    client.walk(0, 2, &[]).unwrap();
    assert!(client.call(Topen { fid: 2, mode: 1 }).is_err(), "for writing");
}

#[test]
fn what_is_not_left_alone_is_changed() {
    let (_running, mut client) = start(Dialect::Plain);
    create(&mut client, 1, "f", 0o644, 2).unwrap();
    client.write(1, 0, b"content").unwrap();
    let none = Stat::untouched();
    wstat(&mut client, 1, Stat { mode: 0o600, length: 3, mtime: 1_000_000_000, ..none.clone() }).unwrap();
    let told = stat(&mut client, 1);
    assert_eq!((told.mode, told.length, told.mtime), (0o600, 3, 1_000_000_000));
    wstat(&mut client, 1, Stat { name: text("g"), ..none.clone() }).unwrap();
    assert_eq!(&stat(&mut client, 1).name[..], b"g");
    client.walk(0, 2, &["g"]).unwrap();
    wstat(&mut client, 1, none.clone()).unwrap();
    for refused in [
        Stat { mode: DIR | 0o700, ..none.clone() },
        Stat { length: u64::MAX - 1, ..none.clone() },
        Stat { gid: text("nobody-here"), ..none.clone() },
        Stat { name: text("a/b"), ..none.clone() },
    ] {
        assert!(wstat(&mut client, 1, refused).is_err());
    }
    assert!(wstat(&mut client, 0, Stat { name: text("x"), ..none }).is_err(), "the root");
}

#[test]
fn requests_of_linux_are_none_of_plan_9s() {
    let (_running, mut client) = start(Dialect::Plain);
    assert!(client.call(Tmkdir { dfid: 0, name: text("d"), mode: 0o755, gid: 0 }).is_err());
    assert!(client.call(Tgetattr { fid: 0, mask: AttrMask::BASIC }).is_err());
    assert!(create(&mut client, 1, "l", 1 << 25 | 0o777, 0).is_err(), "links are of another dialect");
}

#[test]
fn the_dialect_for_unix_has_links_devices_and_numbers() {
    let (running, mut client) = start(Dialect::Unix);
    let make = |client: &mut Client, fid, name: &str, perm, extension: &str| {
        client.walk(0, fid, &[]).unwrap();
        client.call(Tcreate { fid, name: text(name), perm, mode: 0, extension: Some(text(extension)) })
    };
    client.attach(9, "/home", Some(0)).unwrap();
    make(&mut client, 1, "l", 1 << 25 | 0o777, "target").unwrap();
    let told = stat(&mut client, 1);
    assert_eq!((told.mode & 1 << 25 != 0, &told.extension.unwrap()[..]), (true, &b"target"[..]));
    assert_eq!((told.n_uid, told.n_gid), (Some(7), Some(70)));
    make(&mut client, 2, "p", 1 << 21 | 0o644, "").unwrap();
    make(&mut client, 3, "f", 0o644, "").unwrap();
    make(&mut client, 4, "hard", 1 << 24, "3").unwrap();
    assert_eq!(make(&mut client, 5, "other", 1 << 24, "77"), Err(BADF));
    assert_eq!(make(&mut client, 6, "own", 1 << 24, "6"), Err(BADF));
    assert_eq!(stat(&mut client, 4).qid.path, stat(&mut client, 3).qid.path);
    assert_eq!(make(&mut client, 7, "dev", 1 << 23 | 0o644, "c 1 3"), Err(PERM), "for the superuser");
    client.walk(9, 8, &[]).unwrap();
    client
        .call(Tcreate {
            fid: 8,
            name: text("dev"),
            perm: 1 << 23 | 0o644,
            mode: 0,
            extension: Some(text("c 1 3")),
        })
        .unwrap();
    assert_eq!(&stat(&mut client, 8).extension.unwrap()[..], b"c 1 3");
    let mut linux = Client::new(running.address);
    linux.walk(0, 1, &["home", "dev"]).unwrap();
    let attrs = linux.call(Tgetattr { fid: 1, mask: AttrMask::BASIC }).unwrap().attrs;
    assert_eq!((attrs.mode, attrs.rdev), (0o20_644, 0x103));
    let bytes: Bytes = Stat::untouched().encode(Dialect::Unix).freeze();
    assert_eq!(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) + 2, bytes.len());
}

/// Clients of Linux set a bit for `O_APPEND` that 9P2000 does not have.
#[test]
fn a_file_of_unix_is_opened_to_write_at_its_end() {
    let (_running, mut client) = start(Dialect::Unix);
    create(&mut client, 1, "f", 0o644, 2).unwrap();
    client.write(1, 0, b"first ").unwrap();
    client.walk(0, 2, &["f"]).unwrap();
    client.call(Topen { fid: 2, mode: 0x81 }).unwrap();
    client.write(2, 0, b"second").unwrap();
    assert_eq!(client.read(1, 0, 100).unwrap(), "first second");
}

/// What is reported as an error has not been done.
#[test]
fn a_directory_is_made_that_its_owner_may_not_read() {
    let (_running, mut client) = start(Dialect::Unix);
    assert_eq!(create(&mut client, 1, "d", DIR | 0o300, 0).unwrap().kind, QidKind::DIRECTORY);
    assert!(client.read(1, 0, 1000).is_err(), "it is not open");
    client.walk(0, 2, &["d"]).unwrap();
    assert_eq!(stat(&mut client, 2).mode, DIR | 0o300);
}
