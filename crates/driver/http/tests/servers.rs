// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of real servers.

mod support;

use outrigger_client::Client;
use outrigger_conformance::http::HTTP;
use outrigger_conformance::{Direct, Target, run, sample};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, HeapKeep, Name};
use outrigger_remote::{HttpServer, Httpd};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use support::{client, content, names, read, walk};
use tempfile::TempDir;

/// A server that runs. The directory goes last.
struct Far {
    server: HttpServer,
    _dir: TempDir,
}

/// Starts a server; `None` where it cannot be, and says so.
fn far(kind: Httpd) -> Option<Far> {
    let missing = kind.missing().or((!rustix::process::geteuid().is_root()).then_some("right to be root"));
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        println!("SKIPPED: there is no {missing}, for {kind:?}");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let server = kind.start(dir.path()).expect("a server");
    Some(Far { server, _dir: dir })
}

impl Far {
    /// Its tree, without options.
    fn client(&self) -> Client {
        client(&format!("127.0.0.1:{}", self.server.port()), &[], None).expect("connected")
    }
}

const ALL: [Httpd; 3] = [Httpd::Nginx, Httpd::Apache, Httpd::Python];
const LARGE: usize = 3_000_001;

/// Names that need escaping in a URL, in HTML or in both.
const ODD: &[&[u8]] = &[
    b"a b",
    b"x%41",
    b"q?w#f&amp;",
    b"'\"<>",
    b"c:d",
    b"s;t=u",
    b"p+q",
    b"b\\s",
    "\u{fc}".as_bytes(),
    b"~t",
    b"[b]{c}|^`",
];

fn fill(far: &Far) {
    let root = far.server.root();
    fs::create_dir_all(root.join("d d/deep")).expect("directories");
    fs::write(root.join("d d/deep/f"), "deep\n").expect("a file");
    fs::write(root.join("empty"), "").expect("a file");
    fs::write(root.join("large"), content(LARGE)).expect("a file");
    for name in ODD {
        fs::write(root.join("d d").join(std::ffi::OsStr::from_bytes(name)), name).expect("a file");
    }
}

#[test]
fn trees_are_listed_and_read_and_nothing_can_be_changed() {
    for kind in ALL {
        let Some(far) = far(kind) else { continue };
        fill(&far);
        let client = far.client();
        assert_eq!(names(&client, "/").expect("listed"), ["d d/", "empty", "large"], "{kind:?}");
        let mut expected: Vec<_> = ODD.iter().map(|name| name.escape_ascii().to_string()).collect();
        expected.push("deep/".to_owned());
        expected.sort();
        assert_eq!(names(&client, "/d d").expect("listed"), expected, "{kind:?}");
        let dir = walk(&client, "/d d").expect("a directory");
        for name in ODD {
            let file = dir.lookup(&Name::new(name.to_vec()).expect("a name")).expect("a file");
            assert_eq!(file.attr().size, name.len() as u64);
            let file = file.open(OpenFlags::empty()).expect("opened");
            assert_eq!(file.read_at(0, 100).expect("read"), name);
        }
        assert_eq!(read(&client, "/empty").expect("read"), b"");
        assert!(read(&client, "/large").expect("read") == content(LARGE), "{kind:?}");
        assert_eq!(read(&client, "/d d/deep/f").expect("read"), b"deep\n");
        for missing in ["/nothing", "/nothing/below", "/d d/nothing"] {
            assert_eq!(walk(&client, missing).unwrap_err().errno, Errno::ENOENT, "{kind:?} {missing}");
        }
        assert_eq!(walk(&client, "/empty/x").unwrap_err().errno, Errno::ENOTDIR, "{kind:?}");
        let large = walk(&client, "/large").expect("a file");
        assert_eq!(large.open(OpenFlags::WRITE_ONLY).err().map(|error| error.errno), Some(Errno::EROFS));
        assert_eq!(dir.unlink(&Name::try_from("c:d").expect("a name")).unwrap_err().errno, Errno::EROFS);
    }
}

