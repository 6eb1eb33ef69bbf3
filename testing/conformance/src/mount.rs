// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts made with the `outrigger` program, which cannot outlive their test and cannot hang it.

use outrigger_core::{OpCode, OpSet};
use rustix::mount::UnmountFlags;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// What does not hold with `writeback_cache`.
pub const WRITEBACK: Exceptions = &[
    (
        "holes/a_file_that_is_a_hole",
        "the kernel takes all for data, for it would ask before it writes its cache back",
    ),
    ("holes/seek_finds_data_and_hole", "the same"),
];

/// What does not hold on a mount of a tree whose driver cannot seek.
pub const NO_SEEK: Exceptions =
    &[("holes/seek_finds_data_and_hole", HOLES), ("holes/a_file_that_is_a_hole", HOLES)];

const HOLES: &str = "the protocol does not tell where holes are";

/// Operations that a kernel has only from the driver; what else a driver lacks, the kernel does by itself or by others.
const FROM_DRIVER: OpSet = OpSet::of(&[
    OpCode::Link,
    OpCode::SymLink,
    OpCode::MkNod,
    OpCode::Fallocate,
    OpCode::GetXattr,
    OpCode::SetXattr,
    OpCode::ListXattr,
    OpCode::RemoveXattr,
]);

/// The operations of a mount of a tree whose driver has `ops`.
pub fn ops(ops: OpSet) -> OpSet {
    OpSet::all().without(FROM_DRIVER.without(ops))
}

/// Names of cases, and why they do not hold.
pub type Exceptions = &'static [(&'static str, &'static str)];

/// How many seconds mounting and unmounting may take.
const COMMAND_SECONDS: &str = "30";

/// A FUSE mount of a tree. Dropping it unmounts; when that fails, or the deadline passes, its connection is aborted,
/// which ends every call that waits in it with an error.
pub struct Mounted {
    dir: PathBuf,
    program: PathBuf,
    connection: String,
    /// Dropping it ends the watch.
    _watch: Sender<()>,
}

/// The `outrigger` program: `OUTRIGGER_BIN`, else the one built beside this test, else the release build.
pub fn program() -> Option<PathBuf> {
    if let Some(path) = env::var_os("OUTRIGGER_BIN") {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let here = env::current_exe().ok()?;
    let profile = here.ancestors().find(|dir| dir.join("deps").is_dir())?;
    let beside = profile.join("outrigger");
    let release = profile.parent()?.join("release/outrigger");
    [beside, release].into_iter().find(|path| path.is_file())
}

/// Why mounts cannot be tested here, if they cannot.
pub fn obstacle() -> Option<String> {
    if program().is_none() {
        return Some("there is no outrigger program; build it or set OUTRIGGER_BIN".into());
    }
    if !rustix::process::geteuid().is_root() {
        return Some("mounting for other users needs root".into());
    }
    match fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => None,
        Err(error) => Some(format!("/dev/fuse: {error}")),
    }
}

fn command(program: &Path, arguments: &[&str]) -> io::Result<Output> {
    let output = Command::new("timeout")
        .args(["--kill-after=5", COMMAND_SECONDS])
        .arg(program)
        .args(arguments)
        .output()?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("outrigger {}: {}: {text}", arguments.join(" "), output.status)))
}

/// The minor device number of the file system mounted on `dir`, which names its FUSE connection.
fn connection_of(dir: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = table.lines().rfind(|line| line.split(' ').nth(4) == dir.to_str())?;
    let (_, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some(minor.to_owned())
}

fn abort(connection: &str, dir: &Path) {
    if fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1").is_err() {
        // The control file system is not mounted. The connection is aborted also where this finds the mount in use.
        let _ = rustix::mount::unmount(dir, UnmountFlags::FORCE);
    }
}

impl Mounted {
    /// Mounts `location` on `dir` with `allow_other,default_permissions` and further `options`.
    /// After `limit` the connection is aborted.
    ///
    /// # Errors
    /// What the program says.
    pub fn new(location: &str, dir: &Path, options: &str, limit: Duration) -> io::Result<Self> {
        Mounted::layered(location, dir, options, &[], limit)
    }

    /// The same with layers, the first nearest to the driver, as `--layer` takes them.
    ///
    /// # Errors
    /// What the program says.
    pub fn layered(
        location: &str,
        dir: &Path,
        options: &str,
        layers: &[&str],
        limit: Duration,
    ) -> io::Result<Self> {
        let program = program().ok_or_else(|| io::Error::other("there is no outrigger program"))?;
        let dir = dir.canonicalize()?;
        let target = dir.to_str().ok_or_else(|| io::Error::other("the mountpoint is not UTF-8"))?;
        let options = format!("allow_other,default_permissions{options}");
        let mut arguments = vec!["mount", "-o", &options, location, target];
        layers.iter().for_each(|layer| arguments.extend(["--layer", layer]));
        command(&program, &arguments)?;
        let connection = connection_of(&dir).ok_or_else(|| io::Error::other("nothing was mounted"))?;
        let (watch, ended) = mpsc::channel::<()>();
        let (watched, mountpoint) = (connection.clone(), dir.clone());
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                abort(&watched, &mountpoint);
            }
        });
        Ok(Mounted { dir, program, connection, _watch: watch })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let dir = self.dir.to_string_lossy().into_owned();
        let unmounted = command(&self.program, &["umount", &dir]).is_ok();
        if !unmounted || connection_of(&self.dir).is_some() {
            abort(&self.connection, &self.dir);
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        }
    }
}
