// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts whose servers are killed.

use crate::cleanup;
use crate::processes;
use crate::programs::{self, Program};
use crate::sizes::{self, Kind, Sizes};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use outrigger_images::Image;
use outrigger_remote::{HOST, Sshd};
use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// A directory of the host.
    Local,
    /// Memory.
    Mem,
    /// Both by way of a proxy, as on kernels that do not send requests again.
    LocalProxy,
    MemProxy,
    /// A directory of an SSH server.
    Sftp,
    /// An image of this type, whose kernel code dies; so the next ones.
    Ext4,
    Xfs,
    Vfat,
    /// The program bindfs, guarded; so the others.
    Bindfs,
    Sshfs,
    #[value(name = "ntfs-3g")]
    Ntfs3g,
    Gocryptfs,
    FuseOverlayfs,
    Mergerfs,
    Squashfuse,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

impl Subject {
    /// The FUSE program; `None` for our own drivers.
    pub fn program(self) -> Option<&'static Program> {
        match self {
            Subject::Local | Subject::Mem | Subject::LocalProxy | Subject::MemProxy => None,
            Subject::Sftp | Subject::Ext4 | Subject::Xfs | Subject::Vfat => None,
            Subject::Bindfs => Some(&programs::BINDFS),
            Subject::Sshfs => Some(&programs::SSHFS),
            Subject::Ntfs3g => Some(&programs::NTFS_3G),
            Subject::Gocryptfs => Some(&programs::GOCRYPTFS),
            Subject::FuseOverlayfs => Some(&programs::FUSE_OVERLAYFS),
            Subject::Mergerfs => Some(&programs::MERGERFS),
            Subject::Squashfuse => Some(&programs::SQUASHFUSE),
        }
    }

    /// Whether it is an image.
    pub fn is_image(self) -> bool {
        matches!(self, Subject::Ext4 | Subject::Xfs | Subject::Vfat)
    }

    /// A new image of this type.
    fn image(self) -> Result<Image> {
        Ok(Image::new(outrigger_images::kind(&self.to_string()).context("what makes the image is gone")?))
    }

    /// Whether nothing can be changed in it.
    pub fn is_read_only(self) -> bool {
        self.program().is_some_and(|program| program.is_read_only)
    }

    /// Whether everything it takes is installed; says so when not.
    pub fn is_here(self) -> bool {
        if self.is_image() {
            return outrigger_images::kind(&self.to_string()).is_some();
        }
        let missing = match self {
            Subject::Sftp => Sshd::missing(),
            _ => self.program().and_then(Program::missing),
        };
        if let Some(missing) = missing {
            println!("SKIPPED: {self}: {missing} is not installed");
        }
        missing.is_none()
    }
}

/// Where mounts are made.
#[derive(Debug)]
pub struct Place {
    program: PathBuf,
    /// Where cargo builds.
    target: PathBuf,
    sshd: OnceCell<Sshd>,
    stores: Cell<u32>,
    scratch: tempfile::TempDir,
}

/// How long a command about a mount may take.
const PATIENCE: Duration = Duration::from_secs(20);

impl Place {
    /// A scratch directory, and the program to test.
    pub fn new(program: Option<PathBuf>) -> Result<Self> {
        let own = std::env::current_exe()?;
        let program = program.unwrap_or_else(|| own.with_file_name("outrigger"));
        ensure!(
            program.is_file(),
            "{} is not there: build it or name it with --outrigger",
            program.display()
        );
        let scratch = tempfile::Builder::new().prefix("outrigger-kill.").tempdir()?;
        cleanup::on_signals(scratch.path().to_owned())?;
        let target = own.ancestors().nth(2).context("no directory of builds")?.to_owned();
        Ok(Place { program, target, sshd: OnceCell::new(), stores: Cell::new(0), scratch })
    }

