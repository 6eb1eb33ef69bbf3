// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a system call asks for. Many calls are one request here: `stat`, `lstat` and `newfstatat` differ in their arguments only.

use super::memory::Memory;
use super::names::How;
use super::source::Call;
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, O_NOFOLLOW};
use outrigger_core::{Errno, Result, SetTime, Time};

/// The longest value of an extended attribute (`XATTR_SIZE_MAX`).
const XATTR_MAX: u64 = 65536;

/// The most bytes of the address of a socket that are a path, and those before it.
const SOCKET_MAX: usize = size_of::<libc::sockaddr_un>();

/// What openat2(2) knows of what a path may lead over (`RESOLVE_*`).
const RESOLVE_ALL: u64 = 0x3f;

/// A file, as a call names it.
#[derive(Debug)]
pub(crate) struct At {
    /// The descriptor of the directory where a relative path begins, or `AT_FDCWD`.
    pub(crate) dir: i32,
    /// The path; empty for the file that `dir` is.
    pub(crate) path: Vec<u8>,
    /// Whether a symbolic link at its end is followed.
    pub(crate) follow: bool,
    /// Whether an empty path is no error.
    pub(crate) may_be_empty: bool,
    /// Whether it is an open file, and no path.
    pub(crate) is_open: bool,
    /// The number of the argument that is the address of the path.
    pub(crate) argument: usize,
}

/// What is asked for. Numbers called `to` are addresses for the answer.
#[derive(Debug)]
pub(crate) enum Asked {
    Open { at: At, flags: i32, mode: u32, resolve: u64 },
    Stat { at: At, to: u64 },
    Statx { at: At, flags: i32, mask: u32, to: u64 },
    StatOpen { file: i32, to: u64 },
    StatxOpen { file: i32, flags: i32, mask: u32, to: u64 },
    Access { at: At, mode: u32 },
    ReadLink { at: At, to: u64, size: u64 },
    ChangeDir { at: At },
    CurrentDir { to: u64, size: u64 },
    Execute { at: At },
    MakeDir { at: At, mode: u32 },
    MakeNode { at: At, mode: u32, device: u32 },
    Remove { at: At, directory: bool },
    Rename { from: At, to: At, flags: u32 },
    Link { from: At, to: At },
    SymLink { target: Vec<u8>, at: At },
    SetMode { at: At, mode: u32 },
    SetOwner { at: At, uid: Option<u32>, gid: Option<u32> },
    SetSize { at: At, size: u64 },
    SetTimes { at: At, atime: Option<SetTime>, mtime: Option<SetTime> },
    StatFs { at: At, to: u64 },
    GetXattr { at: At, name: Vec<u8>, to: u64, size: u64 },
    ListXattr { at: At, to: u64, size: u64 },
    SetXattr { at: At, name: Vec<u8>, value: Vec<u8>, flags: u32 },
    RemoveXattr { at: At, name: Vec<u8> },
    Watch { watcher: i32, at: At, mask: u32 },
    FileHandle { at: At },
    Sync { file: i32, data_only: bool },
    Lock { file: i32 },
    List { file: i32, to: u64, size: u64 },
    Bind { at: At },
    Connect { at: At },
    Control { file: i32, request: u32 },
}

/// The arguments of a call.
struct Arguments {
    memory: Memory,
    values: [u64; 6],
}

impl Arguments {
    /// A number of 32 bits; the kernel ignores the others.
    fn number(&self, index: usize) -> u32 {
        self.values[index] as u32
    }

    fn flags(&self, index: usize) -> i32 {
        self.number(index).cast_signed()
    }

    /// The path that this argument is, from the working directory.
    fn path(&self, index: usize, follow: bool) -> Result<At> {
        let path = self.memory.path(self.values[index])?;
        Ok(At { dir: AT_FDCWD, path, follow, may_be_empty: false, is_open: false, argument: index })
    }

    /// A directory and a path beside it.
    fn at(&self, index: usize, follow: bool) -> Result<At> {
        Ok(At { dir: self.flags(index), ..self.path(index + 1, follow)? })
    }

    /// The same with flags, which say `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH`.
    fn at_with(&self, index: usize, flags: i32) -> Result<At> {
        let may_be_empty = flags & AT_EMPTY_PATH != 0;
        if may_be_empty && self.values[index + 1] == 0 {
            return Ok(At { is_open: false, ..self.descriptor(index) });
        }
        Ok(At { may_be_empty, ..self.at(index, flags & AT_SYMLINK_NOFOLLOW == 0)? })
    }

