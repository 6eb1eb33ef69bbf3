// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger automount`: real mounts of directories, archives, SSH servers of our own, and of hosts that do not answer.

mod ends;
mod frozen;
mod idle;
#[path = "../support/mod.rs"]
mod support;

use outrigger_remote::{HOST, Sshd};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Stdio;
use support::{PROGRAM, Place, can_mount, has, signal, within};

/// A place with the directory `here` and the archive `a.tar.gz`, on whose `m` a map is mounted.
pub struct Auto {
    /// Where it is.
    pub place: Place,
    /// The server of the hosts in the map.
    pub sshd: Option<Sshd>,
}

impl Auto {
    /// Without an SSH server; `None` where nothing can be mounted.
    pub fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let place = Place::new().trusting();
        place.file("here/d/one", "one\n");
        place.file("here/two", "22\n");
        place.file("src/member", "of an archive\n");
        place.tar("a.tar.gz", "src");
        Some(Auto { place, sshd: None })
    }

    /// With an SSH server, whose directory `far` is on this machine, too.
    pub fn far() -> Option<Self> {
        if let Some(missing) = Sshd::missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        let auto = Auto::new()?;
        let dir = auto.place.at("sshd");
        fs::create_dir(&dir).unwrap();
        auto.place.file("far/d/file", "far\n");
        let sshd = Sshd::start(dir).unwrap();
        Some(Auto { sshd: Some(sshd), ..auto })
    }

    /// The SSH server.
    pub fn sshd(&self) -> &Sshd {
        self.sshd.as_ref().expect("a test with a server")
    }

    /// Stops the server with its sessions: connections are taken, and nothing is answered.
    pub fn freeze(&self) {
        let sessions = self.sshd().sessions();
        let mut listener = sessions[0].as_raw_nonzero().get() as u32;
        // Its parent is this process.
        while parent(listener) != std::process::id() {
            listener = parent(listener);
        }
        signal(listener, "STOP");
        self.sshd().signal_sessions(Signal::STOP);
    }

    /// The option that tells ssh of the server.
    pub fn option(&self) -> String {
        format!("F={}", self.sshd().configuration().display())
    }

    /// Lines for `here`, `archive` and, with a server, `far`.
    pub fn lines(&self) -> String {
        let at = |name: &str| self.place.at(name).display().to_string();
        let mut lines = format!("# names\nhere {}\narchive {}\n", at("here"), at("a.tar.gz"));
        if self.sshd.is_some() {
            lines += &format!("far sftp://{HOST}{} {}\n", at("far"), self.option());
        }
        lines
    }

    /// Writes the map, and mounts it.
    pub fn mount(&self, map: &str, more: &[&str]) {
        self.place.file("map", map);
        self.place.run(&[&["automount", "m", "--map", "map"], more].concat()).ok();
    }

    /// A path in the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.place.at("m").join(name)
    }

    /// The trees that `status` shows, by path.
    pub fn trees(&self) -> Vec<serde_json::Value> {
        let status = self.place.run(&["status", "--json", "m"]).ok();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["trees"].as_array().unwrap().clone()
    }

    /// What `status` says of a tree.
    pub fn state(&self, path: &str) -> Option<String> {
        let tree = self.trees().into_iter().find(|tree| tree["path"] == path)?;
        Some(tree["state"].as_str()?.to_owned())
    }
}

fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The names in a directory, sorted.
pub fn names(dir: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn trees_appear_in_place_when_their_names_are_used() {
    let Some(auto) = Auto::far() else { return };
    // The start of the server ends with a connection that tries it.
    within("that connection has ended", || auto.sshd().sessions().is_empty());
    let map = format!("{}+sftp {}\n", auto.lines(), auto.option());
    auto.mount(&map, &[]);
    assert_eq!(names(auto.at("")), ["archive", "far", "here", "sftp"]);
    let listed =
        auto.place.run_as("ls", &["-laR", "m/sftp"]).ok() + &auto.place.run_as("ls", &["-la", "m"]).ok();
    assert!(listed.contains(" far\n") && !listed.contains("->"), "{listed}");
    assert_eq!(
        (auto.trees(), auto.sshd().sessions()),
        (vec![], vec![]),
        "looking at names connects to nothing"
    );
    for (path, content) in
        [("here/d/one", "one\n"), ("archive/member", "of an archive\n"), ("far/d/file", "far\n")]
    {
        assert_eq!(fs::read_to_string(auto.at(path)).unwrap(), content, "{path}");
    }
    let by_host = format!("sftp/{HOST}{}", auto.place.at("far/d/file").display());
    assert_eq!(fs::read_to_string(auto.at(&by_host)).unwrap(), "far\n");
    assert_eq!(names(auto.at("sftp")), [HOST]);
    for path in ["/archive", "/far", "/here", &format!("/sftp/{HOST}")] {
        assert_eq!(auto.state(path).as_deref(), Some("open"), "{path}");
    }
    let text = auto.place.run(&["status", "m"]).ok();
    assert!(text.contains(&format!("  /far: sftp://{HOST}")) && text.contains(", open for "), "{text}");
    // What is written arrives, and names stay within their tree.
    fs::write(auto.at("far/new"), "new\n").unwrap();
    assert_eq!(fs::read_to_string(auto.place.at("far/new")).unwrap(), "new\n");
    for (from, to) in [("far/new", "here/new"), ("far", "other"), ("here/two", "two")] {
        let moved = rustix::fs::rename(auto.at(from), auto.at(to)).unwrap_err();
        assert!([Errno::XDEV, Errno::ACCESS].contains(&moved), "{from} {to}: {moved}");
    }
    auto.place.run_as("mv", &["m/far/new", "m/here/new"]).ok();
    assert_eq!(fs::read_to_string(auto.place.at("here/new")).unwrap(), "new\n");
    assert!(fs::create_dir(auto.at("other")).is_err() && fs::remove_dir(auto.at("here")).is_err());
    auto.place.run(&["umount", "m"]).ok();
    within("the sessions of the host end", || auto.sshd().sessions().is_empty());
}

#[test]
fn files_of_all_trees_have_inode_numbers_of_their_own() {
    let Some(auto) = Auto::new() else { return };
    let here = auto.place.at("here");
    // Twice the same directory: the trees have the same numbers.
    auto.mount(
        &format!("one {0}\ntwo {0}\narchive {1}\n", here.display(), auto.place.at("a.tar.gz").display()),
        &[],
    );
    let found = auto.place.run_as("find", &["m", "-printf", "%i %p\n"]).ok();
    let mut inos: Vec<&str> = found.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(inos.len() >= 11, "{found}");
    inos.sort_unstable();
    inos.dedup();
    assert_eq!(inos.len(), found.lines().count(), "{found}");
    let of_listing = fs::read_dir(auto.at("")).unwrap().map(|entry| entry.unwrap());
    for entry in of_listing {
        assert_eq!(entry.ino(), fs::metadata(entry.path()).unwrap().ino(), "{:?}", entry.path());
    }
}

#[test]
fn a_tree_of_the_map_can_be_read_only() {
    let Some(auto) = Auto::new() else { return };
    let here = auto.place.at("here").display().to_string();
    auto.mount(&format!("fixed {here} ro\nfree {here} ro,rw\n"), &[]);
    assert_eq!(fs::read_to_string(auto.at("fixed/two")).unwrap().trim(), "22");
    let refused = fs::write(auto.at("fixed/new"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fs::write(auto.at("free/new"), "x").unwrap();
}

#[test]
fn a_broken_tree_has_an_error_and_a_reason_and_is_tried_again_without_a_mount() {
    let Some(auto) = Auto::far() else { return };
    let lines = format!(
        "denied sftp://{HOST}/ {},PreferredAuthentications=none\nlater {}\n",
        auto.option(),
        auto.place.at("later").display()
    );
    auto.mount(&lines, &[]);
    let denied = fs::read_dir(auto.at("denied")).unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(fs::read_dir(auto.at("later")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let trees = auto.trees();
    assert_eq!((&trees[0]["state"], &trees[0]["errno"]), (&"broken".into(), &"EACCES".into()), "{trees:?}");
    assert!(trees[0]["reason"].as_str().unwrap().contains("Permission denied"), "{trees:?}");
    let text = auto.place.run(&["status", "m"]).ok();
    assert!(text.contains("broken") && text.contains("tried again"), "{text}");
    let mut value = [0; 256];
    let length = rustix::fs::getxattr(auto.at("later"), "user.outrigger.error", &mut value).unwrap();
    assert!(String::from_utf8_lossy(&value[..length]).contains("later"));
    fs::create_dir(auto.place.at("later")).unwrap();
    fs::write(auto.place.at("later/x"), "").unwrap();
    auto.place.run(&["flush", "m"]).ok();
    within("it is there", || fs::read_dir(auto.at("later")).is_ok());
    assert_eq!(names(auto.at("later")), ["x"]);
}

#[test]
fn a_map_is_read_again_and_its_mistakes_are_named_with_their_line() {
    let Some(auto) = Auto::new() else { return };
    auto.place.file("map", "good /\nbad\n");
    let refused = auto.place.run(&["automount", "m", "--map", "map"]).refused(1);
    assert!(refused.contains("map:2: 'bad' has no LOCATION"), "{refused}");
    rustix::fs::mknodat(rustix::fs::CWD, auto.place.at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let refused = auto.place.run(&["automount", "m", "--map", "pipe"]).refused(1);
    assert!(refused.contains("a map is a regular file"), "{refused}");
    // In a container, where the leader of the session is out of sight.
    let words = ["--pid", "--fork", PROGRAM, "automount", "m", "--map", "pipe"];
    assert_eq!(auto.place.run_as("unshare", &words).refused(1), refused);
    auto.mount(&auto.lines(), &[]);
    assert_eq!(names(auto.at("")), ["archive", "here"]);
    // It is not waited for, and the former map holds.
    fs::rename(auto.place.at("pipe"), auto.place.at("map")).unwrap();
    assert_eq!(fs::metadata(auto.at("pipe")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    fs::remove_file(auto.place.at("map")).unwrap();
    auto.place.file("map", format!("{}* {}/&\n", auto.lines(), auto.place.at("").display()));
    assert_eq!(fs::read_to_string(auto.at("src/member")).unwrap(), "of an archive\n");
    assert_eq!(fs::metadata(auto.at(".git")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    // One that is wrong changes nothing, and is shown.
    let mut map = fs::OpenOptions::new().append(true).open(auto.place.at("map")).unwrap();
    map.write_all(b"more\n").unwrap();
    assert!(fs::metadata(auto.at("here")).is_ok());
    let text = auto.place.run(&["status", "m"]).ok();
    assert!(text.contains("earlier map") && text.contains("map:5: 'more'"), "{text}");
    auto.place.file("map", "only /\n");
    signal(auto.place.server(), "HUP");
    within("the new map", || names(auto.at("")).contains(&"only".to_owned()));
    // What is in use stays.
    assert_eq!(fs::read_to_string(auto.at("src/member")).unwrap(), "of an archive\n");
}

/// What a user does.
const USER: &str = r#"
    "$1" automount m --map map
    test "$(cat m/here/two)" = 22
    test "$(cat m/archive/member)" = 'of an archive'
    "$1" status m | grep -q '  /here: '
    "$1" umount m
"#;

#[test]
fn a_user_without_privileges_mounts_by_fusermount() {
    let Some(auto) = Auto::new() else { return };
    if !has("fusermount3") || !has("setpriv") || !has("unshare") {
        return;
    }
    let place = &auto.place;
    place.file("map", auto.lines());
    fs::create_dir(place.at("run")).unwrap();
    fs::copy(PROGRAM, place.at("program")).unwrap();
    fs::write(place.at("script"), USER).unwrap();
    // fusermount3 serves users that have a name only.
    let setup = "chmod 755 .; chown nobody m run; mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        exec setpriv --reuid nobody --regid nogroup --clear-groups env HOME=$PWD/run XDG_RUNTIME_DIR=$PWD/run \
            XDG_CACHE_HOME=$PWD/run XDG_STATE_HOME=$PWD/run timeout 30 sh -e script $PWD/program";
    let said = place.run_as("unshare", &["-m", "sh", "-c", setup]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_server_in_the_foreground_never_asks_at_a_terminal() {
    let Some(auto) = Auto::new() else { return };
    if !has("script") {
        return;
    }
    let netrc = auto.place.file("netrc", "");
    fs::set_permissions(&netrc, fs::Permissions::from_mode(0o600)).unwrap();
    auto.place.file("map", format!("ftp ftp://me@127.0.0.1:1/ netrc={}\n", netrc.display()));
    let command = format!("{PROGRAM} automount --foreground m --map map; exit $?");
    let mut session = auto.place.command("script", &["-qec", &command, "/dev/null"]);
    let mut session = session.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    within("it is mounted", || auto.place.is_mounted());
    let refused = fs::read_dir(auto.at("ftp")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{:?}", auto.trees());
    auto.place.run(&["umount", "m"]).ok();
    session.wait().unwrap();
}

#[test]
fn a_link_that_leads_out_after_its_directory_was_moved_is_refused() {
    let Some(auto) = Auto::far() else { return };
    fs::create_dir_all(auto.place.at("far/a/b")).unwrap();
    std::os::unix::fs::symlink("../../d/file", auto.place.at("far/a/b/up")).unwrap();
    auto.mount(&auto.lines(), &[]);
    assert_eq!(fs::read_to_string(auto.at("far/a/b/up")).unwrap(), "far\n");
    fs::rename(auto.at("far/a/b"), auto.at("far/moved")).unwrap();
    let refused = fs::read_link(auto.at("far/moved/up")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));
    auto.place.run(&["umount", "m"]).ok();
}
