// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the program's system calls get: the connection instead of `/dev/fuse`, a mount that only seems to happen.
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::notify::{Answer, DescriptorFlags, Waiting};

const DEVICE: &str = "/dev/fuse";
/// What `/dev/fuse` gives until the mount replaces it: polls as ready, and is no file system's.
const STAND_IN: &str = "/dev/null";
/// What go-fuse opens in its mountpoint and polls, before it serves, to learn that it has mounted. Its own server would
/// answer for this name.
const PROBE: &str = ".go-fuse-epoll-hack";
/// mount(2) reads one page of options.
const OPTIONS_MAX: usize = 4096;
const TYPE_MAX: usize = 256;

/// What the program passed to mount(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The directory, absolute.
    pub target: PathBuf,
    /// Type of the file system: `fuse`, `fuse.sshfs`, `fuseblk`.
    pub fstype: OsString,
    /// The first field of `/proc/mounts`.
    pub source: OsString,
    /// Options for the file system, with commas between them: `fd=3,rootmode=40000,user_id=0,...`.
    pub options: OsString,
    /// `MS_*` flags.
    pub flags: u64,
    /// Which word of the command names the directory.
    pub argument: Option<usize>,
}

/// Options of mount(8) with the flags of mount(2) that they are.
const FLAGS: &[(&str, u64)] = &[
    ("noexec", libc::MS_NOEXEC),
    ("nosuid", libc::MS_NOSUID),
    ("nodev", libc::MS_NODEV),
    ("noatime", libc::MS_NOATIME),
    ("nodiratime", libc::MS_NODIRATIME),
    ("sync", libc::MS_SYNCHRONOUS),
    ("ro", libc::MS_RDONLY),
];

impl Mounted {
    /// What the program restricts its mount to, by the names of mount(8): its flags, or what it passed to fusermount3.
    pub fn restrictions(&self) -> impl Iterator<Item = &'static str> {
        let listed = |name: &str| {
            self.options.as_bytes().split(|&byte| byte == b',').any(|item| item == name.as_bytes())
        };
        FLAGS.iter().filter(move |(name, flag)| self.flags & flag != 0 || listed(name)).map(|(name, _)| *name)
    }
}

/// Answers the system calls of one program.
pub struct Calls {
    /// The program's end of the connection, until the program has it.
    pub theirs: Option<OwnedFd>,
    /// The command, where it may name the mountpoint.
    pub command: Vec<OsString>,
    /// The directory given to the program in place of its mountpoint. With one, no other path is touched: below the
    /// real mountpoint is what this program is to serve.
    pub placeholder: Option<PathBuf>,
    /// The mount, and the path as the program wrote it.
    pub mounted: Option<(Mounted, PathBuf)>,
}

impl Calls {
    /// Answers one system call.
    pub fn serve(&mut self, waiting: &Waiting<'_>) {
        if waiting.call == libc::SYS_mount {
            return self.mount(waiting);
        }
        let answer = match waiting.call {
            libc::SYS_umount2 => self.umount(waiting),
            libc::SYS_ioctl => clone_reader(waiting),
            _ => self.open(waiting),
        };
        // The kernel knows best what is wrong with a call that cannot be read.
        let answer = answer.unwrap_or(Answer::Pass);
        if !matches!(answer, Answer::Pass) && !waiting.is_valid() {
            return;
        }
        if let Err(error) = waiting.answer(answer) {
            // The caller's table of descriptors is full, say. Or it does not wait any more, and is owed nothing.
            let _ = waiting.answer(Answer::Fail(errno(&error)));
        }
    }

