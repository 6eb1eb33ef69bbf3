// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens between this driver and real servers, and when the servers die.

mod support;

use outrigger_client::{Client, File, Follow, Inode, Settings};
use outrigger_core::ops::{Forget, GetAttr, Lookup, OpenFlags, Release, Rename, RenameFlags, StatFs, Write};
use outrigger_core::{
    Credentials, Cx, Driver, Errno, Handle, HeapKeep, Keep, LockOwner, Name, Node, Payload, Result, Serve,
    SetAttrs, SetTime, Time,
};
use outrigger_driver_ftp::Ftp;
use outrigger_remote::{Ftpd, Line};
use outrigger_toolkit_remote::{OpenFiles, Staging};
use rustix::process::Signal;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Far, far};

const KINDS: [Ftpd; 2] = [Ftpd::Vsftpd, Ftpd::PureFtpd];

fn client(far: &Far, ftp: &Ftp) -> Client {
    Client::new(Arc::new(Serve(ftp.clone())), far.runtime.clone(), Settings::default())
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

/// Bytes of which no two pieces are alike.
fn content(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn create(root: &Inode, text: &str, flags: OpenFlags) -> File {
    root.create(&name(text), 0o644, flags | OpenFlags::WRITE_ONLY).expect("created").1
}

fn put(root: &Inode, text: &str, data: &[u8]) -> Result<()> {
    let file = create(root, text, OpenFlags::TRUNC);
    file.write_all_at(0, data.to_vec().into())?;
    file.close()
}

fn get(file: &File, len: usize) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    while data.len() < len {
        let piece = file.read_at(data.len() as u64, 100_000)?;
        if piece.is_empty() {
            break;
        }
        data.extend_from_slice(&piece);
    }
    Ok(data)
}

/// Names in a directory of the server.
fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn files_are_written_read_and_changed_in_clear_and_over_tls_with_mlsd_and_without() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let certificate = far.server.certificate().display().to_string();
        let data = content(3_000_000);
        for options in
            [&[][..], &[("no_mlsd", "")], &[("tls", ""), ("ca", &certificate)], &[("upload", "direct")]]
        {
            let client = client(&far, &far.connect(options));
            let root = client.root().expect("a root");
            put(&root, "f", &data).expect("written");
            assert!(fs::read(far.server.root().join("f")).expect("there") == data, "{kind:?} {options:?}");
            let file = root.lookup(&name("f")).expect("found").open(OpenFlags::READ_WRITE).expect("opened");
            assert!(get(&file, data.len()).expect("read") == data, "{kind:?} {options:?}");
            file.write_all_at(7, b"seven".to_vec().into()).expect("written");
            file.close().expect("closed");
            let appender = create(&root, "f", OpenFlags::APPEND);
            appender.write_all_at(0, b"end".to_vec().into()).expect("appended");
            appender.close().expect("closed");
            let mut expected = data.clone();
            expected[7..12].copy_from_slice(b"seven");
            expected.extend_from_slice(b"end");
            assert!(
                fs::read(far.server.root().join("f")).expect("there") == expected,
                "{kind:?} {options:?}"
            );
            assert_eq!(names(&far.server.root()), ["f"], "nothing is left behind");
        }
    }
}

#[test]
fn what_is_appended_is_there_once_however_often_it_is_synchronised() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let client = client(&far, &far.connect(&[]));
        let root = client.root().expect("a root");
        put(&root, "log", b"begin ").expect("written");
        let log = create(&root, "log", OpenFlags::APPEND);
        for word in ["one ", "two ", "three "] {
            log.write_all_at(0, word.as_bytes().to_vec().into()).expect("appended");
            log.sync(false).expect("synchronised");
        }
        log.write_all_at(0, b"end".to_vec().into()).expect("appended");
        log.close().expect("closed");
        let stored = fs::read_to_string(far.server.root().join("log")).expect("there");
        assert_eq!(stored, "begin one two three end", "{kind:?}");
    }
}

