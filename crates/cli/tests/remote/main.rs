// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories of another host, which is an SSH server of our own on this one.

mod counts;
mod links;
mod messages;
mod owners;
mod programs;
mod removed;
mod second_writer;
#[path = "../support/mod.rs"]
mod support;

use outrigger_remote::{HOST, Line, Sshd};
use rustix::io::Errno;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use support::{Place, can_mount, signal, within};

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
        if let Some(missing) = Sshd::missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new().trusting();
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
        self.mount_on("m", &self.option(), more);
    }

    fn mount_on(&self, dir: &str, option: &str, more: &[&str]) {
        self.place.run(&[&["mount", &self.location(""), dir, "-o", option], more].concat()).ok();
    }

    /// A line on which everything takes a while, and the option that makes ssh use it.
    fn line(&self) -> (Line, String) {
        let line = Line::new(self.sshd.port(), Duration::from_millis(2)).unwrap();
        let option = format!("F={}", self.sshd.configuration_by(line.port()).unwrap().display());
        (line, option)
    }

    /// Runs a program in the mount; what it printed.
    fn run_there(&self, dir: &str, program: &str, args: &[&str]) -> String {
        let output = self
            .place
            .command(program, args)
            .current_dir(self.place.at("m").join(dir))
            .env("HOME", self.place.at(""))
            .output()
            .expect(program);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {args:?}: {out}{err}");
        out.into_owned()
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
fn a_layer_of_a_command_stands_on_a_directory_of_a_host_or_on_an_archive_there() {
    let Some(far) = Far::new() else { return };
    let (place, option) = (&far.place, far.option());
    place.file("far/d/one", "1\n");
    place.run_as("tar", &["cf", "far/a.tar", "-C", "far", "d"]).ok();
    let run = |args: &[&str]| place.run(&[args, &["--opt", &option]].concat());
    for layer in [&["--layer", "readonly"][..], &[]] {
        assert_eq!(run(&[&["ls", &far.location("/d::/")], layer].concat()).ok(), "one\n");
        assert_eq!(run(&[&["cat", &far.location("/d::/one")], layer].concat()).ok(), "1\n");
        assert_eq!(run(&[&["cat", &far.location("/a.tar::/d/one")], layer].concat()).ok(), "1\n");
        assert!(run(&[&["ls", &far.location("/none::/")], layer].concat()).refused(2).contains("/none"));
    }
    let new = far.location("/d::/new");
    assert!(run(&["touch", &new, "--layer", "readonly"]).refused(1).contains("Read-only"));
    run(&["touch", &new]).ok();
    assert!(place.at("far/d/new").exists());
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
fn writes_that_are_on_their_way_when_the_connection_is_killed_are_done_once_and_in_order() {
    const SLOTS: usize = 4;
    const LEN: usize = 256 << 10;
    let Some(far) = Far::new() else { return };
    far.mount(&["-o", "write=through"]);
    let file = File::create(far.place.at("m/file")).unwrap();
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let piece = |number: usize| vec![number as u8; LEN];
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let number = done.load(Ordering::Acquire);
                let offset = number % SLOTS * LEN;
                file.write_all_at(&piece(number), offset as u64).expect("it is done again");
                done.store(number + 1, Ordering::Release);
            }
        });
        for _ in 0..5 {
            let before = done.load(Ordering::Acquire);
            within("writing goes on", || done.load(Ordering::Acquire) > before + 1);
            far.sshd.signal_sessions(Signal::KILL);
        }
        over.store(true, Ordering::Release);
    });
    file.sync_all().unwrap();
    let (done, content) = (done.into_inner(), fs::read(far.place.at("far/file")).unwrap());
    for number in done - SLOTS..done {
        let offset = number % SLOTS * LEN;
        assert!(content[offset..offset + LEN] == piece(number), "the last content of each place");
    }
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
    // All of it fits into the writes that may wait.
    let content = &large()[..8 << 20];
    let mut file = File::create(place.at("m/file")).unwrap();
    far.sshd.signal_sessions(Signal::STOP);
    file.write_all(content).unwrap();
    drop(file);
    far.sshd.signal_sessions(Signal::CONT);
    place.run(&["umount", "m"]).ok();
    assert!(fs::read(place.at("far/file")).unwrap() == content);
}

