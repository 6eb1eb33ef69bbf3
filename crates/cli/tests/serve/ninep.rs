// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve 9p` with our own client, and with the tools of diod.

use crate::support::{PROGRAM, Place, can_mount, has, signal};
use crate::{EVERYONE, Serving};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Stdio};

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn location(serving: &Serving, path: &str) -> String {
    format!("9p://127.0.0.1:{}{path}", serving.port)
}

/// A tree with some files, a large one and a link.
fn tree(place: &Place) {
    for number in 0..30_u32 {
        place.file(
            &format!("tree/d{}/file {number}", number % 3),
            format!("{number}\n").repeat(number as usize),
        );
    }
    let large: Vec<u8> =
        (0..1_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    place.file("tree/large", large);
    std::os::unix::fs::symlink("d1/file 1", place.at("tree/link")).unwrap();
}

fn same(place: &Place, one: &str, other: &str) {
    place.run_as("diff", &["-r", "--no-dereference", one, other]).ok();
}

#[test]
fn trees_are_copied_both_ways_by_commands_and_through_a_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    tree(&place);
    fs::create_dir(place.at("served")).unwrap();
    let serving = Serving::ninep(&place, &[&["served"][..], &EVERYONE].concat());
    place.run(&["cp", "-r", "tree", &location(&serving, "/copy")]).ok();
    same(&place, "tree", "served/copy");
    place.run(&["cp", "-r", &location(&serving, "/copy"), "back"]).ok();
    same(&place, "tree", "back");
    let listed = place.run(&["ls", "-lR", &location(&serving, "/copy")]).ok();
    assert!(listed.contains("file 29") && listed.contains("link -> d1/file 1"), "{listed}");
    fs::create_dir_all(place.at("m")).unwrap();
    place.run(&["mount", &location(&serving, "/"), "m"]).ok();
    same(&place, "tree", "m/copy");
    place.run_as("cp", &["-r", "tree", "m/other"]).ok();
    fs::rename(place.at("m/other/d1"), place.at("m/other/moved")).unwrap();
    fs::remove_dir_all(place.at("m/other/d2")).unwrap();
    place.run(&["umount", "m"]).ok();
    same(&place, "tree/d1", "served/other/moved");
    assert!(!place.at("served/other/d2").exists());
    assert_eq!(serving.end("TERM"), Some(143));
}

#[test]
fn tools_of_diod_list_and_read() {
    if !has("diodcat") {
        return;
    }
    let place = Place::new();
    tree(&place);
    let serving = Serving::ninep(&place, &[&["tree"][..], &EVERYONE].concat());
    let server = format!("127.0.0.1:{}", serving.port);
    let tool = |program: &str, path: &str| place.run_as(program, &["-s", &server, "-a", "/", path]);
    assert_eq!(tool("diodcat", "d1/file 4").ok(), "4\n4\n4\n4\n");
    let large = place.command("diodcat", &["-s", &server, "-a", "/", "large"]).output().unwrap();
    assert!(large.stdout == fs::read(place.at("tree/large")).unwrap());
    let listed = tool("diodls", "d2").ok();
    assert!(listed.contains("file 29"), "{listed}");
}

#[test]
fn a_socket_of_this_machine_is_its_users_alone() {
    let place = Place::new();
    place.file("one/in", "one");
    place.file("two/in", "two");
    let socket = place.at("socket");
    let listen = format!("unix:{}", socket.display());
    let args = ["--json", "serve", "9p", "--listen", &listen, "--export", "/1=one", "--export", "/2=two"];
    let args = [&args[..], &["--export-options", "/2=ro", "--squash", "none"]].concat();
    let notify = UnixDatagram::bind(place.at("notify")).unwrap();
    let mut command = place.command(PROGRAM, &args);
    command.env("NOTIFY_SOCKET", place.at("notify")).stdout(Stdio::piped());
    let mut child = Ended(command.spawn().unwrap());
    let mut message = [0; 64];
    let mut told = || {
        let count = notify.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..count]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    let found = fs::symlink_metadata(&socket).unwrap();
    assert!(found.file_type().is_socket() && found.mode() & 0o777 == 0o600, "{found:?}");
    let at = |path: &str| format!("9p:unix:{}{path}", socket.display());
    assert_eq!(place.run(&["cat", &at("/1/in")]).ok(), "one");
    place.file("new", "new");
    place.run(&["cp", "new", &at("/1/new")]).ok();
    assert_eq!(fs::read(place.at("one/new")).unwrap(), b"new");
    let refused = place.run(&["cp", "new", &at("/2/new")]);
    assert!(refused.code != Some(0) && !place.at("two/new").exists(), "{refused:?}");
    let taken = place.run(&["serve", "9p", "--listen", &listen, "one"]).refused(1);
    assert!(taken.contains("in use"), "{taken}");
    signal(child.0.id(), "TERM");
    assert_eq!(told(), "STOPPING=1");
    let mut out = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(143));
    assert!(out.contains("\"mount\":\"mount -t 9p -o trans=unix,") && out.lines().count() == 2, "{out}");
    assert!(!socket.exists(), "it is removed");
    // What a killed server leaves is no obstacle.
    drop(UnixListener::bind(&socket).unwrap());
    let serving = Serving::of(place.command(PROGRAM, &["serve", "9p", "--listen", &listen, "one"]));
    assert_eq!(serving.end("INT"), Some(130));
}

