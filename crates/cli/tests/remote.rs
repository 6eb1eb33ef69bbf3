// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories of another host, which is an SSH server of our own on this one.

mod support;

use outrigger_remote::programs::find;
use outrigger_remote::{HOST, NEEDS, Sshd};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use support::{Place, can_mount, within};

/// A piece of a large file, in bytes, and how many there are.
const PIECE: usize = 256 << 10;
const PIECES: usize = 64;

/// A host, and a place beside it.
struct Far {
    place: Place,
    sshd: Sshd,
}

impl Far {
    /// `None` where no host can be made; says so.
    fn new() -> Option<Self> {
        let missing: Vec<&&str> = NEEDS.iter().filter(|name| find(name).is_none()).collect();
        if !missing.is_empty() {
            assert!(std::env::var_os("CI").is_none(), "{missing:?} must be here");
            eprintln!("SKIPPED: these programs are missing: {missing:?}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        let dir = place.at("sshd");
        fs::create_dir(&dir).unwrap();
        fs::create_dir(place.at("far")).unwrap();
        let sshd = Sshd::start(dir).unwrap();
        Some(Far { place, sshd })
    }

    /// A LOCATION below the directory `far` of the host.
    fn location(&self, path: &str) -> String {
        format!("{HOST}:{}{path}", self.place.at("far").display())
    }

    /// The option that tells ssh of the host.
    fn option(&self) -> String {
        format!("F={}", self.sshd.configuration().display())
    }

    /// Mounts `far` on `m`.
    fn mount(&self, more: &[&str]) {
        let (location, option) = (self.location(""), self.option());
        self.place.run(&[&["mount", &location, "m", "-o", &option], more].concat()).ok();
    }
}

/// Content of a large file in which no piece is like another one.
fn large() -> Vec<u8> {
    (0..PIECES * PIECE / 8).flat_map(|number| (number as u64).to_be_bytes()).collect()
}

#[test]
fn commands_take_places_on_a_host() {
    let Some(far) = Far::new() else { return };
    let (place, option) = (&far.place, far.option());
    place.file("far/d/one", "1\n");
    place.file("far/d/two", "22\n");
    place.file("far/sp ace", large());
    let run = |args: &[&str]| place.run(&[args, &["--opt", &option]].concat());
    assert_eq!(run(&["ls", &far.location("/d")]).ok(), "one\ntwo\n");
    assert_eq!(run(&["cat", &far.location("/d/two")]).ok(), "22\n");
    run(&["cp", "-r", &far.location("/d"), &far.location("/copy")]).ok();
    assert_eq!(fs::read_to_string(place.at("far/copy/two")).unwrap(), "22\n");
    run(&["cp", &far.location("/sp ace"), &far.location("/large")]).ok();
    assert!(fs::read(place.at("far/large")).unwrap() == large());
    let url = format!("sftp://{HOST}{}/d/one", place.at("far").display());
    assert_eq!(run(&["cat", &url]).ok(), "1\n");
    let missing = run(&["cat", &far.location("/nothing")]).refused(1);
    assert!(missing.contains("No such file"), "{missing}");
}

#[test]
fn a_directory_of_a_host_is_mounted_and_works() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    place.file("far/d/file", "far\n");
    far.mount(&[]);
    let at = |name: &str| place.at("m").join(name);
    assert_eq!(fs::read_to_string(at("d/file")).unwrap(), "far\n");
    fs::create_dir(at("new")).unwrap();
    let mut file = File::create(at("new/content")).unwrap();
    file.write_all(&large()).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(place.at("far/new/content")).unwrap() == large());
    drop(file);
    fs::rename(at("new/content"), at("d/moved")).unwrap();
    fs::remove_dir(at("new")).unwrap();
    fs::remove_file(at("d/file")).unwrap();
    let names = |dir| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(place.at("far/d")), ["moved"]);
    assert_eq!(names(at("d")), ["moved"]);
    assert_eq!(fs::read_dir(at("new")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    place.run(&["umount", "m"]).ok();
    within("the sessions of the host end", || far.sshd.sessions().is_empty());
}

#[test]
fn a_transfer_goes_on_when_the_connection_is_killed() {
    let Some(far) = Far::new() else { return };
    let content = large();
    far.place.file("far/large", &content);
    far.mount(&[]);
    let (mut piece, source) = (vec![0; PIECE], File::open(far.place.at("m/large")).unwrap());
    let target = File::create(far.place.at("m/copy")).unwrap();
    for number in 0..PIECES {
        if number % 16 == 8 {
            far.sshd.signal_sessions(Signal::KILL);
        }
        let offset = (number * PIECE) as u64;
        source.read_exact_at(&mut piece, offset).unwrap();
        target.write_all_at(&piece, offset).unwrap();
    }
    target.sync_all().unwrap();
    drop(target);
    assert!(fs::read(far.place.at("far/copy")).unwrap() == content);
}

#[test]
fn a_host_that_cannot_be_reached_is_an_error_that_says_why() {
    let Some(mut far) = Far::new() else { return };
    let (place, option) = (&far.place, far.option());
    far.sshd.stop();
    let location = far.location("");
    for command in [&["ls", &location, "--opt", &option][..], &["mount", &location, "m", "-o", &option]] {
        let refused = place.run(command).refused(2);
        assert!(refused.contains("Connection refused"), "{refused}");
    }
    // It takes calls, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("sftp://127.0.0.1:{}/", silent.local_addr().unwrap().port());
    let refused = place.run(&["ls", &url, "--opt", "F=/dev/null,connect_timeout=1"]).refused(2);
    assert!(refused.contains("timed out") || refused.contains("no connection within 1 s"), "{refused}");
}

#[test]
fn a_frozen_host_costs_the_deadline_and_is_called_again() {
    let Some(far) = Far::new() else { return };
    far.place.file("far/file", "far\n");
    far.mount(&["--timeout", "2", "-o", "connect_timeout=60"]);
    far.sshd.signal_sessions(Signal::STOP);
    let mut text = String::new();
    let frozen = File::open(far.place.at("m/file")).and_then(|mut file| file.read_to_string(&mut text));
    assert_eq!(frozen.unwrap_err().raw_os_error(), Some(Errno::TIMEDOUT.raw_os_error()));
    within("the host is called again", || fs::read_to_string(far.place.at("m/file")).is_ok());
    assert_eq!(fs::read_to_string(far.place.at("m/file")).unwrap(), "far\n");
}

/// What is under a directory, with sizes and times.
fn listed(dir: &Path) -> String {
    let mut list = Command::new("ls");
    let output = list.args(["-lR", "--time-style=full-iso"]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_known_needs_no_host_until_it_is_flushed() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    for dir in 0..20 {
        for file in 0..20 {
            place.file(&format!("far/d{dir}/file{file}"), format!("{dir} {file}\n"));
        }
    }
    far.mount(&["-o", "cache=always"]);
    let first = listed(&place.at("m"));
    assert_eq!(fs::read_to_string(place.at("m/d3/file4")).unwrap(), "3 4\n");
    far.sshd.signal_sessions(Signal::STOP);
    assert!(listed(&place.at("m")) == first);
    assert_eq!(fs::read_to_string(place.at("m/d3/file4")).unwrap(), "3 4\n");
    let missing = fs::read(place.at("m/d3/missing")).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    far.sshd.signal_sessions(Signal::CONT);
    place.file("far/d3/file4", "changed behind our back\n");
    place.file("far/d3/missing", "");
    assert!(listed(&place.at("m")) == first);
    place.run(&["flush", "m"]).ok();
    assert!(listed(&place.at("m/d3")).contains("missing"));
    assert_eq!(fs::read_to_string(place.at("m/d3/file4")).unwrap(), "changed behind our back\n");
}

#[test]
fn nothing_that_was_written_is_lost_by_unmounting() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&["-o", "write=behind"]);
    let mut file = File::create(place.at("m/file")).unwrap();
    far.sshd.signal_sessions(Signal::STOP);
    file.write_all(&large()).unwrap();
    drop(file);
    far.sshd.signal_sessions(Signal::CONT);
    place.run(&["umount", "m"]).ok();
    assert!(fs::read(place.at("far/file")).unwrap() == large());
}

#[test]
fn files_are_complete_when_they_are_closed_and_after_a_flush_that_waits() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&["-o", "write:/behind=behind"]);
    fs::create_dir(place.at("m/behind")).unwrap();
    fs::write(place.at("m/file"), large()).unwrap();
    assert!(fs::read(place.at("far/file")).unwrap() == large());
    fs::write(place.at("m/behind/file"), large()).unwrap();
    place.run(&["flush", "--wait", "m"]).ok();
    assert!(fs::read(place.at("far/behind/file")).unwrap() == large());
}

#[test]
fn programs_run_from_a_mount_that_believes_nothing() {
    let Some(far) = Far::new() else { return };
    fs::copy("/bin/true", far.place.at("far/true")).unwrap();
    far.mount(&["-o", "cache=never"]);
    assert!(Command::new(far.place.at("m/true")).status().unwrap().success());
}
