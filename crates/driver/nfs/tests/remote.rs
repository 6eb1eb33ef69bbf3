// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens between this driver and real servers.

mod support;

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::{Credentials, Errno, Groups, Serve, SetTime, Time};
use outrigger_driver_nfs::Nfs;
use outrigger_remote::{Line, Nfsd};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{Far, far};

const KINDS: [Nfsd; 2] = [Nfsd::Own, Nfsd::Ganesha];

fn direct(nfs: Nfs) -> Direct {
    Direct::new(Arc::new(Serve(nfs)))
}

fn each(test: impl Fn(Nfsd, Far)) {
    for kind in KINDS {
        if let Some(far) = far(kind) {
            test(kind, far);
        }
    }
}

/// Bytes of which no two pieces are alike.
fn content(len: usize) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn read(direct: &Direct, path: &str) -> Vec<u8> {
    let file = direct.open(Path::new(path), Flags::READ, 0).expect("opened");
    let mut data = Vec::new();
    loop {
        let piece = direct.read_at(file, data.len() as u64, 3 << 20).expect("read");
        if piece.is_empty() {
            direct.close(file).expect("closed");
            return data;
        }
        data.extend_from_slice(&piece);
    }
}

#[test]
fn a_file_of_many_pieces_is_written_and_read() {
    each(|kind, far| {
        let (near, data) = (direct(far.connect(&[("rsize", "64k"), ("wsize", "64k")])), content(3_000_000));
        let file = near.open(Path::new("f"), Flags::NEW, 0o640).expect("created");
        assert_eq!(near.write_at(file, 0, &data), Ok(data.len()));
        near.close(file).expect("closed");
        assert!(fs::read(far.server.root().join("f")).expect("there") == data, "{kind:?}");
        assert_eq!(
            fs::metadata(far.server.root().join("f")).expect("there").mode() & 0o7777,
            0o640,
            "{kind:?}"
        );
        assert!(read(&near, "f") == data, "{kind:?}");
    });
}

#[test]
fn a_connection_that_is_cut_in_the_middle_is_made_again() {
    each(|kind, far| {
        let line = Line::new(far.server.port(), Duration::ZERO).expect("a line");
        let port = line.port();
        let near = direct(far.connect_to(port, &[("noresvport", "")], None).expect("connected"));
        let (file, data) =
            (near.open(Path::new("f"), Flags::NEW, 0o644).expect("created"), content(4_000_000));
        for (number, piece) in data.chunks(500_000).enumerate() {
            assert_eq!(near.write_at(file, number as u64 * 500_000, piece), Ok(piece.len()), "{kind:?}");
            line.cut();
        }
        near.fsync(file, false).expect("stored");
        near.close(file).expect("closed");
        line.cut();
        assert!(read(&near, "f") == data, "{kind:?}");
    });
}

#[test]
fn a_restarted_server_has_everything_that_was_acknowledged() {
    each(|kind, mut far| {
        let near = direct(far.connect(&[]));
        let (file, data) =
            (near.open(Path::new("f"), Flags::NEW, 0o644).expect("created"), content(1_000_000));
        near.write_at(file, 0, &data).expect("written");
        far.server.stop();
        far.server.start().expect("started again");
        assert!(read(&near, "f") == data, "{kind:?}");
        near.write_at(file, 0, b"after").expect("written");
        near.close(file).expect("closed");
        let stored = fs::read(far.server.root().join("f")).expect("there");
        assert!(stored.starts_with(b"after") && stored[5..] == data[5..], "{kind:?}");
    });
}

#[test]
fn two_clients_see_what_the_other_does() {
    each(|kind, far| {
        let (one, other) = (direct(far.connect(&[])), direct(far.connect(&[])));
        let file = one.open(Path::new("f"), Flags::NEW, 0o644).expect("created");
        assert_eq!(other.open(Path::new("f"), Flags::NEW, 0o644), Err(Errno::EEXIST), "{kind:?}");
        one.write_at(file, 0, b"one").expect("written");
        assert_eq!(read(&other, "f"), b"one", "{kind:?}");
        other.rename(Path::new("f"), Path::new("g"), Default::default()).expect("renamed");
        one.write_at(file, 3, b" more").expect("a handle follows its file");
        one.close(file).expect("closed");
        assert_eq!(read(&other, "g"), b"one more", "{kind:?}");
        let open = one.open(Path::new("g"), Flags::READ, 0).expect("opened");
        other.unlink(Path::new("g")).expect("removed");
        assert_eq!(one.read_at(open, 0, 10), Err(Errno::ESTALE), "{kind:?}");
    });
}

