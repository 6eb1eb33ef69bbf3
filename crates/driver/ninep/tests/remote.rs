// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens between this driver and a real server.

mod support;

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::{GetAttr, Lookup, MkDir, Open, OpenFlags, Unlink, XattrFlags};
use outrigger_core::{Credentials, Cx, Driver, Errno, HeapKeep, Keep, Name, Node, Serve};
use outrigger_remote::Line;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::far;

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
fn a_file_of_many_messages_is_written_and_read() {
    let Some(far) = far() else { return };
    let (near, data) = (far.direct(), content(3_000_000));
    let file = near.open(Path::new("f"), Flags::NEW, 0o640).expect("created");
    assert_eq!(near.write_at(file, 0, &data), Ok(data.len()));
    near.fsync(file, false).expect("stored");
    near.close(file).expect("closed");
    let stored = far.server.root().join("f");
    assert!(fs::read(&stored).expect("there") == data);
    assert_eq!(fs::metadata(&stored).expect("there").mode() & 0o7777, 0o640);
    assert!(read(&near, "f") == data);
}

#[test]
fn a_connection_that_is_cut_in_the_middle_is_made_again() {
    let Some(far) = far() else { return };
    let line = Line::new(far.server.port(), Duration::ZERO).expect("a line");
    let near = Direct::new(Arc::new(Serve(far.connect_to(line.port(), &[], None).expect("connected"))));
    let (file, data) = (near.open(Path::new("f"), Flags::NEW, 0o644).expect("created"), content(4_000_000));
    for (number, piece) in data.chunks(500_000).enumerate() {
        assert_eq!(near.write_at(file, number as u64 * 500_000, piece), Ok(piece.len()));
        line.cut();
    }
    near.close(file).expect("closed");
    line.cut();
    assert!(read(&near, "f") == data);
}

#[test]
fn a_restarted_server_has_the_files_that_were_open() {
    let Some(mut far) = far() else { return };
    let (near, data) = (far.direct(), content(100_000));
    let file = near.open(Path::new("f"), Flags::NEW, 0o644).expect("created");
    near.write_at(file, 0, &data).expect("written");
    far.server.stop();
    far.server.again().expect("started again");
    near.write_at(file, 0, b"after").expect("written");
    near.close(file).expect("closed");
    let stored = fs::read(far.server.root().join("f")).expect("there");
    assert!(stored.starts_with(b"after") && stored[5..] == data[5..]);
}

#[test]
fn a_process_that_takes_over_goes_on_with_open_files() {
    let Some(far) = far() else { return };
    let keep = Arc::new(HeapKeep::default()) as Arc<dyn Keep>;
    let connect = || far.connect_to(far.server.port(), &[], Some(Arc::clone(&keep))).expect("connected");
    fs::write(far.server.root().join("f"), "content").expect("written");
    let near = Direct::new(Arc::new(Serve(connect())));
    let ino = near.stat(Path::new("f")).expect("told").ino;
    drop(near);
    let near = Direct::new(Arc::new(Serve(connect())));
    assert_eq!(near.stat(Path::new("f")).expect("told").ino, ino);
    assert_eq!(read(&near, "f"), b"content");
}

#[test]
fn two_clients_see_what_the_other_does() {
    let Some(far) = far() else { return };
    let (one, other) = (far.direct(), far.direct());
    let file = one.open(Path::new("f"), Flags::NEW, 0o644).expect("created");
    assert_eq!(other.open(Path::new("f"), Flags::NEW, 0o644), Err(Errno::EEXIST));
    one.write_at(file, 0, b"one").expect("written");
    assert_eq!(read(&other, "f"), b"one");
    other.rename(Path::new("f"), Path::new("g"), Default::default()).expect("renamed");
    one.write_at(file, 3, b" more").expect("a fid follows its file");
    one.close(file).expect("closed");
    assert_eq!(read(&other, "g"), b"one more");
}

/// diod looks for attributes of an open file under its name: another file of that name must not be taken for it.
#[test]
fn a_file_that_another_client_replaced_is_read_and_never_taken_for_its_successor() {
    let Some(far) = far() else { return };
    let near = far.direct();
    fs::write(far.server.root().join("f"), "old").expect("written");
    fs::write(far.server.root().join("g"), "successor").expect("written");
    let file = near.open(Path::new("f"), Flags::BOTH, 0).expect("opened");
    fs::rename(far.server.root().join("g"), far.server.root().join("f")).expect("replaced");
    assert_eq!(near.read_at(file, 0, 100).expect("read"), b"old");
    assert_eq!(near.ftruncate(file, 0), Err(Errno::ESTALE));
    near.close(file).expect("closed");
    assert_eq!(fs::read(far.server.root().join("f")).expect("there"), b"successor");
}

