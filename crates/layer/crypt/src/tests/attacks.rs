// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attacks by a writer of the tree below.

use super::*;

/// That reading fails, and says why, with the file's name.
fn refused(both: &Both, name: &str, why: &str) {
    let error = both.read(name).expect_err(why);
    let reason = error.reason.as_deref().unwrap_or_default();
    assert_eq!(error.errno, Errno::EBADMSG, "{reason}");
    assert!(reason.contains(&format!("/{name}: ")) && reason.contains(why), "{reason}");
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let both = Both::new();
    both.write("file", &content(2 * BLOCK + 100));
    let whole = both.bytes();
    let places = [
        (0, "the header is damaged"),
        (10, "the header is damaged"),
        (HEADER - 1, "the header is damaged"),
        (HEADER, "block 0 is damaged"),
        (HEADER + 100, "block 0 is damaged"),
        (HEADER + SLOT - 1, "block 0 is damaged"),
        (HEADER + SLOT + 12, "block 1 is damaged"),
        (whole.len() - 1, "block 2 is damaged"),
    ];
    for (at, why) in places {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        both.store(&bytes);
        refused(&both, "file", why);
    }
    both.store(&whole);
    assert_eq!(both.read("file"), Ok(content(2 * BLOCK + 100)));
}

#[test]
fn blocks_that_changed_places_are_found() {
    let both = Both::new();
    both.write("file", &content(3 * BLOCK));
    let mut bytes = both.bytes();
    let (one, two) = bytes[HEADER..].split_at_mut(SLOT);
    one.swap_with_slice(&mut two[..SLOT]);
    both.store(&bytes);
    refused(&both, "file", "block 0 is damaged");
}

#[test]
fn a_block_of_another_file_is_found() {
    let both = Both::new();
    both.write("file", &content(2 * BLOCK));
    let foreign = both.bytes();
    both.shown().root().and_then(|root| root.unlink(&named("file"))).expect("it is removed");
    both.write("file", &content(2 * BLOCK));
    let mut bytes = both.bytes();
    bytes[HEADER + SLOT..].copy_from_slice(&foreign[HEADER + SLOT..]);
    both.store(&bytes);
    refused(&both, "file", "block 1 is damaged");
}

#[test]
fn a_file_that_was_cut_is_found_wherever_it_was() {
    let both = Both::new();
    both.write("file", &content(3 * BLOCK));
    let whole = both.bytes();
    let cuts = [
        (0, "the file has lost its header"),
        (HEADER - 1, "the header is damaged"),
        (HEADER, "the file was cut"),
        (HEADER + 20, "the file was cut"),
        (HEADER + 1000, "block 0 is damaged"),
        (HEADER + SLOT, "the file was cut"),
        (HEADER + 2 * SLOT + 5, "the file was cut"),
        (whole.len() - 1, "block 2 is damaged"),
    ];
    for (len, why) in cuts {
        both.store(&whole[..len]);
        refused(&both, "file", why);
    }
}

#[test]
fn the_last_byte_that_is_left_of_a_cut_file_cannot_be_read() {
    let both = Both::new();
    both.write("file", &content(20 * BLOCK));
    let whole = both.bytes();
    both.store(&whole[..HEADER + 10 * SLOT]);
    let inode = both.shown().walk(b"/file", Follow::No).expect("it is there");
    assert_eq!(inode.attr().size, 10 * BLOCK as u64);
    let file = inode.open(OpenFlags::empty()).expect("it opens");
    // A kernel does not ask for more than the size it knows.
    assert_eq!(file.read_at(0, 9 * BLOCK).map(|bytes| bytes.len()), Ok(9 * BLOCK));
    assert_eq!(file.read_at(9 * BLOCK as u64, BLOCK).map_err(|error| error.errno), Err(Errno::EBADMSG));
}

#[test]
fn writing_to_a_file_that_was_cut_does_not_hide_the_cut() {
    let both = Both::new();
    both.write("file", &content(5 * BLOCK));
    let whole = both.bytes();
    both.store(&whole[..HEADER + SLOT]);
    let inode = both.shown().walk(b"/file", Follow::No).expect("it is there");
    for offset in [BLOCK, 4 * BLOCK, 5 * BLOCK] {
        let file = inode.open(OpenFlags::READ_WRITE).expect("it opens");
        let written = file.write_all_at(offset as u64, Bytes::from_static(b"more"));
        assert_eq!(written.map_err(|error| error.errno), Err(Errno::EBADMSG), "{offset}");
        file.close().expect("there is nothing to store");
    }
    refused(&both, "file", "the file was cut");
    inode.open(OpenFlags::READ_WRITE | OpenFlags::TRUNC).expect("it is emptied").close().expect("stored");
    both.write("file", b"anew");
    assert_eq!(both.read("file"), Ok(b"anew".to_vec()));
}

#[test]
fn zeroes_in_place_of_data_are_found_where_there_are_no_holes() {
    let both = Both::new();
    both.write("file", &content(3 * BLOCK));
    let mut bytes = both.bytes();
    bytes[HEADER + SLOT..HEADER + 2 * SLOT].fill(0);
    both.store(&bytes);
    refused(&both, "file", "block 1 is empty, and the file has no holes");
}

#[test]
fn the_flag_for_holes_cannot_be_forged() {
    let both = Both::new();
    both.write("file", &content(10));
    for at in 20..HEADER {
        let mut bytes = both.bytes();
        bytes[at] ^= 0x80;
        assert!(crate::format::read_header(&Keys::of(&both.master), &bytes).is_none(), "byte {at}");
    }
}