    /// mount(2): the connection takes the place of the device, and all went well. Other types than FUSE pass.
    fn mount(&mut self, waiting: &Waiting<'_>) {
        // A mount that cannot be read must not happen for real.
        let told = mount_arguments(waiting).and_then(|told| match told {
            Some(told) if waiting.is_valid() => Ok(Some(told)),
            Some(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            None => Ok(None),
        });
        let (descriptor, mut mounted, written) = match told {
            Ok(Some(told)) => told,
            Ok(None) => return drop(waiting.answer(Answer::Pass)),
            Err(error) => {
                return drop(waiting.answer(Answer::Fail(error.raw_os_error().unwrap_or(libc::EIO))));
            }
        };
        let Some(theirs) = &self.theirs else { return drop(waiting.answer(Answer::Fail(libc::EBUSY))) };
        if self.placeholder.is_none() {
            mounted.target = mounted.target.canonicalize().unwrap_or(mounted.target);
        }
        mounted.argument = self.argument(&mounted.target);
        let given = descriptor_flags(waiting.thread, descriptor)
            .and_then(|flags| hand_over(waiting, theirs, descriptor, flags));
        match given {
            Err(error) => drop(waiting.answer(Answer::Fail(errno(&error)))),
            // A caller that was interrupted will ask again.
            Ok(()) if waiting.answer(Answer::Done).is_err() => {}
            Ok(()) => {
                self.theirs = None;
                self.mounted = Some((mounted, written));
            }
        }
    }

    /// The last word of the command that names this directory: programs take what they show before where they show it.
    fn argument(&self, target: &Path) -> Option<usize> {
        if let Some(placeholder) = &self.placeholder {
            return self.command.iter().rposition(|word| Path::new(word) == placeholder);
        }
        let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
        let wanted = identity(target)?;
        let (_, words) = self.command.split_first()?;
        words.iter().rposition(|word| identity(Path::new(word)) == Some(wanted)).map(|index| index + 1)
    }

    /// umount2(2) of the directory we are: there is nothing to do.
    fn umount(&self, waiting: &Waiting<'_>) -> io::Result<Answer> {
        let path = waiting.string(waiting.arguments[0], libc::PATH_MAX as usize)?.unwrap_or_default();
        Ok(if self.is_mountpoint(waiting, Path::new(&path))? { Answer::Done } else { Answer::Pass })
    }

    /// open(2), openat(2), openat2(2) of the device, or of the probe.
    fn open(&self, waiting: &Waiting<'_>) -> io::Result<Answer> {
        let (path, flags) = open_arguments(waiting)?;
        // One byte more than the name has: whatever is longer is another path, and is not read.
        let limit = if flags.contains(OFlags::RDWR) { DEVICE.len() + 1 } else { libc::PATH_MAX as usize };
        let path = PathBuf::from(waiting.string(path, limit)?.unwrap_or_default());
        let is_probe = |path: &Path| -> io::Result<bool> {
            let directory = path.parent().filter(|_| path.file_name() == Some(OsStr::new(PROBE)));
            directory.map_or(Ok(false), |directory| self.is_mountpoint(waiting, directory))
        };
        if path.as_os_str() != DEVICE && !is_probe(&path)? {
            return Ok(Answer::Pass);
        }
        let stand_in = File::options().read(true).write(true).open(STAND_IN)?;
        Ok(Answer::Open(stand_in.into(), close_on_exec(flags)))
    }

    /// Whether a path of the program names the directory we are. It is not looked up, since that could ask us.
    fn is_mountpoint(&self, waiting: &Waiting<'_>, path: &Path) -> io::Result<bool> {
        let Some((mounted, written)) = &self.mounted else { return Ok(false) };
        let path = absolute(waiting.thread, path)?;
        Ok(path == mounted.target || path == *written)
    }
}

/// Where the path is, and the flags.
fn open_arguments(waiting: &Waiting<'_>) -> io::Result<(u64, OFlags)> {
    let [first, second, third, ..] = waiting.arguments;
    let (path, flags) = match waiting.call {
        libc::SYS_openat => (second, third),
        libc::SYS_openat2 => (second, u64::from_ne_bytes(waiting.number(third)?)),
        _ => (first, second),
    };
    Ok((path, OFlags::from_bits_retain(flags as u32)))
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// What mount(2) got: the descriptor of the device, the mount and the absolute path as written; `None` when this is
/// no FUSE mount.
fn mount_arguments(waiting: &Waiting<'_>) -> io::Result<Option<(u32, Mounted, PathBuf)>> {
    let [source, target, fstype, flags, options, _] = waiting.arguments;
    let Some(fstype) = waiting.string(fstype, TYPE_MAX)?.filter(|name| name.as_bytes().starts_with(b"fuse"))
    else {
        return Ok(None);
    };
    let options = waiting.string(options, OPTIONS_MAX)?.unwrap_or_default();
    let Some(descriptor) = option(&options, "fd=").and_then(|number| number.parse().ok()) else {
        return Ok(None);
    };
    let source = waiting.string(source, libc::PATH_MAX as usize)?.unwrap_or_default();
    let target = waiting.string(target, libc::PATH_MAX as usize)?.unwrap_or_default();
    let target = absolute(waiting.thread, Path::new(&target))?;
    let written = target.clone();
    Ok(Some((descriptor, Mounted { target, fstype, source, options, flags, argument: None }, written)))
}

/// The value of the first option that begins like this.
fn option<'a>(options: &'a OsStr, name: &str) -> Option<&'a str> {
    let mut words = options.as_bytes().split(|byte| *byte == b',');
    words.find_map(|word| std::str::from_utf8(word).ok()?.strip_prefix(name))
}

