// SPDX-License-Identifier: MIT OR Apache-2.0
//! HTTP servers of our own, by commands and mounted.

mod support;

use outrigger_remote::{HttpServer, Httpd};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};
use support::{Place, can_mount, kill_server, within};

/// A server, and a place beside it.
struct Far {
    place: Place,
    server: HttpServer,
}

impl Far {
    /// `None` where no server can be; says so.
    fn new(kind: Httpd) -> Option<Self> {
        if let Some(missing) = kind.missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        fs::create_dir(place.at("httpd")).unwrap();
        fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
        let server = kind.start(&place.at("httpd")).unwrap();
        let root = server.root();
        fs::create_dir_all(root.join("d d/deep")).unwrap();
        fs::write(root.join("d d/one?"), "one\n").unwrap();
        fs::write(root.join("d d/deep/two"), "two\n").unwrap();
        let large: Vec<u8> =
            (0..1_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        fs::write(root.join("large"), large).unwrap();
        Some(Far { place, server })
    }

    fn at(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.server.port())
    }
}

#[test]
fn commands_and_mounts_read_what_the_server_has() {
    for kind in [Httpd::Nginx, Httpd::Apache, Httpd::Python] {
        let Some(far) = Far::new(kind) else { continue };
        let run = |args: &[&str]| far.place.run(args);
        assert_eq!(run(&["ls", &far.at("/d%20d/")]).ok(), "deep\none?\n", "{kind:?}");
        assert_eq!(run(&["cat", &far.at("/d%20d/one%3F")]).ok(), "one\n", "{kind:?}");
        run(&["cp", "-r", &far.at("/"), "copy"]).ok();
        far.place.run_as("diff", &["-r", "httpd/root", "copy"]).ok();
        run(&["mount", &far.at("/"), "m"]).ok();
        far.place.run_as("diff", &["-r", "httpd/root", "m"]).ok();
        assert_eq!(fs::write(far.place.at("m/new"), "x").unwrap_err().raw_os_error(), Some(30), "{kind:?}");
        run(&["umount", "m"]).ok();
        run(&["mount", &far.at("/d%20d/deep/"), "m"]).ok();
        assert_eq!(fs::read_to_string(far.place.at("m/two")).unwrap(), "two\n", "{kind:?}");
    }
}

#[test]
fn refusals_name_the_reason_and_no_password() {
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    let missing = far.place.run(&["cat", &far.at("/d%20d/nothing")]).refused(1);
    assert!(missing.contains("No such file"), "{missing}");
    let refused = far.place.run(&["cat", &far.at("/private/large")]).refused(1);
    assert!(refused.contains("401") && refused.contains("USER@"), "{refused}");
    let login = format!("http://alice:secret@127.0.0.1:{}/private/large", far.server.port());
    far.place.run(&["cp", &login, "copy"]).ok();
    far.place.run_as("cmp", &["copy", "httpd/root/large"]).ok();
    let wrong = login.replace("secret", "hush");
    let refused = far.place.run(&["cat", &wrong]).refused(1);
    assert!(refused.contains("the login of alice") && !refused.contains("hush"), "{refused}");
    let changed = far.place.run(&["rm", &far.at("/large")]).refused(1);
    assert!(changed.contains("Read-only file system"), "{changed}");
}

/// Content that a mount has is not asked for again, and looking at files asks for none.
#[test]
fn a_mount_asks_once_for_content_and_not_at_all_to_look() {
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    let gets = || far.server.requests().iter().filter(|asked| asked.starts_with("GET /large")).count();
    far.place.run(&["mount", &far.at("/"), "m"]).ok();
    far.place.run_as("ls", &["-l", "m"]).ok();
    far.place.run_as("stat", &["m/large"]).ok();
    assert_eq!(gets(), 0);
    let expected = fs::read(far.server.root().join("large")).unwrap();
    assert!(fs::read(far.place.at("m/large")).unwrap() == expected);
    let once = gets();
    assert!(fs::read(far.place.at("m/large")).unwrap() == expected);
    assert_eq!(gets(), once);
}