/// The places of a file that a program reads which jumps about in it.
#[test]
fn files_are_read_anywhere_with_and_without_ranges() {
    for (kind, path) in [
        (Httpd::Nginx, "/large"),
        (Httpd::Nginx, "/whole/large"),
        (Httpd::Apache, "/large"),
        (Httpd::Python, "/large"),
    ] {
        let Some(far) = far(kind) else { continue };
        fill(&far);
        let (client, expected) = (far.client(), content(LARGE));
        let file = walk(&client, path).expect("a file").open(OpenFlags::empty()).expect("opened");
        for offset in [LARGE - 10, 5, 2_500_000, 1_000_000, 0, 1_100_000, LARGE - 1, LARGE, LARGE + 5] {
            let there = &expected[offset.min(LARGE)..(offset + 70_000).min(LARGE)];
            let read = file.read_at(offset as u64, 70_000);
            let read = read.unwrap_or_else(|error| panic!("{kind:?} {path} {offset}: {error}"));
            assert!(read == there, "{kind:?} {path} {offset}");
        }
    }
}

#[test]
fn looking_asks_for_no_content_and_an_index_in_json_for_no_single_file() {
    let Some(far) = far(Httpd::Nginx) else { return };
    fill(&far);
    let time = UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    let file = fs::File::options().write(true).open(far.server.root().join("large")).expect("a file");
    file.set_modified(time).expect("a time");
    let client = far.client();
    let before = far.server.requests().len();
    let large = walk(&client, "/large").expect("a file");
    assert_eq!((large.attr().size, large.attr().mtime.secs), (LARGE as u64, 1_600_000_000));
    assert_eq!(far.server.requests()[before..], ["HEAD /large 200 HTTP/1.1"]);
    let json = walk(&client, "/json").expect("a directory");
    let before = far.server.requests().len();
    let listed: Vec<_> = json.entries().expect("listed").map(|entry| entry.expect("an entry")).collect();
    let (_, large) = listed.iter().find(|(name, _)| name.as_bytes() == b"large").expect("it");
    assert_eq!((listed.len(), large.attr().size, large.attr().mtime.secs), (3, LARGE as u64, 1_600_000_000));
    assert_eq!(far.server.requests()[before..], ["GET /json/ 200 HTTP/1.1"]);
    // One request for a file whose directories are never looked at.
    let before = far.server.requests().len();
    walk(&client, "/d d/deep/f").expect("a file");
    assert_eq!(far.server.requests()[before..], ["HEAD /d%20d/deep/f 200 HTTP/1.1"]);
}

#[test]
fn logins_are_asked_for_and_refusals_say_why() {
    let Some(far) = far(Httpd::Nginx) else { return };
    fill(&far);
    let at = |login: &str| {
        client(&format!("{login}127.0.0.1:{}", far.server.port()), &[], None).expect("connected")
    };
    assert_eq!(read(&at("alice:secret@"), "/private/d d/deep/f").expect("read"), b"deep\n");
    for (login, path, why) in [
        ("", "/private/empty", "401"),
        ("alice:wrong@", "/private/empty", "alice"),
        ("", "/forbidden/x", "403"),
    ] {
        let error = read(&at(login), path).unwrap_err();
        assert_eq!(error.errno, Errno::EACCES, "{login} {path}");
        let said = error.to_string();
        assert!(said.contains(why) && !said.contains("wrong"), "{said}");
    }
}

#[test]
fn tls_is_checked_and_speaks_http_2() {
    let Some(far) = far(Httpd::Nginx) else { return };
    fill(&far);
    let place = format!("localhost:{}", far.server.tls_port());
    let refused = client(&place, &[("tls", "")], None).err().expect("not trusted");
    assert_eq!(refused.errno, Errno::EACCES, "{refused}");
    assert!(refused.to_string().contains("ca=FILE"), "{refused}");
    let certificate = far.server.certificate().display().to_string();
    let client = client(&place, &[("tls", ""), ("ca", &certificate)], None).expect("connected");
    assert!(read(&client, "/large").expect("read") == content(LARGE));
    let requests = far.server.requests();
    assert!(requests.iter().any(|asked| asked == "GET /large 206 HTTP/2.0"), "{requests:?}");
    let down = walk(&client, "/down/x").unwrap_err();
    assert!(down.errno == Errno::EACCES && down.to_string().contains("without TLS"), "{down}");
    assert!(!far.server.requests().iter().any(|asked| asked.contains("/empty")));
}

