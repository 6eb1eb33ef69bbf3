// SPDX-License-Identifier: MIT OR Apache-2.0
//! FTP servers of our own, by commands and mounted.

mod support;

use outrigger_remote::{FtpServer, Ftpd};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use support::{Place, can_mount, is_running, kill_server, signal, status, within};

/// A server, and a place beside it.
struct Far {
    place: Place,
    server: FtpServer,
}

impl Far {
    /// `None` where no server can be; says so.
    fn new(kind: Ftpd) -> Option<Self> {
        if let Some(missing) = kind.missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        fs::create_dir(place.at("ftpd")).unwrap();
        fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
        let server = kind.start(&place.at("ftpd")).unwrap();
        Some(Far { place, server })
    }

    fn location(&self, path: &str) -> String {
        format!("ftp://{}{path}", self.server.place(self.server.port()))
    }

    fn mount(&self, more: &[&str]) {
        self.place.run(&[&["mount", &self.location(""), "m"], more].concat()).ok();
    }
}

const KINDS: [Ftpd; 2] = [Ftpd::Vsftpd, Ftpd::PureFtpd];

/// A tree with many small files, a large one, odd names and an empty directory.
fn tree(place: &Place, name: &str) {
    for number in 0..50_u32 {
        place.file(
            &format!("{name}/d{}/file {number}", number % 5),
            format!("{number}\n").repeat(number as usize),
        );
    }
    let large: Vec<u8> =
        (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    place.file(&format!("{name}/-large*"), large);
    fs::create_dir(place.at(name).join("empty")).unwrap();
}

fn sums(place: &Place, dir: &Path) -> String {
    let command = "cd \"$0\" && find . -type f -exec sha256sum {} + | sort && find . -type d | sort";
    place.run_as("sh", &["-c", command, &dir.display().to_string()]).ok()
}

#[test]
fn trees_are_copied_both_ways_by_commands_and_through_a_mount() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        let (place, at_server) = (&far.place, far.server.root());
        tree(place, "tree");
        let expected = sums(place, &place.at("tree"));
        place.run(&["cp", "-r", "tree", &far.location("/")]).ok();
        assert_eq!(sums(place, &at_server.join("tree")), expected, "{kind:?}");
        place.run(&["cp", "-r", &far.location("/tree"), "back"]).ok();
        assert_eq!(sums(place, &place.at("back")), expected, "{kind:?}");
        far.mount(&[]);
        place.run_as("cp", &["-r", "tree", "m/mounted"]).ok();
        assert_eq!(sums(place, &at_server.join("mounted")), expected, "{kind:?}");
        place.run_as("cp", &["-r", "m/tree", "again"]).ok();
        assert_eq!(sums(place, &place.at("again")), expected, "{kind:?}");
        assert_eq!(sums(place, &place.at("m/mounted")), expected, "{kind:?}");
    }
}

#[test]
fn commands_say_what_they_say_elsewhere() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        let run = |args: &[&str]| far.place.run(args);
        run(&["mkdir", "-p", &far.location("/a/b")]).ok();
        far.place.file("one", "one\n");
        run(&["cp", "one", &far.location("/a/b/f")]).ok();
        assert_eq!(run(&["cat", &far.location("/a/b/f")]).ok(), "one\n");
        assert_eq!(run(&["ls", &far.location("/a/b")]).ok(), "f\n");
        run(&["mv", &far.location("/a/b/f"), &far.location("/a/g")]).ok();
        assert_eq!(fs::read_to_string(far.server.root().join("a/g")).unwrap(), "one\n");
        let missing = run(&["cat", &far.location("/a/nothing")]).refused(1);
        assert!(missing.contains("No such file") && !missing.contains("secret"), "{missing}");
        run(&["rm", "-r", &far.location("/a")]).ok();
        assert_eq!(fs::read_dir(far.server.root()).unwrap().count(), 0);
    }
}

