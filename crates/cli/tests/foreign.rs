// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE programs of others under `outrigger guard`: what they list and hold is what it is without us, also when they are
//! killed in the middle of it.
//!
//! Each speaks the protocol in a way of its own: go-fuse (`loopback`) would splice its replies, `restic` and `rclone` speak
//! version 7.12, borg, over pyfuse3, lists with attributes only, and ratarmount and encfs take long to start.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::{Place, can_mount, descendant, has, signal, within};

/// A program that shows the directory `src`.
struct Program {
    /// Its process.
    name: &'static str,
    /// Shell commands that make what it shows; a server, if it needs one, is at `$URL`.
    prepare: &'static str,
    /// `@/` stands for the directory of the test, `@URL` for the server.
    command: &'static [&'static str],
    /// Where `src` is in its mount.
    shows: &'static str,
    writes: bool,
}

const LOOPBACK: Program =
    Program { name: "loopback", prepare: "", command: &["m", "src"], shows: "", writes: true };
const RCLONE: Program = Program {
    name: "rclone",
    prepare: "",
    command: &["rclone", "--config=none", "mount", "src", "m"],
    shows: "",
    writes: true,
};
const RESTIC: Program = Program {
    name: "restic",
    prepare: "export RESTIC_PASSWORD=x; restic init -q --no-cache -r store && restic backup -q --no-cache -r store src",
    command: &["env", "RESTIC_PASSWORD=x", "restic", "mount", "--no-cache", "-r", "store", "m"],
    shows: "snapshots/latest/src",
    writes: false,
};
const BORG: Program = Program {
    name: "borg",
    prepare: "export HOME=$PWD; borg init -e none store && borg create store::a src",
    command: &["env", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes", "borg", "mount", "-f", "store", "m"],
    shows: "a/src",
    writes: false,
};
const FUSE_ZIP: Program = Program {
    name: "fuse-zip",
    prepare: "zip -q -r store.zip src",
    command: &["fuse-zip", "-f", "-r", "store.zip", "m"],
    shows: "src",
    writes: false,
};

const ENCFS: Program = Program {
    name: "encfs",
    prepare: "mkdir crypt plain && encfs --standard --extpass='echo x' $PWD/crypt $PWD/plain && cp -r src plain && \
              fusermount3 -u plain",
    command: &["encfs", "--extpass=echo x", "-f", "@/crypt", "m"],
    shows: "src",
    writes: true,
};
const ARCHIVEMOUNT: Program = Program {
    name: "archivemount",
    prepare: "tar cf store.tar src",
    command: &["archivemount", "-f", "-o", "readonly", "store.tar", "m"],
    shows: "src",
    writes: false,
};
const RATARMOUNT: Program = Program {
    name: "ratarmount",
    prepare: "tar cf store.tar src",
    command: &["-f", "store.tar", "m"],
    shows: "src",
    writes: false,
};
const S3FS: Program = Program {
    name: "s3fs",
    prepare: "echo a:b >password && chmod 600 password && curl -sf -X PUT $URL/store && \
              curl -sf -T src/big $URL/store/big && curl -sf -T src/dir/x $URL/store/dir/x && \
              curl -sf -X PUT -H 'Content-Type: application/x-directory' $URL/store/dir/",
    command: &[
        "s3fs",
        "store",
        "m",
        "-f",
        "-o",
        "url=@URL",
        "-o",
        "use_path_request_style",
        "-o",
        "passwd_file=@/password",
    ],
    shows: "",
    writes: true,
};

/// The file of `src` in bytes: more than one reply, and than what is read ahead of a killed reader.
const SIZE: usize = 32 << 20;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Reads a file that is in no cache, in two halves.
fn read(path: &Path, between: impl FnOnce()) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut content = vec![0; SIZE / 2];
    file.read_exact(&mut content).unwrap();
    between();
    file.read_to_end(&mut content).unwrap();
    content
}

fn serves(program: &Program, path: Option<&Path>, url: &str) {
    if !can_mount() || (path.is_none() && !has(program.name)) {
        return;
    }
    let place = Place::new();
    let random = format!("mkdir src/dir && echo x >src/dir/x && head -c {SIZE} /dev/urandom >src/big");
    fs::create_dir_all(place.at("src")).unwrap();
    place.run_as("sh", &["-c", &random]).ok();
    place.run_as("sh", &["-c", &format!("URL={url}; {}", program.prepare)]).ok();
    let here = format!("{}/", place.at("").display());
    let words = program.command.iter().map(|word| word.replace("@/", &here).replace("@URL", url));
    let own = path.map(|path| path.to_str().unwrap().to_owned());
    let command: Vec<String> = own.into_iter().chain(words).collect();
    let words = ["guard", "--"].into_iter().chain(command.iter().map(String::as_str));
    let guard = || drop(place.run(&words.clone().collect::<Vec<_>>()).ok());
    guard();
    let shown = place.at("m").join(program.shows);
    let content = fs::read(place.at("src/big")).unwrap();
    let kill = || signal(descendant(place.server(), program.name).unwrap(), "KILL");
    for round in 0..4 {
        assert_eq!(names(&shown), ["big", "dir"], "{}", program.name);
        assert_eq!(names(&shown.join("dir")), ["x"], "{}", program.name);
        let read = read(&shown.join("big"), || {
            if round == 2 {
                kill()
            }
        });
        assert!(read == content, "{} in round {round}", program.name);
    }
    if program.writes {
        fs::write(shown.join("new"), "new content").unwrap();
        kill();
        fs::rename(shown.join("new"), shown.join("renamed")).unwrap();
        kill();
        fs::remove_file(shown.join("dir/x")).unwrap();
        place.run(&["umount", "m"]).ok();
        guard();
        assert_eq!(names(&shown), ["big", "dir", "renamed"], "{}", program.name);
        assert_eq!(names(&shown.join("dir")), [""; 0], "{}", program.name);
        assert_eq!(fs::read(shown.join("renamed")).unwrap(), b"new content", "{}", program.name);
    }
    place.run(&["umount", "m"]).ok();
}

