// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process `outrigger-kernel`: where it is, how it starts, what it last said.

use crate::disk::Disk;
use crate::image::{Image, Other, Part};
use crate::{FsType, Options};
use outrigger_core::{Errno, Error, Result, lock};
use outrigger_host::Confined;
use outrigger_proto_disk::Medium;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// The name of the program.
const PROGRAM: &str = "outrigger-kernel";
/// What to do where the program is missing.
pub const HOW_TO_GET_IT: &str = "`make deps kernel install` in the source tree builds and installs it; OUTRIGGER_KERNEL= says where it is otherwise";
/// The signal that no process sends itself.
const KILLED: i32 = 9;
/// The exit status after another signal that another process has sent: see `STRUCK` in `kernel/worker/src/host.rs`.
const STRUCK: i32 = 102;
/// Where the log starts in its file, and how much of the end of it is kept: see `kernel/worker/src/log.rs`.
const LOG_START: u64 = 8;
const LOG_SIZE: u64 = 64 << 10;
/// Where the part of that file starts with which a mount survives its worker: see `outrigger_succession::control`.
pub(crate) const CONTROL: u64 = 128 << 10;

/// How the line begins in which a worker says what it has left of the host: see `kernel/worker/src/isolation.rs`.
const ISOLATED: &str = "outrigger-kernel: isolated: ";

/// What the kernel code says whatever the image is.
const NOISE: &[&str] = &[
    ISOLATED,
    "VFS: Disk quotas dquot_",
    "VFS: Dquot-cache hash table entries",
    "SGI XFS with ",
    "Btrfs loaded",
    "NILFS version",
    "JFS: nTxBlock",
    "Linux version",
    "Kernel command line:",
    "random: crng init done",
    "ntfs3: Warning: Activated 64 bits per cluster",
];

/// A running worker.
pub(crate) struct Worker {
    child: Mutex<Child>,
    log: File,
}

/// The program: `$OUTRIGGER_KERNEL`; else beside this program, in `../libexec/outrigger`, or in the `kernel` of the build
/// directory that this program was built in. None when it is in none of these places.
pub fn program() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("OUTRIGGER_KERNEL") {
        return Some(given.into());
    }
    places(&std::env::current_exe().ok()?).into_iter().find(|place| place.is_file())
}

/// Where the program belongs when this one is the file `own`. Only users who may exchange `own` as well may write there.
fn places(own: &Path) -> Vec<PathBuf> {
    /// What cargo calls the directories of its profiles, and those in them that have programs too.
    const PROFILES: [&str; 2] = ["debug", "release"];
    const INNER: [&str; 2] = ["deps", "examples"];

    let is = |dir: &Path, names: &[&str]| names.iter().any(|name| dir.ends_with(name));
    let Some(beside) = own.parent() else { return Vec::new() };
    let profile = if is(beside, &INNER) { beside.parent() } else { Some(beside) };
    let built = profile.filter(|dir| is(dir, &PROFILES)).and_then(Path::parent).map(|dir| dir.join("kernel"));
    let installed = beside.parent().map(|prefix| prefix.join("libexec/outrigger"));
    let folders = [Some(beside.to_owned()), installed, built];
    folders.into_iter().flatten().map(|folder| folder.join(PROGRAM)).collect()
}

/// The same, which is there.
///
/// # Errors
/// `ENOENT` when it is not, with what helps.
pub(crate) fn program_or_why() -> Result<PathBuf> {
    const NEEDED: &str = "disk images need the program outrigger-kernel";
    match program() {
        Some(program) if program.is_file() => Ok(program),
        Some(given) => Err(Errno::ENOENT
            .because(format!("{NEEDED}, and OUTRIGGER_KERNEL={} is no such file", given.display()))),
        None => Err(Errno::ENOENT.because(format!("{NEEDED}: {HOW_TO_GET_IT}"))),
    }
}

