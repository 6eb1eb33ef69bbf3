// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts an unmodified FUSE program on a socket instead of `/dev/fuse`, with the rights of any user.
//!
//! A seccomp filter makes the few system calls wait that concern the device and the mount, and a thread of ours answers
//! them (seccomp_unotify(2)): the device opens, mount(2) succeeds, and the descriptor that was to be mounted is one end of
//! a socket pair. The program finds nothing amiss; fusermount, when it uses that, is under the same filter. Whatever is
//! read from the other end would have gone to the kernel. Messages are those of the protocol, one a packet.
//!
//! | system call of the program | what happens |
//! |---|---|
//! | open(2) of `/dev/fuse` | a stand-in opens, also where the device is absent or forbidden |
//! | mount(2) of a FUSE type | the descriptor in `fd=` becomes the socket; success |
//! | umount2(2) of that directory | nothing; success |
//! | ioctl `FUSE_DEV_IOC_CLONE` | another copy of the socket |
//! | open(2) of go-fuse's probe in that directory | a stand-in opens: the mount is there |
//! | fsopen(2), and any call of another machine's ABI | `ENOSYS`: programs fall back |
//! | splice(2), and `F_SETPIPE_SZ` of fcntl(2) | `EINVAL`, `EPERM`: replies are written, and arrive whole |
//!
//! # Processes
//!
//! All processes that the program starts end with ours, however that comes, and before a new start ([`Processes`]). They
//! are descendants of one small process that is made by fork(2): until they end it keeps a copy-on-write image of this
//! process. So a process with much memory should start its programs early, and memory that must never fault needs
//! `MADV_DONTFORK`.
//!
//! # Cost
//!
//! A mount or an opening that waits takes some 10 µs longer (`filter` says which do), all other calls nothing to speak of.
//!
//! # Limits
//!
//! * Linux 5.14 or newer, x86_64 or aarch64, `/proc` with `CONFIG_PROC_CHILDREN`. Not from within a process that is itself
//!   under a filter with a listener.
//! * set-user-ID programs run without their privileges (`PR_SET_NO_NEW_PRIVS`).
//! * The program may mount once. A real unmount does not reach it: its end of the socket hangs up instead.
//! * A program that looks for its mount in `/proc/self/mountinfo` (`rclone mount --daemon`) does not find it.
//! * A kill of the small process itself leaves the others alone with a socket that has hung up.
mod calls;
mod filter;
mod init;
mod notify;
mod processes;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use outrigger_core::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

pub use calls::Mounted;
pub use processes::{End, Exit, Processes};

/// The word of a command that stands for the mountpoint when there is none.
pub const ANY_MOUNTPOINT: &str = "{}";

/// Send buffer asked for, in bytes. Users without privileges may get less (net.core.wmem_max).
const BUFFER: usize = 4 << 20;
/// The kernel copies a message into memory that is contiguous but for a few pages, and has no larger pieces.
const MESSAGE_MAX: usize = 4 << 20;

/// A program to start.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program, searched in `PATH`, and its arguments. Where the program can stay in the foreground (`-f`) it should
    /// be told so; it need not.
    pub command: Vec<OsString>,
    /// Where it runs: relative paths of the command begin there, also when we have gone elsewhere.
    pub directory: Option<PathBuf>,
    /// Added to the environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The directory the program gets to mount on.
    pub mountpoint: Mountpoint,
    /// The program may talk to its user: it stays in the session and keeps standard input, and what it says goes to
    /// standard error too until it has mounted. Else its standard input is empty.
    pub terminal: bool,
}

/// Which directory a program gets to mount on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mountpoint {
    /// The one its command names. Only as long as nothing is mounted there that the program itself is to serve.
    Named,
    /// A private empty directory, in place of this word of the command: what [`Mounted::argument`] was at the first start.
    Replaced(usize),
    /// A private empty directory, in place of each `{}` of the command, or as its last argument when there is none.
    Private,
}

/// A program that has mounted.
pub struct Program {
    /// Our end of the connection, `SOCK_SEQPACKET`: reads and writes are those of the kernel's side. It hangs up when no
    /// process of the program holds the other end. Dropping it is what an unmount is for the program.
    pub socket: OwnedFd,
    /// The largest message either side can send, in bytes: more fails with `EMSGSIZE`, also for the program, which then
    /// owes a reply for ever. Far smaller ones can fail too (`ENOBUFS`) when the kernel's memory is fragmented, so reads and
    /// writes of 128 KiB are a good choice.
    pub message_max: usize,
    /// What the program passed to mount(2).
    pub mounted: Mounted,
    /// Its processes.
    pub processes: Processes,
}

/// Why a program has not mounted.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no command.
    #[error("no program is named: give a command, like `sshfs host:/`")]
    Empty,
    /// It could not be executed.
    #[error("{program} cannot be started: {}{}", plain(error), advice(error))]
    Start {
        /// The program.
        program: String,
        /// Of execve(2) or seccomp(2).
        error: io::Error,
    },
    /// All its processes have ended.
    #[error("{program} has mounted nothing; it {exit}")]
    Ended {
        /// The program.
        program: String,
        /// How it ended.
        exit: Exit,
    },
    /// The deadline came first; what ran of it is being killed.
    #[error("{program} has not mounted in time{}", processes::last_output(said))]
    Late {
        /// The program.
        program: String,
        /// What it has said so far.
        said: String,
    },
    /// A system call of our own failed.
    #[error("{what}: {}", plain(error))]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: io::Error,
    },
}

/// The error without its number.
fn plain(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno(number).to_string())
}