/// A file whose creation and writes were answered exists, also when the server of the mount dies before it has sent them to the
/// host.
#[test]
fn new_files_survive_the_server_that_answered_them() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&["-o", "write=behind"]);
    fs::create_dir(place.at("m/d")).unwrap();
    fs::write(place.at("m/d/first"), "").unwrap();
    far.sshd.signal_sessions(Signal::STOP);
    for number in 0..50 {
        fs::write(place.at(&format!("m/d/{number}")), number.to_string()).unwrap();
        File::create(place.at(&format!("m/d/empty{number}"))).unwrap();
    }
    let before = place.server();
    signal(before, "KILL");
    within("another server", || {
        let said = place.run(&["status", "--json", "m"]);
        let status = serde_json::from_str::<serde_json::Value>(&said.out);
        status.is_ok_and(|status| status["pid"].as_u64().is_some_and(|pid| pid != u64::from(before)))
    });
    far.sshd.signal_sessions(Signal::CONT);
    place.run(&["flush", "--wait", "m"]).ok();
    for number in 0..50 {
        let written = fs::read_to_string(place.at(&format!("far/d/{number}"))).unwrap();
        assert_eq!(written, number.to_string());
        assert_eq!(fs::read(place.at(&format!("far/d/empty{number}"))).unwrap(), b"");
    }
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
fn two_mounts_see_what_the_other_one_did() {
    let Some(far) = Far::new() else { return };
    far.place.file("far/file", "one\n");
    fs::create_dir(far.place.at("m2")).unwrap();
    far.mount(&["-o", "cache=1"]);
    far.mount_on("m2", &far.option(), &["-o", "cache=1"]);
    let (here, there) = (far.place.at("m"), far.place.at("m2"));
    assert_eq!(fs::read_to_string(there.join("file")).unwrap(), "one\n");
    fs::write(here.join("file"), "two, and longer\n").unwrap();
    within("new content is seen", || {
        fs::read_to_string(there.join("file")).is_ok_and(|text| text == "two, and longer\n")
    });
    fs::create_dir(here.join("dir")).unwrap();
    within("a new name is seen", || there.join("dir").is_dir());
    fs::rename(here.join("file"), here.join("dir/moved")).unwrap();
    within("a name that is gone is not seen", || !there.join("file").exists());
    assert_eq!(fs::read_to_string(there.join("dir/moved")).unwrap(), "two, and longer\n");
    fs::remove_dir_all(here.join("dir")).unwrap();
    within("nothing is seen", || fs::read_dir(&there).unwrap().count() == 0);
}

#[test]
fn names_of_any_bytes_and_many_of_them_come_as_they_are() {
    let Some(far) = Far::new() else { return };
    const MANY: usize = 20_000;
    let (dir, odd) = (far.place.at("far/dir"), OsStr::from_bytes(b"\xff\xfe \n\x1b[31m"));
    fs::create_dir(&dir).unwrap();
    for number in 0..MANY {
        File::create(dir.join(format!("file-{number:06}"))).unwrap();
    }
    fs::write(dir.join(odd), "odd").unwrap();
    far.mount(&[]);
    let listed: Vec<_> =
        fs::read_dir(far.place.at("m/dir")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed.len(), MANY + 1);
    assert!(listed.iter().any(|name| name == odd));
    assert_eq!(fs::read_to_string(far.place.at("m/dir").join(odd)).unwrap(), "odd");
    fs::rename(far.place.at("m/dir").join(odd), far.place.at("m/even")).unwrap();
    assert_eq!(fs::read_to_string(far.place.at("far/even")).unwrap(), "odd");
}

