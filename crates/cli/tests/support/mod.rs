// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place to mount on that leaves no mount and no process behind, and the program to do it with.
#![allow(dead_code, reason = "each test program uses its own part")]

pub mod view;

use rustix::fs::{Access, access};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// No test takes longer; its mounts are cut off then, so that nothing stays blocked in the kernel.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_outrigger");

/// The control socket that is named after this process.
pub fn socket(owner: u32) -> Option<PathBuf> {
    let suffix = format!("-{owner}.sock");
    let sockets = fs::read_dir("/run/outrigger").unwrap().map(|entry| entry.unwrap().path());
    sockets.into_iter().find(|path| path.to_string_lossy().ends_with(&suffix))
}

/// Whether tests can mount here; says so when they cannot.
pub fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let device = Path::new("/dev/fuse").exists();
    if !(root && device) {
        assert!(std::env::var_os("CI").is_none(), "mount tests must not be skipped here");
        eprintln!("SKIPPED: mounting needs root and /dev/fuse (root: {root}, device: {device})");
    }
    root && device
}

/// Whether the program that serves images is built; says so when it is not.
pub fn can_serve() -> bool {
    let target = PathBuf::from(PROGRAM).ancestors().nth(2).map(Path::to_owned);
    let built = target.is_some_and(|target| target.join("kernel/outrigger-kernel").exists());
    let there = built || std::env::var_os("OUTRIGGER_KERNEL").is_some();
    if !there {
        eprintln!("SKIPPED: needs outrigger-kernel: make kernel");
    }
    there
}

/// What the program said.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub out: String,
    pub err: String,
    pub code: Option<i32>,
}

impl Said {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { out: text(&output.stdout), err: text(&output.stderr), code: output.status.code() }
    }

    /// # Panics
    /// When the program failed.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Its complaint, one line.
    ///
    /// # Panics
    /// When it did not fail with this exit code, or said anything but one line.
    pub fn refused(self, code: i32) -> String {
        assert_eq!((self.code, &*self.out), (Some(code), ""), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(!self.err.contains("panicked") && !self.err.contains("os error"), "{self:?}");
        self.err
    }
}

/// A directory with an empty directory `m` to mount on.
pub struct Place {
    temp: TempDir,
    trusts: bool,
    _over: mpsc::Sender<()>,
}

impl Place {
    pub fn new() -> Self {
        Place::patient(DEADLINE)
    }

    /// One whose mounts are cut off after this time only.
    pub fn patient(deadline: Duration) -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("m")).unwrap();
        let (over, expired) = mpsc::channel::<()>();
        let dir = temp.path().canonicalize().unwrap();
        thread::spawn(move || {
            if expired.recv_timeout(deadline) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("the test takes too long: cutting off all mounts below {}", dir.display());
                cut_off(&dir);
            }
        });
        Place { temp, trusts: false, _over: over }
    }

    /// The same, with `--allow-programs` for every command.
    pub fn trusting(mut self) -> Self {
        self.trusts = true;
        self
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(name)
    }

    /// A file with its directories.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        if self.trusts && program == PROGRAM {
            command.arg("--allow-programs");
        }
        command.args(args).current_dir(self.temp.path()).stdin(Stdio::null());
        command
            .env("XDG_CACHE_HOME", self.at("cache"))
            .env("XDG_STATE_HOME", self.at("state"))
            .env("LC_ALL", "C");
        command
    }

    /// Runs `outrigger` here.
    ///
    /// # Panics
    /// When it takes too long: every command here must end by itself.
    pub fn run(&self, args: &[&str]) -> Said {
        self.run_as(PROGRAM, args)
    }

    pub fn run_as(&self, program: &str, args: &[&str]) -> Said {
        let child = self.spawn_as(program, args);
        let pid = child.id();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait_with_output()));
        match receiver.recv_timeout(DEADLINE / 2) {
            Ok(output) => Said::of(&output.unwrap()),
            Err(_) => {
                signal(pid, "KILL");
                panic!("{program} {args:?} does not end")
            }
        }
    }

    pub fn spawn(&self, args: &[&str]) -> Child {
        self.spawn_as(PROGRAM, args)
    }

    pub fn spawn_as(&self, program: &str, args: &[&str]) -> Child {
        self.command(program, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect(program)
    }

    /// Makes `name` with the host's tar from what is in `from`.
    pub fn tar(&self, name: &str, from: &str) -> PathBuf {
        self.run_as("tar", &["-czf", name, "-C", from, "."]).ok();
        self.at(name)
    }

    /// Unmounts what is at `name` as soon as nothing uses it: a process that a test just starts has copies of all descriptors for
    /// a moment, and a server that lost its client ends by itself.
    pub fn unmount(&self, name: &str) {
        within("nothing uses the mount", || self.run_as("umount", &[name]).code == Some(0));
    }

    /// Whether something is mounted on `m`.
    pub fn is_mounted(&self) -> bool {
        mountpoints(&self.at("")).iter().any(|dir| *dir == self.at("m"))
    }

    /// The process that serves `m`.
    pub fn server(&self) -> u32 {
        let status = self.run(&["status", "--json", "m"]).ok();
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["pid"].as_u64().unwrap() as u32
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        cut_off(&self.at(""));
    }
}

