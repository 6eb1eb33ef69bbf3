// SPDX-License-Identifier: GPL-2.0-only
//! System calls of the kernel in this process. Numbers and structures are those of Linux' generic interface, which for
//! what is used here are those of x86-64 too.

use crate::abi;
use outrigger_core::{Credentials, Errno, Result};
use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Numbers of `asm-generic/unistd.h`.
mod number {
    pub const MKNODAT: u64 = 33;
    pub const MKDIRAT: u64 = 34;
    pub const UNLINKAT: u64 = 35;
    pub const SYMLINKAT: u64 = 36;
    pub const LINKAT: u64 = 37;
    pub const UMOUNT2: u64 = 39;
    pub const MOUNT: u64 = 40;
    pub const FSTATFS: u64 = 44;
    pub const FALLOCATE: u64 = 47;
    pub const FCHOWNAT: u64 = 54;
    pub const OPENAT: u64 = 56;
    pub const CLOSE: u64 = 57;
    pub const GETDENTS64: u64 = 61;
    pub const LSEEK: u64 = 62;
    pub const PREAD64: u64 = 67;
    pub const PWRITE64: u64 = 68;
    pub const READLINKAT: u64 = 78;
    pub const FSYNC: u64 = 82;
    pub const FDATASYNC: u64 = 83;
    pub const UTIMENSAT: u64 = 88;
    pub const UNSHARE: u64 = 97;
    pub const CLOCK_SETTIME: u64 = 112;
    pub const CLOCK_GETTIME: u64 = 113;
    pub const UMASK: u64 = 166;
    pub const FADVISE64: u64 = 223;
    pub const SYNCFS: u64 = 267;
    pub const RENAMEAT2: u64 = 276;
    pub const COPY_FILE_RANGE: u64 = 285;
    pub const STATX: u64 = 291;
    pub const FCHMODAT2: u64 = 452;
}

/// A descriptor of the kernel in this process. It is closed with [`Task::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fd(u32);

impl Fd {
    /// The current directory.
    pub const CWD: Fd = Fd(libc::AT_FDCWD as u32);

    /// As an argument: negative numbers stay so.
    fn argument(self) -> u64 {
        self.0 as i32 as i64 as u64
    }
}

/// The data of mount(2) is read as a whole page.
const PAGE: usize = 4096;

/// The permission to make system calls: its holder runs inside the kernel, as one of its tasks.
pub struct Task(PhantomData<*const ()>);

fn checked(result: i64) -> Result<u64> {
    if result < 0 { Err(Errno(-result as i32).into()) } else { Ok(result as u64) }
}

fn pointer<T: ?Sized>(value: *const T) -> u64 {
    value.cast::<u8>().expose_provenance() as u64
}

impl Task {
    /// The task of the job that is running.
    pub(crate) fn current() -> Self {
        Task(PhantomData)
    }

