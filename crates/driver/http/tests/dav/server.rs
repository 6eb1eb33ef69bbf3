// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of a WebDAV server, Apache's, that are read and changed.

use crate::support::{client, content, names, read};
use outrigger_client::{Client, File, Inode};
use outrigger_conformance::http::{DAV, DAV_SERVICE};
use outrigger_conformance::{Direct, Target, run};
use outrigger_core::ops::{OpenFlags, RenameFlags};
use outrigger_core::{Errno, Name, Result, SetAttrs, SetTime, Time};
use outrigger_remote::{HttpServer, Httpd};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;

/// A server that runs. The directory goes last.
struct Far {
    server: HttpServer,
    _dir: TempDir,
}

/// Starts a server; `None` where it cannot be, and says so.
fn far() -> Option<Far> {
    let missing =
        Httpd::Dav.missing().or((!rustix::process::geteuid().is_root()).then_some("right to be root"));
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        println!("SKIPPED: there is no {missing}, for Apache with WebDAV");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let server = Httpd::Dav.start(dir.path()).expect("a server");
    Some(Far { server, _dir: dir })
}

impl Far {
    fn client(&self) -> Client {
        self.client_with(&[])
    }

    fn client_with(&self, options: &[(&str, &str)]) -> Client {
        client(&format!("dav://127.0.0.1:{}", self.server.port()), options, None).expect("connected")
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.server.root().join(path)
    }

    /// What the server was asked by `work`.
    fn asked(&self, work: impl FnOnce()) -> Vec<String> {
        let before = self.server.requests().len();
        work();
        self.server.requests().split_off(before)
    }
}

#[test]
fn the_conformance_suite_holds() {
    let Some(far) = far() else { return };
    let direct = Direct::new(Arc::clone(far.client().service()));
    let exceptions = &[DAV, DAV_SERVICE].concat();
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions });
    println!("{report}");
    report.must_hold(50);
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn root(client: &Client) -> Inode {
    client.root().expect("a root")
}

fn create(dir: &Inode, text: &str, flags: OpenFlags) -> File {
    dir.create(&name(text), 0o644, flags | OpenFlags::WRITE_ONLY).expect("created").1
}

fn put(dir: &Inode, text: &str, data: &[u8]) -> Result<()> {
    let file = create(dir, text, OpenFlags::TRUNC);
    file.write_all_at(0, data.to_vec().into())?;
    file.close()
}

/// A file that another client has written, at another time than all before: clocks of file systems count in steps.
fn by_others(path: &Path, data: &[u8]) {
    static SECONDS: AtomicU64 = AtomicU64::new(1_600_000_000);
    fs::write(path, data).expect("written by others");
    let time = UNIX_EPOCH + Duration::from_secs(SECONDS.fetch_add(1, Ordering::Relaxed));
    fs::File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("a time");
    fs::set_permissions(path, PermissionsExt::from_mode(0o666)).expect("for all");
}

fn dir_of_others(path: &Path) {
    fs::create_dir(path).expect("a directory");
    fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("for all");
}