#[test]
fn what_others_have_changed_meanwhile_is_not_undone() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let client = client(&far, &far.connect(&[]));
        let root = client.root().expect("a root");
        for (at, others) in
            [(0, "longer than what was there"), (1000, "longer than what was there"), (4, "xy")]
        {
            put(&root, "f", b"init").expect("written");
            let file = root.lookup(&name("f")).expect("found").open(OpenFlags::READ_WRITE).expect("opened");
            file.write_all_at(at, b"ours".to_vec().into()).expect("staged");
            fs::write(far.server.root().join("f"), others).expect("changed by others");
            let closed = file.close().expect_err("close reports that it was not stored");
            assert_eq!(closed.errno, Errno::ESTALE, "{kind:?} {at}");
            let stored = fs::read_to_string(far.server.root().join("f")).expect("there");
            assert_eq!(stored, others, "{kind:?} {at}");
        }
    }
}

#[test]
fn what_was_read_before_others_replaced_the_file_is_not_written_back() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let client = client(&far, &far.connect(&[]));
        let root = client.root().expect("a root");
        put(&root, "f", &[b'1'; 1 << 20]).expect("written");
        let file = root.lookup(&name("f")).expect("found").open(OpenFlags::READ_WRITE).expect("opened");
        file.read_at(0, 4096).expect("read");
        fs::write(far.server.root().join("f"), [b'2'; 1 << 20]).expect("replaced by others");
        file.write_all_at(500_000, b"xx".to_vec().into()).expect("staged");
        file.close().expect("stored");
        let stored = fs::read(far.server.root().join("f")).expect("there");
        assert!(!stored.contains(&b'1'), "{kind:?}: content of before came back");
        assert_eq!((&stored[500_000..500_002], stored.len()), (&b"xx"[..], 1 << 20), "{kind:?}");
    }
}

#[test]
fn reading_on_takes_one_transfer_also_where_the_server_dies_in_its_middle() {
    for kind in KINDS {
        let Some(mut far) = far(kind) else { continue };
        let data = content(30_000_000);
        fs::write(far.server.root().join("f"), &data).expect("a file");
        let client = client(&far, &far.connect(&[]));
        let inode = client.walk(b"/f", Follow::Yes).expect("found");
        let file = inode.open(OpenFlags::empty()).expect("opened");
        assert!(get(&file, 100_000).expect("read") == data[..100_000]);
        far.server.stop();
        far.server.start().expect("again");
        let rest = get(&file, data.len()).expect("it goes on");
        assert!(rest == data, "{kind:?}");
    }
}

#[test]
fn a_file_that_is_replaced_while_the_connection_is_lost_is_not_read_on() {
    let Some(far) = far(Ftpd::PureFtpd) else { return };
    let data = content(30_000_000);
    let path = far.server.root().join("f");
    fs::write(&path, &data).expect("a file");
    let client = client(&far, &far.connect(&[]));
    let file = client.walk(b"/f", Follow::Yes).expect("found").open(OpenFlags::empty()).expect("opened");
    file.read_at(0, 1000).expect("read");
    far.server.signal_sessions(Signal::KILL);
    fs::write(&path, &data[1..]).expect("another file");
    let mut outcome = Ok(1_u64);
    // What had arrived before may still be read.
    let mut at = 0;
    while let Ok(1..) = outcome {
        outcome = file.read_at(at, 1 << 20).map(|piece| piece.len() as u64);
        at += 1 << 20;
    }
    assert_eq!(outcome.expect_err("another file").errno, Errno::ESTALE);
}

#[test]
fn a_write_that_does_not_arrive_is_an_error_and_the_old_file_stays() {
    for kind in KINDS {
        let Some(mut far) = far(kind) else { continue };
        let old = content(1000);
        let client = client(&far, &far.connect(&[("timeout", "1")]));
        let root = client.root().expect("a root");
        put(&root, "f", &old).expect("written");
        let file = create(&root, "f", OpenFlags::TRUNC);
        file.write_all_at(0, content(500_000).into()).expect("staged");
        far.server.stop();
        let error = file.close().expect_err("the server is down");
        assert_eq!(error.errno, Errno::ECONNREFUSED, "{kind:?}: {error}");
        assert_eq!(fs::read(far.server.root().join("f")).expect("the old one"), old);
        // It is there again: so an attempt arrives, once the last failure is long enough ago.
        far.server.start().expect("again");
        let until = Instant::now() + Duration::from_secs(30);
        let arrived = || {
            let (_, file) = root.create(&name("f"), 0o644, OpenFlags::TRUNC | OpenFlags::WRITE_ONLY)?;
            file.write_all_at(0, content(500_000).into())?;
            file.close()
        };
        while let Err(error) = arrived() {
            assert!(error.errno == Errno::ECONNREFUSED && Instant::now() < until, "{kind:?}: {error}");
            std::thread::yield_now();
        }
        assert!(fs::read(far.server.root().join("f")).expect("the new one") == content(500_000));
    }
}

