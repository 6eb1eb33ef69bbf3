// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger mount` and `umount` as their users meet them.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use support::{PROGRAM, Place, can_mount, has, is_running, signal, within};

#[test]
fn every_kind_of_tree_answers_when_the_command_returns() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/d/e/f", "hi\n");
    place.tar("inner.tar.gz", "src");
    fs::create_dir(place.at("box")).unwrap();
    fs::copy(place.at("inner.tar.gz"), place.at("box/inner.tar.gz")).unwrap();
    place.tar("outer.tar.gz", "box");
    let sources = [
        ("src", "d/e/f"),
        ("src/d", "e/f"),
        ("inner.tar.gz", "d/e/f"),
        ("inner.tar.gz::/d", "e/f"),
        ("outer.tar.gz::/inner.tar.gz", "d/e/f"),
        ("outer.tar.gz::/inner.tar.gz::/d/e", "f"),
    ];
    for (source, file) in sources {
        place.run(&["mount", source, "m"]).ok();
        assert_eq!(fs::read_to_string(place.at("m").join(file)).unwrap(), "hi\n", "{source}");
        place.run(&["umount", "m"]).ok();
        assert!(!place.is_mounted(), "{source}");
    }
    place.run(&["mount", "null:", "m", "-o", "size=5"]).ok();
    assert_eq!(fs::read(place.at("m/file")).unwrap(), [0; 5]);
}

#[test]
fn what_cannot_be_mounted_is_refused_in_one_sentence() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/t", "text");
    place.tar("a.tar.gz", "src");
    fs::write(place.at("b.7z"), b"7z\xbc\xaf\x27\x1c").unwrap();
    let cases: [(&[&str], i32, &str); 26] = [
        (&["nothing", "m"], 1, "No such file"),
        (&["src", "nowhere"], 1, "cannot mount on 'nowhere': No such file or directory"),
        (&["src", "src/t"], 1, "cannot mount on 'src/t': it is not a directory"),
        (&["", "m"], 1, "an empty LOCATION names nothing"),
        (&["foo://x", "m"], 1, "unsupported scheme 'foo'"),
        (&["-o", "command=false", "host:dir", "m"], 1, "cannot open host: "),
        (&["-o", "command=false", "host:", "m"], 1, "cannot open host: "),
        (&["host:dir", "m", "-o", "command=false"], 1, "--allow-programs mount"),
        (&["-C", "host:dir", "m"], 2, "-o compression=yes"),
        (&["src", "m", "--read-only"], 2, "-o ro"),
        (&["b.7z", "m"], 1, "a 7-Zip archive, which is not served"),
        (&["mem:", "m", "-o", "uid=nobody"], 1, "`id -u NAME`"),
        (&["host:dir", "m", "-o", "Reconect"], 1, "no option Reconect (did you mean reconnect?)"),
        (&["a.tar.gz:/t", "m"], 1, "'a.tar.gz::/t' is a place in it"),
        (&["mem:/x", "m"], 1, "cannot open 'mem:/x': No such file or directory"),
        (&["null:file", "m"], 1, "neither an archive"),
        (&["a.tar.gz::/nothing", "m"], 1, "cannot open 'a.tar.gz::/nothing'"),
        (&["a.tar.gz::/t", "m"], 1, "neither an archive"),
        (&["mem:", "m", "-o", "foo"], 1, "mem has no option foo"),
        (&["null:", "m", "-o", "foo"], 1, "null has no option foo"),
        (&["src", "m", "-o", "foo=1"], 1, "foo"),
        (&["a.tar.gz", "m", "-o", "foo"], 1, "archive has no option foo"),
        (&["mem:", "m", "-o", "size=x"], 1, "size cannot be \"x\""),
        (&["mem:", "m", "-o", "umask=9"], 1, "umask=9"),
        (&["mem:", "m", "--layer", "foo"], 1, "--layer foo: no such layer"),
        (&["mem:", "m", "--layer", "readonly=1"], 1, "readonly takes no argument"),
    ];
    for (args, code, why) in cases {
        let said = place.run(&[&["mount"], args].concat()).refused(code);
        assert!(said.contains(why), "{args:?}: {said}");
        assert!(!place.is_mounted(), "{args:?}");
    }
}

#[test]
fn options_have_their_effect() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m", "-o", "size=64K,umask=027,uid=7,allow_other"]).ok();
    assert!(fs::write(place.at("m/big"), vec![1; 1 << 20]).is_err(), "size= bounds what is written");
    let listed = place.run_as("stat", &["-c", "%a %u", "m"]).ok();
    assert_eq!(listed, "750 7\n");
    place.run(&["umount", "m"]).ok();
    place.run(&["mount", "mem:", "m", "-o", "ro"]).ok();
    let error = fs::write(place.at("m/file"), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn a_second_mount_on_the_same_place_is_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    symlink("m", place.at("link")).unwrap();
    place.run(&["mount", "mem:", "link"]).ok();
    for dir in ["m", "link", "./m/"] {
        let said = place.run(&["mount", "mem:", dir]).refused(1);
        assert!(said.contains("mem: is mounted there already"), "{said}");
    }
    place.run(&["status", "link"]).ok();
    place.run(&["umount", "m"]).ok();
    assert!(place.run(&["umount", "m"]).refused(1).contains("not mounted"));
    assert!(place.run(&["umount", "/proc"]).refused(1).contains("not FUSE"));
}