#[test]
fn a_mount_does_not_show_the_password_and_survives_the_death_of_its_server_and_of_its_process() {
    let Some(mut far) = Far::new(Ftpd::PureFtpd) else { return };
    far.mount(&[]);
    let shown = [far.place.run(&["status"]).ok(), fs::read_to_string("/proc/mounts").unwrap()].concat();
    assert!(shown.contains("alice:***@localhost") && !shown.contains("secret@localhost"), "{shown}");
    let mut file = File::create(far.place.at("m/f")).unwrap();
    file.write_all(b"before, ").unwrap();
    kill_server(&far.place, "KILL");
    file.write_all(b"after").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(far.server.root().join("f")).unwrap(), b"before, after");
    far.server.stop();
    far.server.start().unwrap();
    file.write_all(b", again").unwrap();
    file.sync_all().unwrap();
    let mut piece = [0; 20];
    File::open(far.place.at("m/f")).unwrap().read_exact_at(&mut piece, 0).unwrap();
    assert_eq!(&piece, b"before, after, again");
    far.server.signal_sessions(Signal::KILL);
    assert_eq!(fs::read(far.place.at("m/f")).unwrap(), b"before, after, again");
}

/// The server of a directory below the login directory is away for longer than one that is silent is waited for.
#[test]
fn writes_behind_outlive_the_process_that_serves_while_the_server_is_away() {
    let Some(mut far) = Far::new(Ftpd::PureFtpd) else { return };
    fs::create_dir(far.server.root().join("d")).unwrap();
    fs::set_permissions(far.server.root().join("d"), PermissionsExt::from_mode(0o777)).unwrap();
    far.place.run(&["mount", &far.location("/d"), "m", "-o", "write=behind,timeout=5"]).ok();
    fs::write(far.place.at("m/f"), "before, ").unwrap();
    File::open(far.place.at("m/f")).unwrap().sync_all().unwrap();
    let file = File::options().write(true).open(far.place.at("m/f")).unwrap();
    far.server.stop();
    file.write_all_at(b"after", 8).unwrap();
    kill_server(&far.place, "KILL");
    let mount = far.place.at("m");
    let asking = thread::spawn(move || drop(fs::metadata(mount)));
    // The next one calls it, and finds it away for longer than `timeout`.
    let port = TcpListener::bind(("127.0.0.1", far.server.port())).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        drop(port.accept().unwrap());
    }
    drop(port);
    far.server.start().unwrap();
    asking.join().unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(far.server.root().join("d/f")).unwrap(), b"before, after");
    assert_eq!(fs::read(far.place.at("m/f")).unwrap(), b"before, after");
}

#[test]
fn a_copy_that_does_not_arrive_is_never_a_success() {
    let Some(mut far) = Far::new(Ftpd::Vsftpd) else { return };
    far.place.file("large", vec![7; 8 << 20]);
    far.mount(&["-o", "timeout=5"]);
    assert_eq!(fs::read_dir(far.place.at("m")).unwrap().count(), 0);
    far.server.stop();
    let through_mount = far.place.run_as("cp", &["large", "m/large"]);
    through_mount.refused(1);
    far.place.run(&["cp", "large", &far.location("/large")]).refused(1);
    far.server.start().unwrap();
    assert!(!far.server.root().join("large").exists());
}

#[test]
fn what_a_listing_does_not_tell_is_named_as_unknown() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { return };
        far.place.file("f", "content");
        far.place.run(&["cp", "f", &far.location("/f")]).ok();
        let record = far.place.run(&["stat", "--json", &far.location("/f")]).ok();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let unknown: Vec<&str> =
            record["unknown"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
        assert_eq!(unknown, ["owner", "nlink", "atime", "ctime", "blocks"]);
        assert_eq!(record["size"], 7);
    }
}

/// What the shell does not look at is close(2).
#[test]
fn what_a_shell_appends_is_stored_also_to_a_file_without_permissions() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        far.mount(&[]);
        let append = "for n in 1 2 3; do echo $n >> m/f || exit 1; done; chmod 400 m/f; echo 4 >> m/f";
        far.place.run_as("bash", &["-c", append]).ok();
        assert_eq!(fs::read_to_string(far.server.root().join("f")).unwrap(), "1\n2\n3\n4\n", "{kind:?}");
    }
}