    /// An open file.
    fn descriptor(&self, index: usize) -> At {
        At {
            dir: self.flags(index),
            path: Vec::new(),
            follow: false,
            may_be_empty: true,
            is_open: true,
            argument: index,
        }
    }

    /// Two times of `size` bytes each; none given is now.
    fn times(&self, index: usize, nanos: impl Fn(i64) -> Option<i64>) -> Result<[Option<SetTime>; 2]> {
        if self.values[index] == 0 {
            return Ok([Some(SetTime::Now); 2]);
        }
        let bytes = self.memory.read::<32>(self.values[index])?;
        let word = |at: usize| i64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let one = |secs: i64, part: i64| -> Result<Option<SetTime>> {
            match part {
                libc::UTIME_OMIT => Ok(None),
                libc::UTIME_NOW => Ok(Some(SetTime::Now)),
                _ => {
                    let nanos = nanos(part).filter(|nanos| (0..1_000_000_000).contains(nanos));
                    Ok(Some(SetTime::To(Time::new(secs, nanos.ok_or(Errno::EINVAL)? as u32))))
                }
            }
        };
        Ok([one(word(0), word(1))?, one(word(2), word(3))?])
    }

    /// Two times in whole seconds (utime(2)).
    fn seconds(&self, index: usize) -> Result<[Option<SetTime>; 2]> {
        if self.values[index] == 0 {
            return Ok([Some(SetTime::Now); 2]);
        }
        let bytes = self.memory.read::<16>(self.values[index])?;
        let one = |at: usize| {
            let secs = i64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
            Some(SetTime::To(Time::new(secs, 0)))
        };
        Ok([one(0), one(1)])
    }

    /// The new owner and group; -1 is none.
    fn owner(&self, at: At, index: usize) -> Asked {
        let id = |index| Some(self.number(index)).filter(|&id| id != u32::MAX);
        Asked::SetOwner { at, uid: id(index), gid: id(index + 1) }
    }

    fn set_times(at: At, [atime, mtime]: [Option<SetTime>; 2]) -> Asked {
        Asked::SetTimes { at, atime, mtime }
    }

    fn get_xattr(&self, at: At) -> Result<Asked> {
        let name = self.memory.path(self.values[1])?;
        Ok(Asked::GetXattr { at, name, to: self.values[2], size: self.values[3] })
    }

    fn list_xattr(&self, at: At) -> Asked {
        Asked::ListXattr { at, to: self.values[1], size: self.values[2] }
    }

    fn set_xattr(&self, at: At) -> Result<Asked> {
        if self.values[3] > XATTR_MAX {
            return Err(Errno::E2BIG.into());
        }
        let name = self.memory.path(self.values[1])?;
        let mut value = vec![0; self.values[3] as usize];
        self.memory.read_into(self.values[2], &mut value)?;
        Ok(Asked::SetXattr { at, name, value, flags: self.number(4) })
    }

    fn remove_xattr(&self, at: At) -> Result<Asked> {
        Ok(Asked::RemoveXattr { at, name: self.memory.path(self.values[1])? })
    }

    fn open(&self, at: At, flags: usize) -> Asked {
        Asked::Open { at, flags: self.flags(flags), mode: self.number(flags + 1), resolve: 0 }
    }

    /// openat2(2), whose arguments are in memory: flags, mode, and what the path may lead over.
    fn open_how(&self) -> Result<Asked> {
        let bytes = self.memory.read::<24>(self.values[2])?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let flags = i32::try_from(word(0)).map_err(|_| Errno::EINVAL)?;
        if self.values[3] < bytes.len() as u64 || word(2) & !RESOLVE_ALL != 0 {
            return Err(Errno::EINVAL.into());
        }
        let at = self.at(0, flags & O_NOFOLLOW == 0)?;
        Ok(Asked::Open { at, flags, mode: word(1) as u32, resolve: word(2) })
    }
}

impl Asked {
    /// What a call asks for; `None` when that does not concern us.
    ///
    /// # Errors
    /// When an argument cannot be read: the kernel finds that, too.
    pub(crate) fn of(call: &Call) -> Result<Option<Self>> {
        let arguments = Arguments { memory: Memory(call.pid.cast_signed()), values: call.data.args };
        let number = i64::from(call.data.nr);
        if number == libc::SYS_newfstatat {
            return arguments.stat().map(Some);
        }
        if let Some(request) = arguments.uses_open(number)? {
            return Ok(Some(request));
        }
        match arguments.looks(number)? {
            Some(request) => Ok(Some(request)),
            None => match arguments.changes_names(number)? {
                Some(request) => Ok(Some(request)),
                None => arguments.changes_attributes(number),
            },
        }
    }