/// A program that testing/tools/deps.sh puts where cargo puts what it builds.
fn tool(path: &str) -> Option<PathBuf> {
    let tool = PathBuf::from(support::PROGRAM).ancestors().nth(2).unwrap().join("test-tools").join(path);
    let there = tool.exists();
    if !there {
        eprintln!("SKIPPED: needs {}: testing/tools/deps.sh test", tool.display());
    }
    there.then_some(tool)
}

/// A server of the S3 protocol that keeps everything in memory; dropping it ends it.
struct Store(Child);

impl Store {
    fn start(program: &Path) -> (Self, String) {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port]).stdout(Stdio::null()).stderr(Stdio::null());
        let store = Store(command.spawn().unwrap());
        let address = format!("127.0.0.1:{port}");
        within("a server", || TcpStream::connect(&address).is_ok());
        (store, format!("http://{address}"))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn go_fuse_that_would_splice_its_replies() {
    if let Some(loopback) = tool("bin/loopback") {
        serves(&LOOPBACK, Some(&loopback), "");
    }
}

#[test]
fn ratarmount_that_starts_slowly() {
    if let Some(ratarmount) = tool("venv/bin/ratarmount") {
        serves(&RATARMOUNT, Some(&ratarmount), "");
    }
}

#[test]
fn encfs_that_starts_slowly() {
    serves(&ENCFS, None, "");
}

#[test]
fn archivemount_that_reads() {
    serves(&ARCHIVEMOUNT, None, "");
}

#[test]
fn s3fs_that_stores_when_files_are_closed() {
    if let Some(server) = tool("venv/bin/moto_server").filter(|_| can_mount()) {
        let (_store, url) = Store::start(&server);
        serves(&S3FS, None, &url);
    }
}

#[test]
fn rclone_that_speaks_an_old_version() {
    serves(&RCLONE, None, "");
}

#[test]
fn restic_that_speaks_an_old_version() {
    serves(&RESTIC, None, "");
}

#[test]
fn borg_that_lists_with_attributes_only() {
    serves(&BORG, None, "");
}

#[test]
fn fuse_zip_that_reads() {
    serves(&FUSE_ZIP, None, "");
}

/// fuse-zip writes its archive when it ends.
#[test]
fn what_a_program_reported_stored_and_lost_is_told() {
    if !can_mount() || !has("fuse-zip") {
        return;
    }
    let place = Place::new();
    place.run_as("sh", &["-c", "echo x >x && zip -q store.zip x"]).ok();
    let warned = place.run(&["guard", "--", "fuse-zip", "-f", "store.zip", "m"]);
    assert_eq!(warned.code, Some(0), "{warned:?}");
    fs::create_dir(place.at("m/dir")).unwrap();
    fs::write(place.at("m/dir/new"), "new content").unwrap();
    fs::write(place.at("m/again"), "first").unwrap();
    fs::rename(place.at("m/x"), place.at("m/y")).unwrap();
    signal(descendant(place.server(), "fuse-zip").unwrap(), "KILL");
    let error = fs::read(place.at("m/dir/new")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    let status = || -> serde_json::Value {
        serde_json::from_str(&place.run(&["status", "--json", "m"]).out).unwrap_or_default()
    };
    within("all losses", || status().pointer("/program/lost") == Some(&4.into()));
    let text = place.run(&["status", "m"]).ok();
    assert!(text.contains("LOST 4 that the program had reported stored"), "{text}");
    for path in ["/dir", "/dir/new", "/again", "/y"] {
        assert!(text.contains(path), "{path}: {text}");
    }
    assert_eq!(fs::read_to_string(place.at("m/x")).unwrap(), "x\n", "what was there before is there");
    within("a name that can be used again", || fs::write(place.at("m/again"), "second").is_ok());
    assert_eq!(fs::read_to_string(place.at("m/again")).unwrap(), "second");
    place.run(&["umount", "m"]).ok();
    assert_eq!(place.run_as("unzip", &["-p", "store.zip", "again"]).ok(), "second");
}

#[test]
fn programs_that_keep_changes_until_they_end_are_warned_of() {
    if !can_mount() || !has("fuse-zip") {
        return;
    }
    for (read_only, warned) in [(&["-r"][..], false), (&[][..], true)] {
        let place = Place::new();
        place.run_as("sh", &["-c", "echo x >x && zip -q store.zip x"]).ok();
        let said = place.run(&[&["guard", "--", "fuse-zip", "-f"], read_only, &["store.zip", "m"]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.err.contains("those since its start are lost"), warned, "{said:?}");
        place.run(&["umount", "m"]).ok();
    }
}