#[test]
fn files_are_written_read_and_changed_in_clear_and_over_tls() {
    let Some(far) = far() else { return };
    let certificate = far.server.certificate().display().to_string();
    let (port, tls_port) = (far.server.port(), far.server.tls_port());
    for (port, options) in [(port, &[][..]), (tls_port, &[("tls", ""), ("ca", &certificate)])] {
        let client = client(&format!("dav://localhost:{port}"), options, None).expect("connected");
        let (root, mut expected) = (root(&client), content(3_000_001));
        put(&root, "f", &expected).expect("written");
        assert!(fs::read(far.at("f")).expect("there") == expected);
        assert!(read(&client, "/f").expect("read") == expected);
        let mut inode = root.lookup(&name("f")).expect("found");
        let file = inode.open(OpenFlags::READ_WRITE).expect("opened");
        file.write_all_at(7, b"seven".to_vec().into()).expect("written");
        file.close().expect("closed");
        let appender = create(&root, "f", OpenFlags::APPEND);
        appender.write_all_at(0, b"end".to_vec().into()).expect("appended");
        appender.close().expect("closed");
        expected[7..12].copy_from_slice(b"seven");
        expected.extend_from_slice(b"end");
        assert!(fs::read(far.at("f")).expect("there") == expected);
        inode.set(SetAttrs { size: Some(1000), ..SetAttrs::default() }).expect("shorter");
        assert!(fs::read(far.at("f")).expect("there") == expected[..1000]);
        put(&root, "f", b"").expect("emptied");
        assert_eq!(
            (read(&client, "/f").expect("read"), names(&client, "/").expect("listed")),
            (vec![], vec!["f".into()])
        );
    }
    let requests = far.server.requests();
    assert!(requests.iter().any(|asked| asked == "PUT /f 204 HTTP/1.1"), "{requests:?}");
}

#[test]
fn a_directory_is_listed_with_sizes_and_times_in_one_request() {
    let Some(far) = far() else { return };
    for text in ["a b", "x%41", "q?w#f&amp;", "'\"<>", "c:d", "s;t=u", "p+q", "b\\s", "\u{fc}", "[b]{c}|^`"] {
        by_others(&far.at(text), text.as_bytes());
    }
    dir_of_others(&far.at("d d"));
    let client = far.client();
    let top = root(&client);
    let asked = far.asked(|| {
        for entry in top.entries().expect("listed") {
            let (name, inode) = entry.expect("an entry");
            let known = fs::metadata(far.server.root().join(name.to_string())).expect("there");
            let size = if inode.is_dir() { 0 } else { known.len() };
            let time = known.modified().expect("a time").duration_since(UNIX_EPOCH).expect("after 1970");
            assert_eq!((inode.attr().size, inode.attr().mtime.secs), (size, time.as_secs() as i64), "{name}");
        }
    });
    // The server may write down late that the root was looked at before.
    assert!(asked.len() <= 2 && asked.iter().all(|asked| asked == "PROPFIND / 207 HTTP/1.1"), "{asked:?}");
    let listed = names(&client, "/").expect("listed");
    for name in listed.iter().filter(|name| !name.ends_with('/')) {
        let plain = name
            .replace("\\'", "'")
            .replace("\\\"", "\"")
            .replace("\\\\", "\\")
            .replace("\\xc3\\xbc", "\u{fc}");
        assert_eq!(read(&client, &format!("/{plain}")).expect("read"), plain.as_bytes());
        top.rename(
            &Name::try_from(&plain[..]).expect("a name"),
            &top,
            &Name::try_from(&format!("{plain}%20")[..]).expect("a name"),
            RenameFlags::empty(),
        )
        .expect("renamed");
        assert_eq!(fs::read(far.at(&format!("{plain}%20"))).expect("there"), plain.as_bytes());
    }
    assert_eq!(listed.len(), 11);
}

#[test]
fn what_others_have_changed_since_it_was_opened_is_never_replaced() {
    let Some(far) = far() else { return };
    let client = far.client();
    let (root, path) = (root(&client), far.at("f"));
    for (flags, at) in [(OpenFlags::empty(), 0), (OpenFlags::APPEND, 0), (OpenFlags::TRUNC, 0)] {
        // Of the same size, so that only time and tag differ.
        put(&root, "f", b"init").expect("written");
        let file = create(&root, "f", flags);
        file.write_all_at(at, b"ours".to_vec().into()).expect("staged");
        by_others(&path, b"them");
        let error = file.close().expect_err("it is not stored");
        assert!(error.errno == Errno::ESTALE && error.to_string().contains("others"), "{flags:?}: {error}");
        assert_eq!(fs::read(&path).expect("there"), b"them", "{flags:?}");
        fs::remove_file(&path).expect("removed");
    }
    let file = create(&root, "f", OpenFlags::TRUNC);
    for _ in 0..2 {
        file.write_all_at(0, b"ours".to_vec().into()).expect("staged");
        file.sync(false).expect("stored");
    }
    by_others(&path, b"them");
    let written = file.write_all_at(0, b"last".to_vec().into());
    assert_eq!(written.and_then(|()| file.sync(false)).expect_err("not stored").errno, Errno::ESTALE);
    assert_eq!(fs::read(&path).expect("there"), b"them");
}

