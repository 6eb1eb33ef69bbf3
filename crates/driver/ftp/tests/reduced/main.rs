// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that lack something: what can be done without it is done, and nothing is lost.

mod places;
mod removed;
mod server;

use outrigger_client::{Client, File, Follow, Inode, Settings};
use outrigger_core::ops::{FSync, OpenFlags, Read, Release, RenameFlags, StatFs, Write};
use outrigger_core::{
    Cancel, Errno, Handle, HeapKeep, Keep, LockOwner, Name, Node, Result, Runtime, Serve, SetAttrs, SetTime,
    Time,
};
use outrigger_driver_ftp::{Options, connect};
use outrigger_runtime::Threads;
use outrigger_toolkit_remote::{Authority, FileOptions, OpenFiles, SillyNames};
use server::Server;
use std::fs::{self, FileTimes};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

/// What a usual server has.
const USUAL: &[&str] = &["MLST type*;size*;modify*;UNIX.mode*;", "SIZE", "MDTM"];
/// One without MLSD, whose LIST tells minutes.
const LISTS: &[&str] = &["SIZE", "MDTM"];

/// Connected to a server.
struct Far {
    client: Client,
    // It goes last.
    _runtime: Arc<Threads>,
}

fn try_open(server: &Server, options: &[(&str, &str)], keep: Option<Arc<dyn Keep>>) -> Result<Far> {
    let files = FileOptions { netrc: None, ..FileOptions::default() };
    let mut set = Options { files, ..Options::default() };
    for (key, value) in options {
        set.set(key, value).expect("an option");
    }
    let place = Authority::parse(&format!("alice:s%23cret@127.0.0.1:{}", server.port)).expect("a server");
    let runtime = Arc::new(Threads::new());
    let connecting = connect(place, set, Arc::clone(&runtime) as Arc<dyn Runtime>, keep);
    let ftp = runtime.handle().block_on(connecting)?;
    let client = Client::new(Arc::new(Serve(ftp)), runtime.clone(), Settings::default());
    Ok(Far { client, _runtime: runtime })
}

fn open(server: &Server) -> Far {
    try_open(server, &[], None).expect("connected")
}

impl Far {
    fn root(&self) -> Inode {
        self.client.root().expect("a root")
    }

