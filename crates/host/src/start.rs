// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors and environment of the processes that are started.

use rustix::fs::Mode;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
    umask,
};
use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

/// The first descriptor that is no standard stream.
const FIRST: libc::c_uint = 3;

/// Variables that mean this process: the service manager's (sd_notify(3), sd_listen_fds(3)), libfuse's and our own.
const OURS: &[&str] = &[
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "OUTRIGGER_KEEPER_STATE",
    "OUTRIGGER_SERVING",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "_FUSE_COMMFD",
];

/// The most descriptors that [`allow_descriptors`] asks for; the default of fs.nr_open.
const DESCRIPTORS: u64 = 1 << 20;

/// The limit on descriptors before [`allow_descriptors`].
static INHERITED_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Lets this process open as many descriptors as it may (`RLIMIT_NOFILE`): a file that a program opens in a mount can take one
/// here. With the privilege to raise the hard limit (`CAP_SYS_RESOURCE`), 1,048,576. Processes that [`Confined`] starts get the
/// limit from before: some loop over all numbers, and select(2) takes small ones only.
pub fn allow_descriptors() {
    let before = getrlimit(Resource::Nofile);
    let _ = INHERITED_LIMIT.set(before);
    let most = before.maximum.map_or(DESCRIPTORS, |hard| hard.max(DESCRIPTORS));
    let raised = Rlimit { current: Some(most), maximum: before.maximum.map(|_| most) };
    if setrlimit(Resource::Nofile, raised).is_err() {
        // Less is no error: programs get EMFILE when there are no more.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    }
}

/// The umask before [`take_umask`].
static INHERITED_UMASK: OnceLock<Mode> = OnceLock::new();

/// Reads the umask, and sets it to 0: requests carry the final mode of what they create. Processes that [`Confined`] starts get the
/// umask from before.
pub fn take_umask() -> u32 {
    let before = umask(Mode::empty());
    INHERITED_UMASK.get_or_init(|| before).bits()
}

/// Sets the umask from before [`take_umask`], for the program that this process becomes.
pub fn give_umask_back() {
    if let Some(before) = INHERITED_UMASK.get() {
        umask(*before);
    }
}

/// Starting a process with what it is meant to have.
pub trait Confined {
    /// The process gets standard input, output and error and, under the same numbers, those of the descriptors in `keep` that are
    /// open: no other, whether we made it or inherited it.
    fn keeps_only(&mut self, keep: &[RawFd]) -> &mut Self;

    /// The same, and variables that mean this process are left out of its environment.
    ///
    /// What is said about the environment afterwards counts.
    fn confined(&mut self, keep: &[RawFd]) -> &mut Self;

    /// The process is killed when the thread that starts it ends, also with its whole process that is killed. Programs that get
    /// privileges by execve(2) are not, and neither are processes that it has started itself (`PR_SET_PDEATHSIG`).
    fn dies_with_thread(&mut self) -> &mut Self;
}

impl Confined for Command {
    fn keeps_only(&mut self, keep: &[RawFd]) -> &mut Self {
        let keep = keep.to_vec();
        // SAFETY: between fork and exec only system calls run, on flags of descriptors; nothing is allocated.
        unsafe { self.pre_exec(move || pass_only(&keep)) }
    }

    fn confined(&mut self, keep: &[RawFd]) -> &mut Self {
        OURS.iter().fold(self, |command, name| command.env_remove(name)).keeps_only(keep)
    }

    fn dies_with_thread(&mut self) -> &mut Self {
        let parent = getpid();
        // SAFETY: between fork and exec only system calls run; nothing is allocated.
        unsafe { self.pre_exec(move || die_with(parent)) }
    }
}

/// Has this process killed when the thread of `parent` ends that has started it.
fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before that.
    match getppid() == Some(parent) {
        true => Ok(()),
        false => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// Leaves nothing open beyond the next execve(2) but the standard streams and `keep`.
fn pass_only(keep: &[RawFd]) -> io::Result<()> {
    if let Some(limit) = INHERITED_LIMIT.get() {
        // It was this before, and what is open may be above it.
        let _ = setrlimit(Resource::Nofile, *limit);
    }
    give_umask_back();
    seal_descriptors();
    for &number in keep {
        // SAFETY: takes no pointers; a number that is not open is an error without effect.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    }
    Ok(())
}

/// Marks every descriptor of this process but the standard streams as closed by execve(2) (`FD_CLOEXEC`). Allocates nothing.
pub fn seal_descriptors() {
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_uint;
    // SAFETY: takes no pointers, closes nothing.
    if unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) } == 0 {
        return;
    }
    // Before Linux 5.11.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    for number in FIRST as RawFd..limit as RawFd {
        // SAFETY: takes no pointers; a number that is not open is an error without effect.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// The descriptors that arguments name: `/dev/fd/N` and `/proc/self/fd/N`, alone or with more around.
pub fn named_descriptors<I: IntoIterator<Item = OsString>>(arguments: I) -> Vec<RawFd> {
    let mut found = Vec::new();
    for argument in arguments {
        let text = argument.to_string_lossy();
        for place in ["/dev/fd/", "/proc/self/fd/"] {
            found.extend(text.split(place).skip(1).filter_map(|rest| {
                let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                rest[..digits].parse::<RawFd>().ok()
            }));
        }
    }
    found
}

/// Closes what was inherited: every descriptor that is not closed by execve(2), but the standard streams and `keep`.
///
/// # Errors
/// When `/proc/self/fd` cannot be read.
///
/// # Safety
/// Nothing in this process owns or borrows a descriptor without `FD_CLOEXEC` that is not in `keep`, as at the start of a program.
pub unsafe fn close_inherited(keep: &[RawFd]) -> io::Result<()> {
    // SAFETY: asks for flags, which changes nothing.
    let is_ours = |number| unsafe { libc::fcntl(number, libc::F_GETFD) } != 0;
    // SAFETY: a descriptor without the flag has no owner in this process, as the caller says.
    unsafe { close_all_but(|number| keep.contains(&number) || is_ours(number)) }
}

/// Closes every descriptor but the standard streams and those to be kept.
///
/// # Errors
/// When `/proc/self/fd` cannot be read.
///
/// # Safety
/// Nothing in this process owns or borrows another one.
pub unsafe fn close_all_but(keep: impl Fn(RawFd) -> bool) -> io::Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for number in open.into_iter().filter(|number| *number >= FIRST as RawFd && !keep(*number)) {
        // SAFETY: it has no other owner, as the caller says. The directory listing itself is closed already: closing its number again
        // fails harmlessly.
        unsafe { libc::close(number) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// The descriptors and the environment of a shell; a child of it lists them, for listing opens one.
    fn seen(confine: impl FnOnce(&mut Command) -> &mut Command) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", "(cd /proc/$$/fd && echo [0-9]*) && env"]);
        command.env("NOTIFY_SOCKET", "/there").env("OUTRIGGER_KEEPER_STATE", "7");
        let output = confine(&mut command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_process_gets_the_descriptors_it_is_meant_to_have() {
        let file = tempfile::tempfile().unwrap();
        let [kept, leaked] = [9, 100].map(|above| {
            // SAFETY: makes a copy above a number, which is left open for the rest of the process.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, above) }
        });
        assert!(kept >= 9 && leaked >= 100);
        let inherits = seen(|command| command);
        assert!(inherits.contains(&format!(" {leaked}")), "without care it is there: {inherits}");
        let confined = seen(|command| command.confined(&[kept]));
        assert!(confined.starts_with(&format!("0 1 2 {kept}\n")), "{confined}");
        assert!(!confined.contains("NOTIFY_SOCKET") && !confined.contains("KEEPER_STATE"), "{confined}");
        assert!(confined.contains("PATH="), "the rest of the environment stays: {confined}");
        let kept_alone = seen(|command| command.keeps_only(&[]));
        assert!(kept_alone.starts_with("0 1 2\n") && kept_alone.contains("NOTIFY_SOCKET"), "{kept_alone}");
        let before = take_umask();
        assert_eq!(take_umask(), before, "the first one is remembered");
        let said = Command::new("sh").args(["-c", "umask"]).confined(&[]).output().unwrap().stdout;
        assert_eq!(u32::from_str_radix(String::from_utf8(said).unwrap().trim(), 8), Ok(before));
        umask(Mode::from_bits_truncate(before));
    }

    #[test]
    fn descriptors_in_arguments_are_found() {
        let arguments = ["mount", "/dev/fd/7", "/proc/self/fd/12::/x", "/dev/fd/", "/dev/fd/x"];
        assert_eq!(named_descriptors(arguments.map(OsString::from)), [7, 12]);
    }
}