/// Makes another file in the place of `path` that gets the inode number of the one that was there; whether there is such a thing here.
fn replace(path: &Path, content: &str) -> bool {
    let ino = fs::metadata(path).expect("there").ino();
    let mut others = Vec::new();
    fs::remove_file(path).expect("removed");
    for number in 0..1000 {
        let other = path.with_extension(number.to_string());
        fs::write(&other, content).expect("written");
        if fs::metadata(&other).expect("there").ino() == ino {
            fs::rename(&other, path).expect("renamed");
            others.into_iter().for_each(|other| fs::remove_file(other).expect("removed"));
            return true;
        }
        others.push(other);
    }
    assert!(std::env::var_os("CI").is_none(), "the file system of the tests must give numbers twice");
    println!("SKIPPED: the file system gives no inode number twice");
    false
}

/// The server gives the number of a removed file to the next one.
#[test]
fn a_restarted_server_has_a_strangers_file_of_the_same_name_and_number_which_is_not_touched() {
    let Some(mut far) = far() else { return };
    let path = far.server.root().join("f");
    for (written, stranger) in [("", "stranger"), ("", "mine"), ("more", "stranger's"), ("more", "moremine")]
    {
        fs::write(&path, "mine").expect("written");
        let near = far.direct();
        let file = near.open(Path::new("f"), Flags::BOTH, 0).expect("opened");
        if !written.is_empty() {
            near.write_at(file, 4, written.as_bytes()).expect("written");
        }
        // What the file looks like after the write.
        near.fstat(file).expect("told");
        far.server.stop();
        if !replace(&path, stranger) {
            return;
        }
        far.server.again().expect("started again");
        assert_eq!(near.read_at(file, 0, 100), Err(Errno::ESTALE), "{stranger}");
        assert_eq!(near.write_at(file, 0, b"HACK"), Err(Errno::ESTALE), "{stranger}");
        assert_eq!(near.ftruncate(file, 0), Err(Errno::ESTALE), "{stranger}");
        near.close(file).expect("closed");
        assert_eq!(fs::read_to_string(&path).expect("there"), stranger);
        assert_eq!(read(&near, "f"), stranger.as_bytes(), "opening it anew helps");
    }
}

#[test]
fn what_other_clients_changed_while_the_connection_was_there_is_the_same_file_after_a_restart() {
    let Some(mut far) = far() else { return };
    let (near, path) = (far.direct(), far.server.root().join("log"));
    fs::write(&path, "one\n").expect("written");
    let file = near.open(Path::new("log"), Flags::READ, 0).expect("opened");
    fs::write(&path, "one\ntwo\n").expect("written");
    assert_eq!(near.fstat(file).expect("told").size, 8);
    near.chmod(Path::new("log"), 0o600).expect("changed");
    near.rename(Path::new("log"), Path::new("log.1"), Default::default()).expect("renamed");
    far.server.stop();
    far.server.again().expect("started again");
    assert_eq!(near.read_at(file, 0, 100).expect("read"), b"one\ntwo\n");
}

#[test]
fn a_removed_file_that_is_open_can_do_all_and_survives_the_server() {
    let Some(mut far) = far() else { return };
    let (near, root) = (far.direct(), far.server.root());
    fs::write(root.join("successor"), "successor").expect("written");
    for replaced in [false, true] {
        let file = near.open(Path::new("f"), Flags::NEW | Flags::BOTH, 0o600).expect("created");
        near.write_at(file, 0, b"content").expect("written");
        match replaced {
            true => {
                near.rename(Path::new("successor"), Path::new("f"), Default::default()).expect("replaced")
            }
            false => near.unlink(Path::new("f")).expect("removed"),
        }
        let told = near.fstat(file).expect("told");
        assert_eq!((told.size, told.nlink), (7, 0));
        near.ftruncate(file, 4).expect("cut");
        assert_eq!(near.fstat(file).expect("told").size, 4);
        far.server.stop();
        far.server.again().expect("started again");
        assert_eq!(near.read_at(file, 0, 100).expect("read"), b"cont");
        let dir = near.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).expect("opened");
        let listed = near.read_dir(dir, 0, 1 << 16).expect("listed").entries;
        near.close(dir).expect("closed");
        let hidden = listed.iter().filter(|entry| entry.name.starts_with(b".outrigger"));
        assert_eq!(hidden.count(), 0, "what is hidden is not listed");
        near.close(file).expect("closed");
    }
    let left: Vec<_> =
        fs::read_dir(&root).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(left, ["f"]);
    assert_eq!(fs::read(root.join("f")).expect("there"), b"successor");
}