/// The shell and programs that copy close files that they have set times of.
#[test]
fn a_server_that_sets_no_times_refuses_them_where_they_are_set_and_has_what_was_written() {
    let Some(mut far) = Far::new(Ftpd::Vsftpd) else { return };
    far.server.start_without_times().unwrap();
    let (place, root) = (&far.place, far.server.root());
    let stored = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    for options in [&[][..], &["-o", "write=behind"]] {
        far.mount(options);
        for number in 0..2 {
            let (name, to) = (format!("f{number}"), format!("m/f{number}"));
            place.file(&name, "content");
            place.run_as("touch", &["-d", "2001-01-01", &name]).ok();
            let refused = place.run_as("cp", &["-p", &name, &to]).refused(1);
            assert!(refused.contains("preserving times") && refused.contains("not supported"), "{refused}");
            place.run_as("touch", &[&to, "m/new"]).ok();
            place.run_as("sync", &[&to]).ok();
            assert_eq!(stored(&name), "content", "{options:?}");
        }
        assert_eq!(stored("new"), "");
        place.run(&["umount", "m"]).ok();
        for name in ["f0", "f1", "new"] {
            fs::remove_file(root.join(name)).unwrap();
        }
    }
    let refused = place.run(&["cp", "-p", "f0", &far.location("/")]).refused(1);
    assert!(refused.contains("preserving times") && refused.contains("has no command"), "{refused}");
    assert_eq!(stored("f0"), "content");
    let moved = place.run(&["mv", "f1", &far.location("/moved")]);
    assert!(moved.err.contains("preserving times"), "{moved:?}");
    moved.ok();
    assert!(stored("moved") == "content" && !place.at("f1").exists());
}

/// Pure-FTPd stores such a name with `_` in place of the blank, over the file of that name.
#[test]
fn a_name_that_the_server_would_change_into_that_of_another_file_is_refused() {
    let Some(far) = Far::new(Ftpd::PureFtpd) else { return };
    far.mount(&[]);
    let precious = far.server.root().join("a_");
    fs::write(&precious, "precious").unwrap();
    fs::write(far.place.at("m/new"), "new").unwrap();
    // What the directory has is known then, so names that it has not are not asked for.
    assert_eq!(fs::read_dir(far.place.at("m")).unwrap().count(), 2);
    for name in ["a ", "a\t", "a\x01"] {
        let at = far.place.at("m").join(name);
        let refused = fs::write(&at, "other").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()), "{name:?}");
        assert!(fs::rename(far.place.at("m/new"), &at).is_err(), "{name:?}");
        assert!(fs::create_dir(&at).is_err(), "{name:?}");
    }
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    fs::write(far.place.at("m/a b"), "a blank inside").unwrap();
    assert_eq!(fs::read(far.server.root().join("a b")).unwrap(), b"a blank inside");
}

/// Pure-FTPd shows 10,000 names at most, and says so in its last reply.
#[test]
fn a_listing_that_the_server_cuts_off_is_an_error() {
    let Some(far) = Far::new(Ftpd::PureFtpd) else { return };
    let many = far.server.root().join("many");
    fs::create_dir(&many).unwrap();
    (0..10_050).for_each(|number| fs::write(many.join(number.to_string()), "").unwrap());
    fs::set_permissions(&many, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(far.place.run(&["ls", &far.location("/many")]).refused(2).contains("10000"));
    let copied = far.place.run(&["cp", "-r", &far.location("/many"), "copy"]);
    assert_eq!(copied.code, Some(1), "{}", copied.err);
}

#[test]
fn fsync_by_another_open_file_fails_while_it_is_not_known_that_a_file_was_lost() {
    let Some(far) = Far::new(Ftpd::PureFtpd) else { return };
    let small = far.server.root().join("small");
    fs::create_dir(&small).unwrap();
    far.place
        .run_as("mount", &["-t", "tmpfs", "-o", "size=1m,mode=777", "none", small.to_str().unwrap()])
        .ok();
    far.mount(&["-o", "write=behind"]);
    fs::write(far.place.at("m/small/large"), vec![7; 3 << 20]).unwrap();
    let synced = File::open(far.place.at("m/small/large")).and_then(|file| file.sync_all());
    far.place.run(&["umount", "m"]);
    far.place.run_as("umount", &[small.to_str().unwrap()]).ok();
    assert!(synced.is_err());
}

/// A file that was written behind, and cannot be stored any more: its server has ended.
fn write_to_nowhere(far: &mut Far) {
    fs::write(far.place.at("m/f"), "before").unwrap();
    File::open(far.place.at("m/f")).unwrap().sync_all().unwrap();
    let file = File::options().write(true).open(far.place.at("m/f")).unwrap();
    far.server.stop();
    file.write_all_at(b"after!", 0).unwrap();
}

#[test]
fn a_second_signal_names_the_files_whose_upload_it_cuts_off() {
    let Some(mut far) = Far::new(Ftpd::PureFtpd) else { return };
    let location = far.location("");
    let mount = far.place.spawn(&["mount", "-o", "write=behind", "--foreground", &location, "m"]);
    within("it is mounted", || far.place.is_mounted());
    write_to_nowhere(&mut far);
    signal(mount.id(), "TERM");
    within("it is unmounted", || !far.place.is_mounted());
    signal(mount.id(), "TERM");
    let ended = mount.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("not complete: /f (a signal came before it was stored)"), "{said}");
    assert_eq!(ended.status.code(), Some(1), "{said}");
}

