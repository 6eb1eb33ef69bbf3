// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a case works with: the subject below a directory of its own, and results that must be what the case says.

use crate::direct::Direct;
use crate::subject::{Fd, Flags, Listed, Result, Subject};
use outrigger_core::ops::{RenameFlags, XattrFlags};
use outrigger_core::reply::FsStat;
use outrigger_core::{Attr, Credentials, Errno, FileKind, SetTime, Time};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How often [`Tester::tick`] looks whether time has passed: far more than a clock tick takes.
const TICKS: u32 = 1_000_000;

/// The subject, seen from the directory a case works in.
pub struct Tester<'a> {
    /// The subject, for calls on open files.
    pub fs: &'a dyn Subject,
    base: PathBuf,
    ticks: AtomicU32,
}

/// What a case panics with to say that it does not apply here.
pub(crate) struct Skip(pub String);

/// Demands on the result of a call.
pub trait Expect<T> {
    /// The value; the case fails when there is an error instead.
    fn must(self) -> T;
    /// The case fails unless the call failed with this errno.
    fn must_fail(self, errno: Errno);
    /// The case fails unless the call failed with one of these.
    fn must_fail_with_one_of(self, errnos: &[Errno]);
}

impl<T: Debug> Expect<T> for Result<T> {
    #[track_caller]
    fn must(self) -> T {
        match self {
            Ok(value) => value,
            Err(errno) => panic!("failed with {errno:?}"),
        }
    }
    #[track_caller]
    fn must_fail(self, errno: Errno) {
        assert_eq!(self.map_err(|found| vec![found]).err(), Some(vec![errno]), "the errno (None: success)");
    }
    #[track_caller]
    fn must_fail_with_one_of(self, errnos: &[Errno]) {
        match self {
            Ok(value) => panic!("succeeded with {value:?} where one of {errnos:?} is due"),
            Err(found) => {
                assert!(errnos.contains(&found), "failed with {found:?} where one of {errnos:?} is due")
            }
        }
    }
}

impl<'a> Tester<'a> {
    pub(crate) fn new(fs: &'a dyn Subject, base: PathBuf) -> Self {
        Tester { fs, base, ticks: AtomicU32::new(0) }
    }