/// What a mount has of a file and what it asks for must be of one version, also while it need not look again.
#[test]
fn a_file_that_is_replaced_while_its_attributes_are_believed_is_never_mixed() {
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    let (path, aside) = (far.server.root().join("large"), far.server.root().join("aside"));
    let set_time = |path: &Path, seconds| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    };
    set_time(&path, 1_600_000_000);
    far.place.run(&["mount", &far.at("/"), "m"]).ok();
    let old = fs::read(&path).unwrap();
    let mut start = vec![0; 4096];
    fs::File::open(far.place.at("m/large")).unwrap().read_exact_at(&mut start, 0).unwrap();
    assert!(start == old[..4096]);
    let new: Vec<u8> = old.iter().rev().copied().collect();
    fs::write(&aside, &new).unwrap();
    set_time(&aside, 1_600_000_001);
    fs::rename(&aside, &path).unwrap();
    let stale = fs::read(far.place.at("m/large")).map(|content| content.len()).unwrap_err();
    assert_eq!(stale.raw_os_error(), Some(116), "{stale}");
    within("the new file", || fs::read(far.place.at("m/large")).is_ok_and(|content| content == new));
}

/// The process that takes over reads on in files that are open, and in what they were when they were opened.
#[test]
fn a_mount_survives_the_death_of_its_process() {
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    far.place.run(&["mount", &far.at("/"), "m"]).ok();
    let expected = fs::read(far.server.root().join("large")).unwrap();
    let file = fs::File::open(far.place.at("m/large")).unwrap();
    let mut content = vec![0; expected.len()];
    file.read_exact_at(&mut content[..1000], 0).unwrap();
    kill_server(&far.place, "KILL");
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content == expected);
    assert_eq!(fs::read_to_string(far.place.at("m/d d/deep/two")).unwrap(), "two\n");
}

/// Takes requests for a host that there is not.
fn proxy() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap().take(1 << 20)).lines();
                while let Some(Ok(line)) = lines.next() {
                    while lines.next().is_some_and(|field| field.is_ok_and(|field| !field.is_empty())) {}
                    let known = line.contains(" http://no.such.host.invalid/file ");
                    let (status, text) =
                        if known { ("200 OK", "proxied\n") } else { ("404 Not Found", "none") };
                    let content = if line.starts_with("HEAD") { "" } else { text };
                    let head =
                        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{content}", text.len());
                    stream.write_all(head.as_bytes()).unwrap();
                }
            });
        }
    });
    port
}

#[test]
fn proxies_are_those_of_the_environment() {
    let place = Place::new();
    let proxy = format!("http://127.0.0.1:{}/", proxy());
    let location = "http://no.such.host.invalid/file";
    let proxied = format!("http_proxy={proxy}");
    let program = env!("CARGO_BIN_EXE_outrigger");
    assert_eq!(place.run_as("env", &[&proxied, program, "cat", location]).ok(), "proxied\n");
    let around = "no_proxy=no.such.host.invalid";
    let refused = place.run_as("env", &[&proxied, around, program, "cat", location]).refused(1);
    assert!(refused.contains("no.such.host.invalid"), "{refused}");
}

/// nginx leaves names out of its index that begin with a dot, and has the files.
#[test]
fn names_that_are_not_listed_are_found_all_the_same() {
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    let root = far.server.root().to_owned();
    fs::create_dir_all(root.join("d/.hidden")).unwrap();
    fs::write(root.join("d/.hidden/file"), "content\n").unwrap();
    far.place.run(&["mount", &far.at("/d/"), "m"]).ok();
    let look = "ls -A m; ls -A m; cat m/.hidden/file";
    assert_eq!(far.place.run_as("sh", &["-ec", look]).ok(), "content\n");
    far.place.run_as("sh", &["-c", "cat m/.hidden/none; ls -A m; cat m/.hidden/file"]).ok();
}
