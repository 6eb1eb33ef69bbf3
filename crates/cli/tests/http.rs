// SPDX-License-Identifier: MIT OR Apache-2.0
//! HTTP servers of our own, by commands and mounted.

mod support;

use outrigger_remote::programs::{free_port, listens};
use outrigger_remote::{HttpServer, Httpd};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};
use support::{Place, can_mount, has, kill_server, within};

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

/// With `index=trust` the index page of nginx tells all that `ls -l` shows; else each file is asked about.
#[test]
fn a_trusted_index_of_nginx_is_one_request_for_all_files() {
    for (kind, asked) in [(Httpd::Nginx, 0), (Httpd::Dav, 100), (Httpd::Python, 100)] {
        let Some(far) = Far::new(kind) else { continue };
        fs::create_dir(far.server.root().join("many")).unwrap();
        for number in 0..100 {
            fs::write(far.server.root().join(format!("many/f {number:02}")), vec![b'x'; 1000 + number])
                .unwrap();
        }
        let about_files = |from: usize| {
            far.server.requests()[from..].iter().filter(|asked| asked.contains("/many/f")).count()
        };
        // Apache writes its log after it has answered.
        let must_be_asked = |from: usize, count: usize| {
            within("all requests are in the log", || about_files(from) >= count);
            assert_eq!(about_files(from), count, "{kind:?}");
        };
        let expected = |listed: String| {
            let sizes: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().nth(4)).collect();
            assert_eq!(sizes, (1000..1100).map(|size| size.to_string()).collect::<Vec<_>>(), "{kind:?}");
        };
        expected(far.place.run(&["ls", "-l", &far.at("/many/")]).ok());
        must_be_asked(0, 100);
        let before = far.server.requests().len();
        expected(far.place.run(&["ls", "-l", "--opt", "index=trust", &far.at("/many/")]).ok());
        must_be_asked(before, asked);
        let before = far.server.requests().len();
        far.place.run(&["mount", "-o", "index=trust", &far.at("/many/"), "m"]).ok();
        expected(far.place.run_as("ls", &["-l", "m"]).ok().split_once('\n').unwrap().1.to_owned());
        must_be_asked(before, asked);
    }
}

/// What is read is of the file that the server has, whatever its index page says of it, which has rounded the time.
#[test]
fn content_does_not_depend_on_a_trusted_index() {
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    let path = far.server.root().join("f");
    let put = |text: &str, second: u64| {
        fs::write(&path, text).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_600_000_020 + second)).unwrap();
    };
    let mounted = far.place.at("m/f");
    let seconds = || fs::metadata(&mounted).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
    put("one", 7);
    far.place.run(&["mount", "-o", "index=trust", &far.at("/"), "m"]).ok();
    far.place.run_as("ls", &["-l", "m"]).ok();
    assert_eq!(seconds().as_secs(), 1_600_000_020, "as the page has it");
    assert_eq!(fs::read(&mounted).unwrap(), b"one");
    assert_eq!(fs::read(&mounted).unwrap(), b"one");
    // In the same minute, and as long.
    put("two", 8);
    assert_eq!(fs::read(&mounted).unwrap(), b"two");
    assert_eq!(seconds().as_secs(), 1_600_000_028);
    // Once it is known, the page does not hide it.
    far.place.run(&["flush", "m"]).ok();
    far.place.run_as("ls", &["-l", "m"]).ok();
    assert_eq!(seconds().as_secs(), 1_600_000_028);
    put("longer", 9);
    within("the new file", || fs::read(&mounted).is_ok_and(|content| content == b"longer"));
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

/// tinyproxy, which asks for a login.
struct Proxy {
    process: Child,
    port: u16,
}