/// umount(8) returns before the last upload has ended.
#[test]
fn what_is_left_to_be_stored_after_umount_outlives_the_process_that_stores_it() {
    let Some(mut far) = Far::new(Ftpd::PureFtpd) else { return };
    far.mount(&["-o", "write=behind"]);
    let (worker, keeper) = (far.place.server(), status(&far.place, "/guard/keeper").unwrap() as u32);
    write_to_nowhere(&mut far);
    far.place.unmount("m");
    signal(worker, "KILL");
    far.server.start().unwrap();
    let stored = far.server.root().join("f");
    within("it is stored", || fs::read(&stored).is_ok_and(|content| content == b"after!"));
    within("the last process has ended", || !is_running(keeper));
}

/// It opens the file, and closes a copy of the descriptor before it writes.
#[test]
fn a_shell_that_overwrites_a_file_does_not_empty_it_at_the_server_first() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        far.mount(&[]);
        fs::write(far.place.at("m/f"), "old").unwrap();
        let at_server = far.server.root().join("f");
        let script = "exec 3>m/f; exec 4>&3; exec 4>&-; cat \"$0\"; echo new >&3; exec 3>&-";
        let seen = far.place.run_as("bash", &["-c", script, at_server.to_str().unwrap()]).ok();
        assert_eq!(
            (seen.as_str(), fs::read_to_string(&at_server).unwrap().as_str()),
            ("old", "new\n"),
            "{kind:?}"
        );
        far.place.run_as("bash", &["-c", ": > m/f; sync m/f"]).ok();
        assert_eq!(fs::read_to_string(&at_server).unwrap(), "", "{kind:?}");
    }
}

/// Whether the file is read first, written at once or later: the content of others is not replaced that is younger than what was opened.
#[test]
fn what_another_client_has_stored_since_a_file_was_emptied_is_not_replaced() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        far.mount(&["-o", "write=3600"]);
        let put = |name: &str, text: &str| {
            let path = far.server.root().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
        };
        for name in ["read", "unread", "left alone"] {
            put(name, "before");
        }
        assert_eq!(fs::read_to_string(far.place.at("m/read")).unwrap(), "before");
        for name in ["read", "unread", "left alone"] {
            far.place.run_as("sh", &["-c", "echo ours >\"$0\"", &format!("m/{name}")]).ok();
        }
        put("read", "of another client");
        put("unread", "of another client");
        let refused = far.place.run(&["flush", "--wait", "m"]).refused(1);
        assert!(refused.contains("/read") && refused.contains("/unread"), "{kind:?}: {refused}");
        for (name, content) in
            [("read", "of another client"), ("unread", "of another client"), ("left alone", "ours\n")]
        {
            assert_eq!(fs::read_to_string(far.server.root().join(name)).unwrap(), content, "{kind:?}");
        }
        // A loss is named by its path also when nothing knows the file any more.
        fs::remove_file(far.place.at("m/read")).unwrap();
        let left = far.place.run(&["umount", "m"]);
        assert!(!left.err.contains('#'), "{left:?}");
    }
}

/// Linux does not tell a mount of sync(2).
#[test]
fn synchronising_a_directory_stores_what_waits() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        far.mount(&["-o", "write=3600"]);
        fs::write(far.place.at("m/f"), "new").unwrap();
        assert!(!far.server.root().join("f").exists());
        File::open(far.place.at("m")).unwrap().sync_all().unwrap();
        assert_eq!(fs::read_to_string(far.server.root().join("f")).unwrap(), "new", "{kind:?}");
    }
}