#[test]
fn signals_and_other_programs_end_a_mount_and_its_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for ending in ["TERM", "INT", "umount"] {
        place.run(&["mount", "mem:", "m"]).ok();
        let server = place.server();
        match ending {
            "umount" => drop(place.run_as("umount", &["m"]).ok()),
            name => signal(server, name),
        }
        within(ending, || !is_running(server) && !place.is_mounted());
    }
    place.run(&["mount", "mem:", "m"]).ok();
    signal(place.server(), "HUP");
    fs::write(place.at("m/still"), "there").unwrap();
}

#[test]
fn a_dead_mount_is_named_and_removed() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "--no-guard", "mem:", "m"]).ok();
    let server = place.server();
    signal(server, "KILL");
    within("the server ends", || !is_running(server));
    for command in [&["mount", "mem:", "m"][..], &["status", "m"], &["flush", "m"], &["trace", "m"]] {
        let said = place.run(command).refused(1);
        assert!(said.contains("died") && said.contains("outrigger umount"), "{command:?}: {said}");
    }
    let all = place.run(&["status"]);
    assert!(
        all.err.contains(&format!("'{}': its server (process {server}) has died", place.at("m").display()))
    );
    assert!(!all.out.contains("no mounts"), "{all:?}");
    place.run(&["umount", "m"]).ok();
    assert!(!place.is_mounted());
    assert!(place.run(&["status", "m"]).refused(1).contains("not a mount of yours"));
    place.run(&["mount", "mem:", "m"]).ok();
}

#[test]
fn a_stopped_server_holds_nobody_up() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.at("other")).unwrap();
    place.run(&["mount", "mem:", "m"]).ok();
    place.run(&["mount", "mem:", "other"]).ok();
    let server = place.server();
    signal(server, "STOP");
    let mut reader = place.spawn_as("cat", &["m/x"]);
    let all = place.run(&["status"]);
    assert!(all.out.contains(&*place.at("other").to_string_lossy()), "{all:?}");
    let named = format!("'{}': its server (process {server}) is stopped", place.at("m").display());
    assert!(all.err.contains(&named) && all.err.contains("kill -CONT"), "{all:?}");
    assert!(place.run(&["flush", "m"]).refused(1).contains("is stopped"));
    place.run(&["umount", "--force", "m"]).ok();
    assert!(!reader.wait().unwrap().success(), "whoever waits gets an error");
    signal(server, "CONT");
    within("the server ends", || !is_running(server));
}

#[test]
fn who_uses_a_mount_keeps_it_from_ending_unless_forced() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m"]).ok();
    let file = fs::File::create(place.at("m/open")).unwrap();
    assert!(place.run(&["umount", "m"]).refused(1).contains("in use"));
    let server = place.server();
    place.run(&["umount", "--lazy", "m"]).ok();
    assert!(place.run(&["status"]).out.contains("(unmounted, still in use)"));
    place.run(&["mount", "mem:", "m"]).ok();
    assert_ne!(place.server(), server, "the new mount is found, not the one that is going");
    drop(file);
    within("the old server ends", || !is_running(server));
}

#[test]
fn asked_twice_a_mount_ends_although_a_request_hangs() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "x");
    place.run(&["mount", "src", "m", "--layer", "fault=op=read,delay=1000s"]).ok();
    let server = place.server();
    let mut reader = place.spawn_as("cat", &["m/f"]);
    within("the request is seen", || place.run(&["status", "m"]).out.contains("waiting"));
    signal(server, "TERM");
    within("it is detached", || !place.is_mounted());
    assert!(is_running(server), "programs keep what they use");
    signal(server, "TERM");
    assert!(!reader.wait().unwrap().success());
    within("the server ends", || !is_running(server));
}

#[test]
fn in_the_foreground_it_stays_until_unmounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mut server = place.spawn(&["mount", "-f", "mem:", "m"]);
    within("it is mounted", || place.run(&["status", "m"]).code == Some(0));
    place.run(&["umount", "m"]).ok();
    assert!(server.wait().unwrap().success());
}