    /// The path of a name of this case from the subject's root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        // Joining an empty path would add a slash, which asks for a directory.
        if path.as_ref().as_os_str().is_empty() { self.base.clone() } else { self.base.join(path) }
    }

    /// The service, in a case that runs on one only.
    pub fn direct(&self) -> &Direct {
        match self.fs.direct() {
            Some(direct) => direct,
            None => self.skip("not a service"),
        }
    }

    /// Ends the case: it does not apply here.
    pub fn skip(&self, reason: &str) -> ! {
        panic::panic_any(Skip(reason.to_owned()))
    }

    /// Runs `body` as another user and gives its result.
    #[track_caller]
    pub fn as_user<T>(&self, uid: u32, gid: u32, body: impl Fn() -> T) -> T {
        let mut result = None;
        self.fs.as_user(Credentials::new(uid, gid), &mut || result = Some(body()));
        result.expect("the subject runs the body")
    }

    /// Opens a file.
    pub fn open(&self, path: impl AsRef<Path>, flags: Flags) -> Result<Fd> {
        self.fs.open(&self.path(path), flags, 0o644)
    }

    /// Makes and opens a new file.
    #[track_caller]
    pub fn create(&self, path: impl AsRef<Path>) -> Fd {
        self.open(path, Flags::NEW).must()
    }

    /// Closes an open file.
    #[track_caller]
    pub fn close(&self, fd: Fd) {
        self.fs.close(fd).must();
    }

    /// Makes a file with this content.
    #[track_caller]
    pub fn write_file(&self, path: impl AsRef<Path>, data: &[u8]) {
        let fd = self.create(path);
        assert_eq!(self.fs.write_at(fd, 0, data).must(), data.len());
        self.close(fd);
    }

    /// The whole content of a file.
    #[track_caller]
    pub fn read_file(&self, path: impl AsRef<Path>) -> Vec<u8> {
        let fd = self.open(path, Flags::READ).must();
        let size = self.fs.fstat(fd).must().size as usize;
        let data = self.fs.read_at(fd, 0, size + 1).must();
        self.close(fd);
        data
    }

    /// All entries of a directory, read in pieces of about `size` bytes.
    #[track_caller]
    pub fn list(&self, path: impl AsRef<Path>, size: usize) -> Vec<Listed> {
        let fd = self.open(path, Flags::READ | Flags::DIRECTORY).must();
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let cookie = all.last().map_or(0, |entry| entry.cookie);
            let piece = self.fs.read_dir(fd, cookie, size).must();
            let done = piece.eof || piece.entries.is_empty();
            all.extend(piece.entries);
            if done {
                break;
            }
        }
        self.close(fd);
        all
    }

    /// The names in a directory; the case fails when one is listed twice.
    #[track_caller]
    pub fn names(&self, path: impl AsRef<Path>) -> BTreeSet<String> {
        let listed = self.list(path, 4096);
        let names: BTreeSet<String> =
            listed.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
        assert_eq!(names.len(), listed.len(), "a name was listed twice");
        names
    }

    /// Waits, by changing a file of its own, until new timestamps are later than all given so far; answers a time after
    /// those.
    #[track_caller]
    pub fn tick(&self) -> Time {
        let path = format!("clock-{}", self.ticks.fetch_add(1, Relaxed));
        let fd = self.create(path);
        // With a write-back cache the kernel stamps some changes with a clock that lags behind the driver's: being later
        // than a stamp of either kind is what makes a difference.
        let mut last = self.fs.fstat(fd).must().ctime;
        self.fs.write_at(fd, 0, b"t").must();
        last = last.max(self.fs.fstat(fd).must().ctime);
        for _ in 0..TICKS {
            self.fs.write_at(fd, 0, b"t").must();
            let now = self.fs.fstat(fd).must().ctime;
            if now > last {
                self.close(fd);
                return now;
            }
        }
        panic!("time stands still");
    }

    /// Whether the path leads anywhere.
    #[track_caller]
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        match self.stat(path) {
            Ok(_) => true,
            Err(Errno::ENOENT) => false,
            Err(errno) => panic!("failed with {errno:?}"),
        }
    }

    /// lstat(2)
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.fs.stat(&self.path(path))
    }
    /// truncate(2)
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        self.fs.truncate(&self.path(path), size)
    }
    /// chmod(2)
    pub fn chmod(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.fs.chmod(&self.path(path), mode)
    }
    /// lchown(2)
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.fs.chown(&self.path(path), uid, gid)
    }
    /// utimensat(2)
    pub fn utimens(
        &self,
        path: impl AsRef<Path>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        self.fs.utimens(&self.path(path), atime, mtime)
    }
    /// Sets both times to `secs`.
    #[track_caller]
    pub fn set_times(&self, path: impl AsRef<Path>, secs: i64) {
        let time = Some(SetTime::To(Time::new(secs, 0)));
        self.utimens(path, time, time).must();
    }
    /// mkdir(2)
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.fs.mkdir(&self.path(path), mode)
    }
    /// mknod(2)
    pub fn mknod(&self, path: impl AsRef<Path>, kind: FileKind, mode: u32, rdev: u32) -> Result<()> {
        self.fs.mknod(&self.path(path), kind, mode, rdev)
    }
    /// symlink(2)
    pub fn symlink(&self, target: &str, path: impl AsRef<Path>) -> Result<()> {
        self.fs.symlink(target.as_bytes(), &self.path(path))
    }
    /// readlink(2)
    pub fn readlink(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.fs.readlink(&self.path(path))
    }
    /// link(2)
    pub fn link(&self, old: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<()> {
        self.fs.link(&self.path(old), &self.path(new))
    }
    /// unlink(2)
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        self.fs.unlink(&self.path(path))
    }
    /// rmdir(2)
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.fs.rmdir(&self.path(path))
    }
    /// rename(2)
    pub fn rename(&self, old: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<()> {
        self.rename2(old, new, RenameFlags::empty())
    }
    /// renameat2(2)
    pub fn rename2(&self, old: impl AsRef<Path>, new: impl AsRef<Path>, flags: RenameFlags) -> Result<()> {
        self.fs.rename(&self.path(old), &self.path(new), flags)
    }
    /// lgetxattr(2)
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>> {
        self.fs.get_xattr(&self.path(path), name)
    }
    /// lsetxattr(2)
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.fs.set_xattr(&self.path(path), name, value, flags)
    }
    /// llistxattr(2), `user.` only, sorted
    #[track_caller]
    pub fn user_xattrs(&self, path: impl AsRef<Path>) -> Vec<String> {
        let names = self.fs.list_xattrs(&self.path(path)).must();
        let text = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        let sorted: BTreeSet<String> = text.filter(|name| name.starts_with("user.")).collect();
        sorted.into_iter().collect()
    }
    /// lremovexattr(2)
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<()> {
        self.fs.remove_xattr(&self.path(path), name)
    }
    /// statvfs(3)
    pub fn statfs(&self, path: impl AsRef<Path>) -> Result<FsStat> {
        self.fs.statfs(&self.path(path))
    }
}

thread_local! {
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not apply, and why.
    Skipped(String),
    /// It applies, and is known not to hold, and why.
    Excepted(String),
    /// It does not hold: where and what.
    Failed(String),
}

/// Runs `body` and returns how it ended; its panic message is not printed.
pub(crate) fn outcome_of(body: impl FnOnce()) -> Outcome {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CATCHING.get() {
                return previous(info);
            }
            let place =
                info.location().map(|at| format!("{}:{}: ", at.file(), at.line())).unwrap_or_default();
            let text = info.payload_as_str().unwrap_or("panicked");
            CAUGHT.set(Some(format!("{place}{text}")));
        }));
    });
    CATCHING.set(true);
    let result = panic::catch_unwind(panic::AssertUnwindSafe(body));
    CATCHING.set(false);
    let message = CAUGHT.take().unwrap_or_default();
    match result {
        Ok(()) => Outcome::Passed,
        Err(payload) => match payload.downcast::<Skip>() {
            Ok(skip) => Outcome::Skipped(skip.0),
            Err(_) => Outcome::Failed(message),
        },
    }
}