    /// The directory of everything here.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A program or file that `make deps` and testing/tools/test-programs.sh provide.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.target.join("test-tools").join(name)
    }

    /// A new empty directory that is no mount.
    pub fn plain(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.path().join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// The directory that [`Place::undisturbed`] makes, if it makes no mount.
    pub fn plain_dir(&self) -> PathBuf {
        self.scratch.path().join("plain")
    }

    /// The SSH server; started when it is first needed.
    pub fn sshd(&self) -> Result<&Sshd> {
        if let Some(sshd) = self.sshd.get() {
            return Ok(sshd);
        }
        let started = Sshd::start(self.plain("sshd")?)?;
        Ok(self.sshd.get_or_init(|| started))
    }

    /// What a guarded mount of this is compared with: the same program, mounted without us; for our own drivers, and
    /// read-only subjects, a plain directory.
    pub fn undisturbed(&self, subject: Subject) -> Result<Undisturbed> {
        let plain = self.plain("plain")?;
        match subject.program() {
            Some(program) if !program.is_read_only => {
                let store = self.store()?;
                let command = (program.store)(self, &store)?;
                let tree = Undisturbed { dir: plain, served: Some((command, store)), image: None };
                self.serve(&tree)?;
                Ok(tree)
            }
            // This one and the next cannot do all that a plain directory can.
            _ if subject == Subject::Sftp => {
                let (store, words) = self.far()?;
                self.unguarded(plain, store, words, None)
            }
            _ if subject == Subject::Vfat => {
                let image = subject.image()?;
                let words = ["dev,suid".to_owned(), image.path().display().to_string()];
                self.unguarded(plain, self.store()?, words, Some(image))
            }
            _ => {
                if subject == Subject::Ext4 {
                    // Every new one has it.
                    fs::DirBuilder::new().mode(0o700).create(plain.join("lost+found"))?;
                }
                Ok(Undisturbed { dir: plain, served: None, image: None })
            }
        }
    }

    /// A mount of our own without a guard.
    fn unguarded(
        &self,
        dir: PathBuf,
        store: PathBuf,
        [option, source]: [String; 2],
        image: Option<Image>,
    ) -> Result<Undisturbed> {
        let program = self.program.display().to_string();
        let words = [&program, "mount", "--no-guard", "-o", &option, &source];
        let tree = Undisturbed { dir, served: Some((words.map(str::to_owned).to_vec(), store)), image };
        self.serve(&tree)?;
        Ok(tree)
    }

    /// A new directory of the SSH server, and the option and the source that mount it.
    fn far(&self) -> Result<(PathBuf, [String; 2])> {
        let store = self.store()?;
        let option = format!("dev,suid,F={}", self.sshd()?.configuration().display());
        let source = format!("{HOST}:{}", store.display());
        Ok((store, [option, source]))
    }

    fn serve(&self, tree: &Undisturbed) -> Result<()> {
        let Some((words, _)) = &tree.served else { return Ok(()) };
        self.start(Command::new(&words[0]).args(&words[1..]).arg(&tree.dir))
    }

    /// Mounts it once more: what it shows then comes from no cache of the kernel's nor of the program's.
    pub fn remount(&self, tree: &Undisturbed) -> Result<()> {
        tree.umount()?;
        self.serve(tree)
    }

    /// Mounts an empty tree; for read-only subjects, the content of the plain directory.
    pub fn mount(&self, subject: Subject, arguments: &[&str]) -> Result<Mounted> {
        let image = subject.is_image().then(|| subject.image()).transpose()?;
        self.mount_with(subject, arguments, image)
    }

    /// Mounts an image that may have been mounted before.
    pub fn mount_image(&self, subject: Subject, arguments: &[&str], image: Image) -> Result<Mounted> {
        self.mount_with(subject, arguments, Some(image))
    }

    fn mount_with(&self, subject: Subject, arguments: &[&str], image: Option<Image>) -> Result<Mounted> {
        let dir = self.plain("mnt")?;
        let mut store = self.store()?;
        let mut command = Command::new(&self.program);
        let by_proxy = matches!(subject, Subject::LocalProxy | Subject::MemProxy);
        let options = if by_proxy { "dev,suid,guard=proxy" } else { "dev,suid" };
        let mount = |command: &mut Command, options: &str, source: &OsStr| {
            command.arg("mount").args(arguments).args(["-o", options]).arg(source).arg(&dir);
        };
        match subject {
            _ if let Some(image) = &image => mount(&mut command, options, image.path().as_os_str()),
            Subject::Local | Subject::LocalProxy => mount(&mut command, options, store.as_os_str()),
            Subject::Mem | Subject::MemProxy => mount(&mut command, options, OsStr::new("mem:")),
            Subject::Sftp => {
                let (far, [options, source]) = self.far()?;
                store = far;
                mount(&mut command, &options, source.as_ref());
            }
            _ => {
                let program = subject.program().context("it is a program")?;
                let words = (program.store)(self, &store)?;
                command.arg("guard").args(arguments).arg("--").args(words).arg(&dir);
            }
        }
        self.start(&mut command)?;
        let server = Server { pid: 0, program: subject.program() };
        let mut mounted = Mounted { program: self.program.clone(), dir, server, store, image };
        let status = mounted.status()?;
        let pid = if subject.program().is_some() { &status["pid"] } else { &status["guard"]["keeper"] };
        mounted.server.pid = pid.as_i64().context("nobody serves the mount")? as i32;
        Ok(mounted)
    }

    /// A new empty directory, never used before: what served the last one may not have ended yet.
    fn store(&self) -> Result<PathBuf> {
        self.stores.set(self.stores.get() + 1);
        self.plain(&format!("store{}", self.stores.get()))
    }

    /// The program to test.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs a command that leaves a process in the background. That may keep its output open, so the output is a file.
    ///
    /// # Errors
    /// When it fails or stays in the foreground, with what it said.
    pub fn start(&self, command: &mut Command) -> Result<()> {
        let said = self.scratch.path().join("said");
        let file = File::create(&said)?;
        // Reports of crashes go there.
        command.env("XDG_STATE_HOME", self.scratch.path().join("state"));
        let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
        if !processes::wait(&[Pid::from_child(&child)], PATIENCE) {
            child.kill()?;
            child.wait()?;
            bail!("{command:?} stays in the foreground: {}", fs::read_to_string(&said)?);
        }
        let status = child.wait()?;
        ensure!(status.success(), "cannot mount: {status} {}", fs::read_to_string(&said)?);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        cleanup::release(self.scratch.path());
    }
}