#[test]
fn more_files_are_open_in_a_mount_than_its_starter_may_open() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for guard in ["auto", "none"] {
        let name = |number: u32| format!("src/{guard}-{number}");
        (0..300).for_each(|number| drop(place.file(&name(number), number.to_string())));
        let mount = format!("ulimit -Sn 100; exec {PROGRAM} mount -o guard={guard},no_passthrough src m");
        place.run_as("sh", &["-c", &mount]).ok();
        let open = |number: u32| fs::File::open(place.at(&name(number).replace("src/", "m/"))).unwrap();
        let files: Vec<_> = (0..300).map(open).collect();
        for (number, file) in files.iter().enumerate() {
            assert_eq!(std::io::read_to_string(file).unwrap(), number.to_string());
        }
        drop(files);
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn chattr_and_xfs_io_set_flags_through_a_mount() {
    if !can_mount() || !has("chattr") || !has("xfs_io") {
        return;
    }
    let place = Place::new();
    place.file("src/f", "content");
    if place.run_as("chattr", &["+d", "src"]).code != Some(0) {
        return println!("SKIPPED: the host's file system has no flags");
    }
    place.run(&["mount", "src", "m"]).ok();
    for (file, flag, letter) in [("f", "+A", 'A'), ("f", "+i", 'i'), ("f", "-i", '-'), ("", "+A", 'A')] {
        place.run_as("chattr", &[flag, &format!("m/{file}")]).ok();
        let seen = |dir: &str| place.run_as("lsattr", &["-d", &format!("{dir}/{file}")]).ok();
        let (through, host) = (seen("m"), seen("src"));
        let flags = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        assert_eq!(flags(&through), flags(&host), "{flag}");
        assert!(host.contains(letter), "{flag}: {host}");
    }
    let said = place.run_as("xfs_io", &["-r", "-c", "lsattr -v", "m/f"]).ok();
    assert!(said.contains("no-atime"), "{said}");
    place.run(&["umount", "m"]).ok();
}

/// Pages that a reply moves to the request instead of copying them would leave the cache of the file that was read.
#[test]
fn reading_through_a_mount_leaves_the_page_cache_of_the_file_as_it_is() {
    if !can_mount() {
        return;
    }
    const PAGE: usize = 4096;
    let place = Place::new();
    let content: Vec<u8> = (0..PAGE * 1024).map(|at| (at / PAGE) as u8).collect();
    fs::create_dir(place.at("src")).unwrap();
    let mut file =
        fs::File::options().read(true).write(true).create_new(true).open(place.at("src/large")).unwrap();
    // Several pages that are cached as one are not moved.
    content.chunks(PAGE).for_each(|page| file.write_all(page).unwrap());
    file.sync_all().unwrap();
    place.run(&["mount", "src", "m", "-o", "no_passthrough"]).ok();
    assert!(fs::read(place.at("m/large")).unwrap() == content);
    place.unmount("m");
    let is_cached = |page: &usize| {
        let mut byte = [0];
        let buffers = &mut [std::io::IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(&file, buffers, (page * PAGE) as u64, rustix::io::ReadWriteFlags::NOWAIT).is_ok()
    };
    assert_eq!((0..1024).filter(|page| !is_cached(page)).count(), 0, "pages are missing in the cache");
}

/// Of several clients of a server, each appends at its end: what one writes at once must not come in two pieces.
#[test]
fn an_append_across_the_border_of_a_page_is_one_write() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/log", [b'a'; 4090]);
    place.run(&["mount", "src", "m", "-o", "no_passthrough"]).ok();
    fs::File::options().write(true).open(place.at("m/log")).unwrap().write_all(b"a").unwrap();
    let writes = || {
        let said = place.run(&["status", "--json", "m"]).ok();
        let status: serde_json::Value = serde_json::from_str(&said).unwrap();
        let operations = status["operations"].as_array().unwrap();
        let writes = operations.iter().find(|operation| operation["operation"] == "write").unwrap();
        writes["count"].as_u64().unwrap()
    };
    let before = writes();
    let mut log = fs::File::options().append(true).open(place.at("m/log")).unwrap();
    log.write_all(b"a record of some words\n").unwrap();
    drop(log);
    assert_eq!(writes() - before, 1);
    let content = fs::read_to_string(place.at("m/log")).unwrap();
    assert!(content.ends_with("aa record of some words\n") && content.len() == 4113, "{content}");
    place.unmount("m");
}

/// The kernel knows the name for a while, and the server keeps descriptors of files.
#[test]
fn what_is_appended_to_a_file_that_others_have_removed_goes_to_the_file_of_that_name() {
    if !can_mount() {
        return;
    }
    for options in ["no_passthrough", "rw", "handles=off"] {
        let place = Place::new();
        place.file("src/log", "old");
        place.file("src/own", "own");
        let options = format!("{options},entry_timeout=600,attr_timeout=600");
        place.run(&["mount", "src", "m", "-o", &options]).ok();
        let append = || fs::File::options().append(true).create(true).open(place.at("m/log"));
        append().unwrap().write_all(b"1").unwrap();
        fs::remove_file(place.at("src/log")).unwrap();
        append().unwrap().write_all(b"2").unwrap();
        assert_eq!(fs::read_to_string(place.at("src/log")).unwrap(), "2", "{options}");
        let own = fs::File::open(place.at("m/own")).unwrap();
        fs::remove_file(place.at("m/own")).unwrap();
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&own));
        assert_eq!(fs::read_to_string(again).unwrap(), "own", "{options}: a file that is open");
        drop(own);
        place.unmount("m");
    }
}