/// diod lets all users do everything on a connection by which the superuser has attached.
#[test]
fn the_server_decides_what_each_user_may_also_after_the_superuser_was_there() {
    let Some(far) = far() else { return };
    let (near, path) = (far.direct(), far.server.root().join("f"));
    fs::write(&path, "secret").expect("written");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("its owner");
    assert_eq!(read(&near, "f"), b"secret");
    near.as_user(Credentials::new(1, 1), &mut || {
        for flags in [Flags::READ, Flags::WRITE] {
            assert_eq!(near.open(Path::new("f"), flags, 0), Err(Errno::EACCES));
        }
    });
    assert_eq!(read(&near, "f"), b"secret", "the superuser goes on");
}

#[test]
fn five_thousand_names_are_listed_in_a_directory() {
    let Some(far) = far() else { return };
    let dir = far.server.root().join("d");
    fs::create_dir(&dir).expect("made");
    for number in 0..5000 {
        fs::File::create(dir.join(format!("file {number}"))).expect("made");
    }
    let near = far.direct();
    let open = near.open(Path::new("d"), Flags::READ | Flags::DIRECTORY, 0).expect("opened");
    let (mut names, mut cookie) = (std::collections::BTreeSet::new(), 0);
    loop {
        let piece = near.read_dir(open, cookie, 1 << 17).expect("listed");
        cookie = piece.entries.last().map_or(cookie, |entry| entry.cookie);
        names.extend(piece.entries.into_iter().map(|entry| entry.name));
        if piece.eof {
            break;
        }
    }
    assert_eq!(names.len(), 5000);
}

/// diod removes an attribute that is set to nothing.
#[test]
fn an_empty_attribute_that_the_server_does_not_keep_is_an_error_and_costs_no_other_value() {
    let Some(far) = far() else { return };
    let (near, f) = (far.direct(), Path::new("f"));
    fs::write(far.server.root().join("f"), "content").expect("written");
    let any = XattrFlags::empty();
    for flags in [any, XattrFlags::CREATE] {
        assert_eq!(near.set_xattr(f, "user.new", b"", flags), Err(Errno::EINVAL));
    }
    near.set_xattr(f, "user.old", b"value", any).expect("set");
    for (flags, errno) in
        [(any, Errno::EINVAL), (XattrFlags::REPLACE, Errno::EINVAL), (XattrFlags::CREATE, Errno::EEXIST)]
    {
        assert_eq!(near.set_xattr(f, "user.old", b"", flags), Err(errno));
        assert_eq!(near.get_xattr(f, "user.old").expect("still there"), b"value");
    }
    assert_eq!(near.list_xattrs(f).expect("listed"), [b"user.old"]);
    assert_eq!(near.set_xattr(f, "user.new", b"", XattrFlags::REPLACE), Err(Errno::ENODATA));
    // One that the server has is left alone.
    let path = far.server.root().join("f");
    rustix::fs::setxattr(&path, "user.empty", b"", rustix::fs::XattrFlags::empty()).expect("set");
    near.set_xattr(f, "user.empty", b"", any).expect("it is there");
    assert_eq!(near.get_xattr(f, "user.empty").expect("still there"), b"");
}