#[test]
fn redirects_are_followed() {
    let Some(far) = far(Httpd::Nginx) else { return };
    fill(&far);
    let client = far.client();
    assert!(read(&client, "/moved/large").expect("read") == content(LARGE));
    assert_eq!(names(&client, "/moved/d d/deep").expect("listed"), ["f"]);
}

/// Puts another file of the same size and time in place of one.
fn replace(far: &Far, name: &str, content: &[u8]) {
    let (path, aside) = (far.server.root().join(name), far.server.root().join("aside"));
    fs::write(&aside, content).expect("a file");
    let second = SystemTime::now() + Duration::from_secs(5);
    fs::File::options().write(true).open(&aside).and_then(|file| file.set_modified(second)).expect("a time");
    fs::rename(aside, path).expect("renamed");
}

/// Parts of two versions must never be taken for one file; also not by the process that takes over.
#[test]
fn a_file_that_changes_while_it_is_read_is_stale_until_it_is_opened_again() {
    for (kind, path) in [
        (Httpd::Nginx, "/large"),
        (Httpd::Nginx, "/whole/large"),
        (Httpd::Apache, "/large"),
        (Httpd::Python, "/large"),
    ] {
        let Some(far) = far(kind) else { continue };
        fill(&far);
        let (keep, mut other) = (Arc::new(HeapKeep::default()), content(LARGE));
        other.reverse();
        let place = format!("127.0.0.1:{}", far.server.port());
        let client = client(&place, &[], Some(keep)).expect("connected");
        let inode = walk(&client, path).expect("a file");
        let file = inode.open(OpenFlags::empty()).expect("opened");
        assert!(file.read_at(0, 1000).expect("read") == content(LARGE)[..1000]);
        replace(&far, "large", &other);
        let error = file.read_at(2_900_000, 1000).unwrap_err();
        assert_eq!(error.errno, Errno::ESTALE, "{kind:?} {path}: {error}");
        let again = inode.open(OpenFlags::empty()).expect("opened");
        for offset in [2_900_000, 0] {
            assert!(
                again.read_at(offset, 1000).expect("read") == other[offset as usize..][..1000],
                "{kind:?} {path}"
            );
            assert_eq!(file.read_at(offset, 1000).unwrap_err().errno, Errno::ESTALE, "{kind:?} {path}");
        }
    }
}

#[test]
fn a_server_that_was_gone_is_read_on_when_it_is_there_again() {
    let Some(mut far) = far(Httpd::Nginx) else { return };
    fill(&far);
    let client = far.client();
    let file = walk(&client, "/large").expect("a file").open(OpenFlags::empty()).expect("opened");
    assert!(file.read_at(0, 1000).expect("read") == content(LARGE)[..1000]);
    far.server.stop();
    let reading = std::thread::spawn(move || file.read_at(2_000_000, 1000).expect("read"));
    far.server.start().expect("a server");
    assert!(reading.join().expect("read") == content(LARGE)[2_000_000..][..1000]);
}

#[test]
fn the_conformance_suite_holds() {
    // Apache leaves a link out that leads nowhere, and its user cannot read all of the sample.
    for kind in [Httpd::Nginx, Httpd::Python] {
        let Some(far) = far(kind) else { continue };
        sample::build(&far.server.root()).expect("the sample");
        let direct = Direct::new(Arc::clone(far.client().service()));
        let report =
            run(&direct, &Target { abilities: direct.abilities(), has_sample: true, exceptions: HTTP });
        println!("{kind:?}: {report}");
        report.must_hold(15);
    }
}