    fn file(&self, path: &str, flags: OpenFlags) -> File {
        self.client.walk(path.as_bytes(), Follow::Yes).expect("found").open(flags).expect("opened")
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

/// Bytes of which no two pieces are alike.
fn content(len: usize) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// A file of the server whose last change was so many seconds after 2001.
fn put(server: &Server, text: &str, data: &[u8], seconds: u64) {
    fs::write(server.at(text), data).expect("a file");
    let time = UNIX_EPOCH + Duration::from_secs(978_307_200 + seconds);
    let file = fs::File::options().write(true).open(server.at(text)).expect("a file");
    file.set_times(FileTimes::new().set_modified(time)).expect("a time");
}

const APPENDS: OpenFlags = OpenFlags::APPEND.union(OpenFlags::WRITE_ONLY);

#[test]
fn what_is_appended_is_stored_by_servers_that_do_not_append() {
    for (features, refusal, tries) in [
        (USUAL, "451 f: Append/Restart not permitted, try again", 1),
        (LISTS, "502 Command 'APPE' not implemented", 1),
        // It may be about this file only.
        (USUAL, "550 Permission denied.", 2),
        // These pass: a log would be sent as a whole for as long as the tree is mounted.
        (USUAL, "450 f: file busy", 2),
        (USUAL, "451 Requested action aborted: local error in processing", 2),
    ] {
        let server = Server::start(features, &[("APPE", refusal)]);
        put(&server, "f", b"begin", 0);
        fs::set_permissions(server.at("f"), PermissionsExt::from_mode(0o640)).expect("permissions");
        let far = open(&server);
        for words in [[" one", " two"], [" three", " four"]] {
            let file = far.file("/f", APPENDS);
            file.write_all_at(0, words[0].as_bytes().to_vec().into()).expect("staged");
            file.sync(false).expect("stored");
            file.write_all_at(0, words[1].as_bytes().to_vec().into()).expect("staged");
            file.close().expect("stored");
        }
        let stored = fs::read_to_string(server.at("f")).expect("there");
        assert_eq!(stored, "begin one two three four", "{refusal}");
        assert_eq!(server.asked("APPE"), tries, "{refusal}");
        assert_eq!(fs::read_dir(server.at("")).expect("a directory").count(), 1, "nothing is left behind");
        if features == USUAL {
            let mode = fs::metadata(server.at("f")).expect("there").permissions().mode();
            assert_eq!(mode & 0o7777, 0o640, "{refusal}");
        }
    }
}

#[test]
fn a_server_without_room_for_what_is_appended_says_so() {
    let server = Server::start(USUAL, &[("APPE", "452 no space left")]);
    put(&server, "f", b"begin", 0);
    let far = open(&server);
    let file = far.file("/f", APPENDS);
    file.write_all_at(0, b"more".to_vec().into()).expect("staged");
    assert_eq!(file.close().expect_err("no room").errno, Errno::ENOSPC);
    assert_eq!(fs::read(server.at("f")).expect("there"), b"begin");
    assert_eq!(server.asked("STOR"), 0, "more room than that is not asked for");
}

#[test]
fn what_a_killed_process_was_to_append_is_stored_by_the_next_one_at_a_server_that_does_not_append() {
    let server = Server::start(USUAL, &[("APPE", "451 Append/Restart not permitted, try again")]);
    put(&server, "f", b"begin", 0);
    let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
    let first = try_open(&server, &[], Some(Arc::clone(&keep))).expect("connected");
    let file = first.file("/f", APPENDS);
    file.write_all_at(0, b" end".to_vec().into()).expect("staged");
    std::mem::forget(file);
    // It dies when the file is closed, and before it is uploaded.
    let notes = OpenFiles::<()>::open(Some(&*keep), |_, _, ()| ()).expect("notes");
    assert!(notes.close(Handle(1)).expect("open").last.is_some());
    let _next = try_open(&server, &[], Some(Arc::clone(&keep))).expect("connected");
    server.until_asked("RNTO");
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while fs::read(server.at("f")).expect("there") != b"begin end" {
        assert!(std::time::Instant::now() < until, "{:?}", fs::read_to_string(server.at("f")));
        thread::yield_now();
    }
}

/// The server has renamed it, and the process dies before it knows that.
#[test]
fn a_file_that_a_killed_process_was_removing_is_read_on_and_goes_with_its_last_close() {
    let server = Server::start(USUAL, &[]);
    let others = ".outrigger-removed-0000000000000001";
    put(&server, "f", b"content", 0);
    put(&server, others, b"of another client", 0);
    let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
    let first = try_open(&server, &[], Some(Arc::clone(&keep))).expect("connected");
    let open = |path: &str| {
        let inode = first.client.walk(path.as_bytes(), Follow::Yes).expect("found");
        let node = inode.node();
        std::mem::forget((inode, first.file(path, OpenFlags::empty())));
        node
    };
    let nodes = [open("/f"), open(&format!("/{others}"))];
    let names = SillyNames::open(Some(&*keep)).expect("notes");
    let silly = names.begin(Node::ROOT, Some(nodes[0])).expect("a name");
    fs::rename(server.at("f"), server.at(&silly.to_string())).expect("renamed");
    std::mem::forget(first);
    let next = try_open(&server, &[], Some(keep)).expect("connected");
    let until = std::time::Instant::now() + Duration::from_secs(30);
    let read = |node, handle| {
        let read = Read { node, handle, offset: 0, len: 7 };
        next.client.call(read).and_then(|data| data.into_bytes())
    };
    while read(nodes[0], Handle(1)).map(Vec::from) != Ok(b"content".to_vec()) {
        assert!(std::time::Instant::now() < until, "{:?}", read(nodes[0], Handle(1)));
        thread::yield_now();
    }
    for (node, handle) in nodes.into_iter().zip([Handle(1), Handle(2)]) {
        let (flags, owner) = (OpenFlags::empty(), LockOwner::default());
        next.client.call(Release { node, handle, flags, owner, flock_release: false }).expect("closed");
    }
    let left: Vec<_> =
        fs::read_dir(server.at("")).expect("listed").map(|name| name.expect("a name").file_name()).collect();
    assert_eq!(left, [others]);
}

#[test]
fn a_process_that_is_killed_while_it_fetches_a_file_leaves_no_half_of_it_to_be_stored() {
    let server = Server::start(USUAL, &[]);
    let data = content(3_000_000);
    put(&server, "f", &data, 0);
    server.change(|ways| ways.stalls = true);
    let keep: Arc<dyn Keep> = Arc::new(HeapKeep::default());
    let first = try_open(&server, &[("timeout", "600")], Some(Arc::clone(&keep))).expect("connected");
    let file = first.file("/f", OpenFlags::READ_WRITE);
    let (node, handle) = (first.client.walk(b"/f", Follow::Yes).expect("found").node(), Handle(1));
    thread::spawn(move || {
        // It waits for the rest until the test ends.
        let _ = file.write_all_at(7, b"seven".to_vec().into());
        std::mem::forget((file, first));
    });
    server.until_asked("RETR");
    server.change(|ways| ways.stalls = false);
    let next = try_open(&server, &[], Some(keep)).expect("connected");
    let data_now = b"seven".to_vec().into();
    let write = Write { node, handle, offset: 7, data: data_now, cached: false, kill_setid: false };
    next.client.call(write).expect("staged");
    next.client.call(FSync { node, handle, data_only: false }).expect("stored");
    let mut expected = data;
    expected[7..12].copy_from_slice(b"seven");
    assert!(fs::read(server.at("f")).expect("there") == expected);
}

#[test]
fn a_server_that_sends_files_from_their_front_only_is_read_anywhere() {
    for spool in ["16g", "1m"] {
        let server = Server::start(USUAL, &[("REST", "502 not implemented")]);
        let data = content(8_000_000);
        put(&server, "f", &data, 0);
        let far = try_open(&server, &[("spool", spool)], None).expect("connected");
        let file = far.file("/f", OpenFlags::empty());
        let read = |at: usize| {
            let piece = file.read_at(at as u64, 100_000).expect("read");
            assert!(!piece.is_empty() && piece == data[at..at + piece.len()], "{at}");
            at + piece.len()
        };
        let mut at = read(4_000_000);
        while at < data.len() {
            at = read(at);
        }
        assert!(file.read_at(data.len() as u64 + 1, 10).expect("the end").is_empty());
        assert_eq!(server.asked("RETR"), 1, "one transfer brings what is read on");
        for at in [10, 7_000_000, 1_000_000] {
            read(at);
        }
        let transfers = server.asked("RETR");
        // Without room for the file each step back takes a transfer.
        assert!(if spool == "16g" { transfers == 2 } else { transfers <= 4 }, "{spool}: {transfers}");
    }
}

#[test]
fn a_password_that_the_server_repeats_is_not_shown() {
    for refusal in ["530 no, s#cret is wrong, and S%23CRET too", "421 s#cret s%23cret"] {
        let server = Server::start(USUAL, &[("PASS", refusal)]);
        let error = try_open(&server, &[], None).err().expect("refused");
        let shown = format!("{error} {error:?}").to_lowercase();
        assert!(shown.contains("***") && !shown.contains("#cret") && !shown.contains("23cret"), "{shown}");
    }
    // As `s#cret`, `alice:s#cret` and `me:s#cret` are in base64, and every byte of it in hexadecimal, with `%` and without.
    for refusal in [
        "530 %73%23%63%72%65%74",
        "530 cyNjcmV0",
        "530 YWxpY2U6cyNjcmV0",
        "530 bWU6cyNjcmV0.",
        "530 0x732363726574",
        "530 73:23:63:72:65:74",
    ] {
        let server = Server::start(USUAL, &[("PASS", refusal)]);
        let shown = try_open(&server, &[], None).err().expect("refused").to_string();
        assert!(shown.contains("***") && !shown.contains("72") && !shown.contains("NjcmV"), "{shown}");
    }
    let server = Server::start(USUAL, &[("MLSD", "550 s#cret: denied")]);
    let far = open(&server);
    let error = far.root().entries().err().expect("refused");
    assert!(!format!("{error:?}").contains("cret"), "{error:?}");
}

#[test]
fn a_listing_that_fails_is_no_directory_that_has_names() {
    for (features, verb, refusal, errno) in [
        (USUAL, "MLSD", "451 local error in processing", Errno::EIO),
        (LISTS, "LIST", "451 local error in processing", Errno::EIO),
        (USUAL, "MLSD", "550 denied", Errno::EACCES),
    ] {
        let server = Server::start(features, &[]);
        let far = open(&server);
        let root = far.root();
        server.change(|ways| ways.refuses.extend([(verb, refusal)]));
        assert_eq!(root.entries().err().expect("refused").errno, errno, "{verb} {refusal}");
    }
}

#[test]
fn facts_that_the_server_tells_on_demand_are_demanded() {
    for (feature, demands) in [("MLST type*;size*;modify*;UNIX.mode;", 1), (USUAL[0], 0)] {
        let server = Server::start(&[feature, "SIZE", "MDTM"], &[]);
        put(&server, "f", b"content", 0);
        fs::set_permissions(server.at("f"), PermissionsExt::from_mode(0o640)).expect("permissions");
        let far = open(&server);
        let found = far.root().lookup(&name("f")).expect("found");
        assert_eq!(found.attr().mode & 0o7777, 0o640, "{feature}");
        assert_eq!(server.asked("OPTS"), 1 + demands, "UTF8, and once for each connection");
    }
}

#[test]
fn a_change_of_others_in_the_same_minute_is_not_undone_where_listings_tell_minutes() {
    let server = Server::start(LISTS, &[]);
    put(&server, "f", b"init", 10);
    let far = open(&server);
    far.root().entries().expect("a listing").count();
    assert_eq!(server.asked("MDTM"), 0, "what is only looked at takes none");
    let file = far.file("/f", OpenFlags::READ_WRITE);
    for (at, content) in [(0, "ours"), (0, "more")] {
        file.write_all_at(at, content.as_bytes().to_vec().into()).expect("staged");
        file.sync(false).expect("stored");
        assert_eq!(fs::read_to_string(server.at("f")).expect("there"), content);
    }
    // One for what is fetched, one along with it, and two for each upload.
    assert!(server.asked("MDTM") <= 6, "{}", server.asked("MDTM"));
    let at = fs::metadata(server.at("f")).expect("there").modified().expect("a time");
    let seconds = at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs() / 60 * 60 - 978_307_200;
    for (before, after) in [(seconds + 1, seconds + 2), (seconds + 3, seconds + 59)] {
        put(&server, "f", b"init", before);
        let file = far.file("/f", OpenFlags::READ_WRITE);
        file.write_all_at(0, b"ours".to_vec().into()).expect("staged");
        put(&server, "f", b"them", after);
        assert_eq!(file.close().expect_err("changed by others").errno, Errno::ESTALE);
        assert_eq!(fs::read_to_string(server.at("f")).expect("there"), "them");
    }
}

#[test]
fn what_was_written_is_stored_when_its_file_is_closed_though_another_program_reads_it() {
    let server = Server::start(USUAL, &[]);
    put(&server, "f", b"old", 0);
    let far = open(&server);
    let reader = far.file("/f", OpenFlags::empty());
    let writer = far.file("/f", OpenFlags::WRITE_ONLY);
    writer.write_all_at(0, b"new".to_vec().into()).expect("staged");
    // As when close(2) does not wait.
    drop(writer);
    server.until_asked("RNTO");
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while fs::read(server.at("f")).expect("there") != b"new" {
        assert!(std::time::Instant::now() < until, "{:?}", fs::read_to_string(server.at("f")));
        thread::yield_now();
    }
    reader.close().expect("nothing is left to do");
}

#[test]
fn a_file_gets_another_name_with_what_was_written_to_it() {
    let server = Server::start(USUAL, &[]);
    put(&server, "f", b"good", 0);
    put(&server, "tmp", b"old", 0);
    let far = open(&server);
    let file = far.file("/tmp", OpenFlags::WRITE_ONLY);
    file.write_all_at(0, b"new".to_vec().into()).expect("staged");
    let root = far.root();
    root.rename(&name("tmp"), &root, &name("f"), RenameFlags::empty()).expect("renamed");
    assert_eq!(fs::read(server.at("f")).expect("there"), b"new");
    file.close().expect("stored");
}

#[test]
fn synchronising_the_tree_stores_what_was_written_to_every_file() {
    let server = Server::start(USUAL, &[]);
    put(&server, "one", b"1", 0);
    put(&server, "two", b"2", 0);
    let far = open(&server);
    let files = ["/one", "/two"].map(|path| far.file(path, OpenFlags::WRITE_ONLY));
    for file in &files {
        file.write_all_at(1, b"more".to_vec().into()).expect("staged");
    }
    far.client.sync().expect("stored");
    assert_eq!(fs::read(server.at("one")).expect("there"), b"1more");
    assert_eq!(fs::read(server.at("two")).expect("there"), b"2more");
    server.change(|ways| _ = ways.refuses.insert("STOR", "552 no space left"));
    files[0].write_all_at(1, b"less".to_vec().into()).expect("staged");
    assert_eq!(far.client.sync().expect_err("no room").errno, Errno::ENOSPC);
}

/// As programs replace files: each of these files is closed without a wait, and gets its name at once.
#[test]
fn a_file_that_is_renamed_while_it_is_being_stored_has_its_content_under_the_new_name() {
    let server = Server::start(USUAL, &[("SITE", "200 done")]);
    let far = open(&server);
    let root = far.root();
    for number in 0..40 {
        put(&server, &format!("f{number}"), b"old", 0);
        let (mut inode, file) = root.create(&name("tmp"), 0o600, OpenFlags::WRITE_ONLY).expect("made");
        let attrs = SetAttrs { mode: Some(0o644), ..SetAttrs::default() };
        inode.set_through(&file, attrs).expect("set");
        file.write_all_at(0, b"new".to_vec().into()).expect("staged");
        drop(file);
        root.rename(&name("tmp"), &root, &name(&format!("f{number}")), RenameFlags::empty())
            .expect("renamed");
    }
    far.client.sync().expect("stored");
    for number in 0..40 {
        assert_eq!(fs::read(server.at(&format!("f{number}"))).expect("there"), b"new", "{number}");
    }
    assert_eq!(fs::read_dir(server.at("")).expect("a directory").count(), 40, "nothing is left behind");
}

#[test]
fn a_file_that_is_removed_while_it_is_being_stored_stays_removed() {
    let server = Server::start(USUAL, &[]);
    let far = open(&server);
    let root = far.root();
    for _ in 0..40 {
        put(&server, "f", b"old", 0);
        let file = far.file("/f", OpenFlags::WRITE_ONLY);
        file.write_all_at(0, b"new".to_vec().into()).expect("staged");
        drop(file);
        root.unlink(&name("f")).expect("removed");
        far.client.sync().expect("nothing is left to store");
        assert_eq!(fs::read_dir(server.at("")).expect("a directory").count(), 0, "it is there again");
    }
}

#[test]
fn an_upload_that_is_confirmed_and_not_there_is_an_error() {
    let server = Server::start(USUAL, &[("RNFR", "350 yes"), ("RNTO", "250 renamed")]);
    put(&server, "f", b"old", 0);
    let far = open(&server);
    let file = far.file("/f", OpenFlags::WRITE_ONLY);
    file.write_all_at(0, b"something new".to_vec().into()).expect("staged");
    let error = file.sync(false).expect_err("the old one is there");
    assert_eq!(error.errno, Errno::EIO);
    assert!(error.reason.is_some_and(|why| why.contains("3 bytes of it, 13 were sent")));
}

#[test]
fn a_server_without_a_command_for_times_says_so_where_they_are_set_and_is_not_asked_again() {
    let server = Server::start(USUAL, &[("SITE", "502 SITE not understood")]);
    let far = open(&server);
    let to = |mtime| SetAttrs { mtime: Some(mtime), ..SetAttrs::default() };
    let past = SetTime::To(Time::new(978_307_200, 0));
    for number in 0..3 {
        let text = format!("f{number}");
        let (mut inode, file) = far.root().create(&name(&text), 0o644, OpenFlags::WRITE_ONLY).expect("made");
        file.write_all_at(0, b"content".to_vec().into()).expect("staged");
        let error = inode.set_through(&file, to(past)).expect_err("no times");
        assert_eq!(error.errno, Errno::EOPNOTSUPP, "{error}");
        assert!(error.reason.is_some_and(|why| why.contains("no command that sets the time")));
        inode.set_through(&file, to(SetTime::Now)).expect("passed over");
        file.close().expect("stored");
        assert_eq!(fs::read(server.at(&text)).expect("there"), b"content");
    }
    // SITE HELP, and the two forms of SITE UTIME once.
    assert_eq!(server.asked("SITE"), 3);
}

/// In FEAT it has none, and MDTM with a time sets it.
#[test]
fn a_refusal_to_set_the_time_of_one_file_says_nothing_of_others() {
    let server = Server::start(USUAL, &[("SITE", "502 SITE not understood")]);
    server.change(|ways| ways.sets_times = true);
    for name in ["f", "g"] {
        put(&server, name, b"content", 0);
    }
    let far = open(&server);
    let past = SetTime::To(Time::new(1_000_000_000, 0));
    let set = |text: &str| {
        let mut inode = far.root().lookup(&name(text)).expect("found");
        inode.set(SetAttrs { mtime: Some(past), ..SetAttrs::default() }).map(drop)
    };
    set("f").expect("set");
    server.change(|ways| _ = ways.refuses.insert("MDTM", "550 not yours"));
    assert_eq!(set("g").expect_err("refused").errno, Errno::EPERM);
    server.change(|ways| _ = ways.refuses.remove("MDTM"));
    set("g").expect("set");
    let time = fs::metadata(server.at("g")).expect("there").modified().expect("a time");
    assert_eq!(time, UNIX_EPOCH + Duration::from_secs(1_000_000_000));
}

#[test]
fn a_server_that_hangs_is_given_up_after_a_second_attempt() {
    let server = Server::start(USUAL, &[("REST", "502 not implemented")]);
    put(&server, "f", &content(3_000_000), 0);
    server.change(|ways| ways.stalls = true);
    let far = try_open(&server, &[("timeout", "1")], None).expect("connected");
    let file = far.file("/f", OpenFlags::empty());
    let error = file.read_at(2_900_000, 1000).expect_err("it hangs");
    assert_eq!((error.errno, server.asked("RETR")), (Errno::ETIMEDOUT, 2), "{error}");
}

#[test]
fn a_read_that_is_given_up_does_not_keep_its_file_from_being_closed() {
    let server = Server::start(USUAL, &[("REST", "502 not implemented")]);
    put(&server, "f", &content(3_000_000), 0);
    server.change(|ways| ways.stalls = true);
    let cancel = Cancel::default();
    let settings =
        Settings { cancel: cancel.clone(), grace: Duration::from_secs(600), ..Settings::default() };
    let far = try_open(&server, &[("timeout", "600")], None).expect("connected");
    let client = Client::new(Arc::clone(far.client.service()), far._runtime.clone(), settings);
    let file = client.walk(b"/f", Follow::Yes).expect("found").open(OpenFlags::empty()).expect("opened");
    let reading = thread::spawn(move || file.read_at(2_900_000, 1000).map(drop));
    server.until_asked("RETR");
    cancel.raise();
    // It ends with the file closed.
    assert_eq!(reading.join().expect("no panic").expect_err("given up").errno, Errno::EINTR);
}

#[test]
fn free_space_is_what_the_server_says() {
    let server = Server::start(&["MLST type*;size*;modify*;", "AVBL"], &[("AVBL", "213 40960000")]);
    let space = open(&server).client.call(StatFs { node: Node::ROOT }).expect("answered");
    assert_eq!((space.bavail, space.frsize), (10_000, 4096));
}

#[test]
fn what_a_server_says_is_shown_as_it_is_but_for_what_controls_a_terminal() {
    let server = Server::start(USUAL, &[("PASS", "530 can't let \"alice\" \\o/ in\x1b[2J")]);
    let error = try_open(&server, &[], None).err().expect("refused");
    let expected = "530 can't let \"alice\" \\o/ in\\u{1b}[2J";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn a_server_that_ignores_where_to_begin_is_an_error_and_a_file_that_grows_is_none() {
    let server = Server::start(USUAL, &[]);
    let data = content(1_000_000);
    put(&server, "f", &data, 0);
    let far = open(&server);
    let file = far.file("/f", OpenFlags::empty());
    // As if it had grown since.
    server.change(|ways| _ = ways.refuses.insert("SIZE", "213 999500"));
    for at in [999_000, 100_000, 990_000] {
        assert_eq!(file.read_at(at, 10).expect("read"), data[at as usize..][..10]);
    }
    server.change(|ways| _ = ways.refuses.remove("SIZE"));
    server.change(|ways| ways.ignores_rest = true);
    let file = far.file("/f", OpenFlags::empty());
    let error = file.read_at(999_000, 10).expect_err("it is the front");
    assert_eq!(error.errno, Errno::EIO);
    assert!(error.reason.is_some_and(|why| why.contains("REST")));
}

#[test]
fn sizes_that_no_file_can_have_are_the_largest_that_one_can() {
    let server = Server::start(USUAL, &[]);
    put(&server, "f", b"content", 0);
    let far = open(&server);
    for told in [1 << 63, u64::MAX] {
        server.change(|ways| ways.told_size = Some(told));
        let found = far.root().lookup(&name("f")).expect("found");
        assert_eq!(found.attr().size, i64::MAX as u64, "{told}");
        assert_eq!(found.attr().blocks, 1 << 54);
    }
}