#[test]
fn a_server_that_is_gone_for_a_while_is_waited_for() {
    for kind in KINDS {
        let Some(mut far) = far(kind) else { continue };
        let client = client(&far, &far.connect(&[]));
        let root = client.root().expect("a root");
        let file = create(&root, "f", OpenFlags::TRUNC);
        file.write_all_at(0, b"content".to_vec().into()).expect("staged");
        far.server.stop();
        let port = TcpListener::bind(("127.0.0.1", far.server.port())).expect("the port is free");
        let closing = std::thread::spawn(move || file.close());
        // It is called at least once before it is there again.
        drop(port.accept().expect("called"));
        drop(port);
        far.server.start().expect("again");
        closing.join().expect("no panic").expect("it was there again in time");
        assert_eq!(fs::read(far.server.root().join("f")).expect("there"), b"content", "{kind:?}");
    }
}

#[test]
fn space_of_which_nothing_is_known_is_large_as_with_sshfs() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let client = client(&far, &far.connect(&[]));
        let space = client.call(StatFs { node: Node::ROOT }).expect("answered");
        let (blocks, files) = (262_144_000, 1_000_000_000);
        assert_eq!((space.blocks, space.bfree, space.bavail, space.frsize), (blocks, blocks, blocks, 4096));
        assert_eq!((space.files, space.ffree, space.namelen), (files, files, 255), "{kind:?}");
    }
}

#[test]
fn a_file_that_must_be_new_does_not_replace_one_of_others() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        for options in [&[][..], &[("upload", "direct")]] {
            let client = client(&far, &far.connect(options));
            let root = client.root().expect("a root");
            let path = far.server.root().join("lock");
            // One that a layer takes for new has not been looked for.
            let unseen = (OpenFlags::ASYNC_CREATE, "others");
            for (flags, expected) in [(OpenFlags::EXCL, "others"), (OpenFlags::TRUNC, "ours"), unseen] {
                let file = create(&root, "lock", flags);
                file.write_all_at(0, b"ours".to_vec().into()).expect("staged");
                fs::write(&path, "others").expect("made by others");
                fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("for all");
                let closed = file.close().map_err(|error| error.errno);
                let refused = if expected == "others" { Err(Errno::EEXIST) } else { Ok(()) };
                assert_eq!(closed, refused, "{kind:?} {options:?}");
                assert_eq!(fs::read_to_string(&path).expect("there"), expected, "{kind:?} {options:?}");
                assert_eq!(names(&far.server.root()), ["lock"], "nothing is left behind");
                fs::remove_file(&path).expect("removed");
            }
        }
    }
}

#[test]
fn what_others_have_changed_since_it_was_synchronised_is_not_undone() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let client = client(&far, &far.connect(&[]));
        let root = client.root().expect("a root");
        let file = create(&root, "f", OpenFlags::TRUNC);
        file.write_all_at(0, b"ours".to_vec().into()).expect("staged");
        file.sync(false).expect("stored");
        file.write_all_at(0, b"more".to_vec().into()).expect("staged");
        file.sync(false).expect("stored");
        fs::write(far.server.root().join("f"), "others").expect("changed by others");
        let written = file.write_all_at(0, b"last".to_vec().into());
        let outcome = written.and_then(|()| file.sync(false)).expect_err("it is not stored");
        assert_eq!(outcome.errno, Errno::ESTALE, "{kind:?}");
        assert_eq!(fs::read_to_string(far.server.root().join("f")).expect("there"), "others", "{kind:?}");
    }
}