/// Which of its names a file was found under last makes no difference.
#[test]
fn a_file_is_found_by_the_name_that_another_client_has_left_it() {
    let Some(far) = far() else { return };
    let near = far.connect_to(far.server.port(), &[], None).expect("connected");
    let cx = Cx::new(1, Credentials::ROOT, "test");
    for gone in ["one", "two"] {
        let [one, two] = ["one", "two"].map(|name| far.server.root().join(name));
        fs::write(&one, "content").expect("written");
        fs::hard_link(&one, &two).expect("linked");
        let nodes = ["one", "two"].map(|name| {
            let op = Lookup { dir: Node::ROOT, name: Name::try_from(name).expect("a name") };
            far.runtime.handle().block_on(near.lookup(&cx, op)).expect("found").node
        });
        assert_eq!(nodes[0], nodes[1], "one file");
        fs::remove_file(far.server.root().join(gone)).expect("removed");
        let told = far.runtime.handle().block_on(near.getattr(&cx, GetAttr { node: nodes[0], handle: None }));
        assert_eq!(told.expect("the other name is left").attr.nlink, 1, "without '{gone}'");
        far.runtime
            .handle()
            .block_on(near.open(&cx, Open { node: nodes[0], flags: OpenFlags::empty() }))
            .expect("opened");
        [one, two].iter().for_each(|path| _ = fs::remove_file(path));
    }
}

/// diod finds the files of a fid by the path that has led to it.
#[test]
fn a_directory_that_this_client_has_moved_is_the_same_and_another_one_may_have_its_name() {
    let Some(far) = far() else { return };
    let (near, root) = (far.direct(), far.server.root());
    fs::create_dir_all(root.join("d/sub")).expect("made");
    fs::write(root.join("d/sub/f"), "old").expect("written");
    assert_eq!(read(&near, "d/sub/f"), b"old");
    near.rename(Path::new("d"), Path::new("e"), Default::default()).expect("renamed");
    near.mkdir(Path::new("d"), 0o755).expect("made");
    near.mkdir(Path::new("d/sub"), 0o755).expect("made");
    assert_eq!(near.stat(Path::new("d/sub/f")).map(drop), Err(Errno::ENOENT));
    assert_eq!(read(&near, "e/sub/f"), b"old");
    near.unlink(Path::new("e/sub/f")).expect("removed");
    near.rmdir(Path::new("e/sub")).expect("removed");
    assert!(root.join("d/sub").exists() && !root.join("e/sub").exists());
}

#[test]
fn a_directory_that_took_the_name_of_another_one_is_not_changed_in_its_place() {
    let Some(far) = far() else { return };
    let (near, root) = (far.connect_to(far.server.port(), &[], None).expect("connected"), far.server.root());
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let [name, file, new] = ["d", "f", "new"].map(|name| Name::try_from(name).expect("a name"));
    fs::create_dir(root.join("d")).expect("made");
    let find = near.lookup(&cx, Lookup { dir: Node::ROOT, name });
    let dir = far.runtime.handle().block_on(find).expect("found").node;
    fs::rename(root.join("d"), root.join("e")).expect("renamed");
    fs::create_dir(root.join("d")).expect("made");
    fs::write(root.join("d/f"), "of another directory").expect("written");
    let removed = far.runtime.handle().block_on(near.unlink(&cx, Unlink { dir, name: file }));
    assert_eq!(removed.expect_err("another directory").errno, Errno::ESTALE);
    let make = MkDir { dir, name: new, mode: 0o755, umask: 0, initial: None };
    let made = far.runtime.handle().block_on(near.mkdir(&cx, make));
    assert_eq!(made.expect_err("another directory").errno, Errno::ESTALE);
    assert!(root.join("d/f").exists() && !root.join("d/new").exists());
}

/// The server finds files by names: those above a directory may be another one's by now.
#[test]
fn what_is_in_a_directory_that_took_the_place_of_a_known_one_is_not_found_there() {
    let Some(far) = far() else { return };
    let (near, root) = (far.connect_to(far.server.port(), &[], None).expect("connected"), far.server.root());
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let find = |dir, name: &str| {
        let name = Name::try_from(name).expect("a name");
        far.runtime.handle().block_on(near.lookup(&cx, Lookup { dir, name }))
    };
    for tree in ["d", "e"] {
        fs::create_dir_all(root.join(tree).join("sub")).expect("made");
        fs::write(root.join(tree).join("sub/f"), tree).expect("written");
    }
    let dir = find(Node::ROOT, "d").expect("found").node;
    let sub = find(dir, "sub").expect("found").node;
    fs::rename(root.join("d"), root.join("old")).expect("renamed");
    fs::rename(root.join("e"), root.join("d")).expect("renamed");
    assert_eq!(find(sub, "f").expect_err("another directory").errno, Errno::ESTALE);
    fs::rename(root.join("d"), root.join("e")).expect("renamed");
    fs::rename(root.join("old"), root.join("d")).expect("renamed");
    assert_eq!(find(sub, "f").expect("it is there again").attr.size, 1);
}