#[test]
fn a_new_file_does_not_replace_one_that_others_have_made_meanwhile() {
    let Some(far) = far() else { return };
    let client = far.client();
    let (root, path) = (root(&client), far.at("lock"));
    for flags in [OpenFlags::EXCL, OpenFlags::TRUNC, OpenFlags::ASYNC_CREATE] {
        let file = create(&root, "lock", flags);
        file.write_all_at(0, b"ours".to_vec().into()).expect("staged");
        by_others(&path, b"others");
        assert_eq!(file.close().expect_err("it is there").errno, Errno::EEXIST, "{flags:?}");
        assert_eq!(fs::read(&path).expect("there"), b"others", "{flags:?}");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn moving_and_removing_destroy_nothing_that_they_should_not() {
    let Some(far) = far() else { return };
    let client = far.client();
    let root = root(&client);
    let move_to = |from: &str, to: &str, flags| {
        root.rename(&name(from), &root, &name(to), flags).map_err(|error| error.errno)
    };
    let (any, new) = (RenameFlags::empty(), RenameFlags::NOREPLACE);
    let full = root.mkdir(&name("full"), 0o755).expect("made");
    put(&full, "f", b"kept").expect("written");
    root.mkdir(&name("empty"), 0o755).expect("made");
    put(&root, "a", b"a").expect("written");
    put(&root, "b", b"b").expect("written");
    assert_eq!(root.rmdir(&name("full")).expect_err("not empty").errno, Errno::ENOTEMPTY);
    assert_eq!(move_to("empty", "full", any), Err(Errno::ENOTEMPTY));
    assert_eq!(move_to("a", "full", any), Err(Errno::EISDIR));
    assert_eq!(move_to("full", "a", any), Err(Errno::ENOTDIR));
    for to in ["b", "full", "empty"] {
        assert_eq!(move_to("a", to, new), Err(Errno::EEXIST), "{to}");
    }
    assert_eq!(root.mkdir(&name("full"), 0o755).expect_err("there").errno, Errno::EEXIST);
    assert_eq!(fs::read(far.at("full/f")).expect("there"), b"kept");
    // Another client puts a directory where a file was.
    fs::remove_file(far.at("b")).expect("removed");
    dir_of_others(&far.at("b"));
    by_others(&far.at("b/f"), b"others");
    assert_eq!(root.unlink(&name("b")).expect_err("a directory").errno, Errno::EISDIR);
    assert_eq!(move_to("a", "b", any), Err(Errno::EISDIR));
    assert_eq!(fs::read(far.at("b/f")).expect("there"), b"others");
    assert_eq!(move_to("full", "empty", any), Ok(()));
    assert_eq!(fs::read(far.at("empty/f")).expect("there"), b"kept");
    put(&root, "c", b"c").expect("written");
    assert_eq!((move_to("c", "a", any), fs::read(far.at("a")).expect("there")), (Ok(()), b"c".to_vec()));
    assert_eq!(move_to("a", "new", new), Ok(()));
    root.unlink(&name("new")).expect("removed");
    let asked = far.asked(|| {
        assert_eq!(root.rmdir(&name("empty")).expect_err("not empty").errno, Errno::ENOTEMPTY);
    });
    assert!(!asked.iter().any(|asked| asked.starts_with("DELETE")), "{asked:?}");
}

#[test]
fn an_open_file_is_read_in_one_version_or_in_that_which_this_client_has_stored() {
    let Some(far) = far() else { return };
    let client = far.client();
    let (root, old) = (root(&client), content(2_000_000));
    put(&root, "f", &old).expect("written");
    let inode = root.lookup(&name("f")).expect("found");
    let reader = inode.open(OpenFlags::empty()).expect("opened");
    assert!(reader.read_at(0, 1000).expect("read") == old[..1000]);
    let ours: Vec<u8> = old.iter().rev().copied().collect();
    put(&root, "f", &ours).expect("written");
    assert!(reader.read_at(1_000_000, 1000).expect("read") == ours[1_000_000..][..1000]);
    reader.close().expect("closed");
    let reader = inode.open(OpenFlags::empty()).expect("opened");
    assert!(reader.read_at(0, 1000).expect("read") == ours[..1000]);
    by_others(&far.at("f"), &old);
    assert_eq!(reader.read_at(1_900_000, 1000).expect_err("another one").errno, Errno::ESTALE);
    // What such a reader writes would be a mixture.
    let both = inode.open(OpenFlags::READ_WRITE).expect("opened");
    assert!(both.read_at(0, 1000).expect("read") == old[..1000]);
    by_others(&far.at("f"), &ours);
    assert_eq!(both.write_all_at(5, b"x".to_vec().into()).expect_err("another one").errno, Errno::ESTALE);
    assert!(fs::read(far.at("f")).expect("there") == ours);
}

#[test]
fn logins_are_asked_for_and_redirects_are_not_followed() {
    let Some(far) = far() else { return };
    by_others(&far.at("f"), b"content");
    let at = |login: &str| {
        client(&format!("dav://{login}127.0.0.1:{}", far.server.port()), &[], None).expect("connected")
    };
    assert_eq!(read(&at("alice:secret@"), "/private/f").expect("read"), b"content");
    for (login, why) in [("", "dav://USER@"), ("alice:wrong@", "alice")] {
        let error = read(&at(login), "/private/f").expect_err("refused");
        let said = error.to_string();
        assert!(error.errno == Errno::EACCES && said.contains(why) && !said.contains("wrong"), "{said}");
    }
    let error = read(&at(""), "/moved/f").expect_err("it leads elsewhere");
    assert!(error.to_string().contains("http://127.0.0.2:"), "{error}");
}

#[test]
fn a_server_that_goes_away_is_an_error_at_close_and_its_file_stays() {
    let Some(mut far) = far() else { return };
    let client = far.client_with(&[("timeout", "1")]);
    let root = root(&client);
    put(&root, "f", b"old").expect("written");
    let file = create(&root, "f", OpenFlags::TRUNC);
    file.write_all_at(0, content(500_000).into()).expect("staged");
    far.server.stop();
    assert_eq!(file.close().expect_err("the server is down").errno, Errno::ECONNREFUSED);
    assert_eq!(fs::read(far.at("f")).expect("there"), b"old");
}

#[test]
fn what_cannot_be_set_is_refused_and_the_present_time_is_passed_over() {
    let Some(far) = far() else { return };
    let client = far.client();
    let root = root(&client);
    put(&root, "f", b"x").expect("written");
    let mut file = root.lookup(&name("f")).expect("found");
    let mut set = |attrs| file.set(attrs).map(drop).map_err(|error| error.errno);
    let time = Some(SetTime::To(Time::new(1_000_000_000, 0)));
    assert_eq!(set(SetAttrs { mode: Some(0o600), ..SetAttrs::default() }), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(SetAttrs { mode: Some(0o644), ..SetAttrs::default() }), Ok(()));
    assert_eq!(set(SetAttrs { mtime: time, ..SetAttrs::default() }), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(SetAttrs { mtime: Some(SetTime::Now), ..SetAttrs::default() }), Ok(()));
}