    /// # Safety
    /// Pointers among the arguments are valid for what the call does with them.
    unsafe fn call<const N: usize>(&self, number: u64, given: [u64; N]) -> Result<u64> {
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&given);
        // SAFETY: this is a job, and the caller answers for the arguments.
        checked(unsafe { abi::outrigger_system_call(number, &arguments) })
    }

    /// Adds disk `number` of this process as a block device.
    pub fn add_disk(&self, disk: &abi::Disk) -> Result<()> {
        // SAFETY: this is a job, and the structure is complete.
        checked(unsafe { abi::outrigger_add_disk(disk) }).map(drop)
    }

    /// Makes flash memory of a disk of this process.
    pub fn add_flash(&self, flash: &abi::Flash) -> Result<()> {
        // SAFETY: this is a job, and the structure is complete.
        checked(unsafe { abi::outrigger_add_flash(flash) }).map(drop)
    }

    /// Whose files those are that this job creates, and whose set-id bits its writes clear.
    pub fn act_as(&self, cred: &Credentials) -> Result<()> {
        // SAFETY: this is a job.
        checked(unsafe { abi::outrigger_act_as(cred.uid, cred.gid) }).map(drop)
    }

    /// Runs what changes the content of a file as `cred`, so that the set-id bits are cleared unless that is root, and
    /// `even_for_root` when a door demands it.
    pub fn change_as<T>(
        &self,
        cred: &Credentials,
        even_for_root: bool,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        const NOBODY: u32 = 65534;
        if cred.uid == 0 && !even_for_root {
            return change();
        }
        let uid = if cred.uid == 0 { NOBODY } else { cred.uid };
        self.act_as(&Credentials { uid, ..cred.clone() })?;
        let changed = change();
        self.act_as(&Credentials::ROOT)?;
        changed
    }

    /// Runs `create` as `cred` with this umask, which is the task's own and else 0.
    pub fn create_as<T>(
        &self,
        cred: &Credentials,
        umask: u32,
        create: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if umask != 0 {
            // SAFETY: no pointers.
            unsafe { self.call(number::UNSHARE, [libc::CLONE_FS as u64])? };
            self.umask(umask)?;
        }
        let made = self.act_as(cred).and_then(|()| create());
        if umask != 0 {
            self.umask(0)?;
        }
        self.act_as(&Credentials::ROOT)?;
        made
    }

    /// umask(2)
    fn umask(&self, umask: u32) -> Result<()> {
        // SAFETY: no pointers.
        unsafe { self.call(number::UMASK, [umask.into()]) }.map(drop)
    }

    /// mknodat(2)
    pub fn mknod(&self, dir: Fd, name: &CStr, mode: u32, device: u32) -> Result<()> {
        let arguments = [dir.argument(), pointer(name.as_ptr()), mode.into(), device.into()];
        // SAFETY: the name is a C string.
        unsafe { self.call(number::MKNODAT, arguments) }.map(drop)
    }

    /// mkdirat(2)
    pub fn mkdir(&self, dir: Fd, name: &CStr, mode: u32) -> Result<()> {
        // SAFETY: the name is a C string.
        unsafe { self.call(number::MKDIRAT, [dir.argument(), pointer(name.as_ptr()), mode.into()]) }.map(drop)
    }

    /// unlinkat(2)
    pub fn unlink(&self, dir: Fd, name: &CStr, flags: i32) -> Result<()> {
        // SAFETY: the name is a C string.
        unsafe { self.call(number::UNLINKAT, [dir.argument(), pointer(name.as_ptr()), flags as u64]) }
            .map(drop)
    }

    /// symlinkat(2)
    pub fn symlink(&self, target: &CStr, dir: Fd, name: &CStr) -> Result<()> {
        let arguments = [pointer(target.as_ptr()), dir.argument(), pointer(name.as_ptr())];
        // SAFETY: both are C strings.
        unsafe { self.call(number::SYMLINKAT, arguments) }.map(drop)
    }

    /// linkat(2) of a descriptor
    pub fn link(&self, file: Fd, dir: Fd, name: &CStr) -> Result<()> {
        let empty = libc::AT_EMPTY_PATH as u64;
        let arguments =
            [file.argument(), pointer(c"".as_ptr()), dir.argument(), pointer(name.as_ptr()), empty];
        // SAFETY: both are C strings.
        unsafe { self.call(number::LINKAT, arguments) }.map(drop)
    }

    /// renameat2(2)
    pub fn rename(&self, from: (Fd, &CStr), to: (Fd, &CStr), flags: u32) -> Result<()> {
        let [from_name, to_name] = [pointer(from.1.as_ptr()), pointer(to.1.as_ptr())];
        let arguments = [from.0.argument(), from_name, to.0.argument(), to_name, flags.into()];
        // SAFETY: both are C strings.
        unsafe { self.call(number::RENAMEAT2, arguments) }.map(drop)
    }

    /// mount(2)
    pub fn mount(&self, source: &CStr, target: &CStr, kind: &CStr, flags: u64, options: &CStr) -> Result<()> {
        let mut page = [0_u8; PAGE];
        let options = options.to_bytes_with_nul();
        let Some(place) = page.get_mut(..options.len()) else {
            return Err(Errno::EINVAL.because("mount options of more than 4 KiB"));
        };
        place.copy_from_slice(options);
        let [source, target, kind] = [source, target, kind].map(|text| pointer(text.as_ptr()));
        // SAFETY: all are C strings, and the options a whole page.
        unsafe { self.call(number::MOUNT, [source, target, kind, flags, pointer(page.as_ptr())]) }.map(drop)
    }

    /// umount2(2)
    pub fn umount(&self, target: &CStr, flags: i32) -> Result<()> {
        // SAFETY: the target is a C string.
        unsafe { self.call(number::UMOUNT2, [pointer(target.as_ptr()), flags as u64]) }.map(drop)
    }

    /// fstatfs(2)
    pub fn statfs(&self, fd: Fd) -> Result<libc::statfs> {
        let mut stat = MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: the structure is that of the kernel.
        unsafe { self.call(number::FSTATFS, [fd.argument(), pointer(stat.as_mut_ptr())])? };
        // SAFETY: all zeroes is a value, and the kernel has filled it.
        Ok(unsafe { stat.assume_init() })
    }

    /// fallocate(2)
    pub fn fallocate(&self, fd: Fd, mode: u32, offset: u64, len: u64) -> Result<()> {
        // SAFETY: no pointers.
        unsafe { self.call(number::FALLOCATE, [fd.argument(), mode.into(), offset, len]) }.map(drop)
    }

    /// fchmodat2(2) of a descriptor
    pub fn chmod(&self, fd: Fd, mode: u32) -> Result<()> {
        let empty = libc::AT_EMPTY_PATH as u64;
        // SAFETY: the empty path is a C string.
        unsafe { self.call(number::FCHMODAT2, [fd.argument(), pointer(c"".as_ptr()), mode.into(), empty]) }
            .map(drop)
    }

    /// fchownat(2) of a descriptor; none leaves one alone
    pub fn chown(&self, fd: Fd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let [uid, gid] = [uid, gid].map(|id| u64::from(id.unwrap_or(u32::MAX)));
        let empty = libc::AT_EMPTY_PATH as u64;
        // SAFETY: the empty path is a C string.
        unsafe { self.call(number::FCHOWNAT, [fd.argument(), pointer(c"".as_ptr()), uid, gid, empty]) }
            .map(drop)
    }

    /// utimensat(2) of a descriptor: time of access, time of modification
    pub fn set_times(&self, fd: Fd, times: &[libc::timespec; 2]) -> Result<()> {
        let arguments = [fd.argument(), pointer(c"".as_ptr()), pointer(times), libc::AT_EMPTY_PATH as u64];
        // SAFETY: the empty path is a C string, and there are two times.
        unsafe { self.call(number::UTIMENSAT, arguments) }.map(drop)
    }

    /// openat(2)
    pub fn open(&self, dir: Fd, name: &CStr, flags: i32, mode: u32) -> Result<Fd> {
        let arguments = [dir.argument(), pointer(name.as_ptr()), flags as u64, mode.into()];
        // SAFETY: the name is a C string.
        unsafe { self.call(number::OPENAT, arguments) }.map(|fd| Fd(fd as u32))
    }

    /// Opens what an `O_PATH` descriptor refers to.
    pub fn reopen(&self, fd: Fd, flags: u32) -> Result<Fd> {
        // SAFETY: this is a job.
        checked(unsafe { abi::outrigger_reopen(fd.0, flags) }).map(|fd| Fd(fd as u32))
    }

    /// close(2). What is still to be written then is written later; errors are those of a descriptor that is none.
    pub fn close(&self, fd: Fd) {
        // SAFETY: no pointers.
        drop(unsafe { self.call(number::CLOSE, [fd.argument()]) });
    }

    /// getdents64(2)
    pub fn entries(&self, fd: Fd, buffer: &mut [u8]) -> Result<usize> {
        let arguments = [fd.argument(), pointer(buffer.as_mut_ptr()), buffer.len() as u64];
        // SAFETY: the buffer has that length.
        unsafe { self.call(number::GETDENTS64, arguments) }.map(|count| count as usize)
    }

    /// lseek(2)
    pub fn seek(&self, fd: Fd, offset: u64, whence: i32) -> Result<u64> {
        // SAFETY: no pointers.
        unsafe { self.call(number::LSEEK, [fd.argument(), offset, whence as u64]) }
    }

    /// pread(2)
    pub fn read(&self, fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let arguments = [fd.argument(), pointer(buffer.as_mut_ptr()), buffer.len() as u64, offset];
        // SAFETY: the buffer has that length.
        unsafe { self.call(number::PREAD64, arguments) }.map(|count| count as usize)
    }

    /// pwrite(2)
    pub fn write(&self, fd: Fd, data: &[u8], offset: u64) -> Result<usize> {
        let arguments = [fd.argument(), pointer(data.as_ptr()), data.len() as u64, offset];
        // SAFETY: the buffer has that length.
        unsafe { self.call(number::PWRITE64, arguments) }.map(|count| count as usize)
    }

    /// posix_fadvise(2): this content will not be read soon. It goes to the disk, and out of memory.
    pub fn drop_content(&self, fd: Fd, offset: u64, len: u64) {
        let advice = libc::POSIX_FADV_DONTNEED as u64;
        // SAFETY: no pointers. It is but advice.
        drop(unsafe { self.call(number::FADVISE64, [fd.argument(), offset, len, advice]) });
    }

    /// readlinkat(2) of a descriptor
    pub fn read_link(&self, fd: Fd, buffer: &mut [u8]) -> Result<usize> {
        let [start, length] = [pointer(buffer.as_mut_ptr()), buffer.len() as u64];
        // SAFETY: the empty path is a C string, and the buffer has that length.
        let read =
            unsafe { self.call(number::READLINKAT, [fd.argument(), pointer(c"".as_ptr()), start, length]) };
        read.map(|count| count as usize)
    }

    /// fsync(2), or fdatasync(2)
    pub fn fsync(&self, fd: Fd, data_only: bool) -> Result<()> {
        let number = if data_only { number::FDATASYNC } else { number::FSYNC };
        // SAFETY: no pointers.
        unsafe { self.call(number, [fd.argument()]) }.map(drop)
    }

    /// syncfs(2)
    pub fn syncfs(&self, fd: Fd) -> Result<()> {
        // SAFETY: no pointers.
        unsafe { self.call(number::SYNCFS, [fd.argument()]) }.map(drop)
    }

    /// clock_settime(2) of the time of day
    pub fn set_clock(&self, time: &libc::timespec) -> Result<()> {
        // SAFETY: the structure is complete.
        unsafe { self.call(number::CLOCK_SETTIME, [libc::CLOCK_REALTIME as u64, pointer(time)]) }.map(drop)
    }

    /// clock_gettime(2) of the time that files are stamped with
    pub fn clock(&self) -> Result<libc::timespec> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let arguments = [libc::CLOCK_REALTIME_COARSE as u64, pointer(&raw mut time)];
        // SAFETY: the structure lives during the call.
        unsafe { self.call(number::CLOCK_GETTIME, arguments) }.map(|_| time)
    }

    /// copy_file_range(2)
    pub fn copy_range(&self, from: (Fd, u64), to: (Fd, u64), len: u64) -> Result<u64> {
        let (mut offset, mut to_offset) = (from.1, to.1);
        let places = [pointer(&raw mut offset), pointer(&raw mut to_offset)];
        // SAFETY: both offsets live during the call.
        unsafe {
            self.call(
                number::COPY_FILE_RANGE,
                [from.0.argument(), places[0], to.0.argument(), places[1], len],
            )
        }
    }

    /// statx(2) of `name` in `dir`, or of `dir` itself when `name` is empty
    pub fn stat(&self, dir: Fd, name: &CStr) -> Result<libc::statx> {
        let mut stat = MaybeUninit::<libc::statx>::zeroed();
        let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { libc::AT_SYMLINK_NOFOLLOW };
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_SUBVOL;
        let [name, place] = [pointer(name.as_ptr()), pointer(stat.as_mut_ptr())];
        // SAFETY: the name is a C string, and the structure that of the kernel.
        unsafe { self.call(number::STATX, [dir.argument(), name, flags as u64, mask.into(), place])? };
        // SAFETY: all zeroes is a value, and the kernel has filled it.
        Ok(unsafe { stat.assume_init() })
    }

    /// truncate(2) of an `O_PATH` descriptor
    pub fn truncate(&self, fd: Fd, size: u64) -> Result<()> {
        // SAFETY: this is a job.
        checked(unsafe { abi::outrigger_truncate(fd.0, size) }).map(drop)
    }

    /// getxattr(2) of an `O_PATH` descriptor
    pub fn get_xattr(&self, fd: Fd, name: &CStr, value: &mut [u8]) -> Result<usize> {
        // SAFETY: this is a job; the name is a C string and the buffer has that length.
        let read =
            unsafe { abi::outrigger_get_xattr(fd.0, name.as_ptr(), value.as_mut_ptr(), value.len() as u64) };
        checked(read).map(|count| count as usize)
    }

    /// setxattr(2) of an `O_PATH` descriptor
    pub fn set_xattr(&self, fd: Fd, name: &CStr, value: &[u8], flags: u32) -> Result<()> {
        let (start, length) = (value.as_ptr(), value.len() as u64);
        // SAFETY: this is a job; the name is a C string and the value has that length.
        checked(unsafe { abi::outrigger_set_xattr(fd.0, name.as_ptr(), start, length, flags) }).map(drop)
    }

    /// listxattr(2) of an `O_PATH` descriptor
    pub fn list_xattr(&self, fd: Fd, names: &mut [u8]) -> Result<usize> {
        // SAFETY: this is a job, and the buffer has that length.
        let read = unsafe { abi::outrigger_list_xattr(fd.0, names.as_mut_ptr(), names.len() as u64) };
        checked(read).map(|count| count as usize)
    }

    /// removexattr(2) of an `O_PATH` descriptor
    pub fn remove_xattr(&self, fd: Fd, name: &CStr) -> Result<()> {
        // SAFETY: this is a job, and the name is a C string.
        checked(unsafe { abi::outrigger_remove_xattr(fd.0, name.as_ptr()) }).map(drop)
    }
}