#[test]
fn an_upload_whose_connection_is_cut_begins_anew() {
    let Some(far) = far(Ftpd::Vsftpd) else { return };
    // The line lets a few megabytes a second pass, so that the session dies in the middle.
    let line = Line::slow(far.server.port(), Duration::ZERO, None).expect("a line");
    let client = client(&far, &far.connect_to(&far.server.place(line.port()), &[], None).expect("connected"));
    let root = client.root().expect("a root");
    let data = content(20_000_000);
    let file = create(&root, "f", OpenFlags::TRUNC);
    file.write_all_at(0, data.clone().into()).expect("staged");
    far.server.signal_sessions(Signal::KILL);
    file.close().expect("it was sent again");
    assert!(fs::read(far.server.root().join("f")).expect("there") == data);
}

#[test]
fn who_is_not_let_in_is_told_so() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let at = far.server.port();
        let refused = |place: &str, options: &[(&str, &str)]| {
            far.connect_to(place, options, None).err().expect("refused")
        };
        let login = refused(&format!("mallory:guess@localhost:{at}"), &[]);
        assert_eq!(login.errno, Errno::EACCES, "{login}");
        assert!(login.reason.is_some_and(|why| why.contains("mallory") && !why.contains("guess")));
        // The certificate is signed by no authority that is trusted.
        let certificate = refused(&far.server.place(at), &[("tls", "")]);
        assert_eq!(certificate.errno, Errno::EACCES, "{certificate}");
        let why = certificate.reason.expect("a reason");
        assert!(why.starts_with("TLS with localhost: nothing that this system trusts vouches"), "{why}");
        assert!(why.contains("-o ca=FILE, trusts"), "{why}");
        // Another one.
        let other = far.server.root().join("../other.pem");
        let made = std::process::Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=localhost",
                "-keyout",
                "/dev/null",
            ])
            .arg("-out")
            .arg(&other)
            .output();
        assert!(made.is_ok_and(|made| made.status.success()));
        let why = refused(&far.server.place(at), &[("tls", ""), ("ca", &other.display().to_string())]);
        assert!(why.to_string().contains("none of the certificates in ca=FILE"), "{why}");
    }
}

#[test]
fn tls_that_begins_at_once_is_asked_for_by_an_option_and_an_error_says_so() {
    let Some(mut far) = far(Ftpd::Vsftpd) else { return };
    let certificate = far.server.certificate().display().to_string();
    let implicit = [("implicit_tls", ""), ("ca", &*certificate)];
    let place = far.server.place(far.server.port());
    let error = far.connect_to(&place, &implicit, None).err().expect("it greets in clear");
    assert!(error.to_string().contains("what the server sends is no TLS"), "{error}");
    far.server.start_with_implicit_tls().expect("again");
    let client = client(&far, &far.connect(&implicit));
    let (root, data) = (client.root().expect("a root"), content(300_000));
    put(&root, "f", &data).expect("written");
    let file = root.lookup(&name("f")).expect("found").open(OpenFlags::empty()).expect("opened");
    assert!(get(&file, data.len()).expect("read") == data);
    let explicit = [("tls", ""), ("ca", &*certificate), ("timeout", "1")];
    let error = far.connect_to(&place, &explicit, None).err().expect("it waits for TLS");
    assert!(error.to_string().contains("implicit_tls"), "{error}");
}

#[test]
fn a_full_disk_of_the_server_is_an_error_at_close() {
    for kind in KINDS {
        let Some(mut far) = far(kind) else { continue };
        // It sees what is mounted when it starts.
        far.server.stop();
        let root_dir = far.server.root();
        let Some(_mounted) = Mounted::small(&root_dir) else { continue };
        far.server.start().expect("again");
        let client = client(&far, &far.connect(&[]));
        let root = client.root().expect("a root");
        put(&root, "f", b"old").expect("room");
        let file = create(&root, "f", OpenFlags::TRUNC);
        file.write_all_at(0, content(4_000_000).into()).expect("staged");
        let error = file.close().expect_err("no room");
        assert!([Errno::ENOSPC, Errno::EIO].contains(&error.errno), "{kind:?}: {error}");
        assert_eq!(fs::read(root_dir.join("f")).expect("the old one"), b"old", "{kind:?}");
    }
}

