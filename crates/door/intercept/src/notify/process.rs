// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process whose call waits, as /proc shows it.

use super::decode::At;
use super::memory::Memory;
use super::names::{How, Names, Where, last};
use crate::proc::status;
use outrigger_core::{Errno, Result};
use rustix::fs::{AtFlags, CWD, readlinkat, statat};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// `CAP_DAC_OVERRIDE`, as a bit.
const DAC_OVERRIDE: u64 = 1 << 1;

/// No path is longer, with the byte that ends it.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// A thread of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) thread: i32,
}

impl Process {
    /// Its memory.
    pub(crate) fn memory(self) -> Memory {
        Memory(self.thread)
    }

    /// The path of its working directory, or of what it has open under a number; it need not be one.
    ///
    /// # Errors
    /// `EBADF` when nothing is open.
    pub(crate) fn file(self, descriptor: i32) -> Result<Vec<u8>> {
        if descriptor < 0 && descriptor != libc::AT_FDCWD {
            return Err(Errno::EBADF.into());
        }
        let path = readlinkat(CWD, &self.link(descriptor)[..], Vec::with_capacity(256));
        Ok(path.map_err(io::Error::from)?.into_bytes())
    }

    /// The link in /proc to its working directory, or to what it has open.
    pub(crate) fn link(self, descriptor: i32) -> Vec<u8> {
        match descriptor {
            libc::AT_FDCWD => format!("/proc/{}/cwd", self.thread),
            number => format!("/proc/{}/fd/{number}", self.thread),
        }
        .into_bytes()
    }

    /// The file that a call names. `before_asking` is called before a tree is asked.
    ///
    /// # Errors
    /// Those of a path that leads into a tree.
    pub(crate) fn find(self, names: &Names, at: &At, how: How, before_asking: &dyn Fn()) -> Result<Where> {
        if at.path.is_empty() && !at.may_be_empty {
            return Ok(Where::Local);
        }
        let is_absolute = at.path.starts_with(b"/");
        // Where nothing is open, the kernel says so.
        let start = if is_absolute { Ok(Vec::new()) } else { self.file(at.dir) };
        let mut start = match start {
            Ok(start) => start,
            // What it has open is not known: it may be a real file.
            Err(error) if how.changes && names.overlay().is_some() && error.errno == Errno::EACCES => {
                return Err(error);
            }
            Err(_) => return Ok(Where::Local),
        };
        if !is_absolute && !start.starts_with(b"/") {
            return Ok(Where::Local);
        }
        if start == b"/" {
            start.clear();
        }
        let is_in_tree = names.shown(&start).is_some();
        let apart = names.overlay().filter(|_| names.in_mirror(&start).is_none());
        if at.path.is_empty() && (!is_in_tree || apart.is_some()) {
            // What is open the kernel knows, and the overlay has to be told what becomes of it.
            let is_local = match apart.filter(|_| how.changes) {
                Some(overlay) => overlay.is_free(&self.link(at.dir), &start, false)?,
                None => true,
            };
            if is_local {
                return Ok(Where::Local);
            }
        }
        if at.is_open && self.is_name(at.dir)? {
            return Err(Errno::EBADF.into());
        }
        let joined = if is_absolute { None } else { Some([&start[..], b"/", &at.path].concat()) };
        let found = match !is_in_tree && names.is_local(joined.as_ref().unwrap_or(&at.path)) {
            true => Where::Local,
            false => names.find(self, &start, &at.path, how, before_asking)?,
        };
        Ok(match (found, joined) {
            (Where::Local, Some(path)) if how.moves && !is_in_tree && path.len() < PATH_MAX => {
                Where::Fixed(path)
            }
            (found, _) => found,
        })
    }