impl Proxy {
    fn new(place: &Place) -> Self {
        let port = free_port().unwrap();
        let rest = "Listen 127.0.0.1\nListen ::1\nBasicAuth alice secret\nTimeout 60\nMaxClients 20";
        place.file("proxy.conf", format!("Port {port}\n{rest}\n"));
        let log = fs::File::create(place.at("proxy.log")).unwrap();
        let mut command = Command::new("tinyproxy");
        command.arg("-d").arg("-c").arg(place.at("proxy.conf")).stdout(log).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        listens(&mut process, port, &place.at("proxy.log")).unwrap();
        Proxy { process, port }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn proxies_are_those_of_the_environment() {
    if !has("tinyproxy") {
        return;
    }
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    let (proxy, certificate) = (Proxy::new(&far.place), far.server.certificate());
    let ca = format!("ca={}", certificate.display());
    let (clear, secret) =
        (far.at("/d%20d/deep/two"), format!("https://localhost:{}/d%20d/deep/two", far.server.tls_port()));
    let cat = |settings: &[&str], location: &str| {
        let program = [env!("CARGO_BIN_EXE_outrigger"), "cat"];
        let options = if location == secret { &["--opt", &ca][..] } else { &[] };
        far.place.run_as("env", &[settings, &program, options, &[location]].concat())
    };
    for host in ["127.0.0.1", "[::1]"] {
        for (scheme, location) in [("http", &clear), ("https", &secret)] {
            let with = |login: &str| format!("{scheme}_proxy=http://{login}{host}:{}", proxy.port);
            assert_eq!(cat(&[&with("alice:secret@")], location).ok(), "two\n");
            let refused = cat(&[&with("")], location).refused(1);
            assert!(refused.contains("its login stands in its URL"), "{refused}");
            assert_eq!(cat(&[&with(""), "no_proxy=127.0.0.1,localhost"], location).ok(), "two\n");
        }
    }
    let log = fs::read_to_string(far.place.at("proxy.log")).unwrap();
    assert!(log.contains("CONNECT localhost:") && log.contains("GET http://127.0.0.1:"), "{log}");
    let gone = cat(&["http_proxy=http://127.0.0.1:1"], &clear).refused(1);
    assert!(gone.contains("http_proxy is set"), "{gone}");
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

/// What `outrigger status` says of metadata on disk.
fn recalled(place: &Place) -> u64 {
    let status: serde_json::Value =
        serde_json::from_str(&place.run(&["status", "m", "--json"]).ok()).unwrap();
    status["disk_metadata"]["recalled"].as_u64().unwrap()
}

#[test]
fn what_was_listed_once_is_known_without_the_server() {
    let Some(far) = Far::new(Httpd::Nginx) else { return };
    let run = |args: &[&str]| far.place.run(args);
    let options = "disk_metadata=64m,cache=always";
    let list = ["ls", "-lR", "--opt", options, &far.at("/")];
    let first = run(&list).ok();
    let asked = far.server.requests().len();
    assert_eq!((run(&list).ok(), far.server.requests().len()), (first, asked), "a command asks for nothing");
    let mount = ["mount", "-o", options, &far.at("/d%20d/"), "m"];
    run(&mount).ok();
    let first = far.place.run_as("ls", &["-lR", "m"]).ok();
    run(&["umount", "m"]).ok();
    let asked = far.server.requests().len();
    run(&mount).ok();
    assert_eq!((far.place.run_as("ls", &["-lR", "m"]).ok(), far.server.requests().len()), (first, asked));
    assert_eq!(recalled(&far.place), 3);
    assert!(run(&["status", "m"]).ok().contains("3 names known from there"));
    run(&["flush", "m"]).ok();
    far.place.run_as("ls", &["-lR", "m"]).ok();
    assert!(far.server.requests().len() > asked, "nothing is known after a flush");
    run(&["umount", "m"]).ok();
    let refused = run(&["mount", "-o", "disk_metadata=much", &far.at("/"), "m"]).refused(1);
    assert!(refused.contains("disk_metadata"), "{refused}");
}

#[test]
fn a_tree_that_was_read_once_is_read_while_the_server_is_gone() {
    let Some(Far { place, server }) = Far::new(Httpd::Nginx) else { return };
    // What was changed a moment ago is not kept on disk.
    for name in ["d d/one?", "d d/deep/two", "large"] {
        let file = fs::File::options().write(true).open(server.root().join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    }
    let location = format!("http://127.0.0.1:{}/", server.port());
    let mount = ["mount", "-o", "disk_metadata=64m,disk_cache=64m,cache=always", &location, "m"];
    place.run(&mount).ok();
    let first = place.run_as("sh", &["-ec", "ls -lR m; cat 'm/d d/one?' m/large | cksum"]).ok();
    place.run(&["umount", "m"]).ok();
    drop(server);
    place.run(&mount).ok();
    assert_eq!(place.run_as("sh", &["-ec", "ls -lR m; cat 'm/d d/one?' m/large | cksum"]).ok(), first);
    place.run(&["umount", "m"]).ok();
    fs::remove_dir_all(place.at("cache")).unwrap();
    place.run(&mount).refused(1);
}