#[test]
fn who_is_refused_is_told_once_and_what_to_do() {
    let place = Place::new();
    place.file("tree/in", "content");
    for dir in ["", "tree"] {
        fs::set_permissions(place.at(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (more, expected) in [
        (&["--anonymous", "65534:65534"][..], "option insecure"),
        (&["--insecure"][..], "root of a client is user 65534 here"),
    ] {
        let args = [&["serve", "9p", "--listen", "127.0.0.1:0", "tree"], more].concat();
        let mut command = place.command(PROGRAM, &args);
        command.env_remove("OUTRIGGER_LOG").stderr(Stdio::piped());
        let mut serving = Serving::of(command);
        for _ in 0..2 {
            // As a user at a port that anyone can use.
            let user = ["--reuid=1001", "--clear-groups", PROGRAM, "touch", &location(&serving, "/new")];
            let made = match more {
                ["--insecure"] => place.run(&user[3..]),
                _ => place.run_as("setpriv", &user),
            };
            assert!(made.code != Some(0), "{made:?}");
        }
        assert!(!place.at("tree/new").exists());
        signal(serving.child.id(), "TERM");
        let mut said = String::new();
        serving.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let place = Place::new();
    place.file("tree/in", "");
    for (option, value) in [
        ("--allow", "host"),
        ("--listen", "nowhere"),
        ("--listen", "unix:"),
        ("--export", "one=tree"),
        ("--anonymous", "x"),
    ] {
        let said = place.run(&["serve", "9p", "tree", option, value]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(value), "{said:?}");
    }
    assert!(place.run(&["serve", "9p", "nothing", "--listen", "0"]).refused(1).contains("'nothing'"));
    let misspelt = ["serve", "9p", "tree", "--listen", "0", "-o", "roo"];
    assert!(place.run(&misspelt).refused(1).contains("local has no option roo"));
}

#[test]
fn a_server_is_used_as_it_is_by_root_and_tells_others_of_the_option() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("tree/in", "content");
    let serving = Serving::ninep(&place, &["tree"]);
    let at = format!("9p://localhost:{}/", serving.port);
    assert_eq!(place.run(&["ls", &at]).ok(), "in\n");
    assert_eq!(place.run(&["cat", &format!("{at}in")]).ok(), "content");
    fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
    let as_user = |args: [&str; 2]| {
        place.run_as("setpriv", &[&["--reuid=1001", "--clear-groups", PROGRAM][..], &args].concat())
    };
    assert!(as_user(["ls", &at]).refused(2).contains("Permission denied"));
    let refused = as_user(["cat", &format!("{at}in")]).refused(1);
    assert!(refused.contains("--insecure"), "{refused}");
}

#[test]
fn a_tree_that_is_not_exported_is_no_directory_and_those_below_a_name_are_found() {
    let place = Place::new();
    place.file("one/in", "one");
    let serving = Serving::ninep(&place, &[&["--export", "/a/b=one"][..], &EVERYONE].concat());
    for dialect in ["9p2000.L", "9p2000.u", "9p2000"] {
        let option = format!("dialect={dialect}");
        let run = |args: &[&str]| place.run(&[&["--opt", &option], args].concat());
        assert_eq!(run(&["cat", &location(&serving, "/a/b/in")]).ok(), "one");
        let nowhere = location(&serving, "/a/nosuch/in");
        for args in [&["stat", &nowhere][..], &["cp", "-a", &nowhere, "copy"], &["du", &nowhere]] {
            let refused = run(args);
            assert_eq!(refused.code, Some(1), "{dialect} {args:?}: {}{}", refused.out, refused.err);
            assert!(refused.err.contains("No such file or directory"), "{}", refused.err);
        }
        run(&["stat", &location(&serving, "/a")]).ok();
    }
}

#[test]
fn a_user_whom_only_the_client_knows_is_told_of_by_the_server() {
    let place = Place::new();
    place.file("tree/in", "content");
    let log = fs::File::create(place.at("log")).unwrap();
    let args = [&["serve", "9p", "--listen", "127.0.0.1:0", "tree"][..], &EVERYONE].concat();
    let mut command = place.command(PROGRAM, &args);
    command.stderr(log);
    let serving = Serving::of(command);
    let list = |user: &str| {
        let options = format!("dialect=9p2000,uname={user}");
        place.run(&["--opt", &options, "ls", &location(&serving, "/")]).ok()
    };
    let said = || fs::read_to_string(place.at("log")).unwrap();
    assert_eq!((list("root"), said()), ("in\n".to_owned(), String::new()));
    assert_eq!(list("glenda"), "in\n");
    assert!(said().contains("as 'glenda', whom this machine does not know"), "{}", said());
}
