// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory with files of all kinds, and comparing what a program of the host says about it with what
//! `outrigger` says.
#![allow(dead_code, reason = "each test program uses its own part")]

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, mknodat, setxattr,
    utimensat,
};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// The directory. Taken away when dropped.
pub struct Specimen {
    dir: TempDir,
}

/// What a program said.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub out: String,
    pub err: String,
    pub code: Option<i32>,
}

/// Names that need quotes, one reason each.
const ODD: [&[u8]; 18] = [
    b"two words",
    b"new\nline",
    b"tab\there",
    b"it's",
    b"\"quoted\"",
    b"back\\slash",
    b"~tilde",
    b"#hash",
    b"a$dollar",
    b"\xff\xfe",
    b"\x01\x02",
    b"caf\xc3\xa9",
    b"\xe6\xbc\xa2",
    b"-dash",
    b"a:b",
    b"{",
    b"eq=1",
    b"it's $",
];

impl Specimen {
    /// Makes it.
    pub fn new() -> Self {
        let specimen = Specimen { dir: tempfile::tempdir().expect("a temporary directory") };
        specimen.files();
        specimen.kinds();
        specimen.modes();
        specimen.times();
        specimen
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn files(&self) {
        for (name, size) in
            [("empty", 0), ("small", 5), ("k", 1024), ("big.tar.gz", 1_234_567), (".hidden", 9)]
        {
            fs::write(self.at(name), vec![b'x'; size]).unwrap();
        }
        for name in ["b2.c", "b10.c", "b1.c", "B.C", "a~", ".a~", "noext.", "x.tar", "z"] {
            fs::write(self.at(name), name).unwrap();
        }
        File::create(self.at("sparse")).unwrap().set_len(5_000_000_000).unwrap();
        fs::hard_link(self.at("small"), self.at("hard")).unwrap();
        for name in ["dir/sub/deep", "dir/other", "empty-dir", ".dot-dir", "odd"] {
            fs::create_dir_all(self.at(name)).unwrap();
        }
        for name in ["dir/file", "dir/sub/file", "dir/sub/deep/file", "dir/.hidden", ".dot-dir/x"] {
            fs::write(self.at(name), "content\n").unwrap();
        }
        fs::hard_link(self.at("dir/file"), self.at("dir/sub/hard")).unwrap();
        for name in ODD {
            fs::write(self.at("odd").join(OsStr::from_bytes(name)), "").unwrap();
        }
    }

    fn kinds(&self) {
        for (target, name) in [
            ("dir", "link-dir"),
            ("small", "link-file"),
            ("nowhere", "dangling"),
            ("loop", "loop"),
            ("two words", "odd/link odd"),
            ("../..", "dir/up"),
            ("/", "root"),
        ] {
            symlink(target, self.at(name)).unwrap();
        }
        UnixListener::bind(self.at("socket")).unwrap();
        mknodat(CWD, self.at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
        if is_root() {
            let devices =
                [("null", FileType::CharacterDevice, 0x103), ("disk", FileType::BlockDevice, 0x10_fe12)];
            for (name, kind, number) in devices {
                mknodat(CWD, self.at(name), kind, Mode::from_raw_mode(0o660), number).unwrap();
            }
        }
    }

    fn modes(&self) {
        if is_root() {
            for (name, uid, gid) in [("k", 1, 2), ("z", 54_321, 12_345), ("dir/other", 65_534, 65_534)] {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                chownat(CWD, self.at(name), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
            }
            // Version 2, nothing permitted: enough to have the attribute.
            let capability = [&[0, 0, 0, 2][..], &[0; 16]].concat();
            setxattr(self.at("x.tar"), "security.capability", &capability, XattrFlags::empty()).unwrap();
        }
        for (name, mode) in [
            ("b1.c", 0o755),
            ("b2.c", 0o4755),
            ("b10.c", 0o2755),
            ("B.C", 0o6644),
            ("empty-dir", 0o1777),
            ("odd", 0o777),
            ("dir/sub", 0o1755),
            ("dir/other", 0o2750),
            ("empty", 0),
            ("a~", 0o111),
        ] {
            fs::set_permissions(self.at(name), Permissions::from_mode(mode)).unwrap();
        }
    }

    /// Times long ago, before 1970, recent, and in the future. All others become one moment, so that orders by
    /// time do not depend on how fast the files were made.
    fn times(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        set_all_times(self.path(), now - 1000);
        for (name, secs) in [
            ("small", 1_000_000_000),
            ("k", 0),
            ("z", -86_400 * 365 * 20),
            ("big.tar.gz", now - 100 * 86_400),
            ("sparse", now + 86_400),
            ("b1.c", 4_102_444_800),
            ("b2.c", now - 15_778_000),
            ("b10.c", now - 15_779_000),
            ("dir", 1_600_000_000),
            ("dir/sub", 1_500_000_000),
            ("dir/other", now - 7200),
        ] {
            set_time(&self.at(name), secs, 123_456_789);
        }
    }

    /// Runs `program` and its namesake in `outrigger` with `args` inside the specimen and with `variables`.
    pub fn both(&self, program: &str, args: &[&str], variables: &[(&str, &str)]) -> (Said, Said) {
        let mut ours = vec![program];
        ours.extend(args);
        let mut host = self.run(program, args, variables);
        host.err = host.err.replace(&format!("{program}: "), &format!("outrigger {program}: "));
        host.err = host.err.replace(&format!("Try \\'{program} "), &format!("Try \\'outrigger {program} "));
        (host, self.run(env!("CARGO_BIN_EXE_outrigger"), &ours, variables))
    }

    /// What `outrigger` says to `args` inside the specimen.
    pub fn ours(&self, args: &[&str]) -> Said {
        let Output { stdout, stderr, status } = self.output(env!("CARGO_BIN_EXE_outrigger"), args, &[]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { out: text(&stdout), err: text(&stderr), code: status.code() }
    }

    fn run(&self, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Said {
        let Output { stdout, stderr, status } = self.output(program, args, variables);
        Said { out: visible(&stdout), err: visible(&stderr), code: status.code() }
    }

    fn output(&self, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.path()).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin");
        command.env("LC_ALL", "C").env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3").env("TERM", "xterm");
        command.envs(variables.iter().copied()).output().expect(program)
    }

    /// Compares both programs for each line of `table`: arguments separated by blanks.
    pub fn compare(&self, program: &str, table: &[&str], variables: &[(&str, &str)]) {
        let wrong: Vec<String> =
            table.iter().filter_map(|line| self.difference(program, line, variables)).collect();
        assert!(wrong.is_empty(), "{} of {} differ\n{}", wrong.len(), table.len(), wrong.join("\n"));
    }

    fn difference(&self, program: &str, line: &str, variables: &[(&str, &str)]) -> Option<String> {
        let args: Vec<&str> = line.split_whitespace().collect();
        let (host, ours) = self.both(program, &args, variables);
        if host == ours {
            return None;
        }
        let shown = |said: &Said| format!("code {:?}\n{}{}", said.code, said.out, said.err);
        Some(format!(
            "=== {program} {line} {variables:?}\n--- host\n{}--- ours\n{}",
            shown(&host),
            shown(&ours)
        ))
    }
}

/// Whether tests run as root; others cannot make devices or give files away.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether the host has `program`; says so when it has not.
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("SKIPPED: no {program} to compare with");
    }
    found
}

fn visible(bytes: &[u8]) -> String {
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let line = |line: &[u8]| match line.strip_suffix(b"\n") {
        Some(line) => format!("{}\n", line.escape_ascii()),
        None => line.escape_ascii().to_string(),
    };
    lines.map(line).collect()
}

fn set_all_times(path: &Path, secs: i64) {
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            set_all_times(&entry.unwrap().path(), secs);
        }
    }
    set_time(path, secs, 0);
}

fn set_time(path: &Path, secs: i64, nanos: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos as _ };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}