/// Replaces the program's descriptor by the connection, with what the program had set on it.
fn hand_over(waiting: &Waiting<'_>, theirs: &OwnedFd, number: u32, flags: OFlags) -> io::Result<()> {
    let status = rustix::fs::fcntl_getfl(theirs)?;
    rustix::fs::fcntl_setfl(theirs, status | flags & OFlags::NONBLOCK)?;
    waiting.replace(theirs.as_fd(), number, close_on_exec(flags))
}

fn close_on_exec(flags: OFlags) -> DescriptorFlags {
    (flags & OFlags::CLOEXEC).bits()
}

/// `FUSE_DEV_IOC_CLONE`: the descriptor becomes another copy of the connection, which several may read.
fn clone_reader(waiting: &Waiting<'_>) -> io::Result<Answer> {
    let [descriptor, _, original, ..] = waiting.arguments;
    let original = i32::from_ne_bytes(waiting.number(original)?);
    let process = pidfd_open(process_of(waiting.thread)?, PidfdFlags::empty())?;
    let connection = pidfd_getfd(&process, original, PidfdGetfdFlags::empty())?;
    let flags = descriptor_flags(waiting.thread, descriptor as u32)?;
    waiting.replace(connection.as_fd(), descriptor as u32, close_on_exec(flags))?;
    Ok(Answer::Done)
}

/// The path as the kernel would begin to resolve it, `.` left out; nothing is looked up.
fn absolute(thread: u32, path: &Path) -> io::Result<PathBuf> {
    let mut whole =
        if path.is_absolute() { PathBuf::new() } else { std::fs::read_link(format!("/proc/{thread}/cwd"))? };
    whole.extend(path.components().filter(|part| *part != Component::CurDir));
    Ok(whole)
}

/// The flags of a descriptor of this thread, `O_CLOEXEC` among them.
fn descriptor_flags(thread: u32, number: u32) -> io::Result<OFlags> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}"))?;
    let flags = field(&text, "flags:").and_then(|octal| u32::from_str_radix(octal, 8).ok());
    flags.map(OFlags::from_bits_retain).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The process this thread belongs to.
fn process_of(thread: u32) -> io::Result<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let process = field(&text, "Tgid:").and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
    process.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_mount() {
        let cases = [
            ("fd=3,rootmode=40000", Some("3")),
            ("rootmode=40000,fd=17", Some("17")),
            ("subfd=3", None),
            ("", None),
        ];
        for (options, expected) in cases {
            assert_eq!(option(OsStr::new(options), "fd="), expected, "{options}");
        }
    }

    #[test]
    fn paths_are_joined_without_a_look() {
        let here = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let directory = std::env::current_dir().unwrap();
        let cases =
            [("/a/./b", PathBuf::from("/a/b")), (".", directory.clone()), ("./x", directory.join("x"))];
        for (path, expected) in cases {
            assert_eq!(absolute(here, Path::new(path)).unwrap(), expected, "{path}");
        }
    }
}
