// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `permissions` against the kernel: the same calls by the same users on a file system of the kernel, on a tree in memory
//! whose driver answers `Access`, and on a directory of the host, whose driver leaves all that to others.

use outrigger_conformance::{Direct, Flags, HostDir, Kind, Subject};
use outrigger_core::ops::{RenameFlags, XattrFlags};
use outrigger_core::{Credentials, Errno, FileKind, Inline, Service, SetTime, Stack, Time};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_permissions::Permissions;
use outrigger_runtime::Threads;
use outrigger_sim::sample::Random;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

type Outcome<T = ()> = Result<T, Errno>;
/// Mode, owner, group and size of a file.
type Found = (u32, u32, u32, u64);

/// Users, who are in the group of the same number only.
const OWNER: u32 = 4242;
const OTHER: u32 = 4343;
const STRANGER: u32 = 4444;
const IDS: [u32; 4] = [0, OWNER, OTHER, STRANGER];

/// How many trees each call is tried on.
const TREES: usize = 50;

/// One tree of a subject: the directories `d` and `e`, in them files, a directory and a link.
struct On<'a> {
    fs: &'a dyn Subject,
    base: PathBuf,
}

impl On<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    fn opens(&self, name: &str, flags: Flags) -> Outcome {
        let fd = self.fs.open(&self.at(name), flags, 0o644)?;
        self.fs.close(fd)
    }

    /// Makes a file with a mode that counts from the next open on.
    fn makes(&self, name: &str, mode: u32) -> Outcome {
        let fd = self.fs.open(&self.at(name), Flags::NEW, mode)?;
        let written = self.fs.write_at(fd, 0, b"new");
        self.fs.close(fd)?;
        written.map(drop)
    }

    fn writes(&self, name: &str) -> Outcome {
        let fd = self.fs.open(&self.at(name), Flags::WRITE, 0)?;
        let written = self.fs.write_at(fd, 0, b"data").and_then(|_| self.fs.ftruncate(fd, 2));
        self.fs.close(fd)?;
        written
    }

    fn lists(&self, name: &str) -> Outcome {
        let fd = self.fs.open(&self.at(name), Flags::READ | Flags::DIRECTORY, 0)?;
        let listed = self.fs.read_dir(fd, 0, 4096);
        self.fs.close(fd)?;
        listed.map(drop)
    }

    fn moves(&self, old: &str, new: &str, flags: RenameFlags) -> Outcome {
        self.fs.rename(&self.at(old), &self.at(new), flags)
    }

    fn sets(&self, name: &str, attribute: &str) -> Outcome {
        self.fs.set_xattr(&self.at(name), attribute, b"value", XattrFlags::empty())
    }

    fn times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Outcome {
        self.fs.utimens(&self.at("d/f"), atime, mtime)
    }
}

const PLAIN: RenameFlags = RenameFlags::empty();
const SOME_TIME: Option<SetTime> = Some(SetTime::To(Time::new(1_000_000_000, 0)));