/// What to do about an error of execve(2) or seccomp(2).
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "; is it installed?",
        Some(libc::EBUSY) => "; we are ourselves under a seccomp listener, below which there can be no other",
        Some(libc::EINVAL | libc::ENOSYS) => {
            "; seccomp user notification is needed, as in Linux 5.14 and newer"
        }
        _ => "",
    }
}

/// An [`io::Error`] with what was tried.
fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LaunchError {
    move |error| LaunchError::System { what, error: error.into() }
}

impl Launch {
    /// A command in the present directory, with the mountpoint it names itself, without a terminal.
    #[must_use]
    pub fn new(command: Vec<OsString>) -> Self {
        let directory = std::env::current_dir().ok();
        Self { command, directory, environment: Vec::new(), mountpoint: Mountpoint::Named, terminal: false }
    }

    /// Starts the program and returns when it has mounted.
    ///
    /// # Errors
    /// [`LaunchError`]; then no process of the program is left, or it is being killed.
    pub fn start(&self, deadline: Instant) -> Result<Program, LaunchError> {
        let program = self.command.first().ok_or(LaunchError::Empty)?.to_string_lossy().into_owned();
        let placeholder = match self.mountpoint {
            Mountpoint::Named => None,
            _ => Some(Placeholder::new().map_err(system("making a private mountpoint"))?),
        };
        let words = self.words(placeholder.as_ref().map(|placeholder| placeholder.0.as_path()));
        let (socket, theirs) = connection().map_err(system("making a socket pair"))?;
        // The kernel keeps 32 bytes of the buffer for itself (unix_dgram_sendmsg).
        let buffer = sockopt::socket_send_buffer_size(&theirs).map_err(system("making a socket pair"))?;
        let message_max = MESSAGE_MAX.min(buffer.saturating_sub(32));
        let shared = Arc::default();
        let job = self.job(&words, placeholder.as_ref(), theirs, &shared)?;
        std::thread::Builder::new()
            .name("fuse-launch".into())
            .spawn(move || {
                job.run();
                drop(placeholder);
            })
            .map_err(system("starting a thread"))?;
        let processes = Processes(shared);
        let outcome = processes.0.wait(deadline, |state| {
            if let Some(mounted) = state.mounted.take() {
                return Some(Ok(mounted));
            }
            if let Some(error) = state.failed.take() {
                return Some(Err(LaunchError::Start { program: program.clone(), error }));
            }
            let exit = state.exit.clone()?;
            Some(Err(LaunchError::Ended { program: program.clone(), exit }))
        });
        match outcome {
            Some(outcome) => Ok(Program { socket, message_max, mounted: outcome?, processes }),
            None => Err(LaunchError::Late { program, said: processes.said() }),
        }
    }

    /// The command with its mountpoint.
    fn words(&self, placeholder: Option<&Path>) -> Vec<OsString> {
        let mut words = self.command.clone();
        let Some(path) = placeholder.map(Path::as_os_str) else { return words };
        match self.mountpoint {
            Mountpoint::Named => {}
            Mountpoint::Replaced(index) => {
                if let Some(word) = words.get_mut(index) {
                    *word = path.to_owned();
                }
            }
            Mountpoint::Private if words.iter().any(|word| word == ANY_MOUNTPOINT) => {
                words
                    .iter_mut()
                    .filter(|word| *word == ANY_MOUNTPOINT)
                    .for_each(|word| *word = path.to_owned());
            }
            Mountpoint::Private => words.push(path.to_owned()),
        }
        words
    }

    /// Everything the thread needs.
    fn job(
        &self,
        words: &[OsString],
        placeholder: Option<&Placeholder>,
        theirs: OwnedFd,
        shared: &Arc<processes::Shared>,
    ) -> Result<processes::Job, LaunchError> {
        if !init::can_list_children() {
            let error =
                io::Error::other("this kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)");
            return Err(system("starting a program")(error));
        }
        let (control, far) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(system("making a socket pair"))?;
        let (output, writer) = io::pipe().map_err(system("making a pipe"))?;
        rustix::io::ioctl_fionbio(&output, true).map_err(system("making a pipe"))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command.stdin(if self.terminal { Stdio::inherit() } else { Stdio::null() });
        command.stdout(writer.try_clone().map_err(system("making a pipe"))?).stderr(writer);
        let path = placeholder.map(|placeholder| placeholder.0.clone());
        let plan = init::Plan {
            filter: filter::filter(),
            control: far,
            placeholder: path
                .as_deref()
                .map(init::c_path)
                .transpose()
                .map_err(system("temporary directory"))?,
            terminal: self.terminal,
            parent: Some(rustix::process::getpid()),
        };
        let calls =
            calls::Calls { theirs: Some(theirs), command: words.to_vec(), placeholder: path, mounted: None };
        Ok(processes::Job { command, plan, calls, control, output, shared: Arc::clone(shared) })
    }
}

/// The two ends of a connection, with buffers for the largest message.
fn connection() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for end in [&ends.0, &ends.1] {
        // The first goes beyond the limit of the system (net.core.wmem_max), and is for CAP_NET_ADMIN.
        sockopt::set_socket_send_buffer_size_force(end, BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(end, BUFFER))?;
    }
    Ok(ends)
}

/// A private empty directory, removed when dropped, and by the process that watches the program when ours is killed.
///
/// Removed by rmdir(2) only: should a real mount ever be on it, nothing below is touched.
struct Placeholder(PathBuf);

impl Placeholder {
    fn new() -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (base, process) = (std::env::temp_dir().canonicalize()?, std::process::id());
        loop {
            let path = base.join(format!("outrigger-{process}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created.map(|()| Self(path)),
            }
        }
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        // Fails when it has been removed already.
        let _ = std::fs::remove_dir(&self.0);
    }
}