    /// Whether it changes the files that it names, or may.
    pub(crate) fn changes(&self) -> bool {
        match self {
            Asked::Open { flags, .. } => {
                let makes = libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE & !libc::O_DIRECTORY;
                let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & makes != 0;
                writes && flags & libc::O_PATH == 0
            }
            Asked::Stat { .. }
            | Asked::Statx { .. }
            | Asked::StatOpen { .. }
            | Asked::StatxOpen { .. }
            | Asked::Access { .. }
            | Asked::ReadLink { .. }
            | Asked::ChangeDir { .. }
            | Asked::CurrentDir { .. }
            | Asked::Execute { .. }
            | Asked::StatFs { .. }
            | Asked::GetXattr { .. }
            | Asked::ListXattr { .. }
            | Asked::Watch { .. }
            | Asked::FileHandle { .. }
            | Asked::Sync { .. }
            | Asked::Lock { .. }
            | Asked::List { .. }
            | Asked::Connect { .. } => false,
            Asked::MakeDir { .. }
            | Asked::MakeNode { .. }
            | Asked::Remove { .. }
            | Asked::Rename { .. }
            | Asked::Link { .. }
            | Asked::SymLink { .. }
            | Asked::SetMode { .. }
            | Asked::SetOwner { .. }
            | Asked::SetSize { .. }
            | Asked::SetTimes { .. }
            | Asked::SetXattr { .. }
            | Asked::RemoveXattr { .. }
            | Asked::Bind { .. }
            | Asked::Control { .. } => true,
        }
    }
}

impl Asked {
    /// The files that it names.
    pub(crate) fn places<'r>(&'r self) -> Vec<(&'r At, How)> {
        let plain = |at: &'r At| (at, How { follow: at.follow, ..How::default() });
        match self {
            Asked::Open { at, flags, resolve, .. } => {
                let is_new = libc::O_CREAT | libc::O_EXCL;
                let follow = at.follow && flags & is_new != is_new;
                vec![(at, How { follow, resolve: *resolve, ..How::default() })]
            }
            Asked::Rename { from, to, .. } | Asked::Link { from, to } => vec![plain(from), plain(to)],
            Asked::CurrentDir { .. }
            | Asked::Sync { .. }
            | Asked::Lock { .. }
            | Asked::List { .. }
            | Asked::StatOpen { .. }
            | Asked::StatxOpen { .. }
            | Asked::Control { .. } => Vec::new(),
            Asked::Stat { at, .. }
            | Asked::Statx { at, .. }
            | Asked::Access { at, .. }
            | Asked::ReadLink { at, .. }
            | Asked::ChangeDir { at }
            | Asked::Execute { at }
            | Asked::MakeDir { at, .. }
            | Asked::MakeNode { at, .. }
            | Asked::Remove { at, .. }
            | Asked::SymLink { at, .. }
            | Asked::SetMode { at, .. }
            | Asked::SetOwner { at, .. }
            | Asked::SetSize { at, .. }
            | Asked::SetTimes { at, .. }
            | Asked::StatFs { at, .. }
            | Asked::GetXattr { at, .. }
            | Asked::ListXattr { at, .. }
            | Asked::SetXattr { at, .. }
            | Asked::RemoveXattr { at, .. }
            | Asked::Watch { at, .. }
            | Asked::Bind { at }
            | Asked::Connect { at }
            | Asked::FileHandle { at } => vec![plain(at)],
        }
    }
}

impl Arguments {
    /// newfstatat(2), which is mostly fstat(3).
    fn stat(&self) -> Result<Asked> {
        let (at, to) = (self.at_with(0, self.flags(3))?, self.values[2]);
        let is_fstat = at.may_be_empty && at.path.is_empty();
        Ok(if is_fstat { Asked::StatOpen { file: at.dir, to } } else { Asked::Stat { at, to } })
    }