/// A file system of one megabyte, until it is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn small(dir: &Path) -> Option<Self> {
        let made = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m,mode=777", "tmpfs"])
            .arg(dir)
            .status();
        if made.is_ok_and(|status| status.success()) {
            return Some(Mounted(dir.to_owned()));
        }
        println!("SKIPPED: nothing can be mounted here");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn names_are_what_they_are_also_with_spaces_around_them_and_what_cannot_be_carried_is_refused() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        for options in [&[][..], &[("no_mlsd", "")]] {
            let expected = ["t", "t ", "two  words"];
            expected.iter().for_each(|name| fs::write(far.server.root().join(name), name).expect("written"));
            let client = client(&far, &far.connect(options));
            let root = client.root().expect("a root");
            let mut listed: Vec<String> = root
                .entries()
                .expect("a listing")
                .map(|entry| entry.expect("an entry").0.to_string())
                .collect();
            listed.sort();
            assert_eq!(listed, expected, "{kind:?} {options:?}");
            for text in expected {
                let file = root.lookup(&name(text)).expect("found").open(OpenFlags::empty()).expect("opened");
                assert_eq!(get(&file, text.len()).expect("read"), text.as_bytes(), "{kind:?} {options:?}");
            }
            let odd = Name::new(&b"i\xffx"[..]).expect("a name");
            let made = root.create(&odd, 0o644, OpenFlags::READ_WRITE);
            assert!(made.is_err(), "{kind:?}: it would be another name there");
            assert_eq!(names(&far.server.root()), expected, "{kind:?} {options:?}");
        }
    }
}

#[test]
fn names_times_and_permissions_change_at_the_server() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        let client = client(&far, &far.connect(&[]));
        let root = client.root().expect("a root");
        put(&root, "a b", b"x").expect("written");
        let mut file = root.lookup(&name("a b")).expect("found");
        let time = Some(SetTime::To(Time::new(1_000_000_000, 0)));
        file.set(SetAttrs { mode: Some(0o640), mtime: time, ..SetAttrs::default() }).expect("set");
        let meta = fs::metadata(far.server.root().join("a b")).expect("there");
        let modified =
            meta.modified().expect("a time").duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        assert_eq!(modified.as_secs(), 1_000_000_000, "{kind:?}");
        assert_eq!(meta.permissions().mode() & 0o7777, 0o640);
        let refused = file.set(SetAttrs { uid: Some(4242), ..SetAttrs::default() });
        assert_eq!(refused.expect_err("no owners").errno, Errno::EPERM);
        let mut dir = root.mkdir(&name("d"), 0o750).expect("made");
        dir.set(SetAttrs { mtime: time, ..SetAttrs::default() }).expect("set, or passed over");
        root.rename(&name("a b"), &dir, &name("c"), RenameFlags::empty()).expect("moved");
        assert_eq!(root.rmdir(&name("d")).expect_err("not empty").errno, Errno::ENOTEMPTY, "{kind:?}");
        assert_eq!(dir.lookup(&name("nothere")).expect_err("nothing").errno, Errno::ENOENT);
        dir.unlink(&name("c")).expect("removed");
        root.rmdir(&name("d")).expect("removed");
        assert!(names(&far.server.root()).is_empty());
        for odd in ["a\nb", "a\r\nDELE b"] {
            assert_eq!(root.mkdir(&name(odd), 0o755).expect_err("a second command").errno, Errno::EINVAL);
            assert_eq!(root.lookup(&name(odd)).expect_err("a second command").errno, Errno::EINVAL);
        }
    }
}

#[test]
fn a_file_that_is_open_for_writing_stays_so_when_its_permissions_are_taken_away() {
    for kind in KINDS {
        let Some(far) = far(kind) else { continue };
        for options in [&[][..], &[("upload", "direct")]] {
            let client = client(&far, &far.connect(options));
            let root = client.root().expect("a root");
            put(&root, "f", b"begin").expect("written");
            let mut inode = root.lookup(&name("f")).expect("found");
            let file = inode.open(OpenFlags::APPEND | OpenFlags::WRITE_ONLY).expect("opened");
            for (word, mode) in [(" one", 0o400), (" two", 0o440), (" three", 0o644)] {
                inode.set_through(&file, SetAttrs { mode: Some(mode), ..SetAttrs::default() }).expect("set");
                file.write_all_at(0, word.as_bytes().to_vec().into()).expect("staged");
                file.sync(false).expect("stored");
                let meta = fs::metadata(far.server.root().join("f")).expect("there");
                assert_eq!(meta.permissions().mode() & 0o7777, mode, "{kind:?} {options:?}");
            }
            file.close().expect("closed");
            let stored = fs::read_to_string(far.server.root().join("f")).expect("there");
            assert_eq!(stored, "begin one two three", "{kind:?} {options:?}");
        }
    }
}