    /// Whether a link in /proc is one of its own.
    pub(crate) fn has(self, link: &[u8]) -> bool {
        let number = link.strip_prefix(b"/proc/").and_then(|rest| rest.split(|&byte| byte == b'/').next());
        let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse::<i32>().ok());
        number.is_some_and(|number| number == self.thread || self.number().is_ok_and(|own| own == number))
    }

    /// Whether other threads may change its working directory and its descriptors.
    pub(crate) fn has_threads(self) -> bool {
        status(self.thread, "Threads:").is_ok_and(|count| count != "1")
    }

    /// Whether paths from the root directory mean the same files to it as to this process.
    pub(crate) fn has_root(self) -> bool {
        self.sees(Path::new("/")).unwrap_or(false)
    }

    /// Whether a path from the root directory leads it to the same file as this process.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn sees(self, path: &Path) -> Result<bool> {
        let identity = |path: &Path| {
            statat(CWD, path.join("."), AtFlags::empty()).map(|found| (found.st_dev, found.st_ino))
        };
        let root = PathBuf::from(format!("/proc/{}/root", self.thread));
        identity(&root).map_err(io::Error::from)?;
        let there = identity(&root.join(path.strip_prefix("/").unwrap_or(path)));
        Ok(there.is_ok() && there == identity(path))
    }

    /// Whether an open file is none but for its name (`O_PATH`).
    ///
    /// # Errors
    /// When the process is gone.
    pub(crate) fn is_name(self, descriptor: i32) -> Result<bool> {
        Ok(self.opened(descriptor)?.0 & libc::O_PATH != 0)
    }

    /// The flags of an open file, and the place where the process is in it.
    ///
    /// # Errors
    /// When the process is gone.
    pub(crate) fn opened(self, descriptor: i32) -> Result<(i32, u64)> {
        let about = fs::read_to_string(format!("/proc/{}/fdinfo/{descriptor}", self.thread))?;
        let field = |name: &str| about.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
        let place = field("pos:").and_then(|place| place.parse().ok());
        Ok((flags.unwrap_or_default(), place.unwrap_or_default()))
    }

    /// What it takes away from the permissions of new files.
    ///
    /// # Errors
    /// When the process is gone.
    pub(crate) fn umask(self) -> Result<u32> {
        Ok(u32::from_str_radix(&status(self.thread, "Umask:")?, 8).unwrap_or(0))
    }

    /// Whether it is one of this user: then it may do in a tree what the user may.
    pub(crate) fn is_of(self, user: u32) -> bool {
        statat(CWD, format!("/proc/{}", self.thread), AtFlags::empty())
            .is_ok_and(|found| found.st_uid == user)
    }

    /// Whether no permissions keep it from files, if they keep this process from none: those of a user namespace of its own do not count.
    pub(crate) fn has_privileges(self) -> bool {
        let overrides = |bits: io::Result<String>| {
            let bits = bits.ok().and_then(|bits| u64::from_str_radix(&bits, 16).ok());
            bits.is_some_and(|bits| bits & DAC_OVERRIDE != 0)
        };
        let namespace = |link: String| readlinkat(CWD, link, Vec::new());
        let is_in_ours = || {
            namespace(format!("/proc/{}/ns/user", self.thread)).is_ok_and(|theirs| {
                namespace("/proc/self/ns/user".to_owned()).is_ok_and(|ours| ours == theirs)
            })
        };
        !overrides(status("self", "CapEff:")) || overrides(status(self.thread, "CapEff:")) && is_in_ours()
    }

    /// Whether a local file exists.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn exists(self, dir: i32, path: &[u8]) -> Result<()> {
        let start =
            if path.starts_with(b"/") { Vec::new() } else { [self.file(dir)?, b"/".to_vec()].concat() };
        let found = statat(CWD, [&start[..], path].concat(), AtFlags::SYMLINK_NOFOLLOW);
        found.map(drop).map_err(|error| io::Error::from(error).into())
    }

    /// Whether a name is missing in a local directory that is there.
    pub(crate) fn lacks(self, dir: i32, path: &[u8]) -> bool {
        let is_missing = self.exists(dir, path).is_err_and(|error| error.errno == Errno::ENOENT);
        let directory = &path[..path.len() - last(path).len()];
        is_missing && self.exists(dir, &[directory, b"."].concat()).is_ok()
    }

    /// Whether it can have one more open file.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn has_room(self) -> Result<bool> {
        let limits = fs::read_to_string(format!("/proc/{}/limits", self.thread))?;
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        // Otherwise there is no limit.
        let Some(Ok(limit)) = limit.and_then(|line| line.split_whitespace().next()).map(str::parse::<u64>)
        else {
            return Ok(true);
        };
        let files = format!("/proc/{}/fd", self.thread);
        // How many there are, from Linux 6.2 on.
        let count = statat(CWD, &files, AtFlags::empty()).map_err(io::Error::from)?.st_size;
        if (1..limit).contains(&(count as u64)) {
            return Ok(true);
        }
        let numbers =
            fs::read_dir(files)?.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok());
        Ok((numbers.filter(|number: &u64| *number < limit).count() as u64) < limit)
    }

    /// The number of the process that the thread is one of.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn number(self) -> Result<i32> {
        Ok(status(self.thread, "Tgid:")?.parse().map_err(|_| Errno(libc::ESRCH))?)
    }
}