    /// Requests that look at files, and open them.
    fn looks(&self, number: i64) -> Result<Option<Asked>> {
        let [_, second, third, _, _, _] = self.values;
        let open_follows = |flags: usize| self.flags(flags) & O_NOFOLLOW == 0;
        Ok(Some(match number {
            libc::SYS_open => self.open(self.path(0, open_follows(1))?, 1),
            libc::SYS_openat => self.open(self.at(0, open_follows(2))?, 2),
            libc::SYS_openat2 => self.open_how()?,
            libc::SYS_creat => {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                Asked::Open { at: self.path(0, true)?, flags, mode: self.number(1), resolve: 0 }
            }
            libc::SYS_stat => Asked::Stat { at: self.path(0, true)?, to: second },
            libc::SYS_lstat => Asked::Stat { at: self.path(0, false)?, to: second },
            libc::SYS_statx => {
                let (at, flags) = (self.at_with(0, self.flags(2))?, self.flags(2));
                let (mask, to) = (self.number(3), self.values[4]);
                match at.may_be_empty && at.path.is_empty() {
                    true => Asked::StatxOpen { file: at.dir, flags, mask, to },
                    false => Asked::Statx { at, flags, mask, to },
                }
            }
            libc::SYS_access => Asked::Access { at: self.path(0, true)?, mode: self.number(1) },
            libc::SYS_faccessat => Asked::Access { at: self.at(0, true)?, mode: self.number(2) },
            libc::SYS_faccessat2 => {
                Asked::Access { at: self.at_with(0, self.flags(3))?, mode: self.number(2) }
            }
            libc::SYS_readlink => Asked::ReadLink { at: self.path(0, false)?, to: second, size: third },
            libc::SYS_readlinkat => {
                let at = At { may_be_empty: true, ..self.at(0, false)? };
                Asked::ReadLink { at, to: third, size: self.values[3] }
            }
            libc::SYS_chdir => Asked::ChangeDir { at: self.path(0, true)? },
            libc::SYS_getcwd => Asked::CurrentDir { to: self.values[0], size: second },
            libc::SYS_execve => Asked::Execute { at: self.path(0, true)? },
            libc::SYS_execveat => Asked::Execute { at: self.at_with(0, self.flags(4))? },
            libc::SYS_statfs => Asked::StatFs { at: self.path(0, true)?, to: second },
            libc::SYS_getxattr => self.get_xattr(self.path(0, true)?)?,
            libc::SYS_lgetxattr => self.get_xattr(self.path(0, false)?)?,
            libc::SYS_fgetxattr => self.get_xattr(self.descriptor(0))?,
            libc::SYS_listxattr => self.list_xattr(self.path(0, true)?),
            libc::SYS_llistxattr => self.list_xattr(self.path(0, false)?),
            libc::SYS_flistxattr => self.list_xattr(self.descriptor(0)),
            libc::SYS_inotify_add_watch => {
                let mask = self.number(2);
                let at = self.path(1, mask & libc::IN_DONT_FOLLOW == 0)?;
                Asked::Watch { watcher: self.flags(0), at, mask }
            }
            libc::SYS_name_to_handle_at => {
                let follow = if self.flags(4) & AT_SYMLINK_FOLLOW == 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
                Asked::FileHandle { at: self.at_with(0, self.flags(4) & AT_EMPTY_PATH | follow)? }
            }
            libc::SYS_fsync => Asked::Sync { file: self.flags(0), data_only: false },
            libc::SYS_flock | libc::SYS_fcntl => Asked::Lock { file: self.flags(0) },
            libc::SYS_fdatasync => Asked::Sync { file: self.flags(0), data_only: true },
            _ => return Ok(None),
        }))
    }