type Call = fn(&On<'_>) -> Outcome;

/// What users try.
const CALLS: &[(&str, Call)] = &[
    ("stat", |on| on.fs.stat(&on.at("d/f")).map(drop)),
    ("stat below", |on| on.fs.stat(&on.at("d/s/x")).map(drop)),
    ("stat nothing", |on| on.fs.stat(&on.at("d/none")).map(drop)),
    ("stat below a file", |on| on.fs.stat(&on.at("d/f/x")).map(drop)),
    ("readlink", |on| on.fs.readlink(&on.at("d/l")).map(drop)),
    ("read", |on| on.opens("d/f", Flags::READ)),
    ("write", |on| on.writes("d/f")),
    ("read and write", |on| on.opens("d/f", Flags::BOTH)),
    ("empty", |on| on.opens("d/f", Flags::READ | Flags::TRUNC)),
    ("without access time", |on| on.opens("d/f", Flags::READ | Flags::NOATIME)),
    ("write a directory", |on| on.opens("d/s", Flags::WRITE)),
    ("list", |on| on.lists("d")),
    ("list below", |on| on.lists("d/s")),
    ("list a file", |on| on.lists("d/f")),
    ("make", |on| on.makes("d/new", 0o444)),
    ("make with a group's rights", |on| on.makes("d/new", 0o2755)),
    ("make what exists", |on| on.makes("d/f", 0o644)),
    ("make or open", |on| on.opens("d/f", Flags::BOTH | Flags::CREATE)),
    ("make or open new", |on| on.opens("d/new", Flags::WRITE | Flags::CREATE)),
    ("make without a name", |on| on.opens("d", Flags::BOTH | Flags::TMPFILE)),
    ("mkdir", |on| on.fs.mkdir(&on.at("d/new"), 0o755)),
    ("mkdir that exists", |on| on.fs.mkdir(&on.at("d/f"), 0o755)),
    ("mkdir in a file", |on| on.fs.mkdir(&on.at("d/f/new"), 0o755)),
    ("pipe", |on| on.fs.mknod(&on.at("d/new"), FileKind::Fifo, 0o644, 0)),
    ("device", |on| on.fs.mknod(&on.at("d/new"), FileKind::CharDevice, 0o644, 0x103)),
    ("symlink", |on| on.fs.symlink(b"target", &on.at("d/new"))),
    ("symlink that exists", |on| on.fs.symlink(b"target", &on.at("d/l"))),
    ("link", |on| on.fs.link(&on.at("d/f"), &on.at("e/new"))),
    ("link that exists", |on| on.fs.link(&on.at("d/f"), &on.at("e/g"))),
    ("unlink", |on| on.fs.unlink(&on.at("d/f"))),
    ("unlink nothing", |on| on.fs.unlink(&on.at("d/none"))),
    ("unlink a directory", |on| on.fs.unlink(&on.at("d/s"))),
    ("rmdir", |on| on.fs.rmdir(&on.at("d/empty"))),
    ("rmdir of what is not empty", |on| on.fs.rmdir(&on.at("d/s"))),
    ("rmdir of a file", |on| on.fs.rmdir(&on.at("d/f"))),
    ("rename", |on| on.moves("d/f", "d/new", PLAIN)),
    ("rename nothing", |on| on.moves("d/none", "e/new", PLAIN)),
    ("move", |on| on.moves("d/f", "e/new", PLAIN)),
    ("move over a file", |on| on.moves("d/f", "e/g", PLAIN)),
    ("move over a directory", |on| on.moves("d/f", "e/t", PLAIN)),
    ("rename a directory", |on| on.moves("d/s", "d/new", PLAIN)),
    ("move a directory", |on| on.moves("d/s", "e/new", PLAIN)),
    ("move a directory over one", |on| on.moves("d/s", "e/t", PLAIN)),
    ("move to nothing else", |on| on.moves("d/f", "e/g", RenameFlags::NOREPLACE)),
    ("exchange files", |on| on.moves("d/f", "e/g", RenameFlags::EXCHANGE)),
    ("exchange with a directory", |on| on.moves("d/f", "e/t", RenameFlags::EXCHANGE)),
    ("exchange with nothing", |on| on.moves("d/f", "e/none", RenameFlags::EXCHANGE)),
    ("chmod", |on| on.fs.chmod(&on.at("d/f"), 0o6755)),
    ("chmod a directory", |on| on.fs.chmod(&on.at("d/s"), 0o3770)),
    ("chown to the owner", |on| on.fs.chown(&on.at("d/f"), Some(OWNER), None)),
    ("chown to another", |on| on.fs.chown(&on.at("d/f"), Some(OTHER), None)),
    ("chgrp to the owner's", |on| on.fs.chown(&on.at("d/f"), None, Some(OWNER))),
    ("chgrp to another", |on| on.fs.chown(&on.at("d/f"), None, Some(OTHER))),
    ("touch", |on| on.times(Some(SetTime::Now), Some(SetTime::Now))),
    ("touch one time", |on| on.times(Some(SetTime::Now), None)),
    ("set times", |on| on.times(SOME_TIME, SOME_TIME)),
    ("set one time", |on| on.times(None, SOME_TIME)),
    ("set one time and touch", |on| on.times(Some(SetTime::Now), SOME_TIME)),
    ("truncate", |on| on.fs.truncate(&on.at("d/f"), 1)),
    ("set user", |on| on.sets("d/f", "user.x")),
    ("set user of a directory", |on| on.sets("d/s", "user.x")),
    ("set user of a link", |on| on.sets("d/l", "user.x")),
    ("get user", |on| on.fs.get_xattr(&on.at("d/f"), "user.there").map(drop)),
    ("get user of a link", |on| on.fs.get_xattr(&on.at("d/l"), "user.there").map(drop)),
    ("remove user", |on| on.fs.remove_xattr(&on.at("d/f"), "user.there")),
    ("set trusted", |on| on.sets("d/f", "trusted.x")),
    ("get trusted", |on| on.fs.get_xattr(&on.at("d/f"), "trusted.there").map(drop)),
    ("remove trusted", |on| on.fs.remove_xattr(&on.at("d/f"), "trusted.there")),
    ("set security", |on| on.sets("d/f", "security.x")),
    ("get security", |on| on.fs.get_xattr(&on.at("d/f"), "security.there").map(drop)),
    ("set an access list", |on| {
        on.fs.set_xattr(&on.at("d/f"), "system.posix_acl_access", &acl(STRANGER, 6), XattrFlags::empty())
    }),
    ("remove a default list", |on| on.fs.remove_xattr(&on.at("d/s"), "system.posix_acl_default")),
];

/// What can be there afterwards.
const NAMES: [&str; 15] = [
    "d", "d/f", "d/l", "d/s", "d/s/x", "d/empty", "d/new", "d/new/x", "e", "e/g", "e/t", "e/t/x", "e/new",
    "e/new/x", "d/none",
];

/// A list that grants one user these permissions, and its group and all others some.
fn acl(user: u32, permissions: u16) -> Vec<u8> {
    let entries = [
        (1, 6, u32::MAX),
        (2, permissions, user),
        (4, 4, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let bytes = entries.iter().flat_map(|&(tag, permissions, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(bytes).collect()
}

/// Owners and modes of a tree, and who works there.
#[derive(Debug, Clone)]
struct Plan {
    caller: u32,
    /// Of each of [`MADE`]: owner, group, mode.
    files: Vec<(u32, u32, u32)>,
    /// What has an access list, and what that grants to whom.
    acl: Option<(&'static str, u32, u16)>,
}

const MADE: [&str; 8] = ["e/t", "e/g", "e", "d/s/x", "d/s", "d/empty", "d/f", "d"];
const DIR_MODES: [u32; 14] =
    [0o777, 0o777, 0o777, 0o755, 0o775, 0o1777, 0o1777, 0o1775, 0o2777, 0o711, 0o700, 0o744, 0o733, 0o070];
const FILE_MODES: [u32; 11] =
    [0o644, 0o666, 0o600, 0o400, 0o040, 0o004, 0o060, 0o4755, 0o2755, 0o6777, 0o111];

impl Plan {
    fn new(random: &mut Random) -> Self {
        let file = |name: &&str, random: &mut Random| {
            let is_dir = !matches!(*name, "e/g" | "d/s/x" | "d/f");
            let modes = if is_dir { &DIR_MODES[..] } else { &FILE_MODES[..] };
            (pick(random, &IDS), pick(random, &IDS), pick(random, modes))
        };
        let files = MADE.iter().map(|name| file(name, random)).collect();
        let listed = if random.bool() { "d" } else { "d/f" };
        let acl = random.bool().then(|| (listed, pick(random, &IDS[1..]), random.u16(0..8)));
        Plan { caller: pick(random, &[0, OWNER, OTHER, STRANGER, OWNER, OTHER, STRANGER]), files, acl }
    }

    fn build(&self, on: &On<'_>) {
        let fs = on.fs;
        fs.mkdir(&on.base, 0o755).expect("the base");
        for dir in ["d", "e", "d/s", "d/empty", "e/t"] {
            fs.mkdir(&on.at(dir), 0o755).expect(dir);
        }
        for file in ["d/f", "e/g", "d/s/x"] {
            on.makes(file, 0o644).expect(file);
        }
        fs.symlink(b"f", &on.at("d/l")).expect("a link");
        for name in ["user.there", "trusted.there", "security.there"] {
            fs.set_xattr(&on.at("d/f"), name, b"value", XattrFlags::empty()).expect(name);
        }
        for (name, (uid, gid, mode)) in MADE.iter().zip(&self.files) {
            fs.chown(&on.at(name), Some(*uid), Some(*gid)).expect(name);
            fs.chmod(&on.at(name), *mode).expect(name);
        }
        if let Some((name, user, permissions)) = self.acl {
            let list = acl(user, permissions);
            fs.set_xattr(&on.at(name), "system.posix_acl_access", &list, XattrFlags::empty())
                .expect("a list");
        }
    }

    /// What the call answers, and what is there afterwards.
    fn run(&self, fs: &dyn Subject, number: usize, call: Call) -> (Outcome, Vec<Outcome<Found>>) {
        let on = On { fs, base: PathBuf::from(format!("tree{number}")) };
        self.build(&on);
        let mut outcome = Ok(());
        fs.as_user(Credentials::new(self.caller, self.caller), &mut || outcome = call(&on));
        let found = |name: &&str| {
            let attr = fs.stat(&on.at(name))?;
            Ok((attr.mode, attr.uid, attr.gid, if attr.is_dir() { 0 } else { attr.size }))
        };
        (outcome, NAMES.iter().map(found).collect())
    }
}

fn pick(random: &mut Random, of: &[u32]) -> u32 {
    of[random.usize(0..of.len())]
}

/// Why the kernel here may refuse what the kernel of another machine permits (`fs.protected_hardlinks`).
fn is_protected(name: &str, outcome: Outcome) -> bool {
    name.starts_with("link") && outcome == Err(Errno::EPERM)
}

fn compare(checked: &dyn Subject) {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: acting as other users needs root");
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("others may enter");
    let native = HostDir::new(dir.path(), Kind::Native).expect("the directory opens");
    let mut random = Random::with_seed(4);
    let calls = CALLS.iter().flat_map(|call| std::iter::repeat_n(call, TREES));
    let calls = calls.enumerate().map(|(number, (name, call))| {
        let plan = Plan::new(&mut random);
        let expected = plan.run(&native, number, *call);
        (number, *name, *call, plan, expected)
    });
    // All of them first: a driver may change what becomes of this thread when it acts as another user.
    let calls: Vec<_> = calls.filter(|(_, name, .., expected)| !is_protected(name, expected.0)).collect();
    let refused = calls.iter().filter(|(.., expected)| expected.0.is_err()).count();
    let mut wrong = Vec::new();
    for (number, name, call, plan, expected) in &calls {
        let found = plan.run(checked, *number, *call);
        if found != *expected {
            wrong.push(format!("{name}: {plan:?}\n  kernel {expected:?}\n  layer  {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), calls.len(), wrong.join("\n"));
    let number = calls.len();
    assert!(refused > number / 4 && refused < number, "{refused} of {number} calls are refused");
}

fn layered(driver: Arc<dyn Service>, threads: &Arc<Threads>) -> Direct {
    let layer = Permissions::new(threads.clone());
    Direct::new(Stack::new(driver).push(layer).expect("any order is good").service())
}

#[test]
fn a_tree_in_memory_is_as_one_of_the_kernel() {
    let threads = Arc::new(Threads::new());
    let mem = Inline::new(Mem::new(Options::default(), threads.clone()), threads.clone());
    compare(&layered(Arc::new(mem), &threads));
}

#[test]
fn a_directory_of_the_host_is_as_without_us() {
    let threads = Arc::new(Threads::new());
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let local = Local::open(dir.path(), LocalOptions::default()).expect("the directory opens");
    let local = Inline::new(local, threads.clone());
    compare(&layered(Arc::new(local), &threads));
}