/// The file that a worker's kernel messages are kept in.
pub(crate) struct Log {
    /// The file.
    pub(crate) file: File,
    /// Whether what the worker has to leave to its successor is in it too.
    pub(crate) survived: bool,
}

impl Log {
    /// A new one, for one worker.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new() -> Result<Self> {
        let file =
            rustix::fs::memfd_create("outrigger-kernel log", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = file.map_err(|errno| Error::from(Errno(errno.raw_os_error())))?;
        Ok(Log { file: File::from(file), survived: false })
    }

    /// The same, for another worker after the one before.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn again(file: &File) -> Result<Self> {
        file.write_all_at(&[0; LOG_START as usize], 0)?;
        Ok(Log { file: file.try_clone()?, survived: true })
    }
}

/// Sends the files of an image that no descriptor is named for to the process that will have the other end, ahead of everything else: those
/// it needs, then each of the further disks and those that it needs.
fn hand_over(socket: &UnixStream, image: &Image) -> Result<()> {
    let own = [(image.disk(), false)].into_iter();
    for (disk, first) in own.chain(image.others().iter().map(|other| (&other.disk, true))) {
        let file = disk.place.host().filter(|_| first).map(|file| file.as_fd());
        let files: Vec<BorrowedFd> =
            file.into_iter().chain(disk.chain.iter().map(|link| link.file.as_fd())).collect();
        if !files.is_empty() {
            send_with(socket, &[0], &files)?;
        }
    }
    Ok(())
}

/// The forms of the files that a disk needs beside its own, as a list.
fn forms(disk: &Disk) -> String {
    disk.chain.iter().map(|link| link.form.name()).collect::<Vec<_>>().join(",")
}

/// The word of the command line about a further disk.
fn further(Other { option, disk }: &Other) -> String {
    format!("device={option},{},{}", disk.form.name(), forms(disk))
}

/// Sends `bytes`, which are not none, and with the first of them descriptors (unix(7), `SCM_RIGHTS`).
///
/// # Errors
/// When the other side has gone.
pub(crate) fn send_with(mut socket: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = outrigger_host::send_with(socket, bytes, files)?;
    socket.write_all(&bytes[sent..])
}