/// Waits until there are these names in a directory of the server.
fn until_names(dir: &Path, expected: &[&str]) {
    let until = Instant::now() + Duration::from_secs(30);
    while names(dir) != expected {
        assert!(Instant::now() < until, "{:?}", names(dir));
        std::thread::yield_now();
    }
}

#[test]
fn what_a_process_left_that_was_killed_in_an_upload_is_taken_away_and_uploaded() {
    let Some(far) = far(Ftpd::PureFtpd) else { return };
    let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
    let at = far.server.root();
    let connect = || {
        let place = far.server.place(far.server.port());
        far.connect_to(&place, &[], Some(Arc::clone(&keep))).expect("connected")
    };
    let first = client(&far, &connect());
    let (inode, file) =
        first.root().expect("a root").create(&name("f"), 0o644, OpenFlags::WRITE_ONLY).expect("created");
    file.write_all_at(0, b"staged".to_vec().into()).expect("staged");
    std::mem::forget(file);
    let staging = Staging::open(std::env::temp_dir(), 1 << 20, Some(Arc::clone(&keep))).expect("notes");
    staging.update(inode.node(), |state| state.under_way = 7);
    fs::write(at.join(".outrigger-upload-0000000000000007"), b"sta").expect("a broken upload");
    let second = connect();
    until_names(&at, &[]);
    drop(second);
    // The next one dies when the file is closed, and before it is uploaded.
    let open = OpenFiles::<()>::open(Some(&*keep), |_, _, ()| ()).expect("notes");
    assert!(open.close(Handle(1)).expect("open").last.is_some());
    let _third = connect();
    until_names(&at, &["f"]);
    assert_eq!(fs::read(at.join("f")).expect("there"), b"staged");
}

#[test]
fn the_next_process_goes_on_with_open_files_and_what_they_were_given() {
    let Some(far) = far(Ftpd::PureFtpd) else { return };
    let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
    let connect = || {
        let place = far.server.place(far.server.port());
        far.connect_to(&place, &[], Some(Arc::clone(&keep))).expect("connected")
    };
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let run = far.runtime.handle();
    let (first, flags) = (connect(), OpenFlags::WRITE_ONLY);
    let create = outrigger_core::ops::Create {
        dir: Node::ROOT,
        name: name("f"),
        mode: 0o644,
        umask: 0,
        flags,
        initial: None,
    };
    let created = run.block_on(first.create(&cx, create)).expect("created");
    let (node, handle) = (created.entry.node, created.opened.handle);
    let data = Payload::from(b"staged".to_vec());
    let write = Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
    run.block_on(first.write(&cx, write)).expect("staged");
    drop(first);
    assert!(names(&far.server.root()).is_empty());
    let second = connect();
    let attrs = run.block_on(second.getattr(&cx, GetAttr { node, handle: Some(handle) })).expect("known");
    assert_eq!(attrs.attr.size, 6);
    let release = Release { node, handle, flags, owner: LockOwner(0), flock_release: false };
    run.block_on(second.release(&cx, release)).expect("closed");
    assert_eq!(fs::read(far.server.root().join("f")).expect("there"), b"staged");
    let again = run.block_on(second.lookup(&cx, Lookup { dir: Node::ROOT, name: name("f") })).expect("found");
    assert_eq!(again.node, node);
    let (to_name, flags) = (name("g"), RenameFlags::empty());
    let rename = Rename { dir: Node::ROOT, name: name("f"), to_dir: Node::ROOT, to_name, flags };
    run.block_on(second.rename(&cx, rename)).expect("renamed");
    run.block_on(second.forget(&cx, Forget { node, count: 2 })).expect("forgotten");
    // A renamed file has a number that does not follow from its name: it is known as long as others are not renamed.
    let third = connect();
    let renamed =
        run.block_on(third.lookup(&cx, Lookup { dir: Node::ROOT, name: name("g") })).expect("found");
    assert_eq!((renamed.node, renamed.attr.ino), (node, again.attr.ino));
}