#[test]
fn a_full_disk_at_the_host_is_told_and_what_was_written_before_stays() {
    let Some(far) = Far::new() else { return };
    let full = far.place.at("far/full");
    fs::create_dir(&full).unwrap();
    rustix::mount::mount("tmpfs", &full, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=1m"))
        .unwrap();
    far.mount(&["-o", "write=through"]);
    let mut file = File::create(far.place.at("m/full/file")).unwrap();
    let piece = vec![b'x'; 300 << 10];
    file.write_all(&piece).unwrap();
    let error = (0..4).find_map(|_| file.write_all(&piece).err()).expect("it is full");
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    drop(file);
    assert!(fs::read(full.join("file")).unwrap().starts_with(&piece));
    fs::remove_file(far.place.at("m/full/file")).unwrap();
    fs::write(far.place.at("m/full/again"), &piece).unwrap();
    far.place.run(&["umount", "m"]).ok();
    far.place.unmount(full.to_str().unwrap());
}

/// The error of something that a host forbids.
fn forbidden<T>(what: &str, result: std::io::Result<T>) -> Errno {
    let error = result.err().unwrap_or_else(|| panic!("{what} was allowed"));
    Errno::from_io_error(&error).unwrap_or_else(|| panic!("{what}: {error}"))
}

#[test]
fn only_programs_at_a_host_may_be_executed() {
    let Some(far) = Far::new() else { return };
    far.mount(&[]);
    support::only_programs_may_be_executed(&far.place.at("m"));
    far.place.run(&["umount", "m"]).ok();
}

#[test]
fn what_a_host_forbids_is_refused_here_and_leaves_nothing() {
    const NOBODY: u32 = 65534;
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    // The server looks for the key as the user it lets in.
    for dir in ["", "sshd"] {
        fs::set_permissions(place.at(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    place.file("far/public", "public\n");
    place.file("far/secret", "secret\n");
    place.file("far/closed/file", "closed\n");
    place.file("far/own/file", "own\n");
    for (name, mode) in [("public", 0o644), ("secret", 0o600), ("closed", 0o700)] {
        fs::set_permissions(place.at("far").join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for name in ["own", "own/file"] {
        std::os::unix::fs::chown(place.at("far").join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    place.run(&["mount", &format!("nobody@{}", far.location("")), "m", "-o", &far.option()]).ok();
    let at = |name: &str| place.at("m").join(name);

    assert_eq!(fs::read_to_string(at("public")).unwrap(), "public\n");
    assert_eq!(forbidden("reading", fs::read(at("secret"))), Errno::ACCESS);
    assert_eq!(forbidden("listing", fs::read_dir(at("closed")).map(|mut list| list.next())), Errno::ACCESS);
    assert_eq!(forbidden("looking behind it", fs::metadata(at("closed/file"))), Errno::ACCESS);
    assert_eq!(forbidden("writing", File::options().append(true).open(at("public"))), Errno::ACCESS);
    assert_eq!(forbidden("cutting", File::create(at("public"))), Errno::ACCESS);
    assert_eq!(forbidden("making", File::create_new(at("new"))), Errno::ACCESS);
    assert_eq!(forbidden("making a directory", fs::create_dir(at("new"))), Errno::ACCESS);
    assert_eq!(forbidden("removing", fs::remove_file(at("public"))), Errno::ACCESS);
    assert_eq!(forbidden("renaming", fs::rename(at("public"), at("own/mine"))), Errno::ACCESS);
    assert_eq!(
        forbidden("giving away", std::os::unix::fs::chown(at("own/file"), Some(0), None)),
        Errno::PERM
    );

    fs::write(at("own/file"), "changed\n").unwrap();
    fs::rename(at("own/file"), at("own/moved")).unwrap();
    assert_eq!(fs::read_to_string(at("own/moved")).unwrap(), "changed\n");
    place.run(&["umount", "m"]).ok();
    assert_eq!(fs::read_to_string(place.at("far/own/moved")).unwrap(), "changed\n");
    assert_eq!(fs::read_to_string(place.at("far/public")).unwrap(), "public\n");
    assert_eq!(fs::read_dir(place.at("far")).unwrap().count(), 4);
}

/// Gives a file at the host content of this byte, last changed at this hour of a day long ago.
fn set_far(far: &Far, name: &str, byte: u8, hour: u64) {
    let path = far.place.file(&format!("far/{name}"), vec![byte; 25_000_000]);
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + hour * 3600);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Which byte a file consists of that is read by a mount made for that, by how many reads of which none came from the disk.
fn read_by_a_new_mount(far: &Far, more: &[&str]) -> (u8, u64) {
    far.mount(&[&["-o", "disk_cache=1g"], more].concat());
    let content = fs::read(far.place.at("m/file")).unwrap();
    let status = far.place.run(&["status", "m", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    far.place.run(&["umount", "m"]).ok();
    assert!(content.len() == 25_000_000 && content.iter().all(|&byte| byte == content[0]));
    (content[0], status["disk_cache"]["misses"].as_u64().expect("a number"))
}

#[test]
fn content_on_disk_is_not_asked_for_again_and_belongs_to_one_version_only() {
    let Some(far) = Far::new() else { return };
    set_far(&far, "file", b'a', 1);
    assert!(read_by_a_new_mount(&far, &[]).1 > 0);
    // Other bytes with the same attributes: they are not read.
    set_far(&far, "file", b'b', 1);
    assert_eq!(read_by_a_new_mount(&far, &[]), (b'a', 0));
    set_far(&far, "file", b'b', 2);
    assert_eq!(read_by_a_new_mount(&far, &[]).0, b'b');
    assert_eq!(read_by_a_new_mount(&far, &[]), (b'b', 0));
    assert_eq!(read_by_a_new_mount(&far, &["-o", "cache=never"]), (b'b', 0), "it is not looked for");
    far.mount(&["-o", "disk_cache=1g"]);
    kill_server(&far.place, "KILL");
    assert!(fs::read(far.place.at("m/file")).unwrap().iter().all(|&byte| byte == b'b'));
    let status = far.place.run(&["status", "m", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["disk_cache"]["misses"], 0, "the process that took over finds it as well");
    far.place.run(&["umount", "m"]).ok();
    let inside = fs::metadata(far.place.at("cache/outrigger/content")).unwrap();
    assert_eq!(inside.permissions().mode() & 0o777, 0o700);

    // One file replaces another while the attributes are cached, and is moved back.
    set_far(&far, "other", b'c', 3);
    far.mount(&["-o", "disk_cache=1g"]);
    far.place.run(&["flush", "m"]).ok();
    assert_eq!(fs::metadata(far.place.at("m/file")).unwrap().len(), 25_000_000);
    let exchange = || {
        for (from, to) in [("file", "aside"), ("other", "file"), ("aside", "other")] {
            fs::rename(far.place.at("far").join(from), far.place.at("far").join(to)).unwrap();
        }
    };
    exchange();
    let _ = fs::read(far.place.at("m/file")).unwrap();
    far.place.run(&["umount", "m"]).ok();
    exchange();
    assert_eq!(read_by_a_new_mount(&far, &[]).0, b'b');
}

#[test]
fn a_full_disk_here_is_an_error_to_nobody_and_a_directory_open_to_others_is_refused() {
    let Some(far) = Far::new() else { return };
    set_far(&far, "file", b'a', 1);
    let cache = far.place.at("cache");
    fs::create_dir(&cache).unwrap();
    rustix::mount::mount("tmpfs", &cache, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=2m"))
        .unwrap();
    for _ in 0..2 {
        assert_eq!(read_by_a_new_mount(&far, &[]).0, b'a');
    }
    far.place.unmount(cache.to_str().unwrap());
    let content = cache.join("outrigger/content");
    fs::create_dir_all(&content).unwrap();
    fs::set_permissions(&content, fs::Permissions::from_mode(0o755)).unwrap();
    let mount = ["mount", &far.location(""), "m", "-o", &far.option(), "-o", "disk_cache=1g"];
    let refused = far.place.run(&mount).refused(1);
    assert!(refused.contains("open to others"), "{refused}");
    fs::remove_dir(&content).unwrap();
    std::os::unix::fs::symlink(far.place.at("far"), &content).unwrap();
    far.place.run(&mount).refused(1);
    far.place.run(&["mount", "mem:", "m", "--layer", "cache=5,disk_cache=1g"]).refused(1);
}

/// Kills the process that serves and waits for its successor.
fn kill_server(place: &Place, name: &str) {
    let before = place.server();
    signal(before, name);
    within("another server", || {
        let said = place.run(&["status", "--json", "m"]);
        let status: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
        status["pid"].as_u64().is_some_and(|pid| pid != u64::from(before))
    });
}

#[test]
fn a_mount_of_a_host_survives_its_server_with_its_connection_and_what_was_written() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    far.mount(&["-o", "write=behind"]);
    let at = |name: &str| place.at("m").join(name);
    let open = |name: &str| File::options().read(true).write(true).create_new(true).open(at(name)).unwrap();
    let (removed, replaced) = (open("removed"), open("replaced"));
    removed.write_all_at(b"without a name", 0).unwrap();
    fs::remove_file(at("removed")).unwrap();
    replaced.write_all_at(b"replaced", 0).unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::rename(at("new"), at("replaced")).unwrap();
    let sessions = far.sshd.sessions();
    let content = large();
    for (round, name) in ["KILL", "SEGV", "KILL"].into_iter().enumerate() {
        let kept = open(&format!("kept{round}"));
        // All of it is answered, and little of it is written when the process dies.
        far.sshd.signal_sessions(Signal::STOP);
        for (index, piece) in content[..PIECE * 16].chunks(PIECE).enumerate() {
            kept.write_all_at(piece, (index * PIECE) as u64).unwrap();
        }
        kill_server(place, name);
        far.sshd.signal_sessions(Signal::CONT);
        let mut read = [0; 14];
        removed.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"without a name");
        let mut read = [0; 8];
        replaced.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"replaced");
        kept.sync_all().unwrap();
        let written = fs::read(place.at(&format!("far/kept{round}"))).unwrap();
        assert!(written == content[..PIECE * 16], "{} bytes", written.len());
    }
    assert_eq!(far.sshd.sessions(), sessions, "the connection is the same");
    drop((removed, replaced));
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(place.at("far")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    within("removed files are gone", || names() == ["kept0", "kept1", "kept2", "replaced"]);
    place.run(&["umount", "m"]).ok();
    within("the sessions of the host end", || far.sshd.sessions().is_empty());
}