impl Worker {
    /// Starts the program for a part of an image, or for a tree in memory, which it mounts. Gives it and this end of the
    /// connection.
    ///
    /// # Errors
    /// `ENOENT` when there is no such program here, and what starting it fails with.
    pub(crate) fn start(
        image: Option<&Image>,
        part: &Part,
        kind: &FsType,
        writable: bool,
        options: &Options,
        log: Log,
    ) -> Result<(Self, UnixStream)> {
        let program = program_or_why()?;
        let (ours, theirs) = UnixStream::pair()?;
        let disk = image.map(Image::disk);
        image.map_or(Ok(()), |image| hand_over(&ours, image))?;
        let mut command = Command::new(&program);
        // Descriptors 0, 1 and 2, for these are handed over without further ado.
        command.args(disk.map(|_| "image=0")).args(["socket=1", "log=2"]);
        command.arg(format!("type={}", kind.name)).args(part.flash.map(|bytes| format!("flash={bytes}")));
        command.arg(format!("start={}", part.start)).args(part.size.map(|size| format!("size={size}")));
        // Where both name the same option, the user's counts: it comes last.
        let passed: Vec<&str> = (!kind.options.is_empty())
            .then_some(kind.options)
            .into_iter()
            .chain(options.passed.iter().map(String::as_str))
            .collect();
        command.arg(format!("write={}", u8::from(writable))).arg(format!("options={}", passed.join(",")));
        if let Some(disk) = disk {
            command.arg(format!("format={}", disk.form.name())).arg(format!("backing={}", forms(disk)));
            command.args(disk.place.served().map(|served| format!("served={}", served.size())));
        }
        command.args(image.map_or(&[][..], Image::others).iter().map(further));
        command.args(options.io.as_ref().map(|io| format!("io={io}")));
        command.arg(format!("memory={}", options.memory())).arg(format!("files={}", options.files()));
        command.args(log.survived.then(|| format!("control={CONTROL}")));
        command.args(options.fixed.map(|fixed| format!("fixed={},{}", fixed.seconds, fixed.seed)));
        command.args(options.patience.map(|patience| format!("patience={}", patience.as_secs())));
        // Ctrl-C is for us to see; the worker ends in good order when we hang up.
        command.confined(&[]).env_clear().current_dir("/").process_group(0);
        command
            .stdin(disk.map_or_else(|| Ok(Stdio::null()), |disk| disk.place.hand_out().map(Stdio::from))?)
            .stdout(OwnedFd::from(theirs))
            .stderr(Stdio::from(log.file.try_clone()?));
        let child = command.spawn().map_err(|error| {
            let errno = Errno(error.raw_os_error().unwrap_or(5));
            errno.because(format!("cannot start {}: {error}", program.display()))
        })?;
        Ok((Worker { child: Mutex::new(child), log: log.file }, ours))
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Ends the process at once.
    pub(crate) fn kill(&self) {
        // It may have ended by itself.
        drop(lock(&self.child).kill());
    }

    /// Waits for the end of the process. Says why it came, unless all is well.
    pub(crate) fn wait(&self) -> Option<String> {
        let status = lock(&self.child).wait();
        match status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("the kernel code has ended ({status}){}", self.last_words())),
            Err(error) => Some(format!("the kernel code has ended, its exit status is unknown: {error}")),
        }
    }

    /// Waits for the end of the process. Tells whether others killed it.
    pub(crate) fn was_killed(&self) -> bool {
        let status = lock(&self.child).wait();
        status.is_ok_and(|status| status.signal() == Some(KILLED) || status.code() == Some(STRUCK))
    }

    /// The last lines the kernel printed, those that tell of an error if there are any.
    pub(crate) fn last_words(&self) -> String {
        let text = self.read_log().unwrap_or_default();
        let tells = |line: &&str| !line.is_empty() && !NOISE.iter().any(|noise| line.contains(noise));
        let lines: Vec<&str> = text.lines().map(str::trim).filter(tells).collect();
        match lines.iter().rposition(|line| line.contains("Kernel panic") || line.contains("BUG:")) {
            Some(place) => format!(": {}", lines[place]),
            None => lines[lines.len().saturating_sub(3)..].iter().map(|line| format!(": {line}")).collect(),
        }
    }

    /// What the process has of its own instead of what the host has, as a list for people; none without a sandbox.
    pub(crate) fn isolation(&self) -> Option<String> {
        let text = self.read_log().ok()?;
        text.lines().find_map(|line| line.strip_prefix(ISOLATED)).map(str::to_owned)
    }

    fn read_log(&self) -> io::Result<String> {
        let mut written = [0; 8];
        self.log.read_exact_at(&mut written, 0)?;
        let written = u64::from_le_bytes(written);
        let kept = written.min(LOG_SIZE);
        let mut ring = vec![0; kept as usize];
        self.log.read_exact_at(&mut ring, LOG_START)?;
        if written > LOG_SIZE {
            ring.rotate_left((written % LOG_SIZE) as usize);
        }
        Ok(String::from_utf8_lossy(&ring).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_looked_for_where_its_own_files_are_and_nowhere_above() {
        let looked = |own: &str| -> Vec<String> {
            places(Path::new(own)).iter().map(|place| place.display().to_string()).collect()
        };
        assert_eq!(
            looked("/usr/local/bin/outrigger"),
            ["/usr/local/bin/outrigger-kernel", "/usr/local/libexec/outrigger/outrigger-kernel"]
        );
        for own in
            ["/src/target/debug/outrigger", "/src/target/debug/deps/test", "/src/target/release/outrigger"]
        {
            assert_eq!(looked(own).last().unwrap(), "/src/target/kernel/outrigger-kernel", "{own}");
        }
        assert!(!looked("/opt/deps/outrigger").concat().contains("/kernel/"), "no build directory");
    }
}