#[test]
fn a_name_of_another_directory_means_nothing() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    let dir = root.mkdir(&named("dir"), 0o755).expect("a directory");
    dir.mknod(&named("inside"), 0o100_644, 0).expect("a file");
    both.write("file", b"content");
    let stored = both.stored().root().expect("a root");
    let mut entries = stored.entries().expect("a listing").filter_map(|entry| entry.ok());
    let (name, inode) = entries.find(|(_, inode)| !inode.is_dir()).expect("the file");
    let mut entries = stored.entries().expect("a listing").filter_map(|entry| entry.ok());
    let (_, moved) = entries.find(|(_, inode)| inode.is_dir()).expect("the directory");
    moved.link(&inode, &name).expect("a link");
    let strangers = Strangers::default();
    let layer = Crypt::noting(Keys::of(&both.master), strangers.clone());
    let service = Stack::new(Arc::clone(&both.below)).push(layer).expect("a stack").service();
    let client = Client::new(service, both.runtime.clone(), Settings::default());
    let listed = client.walk(b"/dir", Follow::No).and_then(|dir| dir.entries()).expect("a listing");
    let names: Vec<Name> = listed.map(|entry| entry.expect("an entry").0).collect();
    assert_eq!(names, [named("inside")]);
    assert_eq!(strangers.take(), [(moved.node(), name)]);
}

#[test]
fn a_directory_without_its_number_is_damaged_unless_it_is_empty() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    root.mkdir(&named("dir"), 0o755).expect("a directory");
    let dir = both.shown().walk(b"/dir", Follow::No).expect("it is there");
    // Nothing was ever in it.
    assert_eq!(dir.entries().expect("a listing").count(), 0);
    dir.mknod(&named("file"), 0o100_644, 0).expect("a file");
    let stored = both.only();
    let content = read_stored(&stored);
    for (bytes, why) in [(content[1..].to_vec(), "is damaged"), (Vec::new(), "is missing")] {
        let (_, file) = stored
            .create(&named(names::DIRECTORY), 0o644, OpenFlags::READ_WRITE | OpenFlags::TRUNC)
            .expect("it is there");
        file.write_all_at(0, bytes.into()).expect("room");
        let mut entries =
            both.shown().walk(b"/dir", Follow::No).and_then(|dir| dir.entries()).expect("a listing");
        let error = match entries.next() {
            Some(Err(unreadable)) => unreadable.error,
            other => panic!("{other:?}"),
        };
        assert!(
            error.errno == Errno::EBADMSG && error.reason.as_ref().is_some_and(|it| it.contains(why)),
            "{error:?}"
        );
    }
}

fn read_stored(dir: &Inode) -> Vec<u8> {
    let file = dir.lookup(&named(names::DIRECTORY)).and_then(|inode| inode.open(OpenFlags::empty()));
    file.and_then(|file| file.read_at(0, 100)).expect("it can be read").to_vec()
}

#[test]
fn a_changed_link_or_attribute_is_found() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    let target = outrigger_core::Target::new(&b"somewhere"[..]).expect("a target");
    root.symlink(&named("link"), target.clone()).expect("a link");
    let stored = both.only();
    let mut text = stored.readlink().expect("a target").to_vec();
    text[30] = if text[30] == b'A' { b'B' } else { b'A' };
    let (name, _) = both.stored().root().unwrap().entries().unwrap().next().unwrap().expect("it is there");
    let below = both.stored().root().expect("a root");
    below.unlink(&name).expect("it is removed");
    below.symlink(&name, outrigger_core::Target::new(text).expect("a target")).expect("a link");
    let error =
        both.shown().walk(b"/link", Follow::No).and_then(|link| link.readlink()).expect_err("changed");
    assert_eq!(error.errno, Errno::EBADMSG);
}

#[test]
fn a_file_that_was_cut_to_nothing_is_not_made_a_good_one_by_who_would_make_it() {
    for without_handles in [false, true] {
        let both = if without_handles { Both::without_handles() } else { Both::new() };
        both.write("file", b"content");
        both.store(b"");
        let root = both.shown().root().expect("a root");
        for flags in [OpenFlags::empty(), OpenFlags::READ_WRITE] {
            let made = root.create(&named("file"), 0o644, flags).map(drop);
            assert_eq!(made.map_err(|error| error.errno), Err(Errno::EBADMSG), "{flags:?}");
            assert_eq!(both.read("file").map_err(|error| error.errno), Err(Errno::EBADMSG));
        }
        assert!(both.bytes().is_empty(), "no header was written");
        // Who empties it knows that it is empty.
        let flags = OpenFlags::READ_WRITE | OpenFlags::TRUNC;
        let (_, file) = root.create(&named("file"), 0o644, flags).expect("it is made anew");
        file.close().expect("it is stored");
        assert_eq!(both.read("file"), Ok(Vec::new()));
    }
}

#[test]
fn several_programs_can_make_the_same_file() {
    let both = Both::new();
    let root = both.shown().root().expect("a root");
    for round in 0..50 {
        let name = named(&format!("file {round}"));
        std::thread::scope(|scope| {
            for flags in [OpenFlags::empty(), OpenFlags::READ_WRITE, OpenFlags::READ_WRITE] {
                let (root, name) = (&root, &name);
                scope.spawn(move || {
                    let (_, file) = root.create(name, 0o644, flags).expect("it is made, or found");
                    assert_eq!(file.read_at(0, 10).expect("it is empty"), "");
                    file.close().expect("it is closed");
                });
            }
        });
    }
}