    /// Requests about what is open, which concern files whose changes are kept apart.
    fn uses_open(&self, number: i64) -> Result<Option<Asked>> {
        let file = self.flags(0);
        Ok(Some(match number {
            libc::SYS_getdents64 => {
                Asked::List { file, to: self.values[1], size: self.values[2] & 0xffff_ffff }
            }
            libc::SYS_fstat => Asked::StatOpen { file, to: self.values[1] },
            libc::SYS_ioctl => Asked::Control { file, request: self.number(1) },
            libc::SYS_bind => match self.socket(false)? {
                Some(at) => Asked::Bind { at },
                None => return Ok(None),
            },
            libc::SYS_connect => match self.socket(true)? {
                Some(at) => Asked::Connect { at },
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }

    /// The path in the address of a socket (unix(7)).
    fn socket(&self, follow: bool) -> Result<Option<At>> {
        let length = (self.number(2) as usize).min(SOCKET_MAX);
        let mut bytes = vec![0; length];
        self.memory.read_into(self.values[1], &mut bytes)?;
        let Some((family, path)) = bytes.split_first_chunk::<2>() else { return Ok(None) };
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        if i32::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX || path.is_empty() {
            return Ok(None);
        }
        let path = path.to_vec();
        Ok(Some(At { dir: AT_FDCWD, path, follow, may_be_empty: false, is_open: false, argument: 1 }))
    }

    /// Requests that make, move and remove names.
    fn changes_names(&self, number: i64) -> Result<Option<Asked>> {
        let mode = |index| self.number(index);
        let target = |index: usize| self.memory.path(self.values[index]);
        Ok(Some(match number {
            libc::SYS_mkdir => Asked::MakeDir { at: self.path(0, false)?, mode: mode(1) },
            libc::SYS_mkdirat => Asked::MakeDir { at: self.at(0, false)?, mode: mode(2) },
            libc::SYS_mknod => {
                Asked::MakeNode { at: self.path(0, false)?, mode: mode(1), device: self.number(2) }
            }
            libc::SYS_mknodat => {
                Asked::MakeNode { at: self.at(0, false)?, mode: mode(2), device: self.number(3) }
            }
            libc::SYS_unlink => Asked::Remove { at: self.path(0, false)?, directory: false },
            libc::SYS_rmdir => Asked::Remove { at: self.path(0, false)?, directory: true },
            libc::SYS_unlinkat => {
                let directory = self.flags(2) & AT_REMOVEDIR != 0;
                Asked::Remove { at: self.at(0, false)?, directory }
            }
            libc::SYS_rename => {
                Asked::Rename { from: self.path(0, false)?, to: self.path(1, false)?, flags: 0 }
            }
            libc::SYS_renameat => {
                Asked::Rename { from: self.at(0, false)?, to: self.at(2, false)?, flags: 0 }
            }
            libc::SYS_renameat2 => {
                let flags = self.number(4);
                Asked::Rename { from: self.at(0, false)?, to: self.at(2, false)?, flags }
            }
            libc::SYS_link => Asked::Link { from: self.path(0, false)?, to: self.path(1, false)? },
            libc::SYS_linkat => {
                let flags = self.flags(4);
                let follow = if flags & AT_SYMLINK_FOLLOW == 0 { AT_SYMLINK_NOFOLLOW } else { 0 };
                let from = self.at_with(0, flags & AT_EMPTY_PATH | follow)?;
                Asked::Link { from, to: self.at(2, false)? }
            }
            libc::SYS_symlink => Asked::SymLink { target: target(0)?, at: self.path(1, false)? },
            libc::SYS_symlinkat => Asked::SymLink { target: target(0)?, at: self.at(1, false)? },
            _ => return Ok(None),
        }))
    }

    /// Requests that change attributes.
    fn changes_attributes(&self, number: i64) -> Result<Option<Asked>> {
        let mode = |at, index| Asked::SetMode { at, mode: self.number(index) };
        let micros = |part: i64| part.checked_mul(1000);
        Ok(Some(match number {
            libc::SYS_chmod => mode(self.path(0, true)?, 1),
            libc::SYS_fchmod => mode(self.descriptor(0), 1),
            libc::SYS_fchmodat => mode(self.at(0, true)?, 2),
            libc::SYS_fchmodat2 => mode(self.at_with(0, self.flags(3))?, 2),
            libc::SYS_chown => self.owner(self.path(0, true)?, 1),
            libc::SYS_lchown => self.owner(self.path(0, false)?, 1),
            libc::SYS_fchown => self.owner(self.descriptor(0), 1),
            libc::SYS_fchownat => self.owner(self.at_with(0, self.flags(4))?, 2),
            libc::SYS_truncate => Asked::SetSize { at: self.path(0, true)?, size: self.values[1] },
            libc::SYS_utime => Self::set_times(self.path(0, true)?, self.seconds(1)?),
            libc::SYS_utimes => Self::set_times(self.path(0, true)?, self.times(1, micros)?),
            libc::SYS_futimesat if self.values[1] == 0 => {
                Self::set_times(self.descriptor(0), self.times(2, micros)?)
            }
            libc::SYS_futimesat => Self::set_times(self.at(0, true)?, self.times(2, micros)?),
            libc::SYS_utimensat if self.values[1] == 0 => {
                Self::set_times(self.descriptor(0), self.times(2, Some)?)
            }
            libc::SYS_utimensat => Self::set_times(self.at_with(0, self.flags(3))?, self.times(2, Some)?),
            libc::SYS_setxattr => self.set_xattr(self.path(0, true)?)?,
            libc::SYS_lsetxattr => self.set_xattr(self.path(0, false)?)?,
            libc::SYS_fsetxattr => self.set_xattr(self.descriptor(0))?,
            libc::SYS_removexattr => self.remove_xattr(self.path(0, true)?)?,
            libc::SYS_lremovexattr => self.remove_xattr(self.path(0, false)?)?,
            libc::SYS_fremovexattr => self.remove_xattr(self.descriptor(0))?,
            _ => return Ok(None),
        }))
    }
}