/// A tree without deaths, for comparison.
#[derive(Debug)]
pub struct Undisturbed {
    /// Where it is.
    pub dir: PathBuf,
    /// The command, and its store; nothing for a plain directory.
    served: Option<(Vec<String>, PathBuf)>,
    /// What is mounted, where that is an image.
    #[expect(dead_code, reason = "it is taken away when it is dropped")]
    image: Option<Image>,
}

impl Undisturbed {
    /// The directory that is served, if there is one.
    pub fn store(&self) -> Option<&Path> {
        self.served.as_ref().map(|(_, store)| store.as_path())
    }

    fn umount(&self) -> Result<()> {
        if self.served.is_none() {
            return Ok(());
        }
        let dir = self.dir.display().to_string();
        // It is not ours to wait for, and may still write to its store when nothing is mounted any more.
        let serving = processes::with_argument(&dir);
        programs::tool("umount", &[&dir])?;
        ensure!(processes::wait(&serving, PATIENCE), "what served {dir} does not end");
        Ok(())
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if self.umount().is_err() {
            cleanup::release(&self.dir);
        }
        if let Some((_, store)) = &self.served {
            let _ = fs::remove_dir_all(store);
        }
    }
}

/// The process that supervises a mount: the keeper of a worker, or the server in front of a FUSE program.
#[derive(Debug, Clone, Copy)]
struct Server {
    pid: i32,
    program: Option<&'static Program>,
}

impl Server {
    /// The process that dies: the only child of the keeper that lives, or the process of the program.
    fn victim(self) -> Option<Pid> {
        let below = match self.program {
            Some(_) => processes::descendants(self.pid),
            None => processes::children(self.pid),
        };
        below.into_iter().rev().find(|&pid| self.may_be_victim(pid))
    }

    /// One that has ended is a child until its parent has seen that.
    fn may_be_victim(self, pid: Pid) -> bool {
        processes::name_and_state(pid).is_some_and(|(name, state)| {
            !"ZX".contains(state) && self.program.is_none_or(|program| name == program.name)
        })
    }
}

/// A guarded mount; dropping it ends it, whatever state it is in.
#[derive(Debug)]
pub struct Mounted {
    program: PathBuf,
    /// Where it is.
    pub dir: PathBuf,
    server: Server,
    /// What it serves, if that is a directory.
    pub store: PathBuf,
    /// What it serves, if that is an image.
    image: Option<Image>,
}