#[test]
fn a_file_that_is_removed_or_replaced_while_it_is_open_stays_until_it_is_closed() {
    each(|kind, far| {
        let near = direct(far.connect(&[]));
        for name in ["removed", "replaced", "new"] {
            fs::write(far.server.root().join(name), name).expect("written");
        }
        let files =
            ["removed", "replaced"].map(|name| near.open(Path::new(name), Flags::READ, 0).expect("opened"));
        near.unlink(Path::new("removed")).expect("removed");
        near.rename(Path::new("new"), Path::new("replaced"), Default::default()).expect("replaced");
        assert_eq!(near.read_at(files[0], 0, 100).expect("read"), b"removed", "{kind:?}");
        assert_eq!(near.read_at(files[1], 0, 100).expect("read"), b"replaced", "{kind:?}");
        let dir = near.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).expect("opened");
        let listed = near.read_dir(dir, 0, 1 << 16).expect("listed").entries;
        assert!(listed.len() == 1 && listed[0].name == b"replaced", "{kind:?}: {listed:?}");
        for file in files {
            near.close(file).expect("closed");
        }
        let left: Vec<_> = fs::read_dir(far.server.root())
            .expect("listed")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        assert_eq!(left, ["replaced"], "{kind:?}");
    });
}

#[test]
fn each_user_has_the_rights_of_that_user() {
    each(|kind, far| {
        let near = direct(far.connect(&[]));
        let root = far.server.root();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).expect("its owner");
        for (name, uid, gid, mode) in [("alice", 1001, 1001, 0o600), ("group", 1001, 2000, 0o640)] {
            fs::write(root.join(name), name).expect("written");
            chown(root.join(name), Some(uid), Some(gid)).expect("given away");
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("its owner");
        }
        let with =
            |uid, groups: &[u32]| Credentials { groups: Groups::of(groups), ..Credentials::new(uid, uid) };
        let (no, yes) = (Some(Errno::EACCES), None);
        for (user, alice, group) in
            [(with(1001, &[]), yes, yes), (with(1002, &[2000]), no, yes), (with(1003, &[]), no, no)]
        {
            let uid = user.uid;
            near.as_user(user, &mut || {
                let open = |name| {
                    let opened = near.open(Path::new(name), Flags::READ, 0);
                    opened.and_then(|file| near.close(file)).err()
                };
                assert_eq!((open("alice"), open("group")), (alice, group), "{kind:?} {uid}");
                let own = format!("of {uid}");
                let file = near.open(Path::new(&own), Flags::NEW, 0o600).expect("created");
                near.write_at(file, 0, b"content").expect("written");
                near.close(file).expect("closed");
                assert_eq!(fs::metadata(root.join(&own)).expect("there").uid(), uid, "{kind:?}");
                assert_eq!(near.chown(Path::new(&own), Some(0), None), Err(Errno::EPERM), "{kind:?}");
            });
        }
    });
}

#[test]
fn twenty_thousand_names_are_listed_with_their_attributes() {
    each(|kind, far| {
        let dir = far.server.root().join("d");
        fs::create_dir(&dir).expect("made");
        for number in 0..20_000 {
            fs::File::create(dir.join(format!("file {number}"))).expect("made");
        }
        let near = direct(far.connect(&[]));
        let open = near.open(Path::new("d"), Flags::READ | Flags::DIRECTORY, 0).expect("opened");
        let (mut names, mut cookie) = (std::collections::BTreeSet::new(), 0);
        loop {
            let piece = near.read_dir(open, cookie, 1 << 17).expect("listed");
            assert!(piece.entries.iter().all(|entry| entry.kind == Some(outrigger_core::FileKind::Regular)));
            cookie = piece.entries.last().map_or(cookie, |entry| entry.cookie);
            names.extend(piece.entries.into_iter().map(|entry| entry.name));
            if piece.eof {
                break;
            }
        }
        assert_eq!(names.len(), 20_000, "{kind:?}");
    });
}

#[test]
fn times_of_a_file_that_is_made_exclusively_are_those_of_now() {
    each(|kind, far| {
        let near = direct(far.connect(&[]));
        let file = near.open(Path::new("f"), Flags::NEW, 0o644).expect("created");
        let (now, attr) = (std::time::SystemTime::now(), near.fstat(file).expect("told"));
        let now = now.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs() as i64;
        assert!((now - 60..=now + 60).contains(&attr.mtime.secs), "{kind:?}: {attr:?}");
        let (atime, mtime) = (Time::new(5, 0), Time::new(7, 9));
        near.utimens(Path::new("f"), Some(SetTime::To(atime)), Some(SetTime::To(mtime))).expect("set");
        let attr = near.stat(Path::new("f")).expect("told");
        assert_eq!((attr.atime, attr.mtime), (atime, mtime), "{kind:?}");
        near.close(file).expect("closed");
    });
}