/// Aborts and removes every mount below `dir`.
fn cut_off(dir: &Path) {
    for mountpoint in mountpoints(dir) {
        // What remains then, nothing can remove; the test has its own error to report.
        let _ = Command::new(PROGRAM).args(["umount", "--force"]).arg(mountpoint).output();
    }
}

fn mountpoints(below: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let paths = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    paths.filter(|path| path.starts_with(below)).collect()
}

/// Sends a signal with kill(1). What is stopped has stopped when this returns: until then its threads may answer something.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
    if name == "STOP" {
        within("it stopped", || threads(pid).iter().all(|state| state.starts_with(['T', 't', 'Z', 'X'])));
    }
}

/// The states of the threads of a process, as /proc shows them.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.filter_map(|stat| Some(stat.rsplit(')').next()?.trim_start().to_owned())).collect()
}

/// Whether the process is there and is more than an entry waiting for its parent.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until a condition holds.
///
/// # Panics
/// When it never does.
pub fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE / 2, "never: {what}");
        thread::yield_now();
    }
}

/// Whether this program is here; else the test is skipped.
pub fn has(program: &str) -> bool {
    let found = Command::new("which").arg(program).output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("SKIPPED: needs {program}");
    }
    found
}

/// The only process of this name below `ancestor`.
pub fn descendant(ancestor: u32, name: &str) -> Option<u32> {
    let children = fs::read_dir(format!("/proc/{ancestor}/task")).ok()?.flatten();
    let children = children.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|pid| pid.parse().ok())
        .collect();
    children.into_iter().find_map(|child| {
        let own = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        if own.trim_end() == name { Some(child) } else { descendant(child, name) }
    })
}

/// A place where an empty image with ext4 is mounted with these further arguments of `mount`, if that is possible here.
pub fn mounted_ext4(arguments: &[&str]) -> Option<Place> {
    if !can_serve() || !can_mount() || !has("mkfs.ext4") {
        return None;
    }
    let place = Place::new();
    fs::File::create(place.at("image")).unwrap().set_len(64 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    place.run(&[&["mount", "image", "m"], arguments].concat()).ok();
    Some(place)
}

/// The processes of the kernel code that a mount has started: several where partitions are mounted.
pub fn kernel_codes(place: &Place) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{}/task", place.server())).into_iter().flatten().flatten();
    // A thread may end while it is looked at.
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children = children.collect::<String>();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(|&pid| is_running(pid)).collect()
}

/// The only process of the kernel code that a mount has started; waits for the next one when one has just died.
pub fn kernel_code(place: &Place) -> u32 {
    let mut found = Vec::new();
    within("one process of the kernel code", || {
        found = kernel_codes(place);
        found.len() == 1
    });
    found[0]
}

/// Where the kernel does not check permissions itself: a file can be executed when it has an execute bit, and a directory can be
/// entered.
pub fn only_programs_may_be_executed(dir: &Path) {
    let may = |name: &str, what| access(dir.join(name), what).is_ok();
    fs::write(dir.join("file"), "#!/bin/sh\n").unwrap();
    fs::create_dir(dir.join("dir")).unwrap();
    for mode in [0o644, 0o754, 0o600] {
        fs::set_permissions(dir.join("file"), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(may("file", Access::EXEC_OK), mode == 0o754, "{mode:o}");
        assert!(may("file", Access::READ_OK | Access::WRITE_OK) && may("file", Access::EXISTS), "{mode:o}");
    }
    assert!(may("dir", Access::EXEC_OK | Access::WRITE_OK));
    assert!(!may("nothing", Access::EXISTS));
}

/// A number in the mount's status.
pub fn status(place: &Place, pointer: &str) -> Option<u64> {
    let said = place.run(&["status", "--json", "m"]);
    let status: serde_json::Value = serde_json::from_str(&said.out).ok()?;
    status.pointer(pointer)?.as_u64()
}

/// Kills the server with this signal and waits for its successor.
pub fn kill_server(place: &Place, name: &str) {
    let before = place.server();
    signal(before, name);
    within("another server", || status(place, "/pid").is_some_and(|pid| pid != u64::from(before)));
}