impl Mounted {
    /// What `outrigger status` says. A server that has just died is waited for.
    fn status(&self) -> Result<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.ask_status() {
                Err(_) if Instant::now() < until => thread::yield_now(),
                result => return result,
            }
        }
    }

    fn ask_status(&self) -> Result<Value> {
        let output = Command::new(&self.program).args(["--json", "status"]).arg(&self.dir).output()?;
        ensure!(output.status.success(), "status: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// How often its worker has died. Deaths of programs are counted by the killer.
    pub fn deaths(&self) -> Result<Option<u64>> {
        match self.server.program {
            Some(_) => Ok(None),
            None => self.status()?["guard"]["deaths"].as_u64().map(Some).context("no count of deaths"),
        }
    }

    /// The last error of a request, and its reason; for finding the cause of a wrong result.
    pub fn last_error(&self) -> String {
        self.ask_status().map_or_else(|error| error.to_string(), |status| status["last_error"].to_string())
    }

    /// Whether a FUSE program other than ours serves it.
    pub fn is_program(&self) -> bool {
        self.server.program.is_some()
    }

    /// The victim: the process that is killed.
    pub fn victim(&self) -> Option<Pid> {
        self.server.victim()
    }

    /// The same, which is known to be there: /proc may leave out a process while another one ends (proc_pid_children(5)).
    pub fn serving(&self) -> Result<Pid> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.victim() {
                Some(pid) => return Ok(pid),
                None if Instant::now() > until => bail!("nobody serves"),
                None => thread::yield_now(),
            }
        }
    }

    /// Descriptors and resident kilobytes of our process that serves.
    pub fn size(&self) -> Result<(usize, u64)> {
        let server = match self.server.program {
            Some(_) => self.server.pid,
            None => self.serving()?.as_raw_nonzero().get(),
        };
        let fds = fs::read_dir(format!("/proc/{server}/fd"))?.count();
        Ok((fds, processes::resident(server)?))
    }

    /// Resident kilobytes of the keeper; `None` where there is none.
    pub fn keeper_size(&self) -> Result<Option<u64>> {
        match self.server.program {
            _ if self.image.is_some() => Ok(None),
            Some(_) => Ok(None),
            None => processes::resident(self.server.pid).map(Some),
        }
    }

    /// What its processes take. The server is replaced first, so that what its life has left in it does not matter.
    pub fn sizes(&self) -> Result<Sizes> {
        self.kill(Signal::KILL);
        statvfs(&self.dir)?;
        self.status()?;
        let server = self.server.pid;
        let mut sizes = match self.server.program {
            Some(_) => sizes::of(&[("server", server)])?,
            None => {
                let worker = self.serving()?.as_raw_nonzero().get();
                sizes::of(&[("keeper", server), ("worker", worker)])?
            }
        };
        sizes.insert(Kind::Processes, processes::descendants(server).len() as u64);
        Ok(sizes)
    }

    /// Sends a signal to the victim and does not wait. False when there was none just then.
    pub fn strike(&self, signal: Signal) -> bool {
        self.victim().is_some_and(|victim| kill_process(victim, signal).is_ok())
    }

    /// Kills the victim and waits for its end. False when there was none just then.
    pub fn kill(&self, signal: Signal) -> bool {
        self.victim().is_some_and(|victim| processes::end(victim, signal))
    }

    /// Kills again and again, with pauses up to `pause`, until `most` deaths or until the killer is stopped.
    pub fn killer(&self, pause: Duration, most: u32, seed: u64) -> Killer {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (server, dir) = (self.server, self.dir.clone());
        let thread = thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut killed, mut last) = (0, None);
            while killed < most && !stopped.load(Ordering::Relaxed) {
                thread::sleep(pause.mul_f64(random.f64()));
                let victim = server.victim();
                let signal = if random.bool() { Signal::KILL } else { Signal::SEGV };
                // One that has just been started may get away once, before it catches its signals.
                let end = |victim| match server.program {
                    Some(program) if program.torn.is_some() => {
                        processes::end_between_requests(victim, signal)
                    }
                    _ => processes::end(victim, signal),
                };
                if victim.is_some_and(end) && victim != last {
                    killed += 1;
                    last = victim;
                }
                // Programs take their time to start; one that never serves is a different matter.
                if server.program.is_some() {
                    let _ = statvfs(&dir);
                }
            }
            killed
        });
        Killer { stop, thread }
    }

    /// Unmounts; an error when that is refused or takes too long.
    pub fn end(self) -> Result<()> {
        self.umount(&[])
    }

    /// Unmounts, and gives the image, which is free then; `None` where there is none.
    pub fn into_image(mut self) -> Result<Option<Image>> {
        let serving = Pid::from_raw(self.server.pid);
        self.umount(&[])?;
        ensure!(processes::wait(serving.as_slice(), PATIENCE), "what served the mount does not end");
        Ok(self.image.take())
    }

    /// Unmounts, with these arguments of `umount`.
    ///
    /// # Errors
    /// When that is refused or takes too long.
    pub fn umount(&self, arguments: &[&str]) -> Result<()> {
        let limit = PATIENCE.as_secs().to_string();
        let output = Command::new("timeout")
            .arg(limit)
            .arg(&self.program)
            .arg("umount")
            .args(arguments)
            .arg(&self.dir)
            .output()?;
        if !output.status.success() {
            bail!("umount: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !cleanup::mounts_below(&self.dir).is_empty()
            && let Err(error) = self.umount(&["--force"])
        {
            eprintln!("{}: {error}", self.dir.display());
            cleanup::release(&self.dir);
        }
        let _ = fs::remove_dir_all(&self.store);
    }
}

/// A thread that kills.
#[derive(Debug)]
pub struct Killer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Killer {
    /// Stops it; gives how often it killed.
    pub fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }

    /// Whether it has killed as often as it was to.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }
}
