// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running operations on the model and on a real file system side by side.

use crate::model::{Body, Id, Model};
use crate::ops::{Op, Pick, Range, ops};
use outrigger_conformance::{Fd, Flags, Listed, Result, Subject};
use outrigger_core::ops::{FallocateMode, RenameFlags};
use outrigger_core::{Errno, FileKind};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where all symbolic links lead: a name that nothing gets.
const NOWHERE: &str = "nowhere";

/// The model, the subject and what both have open.
struct Pair<'a> {
    model: Model,
    subject: &'a dyn Subject,
    open: Vec<(Id, Fd)>,
}

type Check = Result<(), String>;

/// Both must have answered the same.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: Result<T>, found: Result<T>) -> Check {
    if expected == found { Ok(()) } else { Err(format!("{what}: expected {expected:?}, found {found:?}")) }
}

fn xattr_name(name: u8) -> String {
    format!("user.x{name}")
}

impl Pair<'_> {
    fn file(&self, index: u8) -> Option<(Id, Fd)> {
        let count = self.open.len();
        (count > 0).then(|| self.open[usize::from(index) % count])
    }

    /// Makes the same change on both sides; `true` when the model says that it is done.
    fn step(&mut self, op: &Op) -> Check {
        match *op {
            Op::Create(..) | Op::MkDir(..) | Op::SymLink(_) | Op::MkFifo(_) => self.make(op),
            Op::Link(old, new) => self.link(old, new),
            Op::Unlink(at) => self.unlink(at),
            Op::RmDir(at) => self.rmdir(at),
            Op::Rename(old, new, flags) => self.rename(old, new, flags),
            Op::Chmod(at, mode) => self.chmod(at, mode),
            Op::Open(at) => self.open(at),
            Op::Close(file) => self.close(file),
            Op::SetXattr(..) | Op::GetXattr(..) | Op::RemoveXattr(..) => self.xattr(op),
            Op::Write(range, byte) => self.write(range, byte),
            Op::Read(range) => self.read(range),
            Op::Truncate(file, size) => self.truncate(file, size),
            Op::Fallocate(range, mode) => self.fallocate(range, mode),
            Op::Copy(range, to, offset) => self.copy(range, to, offset),
        }
    }

    fn make(&mut self, op: &Op) -> Check {
        match *op {
            Op::Create(at, mode) => {
                let path = at.path(&self.model);
                let made = self.model.make(&path, Body::File(Vec::new()), mode);
                let fd = self.subject.open(Path::new(&path), Flags::NEW, mode);
                same(&path, made.map(drop), fd.map(drop))?;
                if let (Ok(id), Ok(fd)) = (made, fd) {
                    self.open.push((id, fd));
                }
                Ok(())
            }
            Op::MkDir(at, mode) => {
                let path = at.path(&self.model);
                let made = self.model.make(&path, Body::Dir(Default::default()), mode);
                same(&path, made.map(drop), self.subject.mkdir(Path::new(&path), mode))
            }
            Op::SymLink(at) => {
                let path = at.path(&self.model);
                let made = self.model.make(&path, Body::Symlink(NOWHERE.into()), 0o777);
                same(&path, made.map(drop), self.subject.symlink(NOWHERE.as_bytes(), Path::new(&path)))
            }
            Op::MkFifo(at) => {
                let path = at.path(&self.model);
                let made = self.model.make(&path, Body::Fifo, 0o644);
                same(&path, made.map(drop), self.subject.mknod(Path::new(&path), FileKind::Fifo, 0o644, 0))
            }
            _ => Ok(()),
        }
    }

    fn link(&mut self, old: Pick, new: Pick) -> Check {
        let (old, new) = (old.path(&self.model), new.path(&self.model));
        same(&new, self.model.link(&old, &new), self.subject.link(Path::new(&old), Path::new(&new)))
    }

    fn unlink(&mut self, at: Pick) -> Check {
        let path = at.path(&self.model);
        same(&path, self.model.unlink(&path), self.subject.unlink(Path::new(&path)))
    }

    fn rmdir(&mut self, at: Pick) -> Check {
        let path = at.path(&self.model);
        same(&path, self.model.rmdir(&path), self.subject.rmdir(Path::new(&path)))
    }

    fn rename(&mut self, old: Pick, new: Pick, flags: RenameFlags) -> Check {
        let (old, new) = (old.path(&self.model), new.path(&self.model));
        let found = self.subject.rename(Path::new(&old), Path::new(&new), flags);
        same(&format!("{old} to {new}"), self.model.rename(&old, &new, flags), found)
    }

    /// The kind of what a path leads to, without following it.
    fn kind(&self, path: &str) -> Option<FileKind> {
        self.model.find(path).ok().map(|id| self.model.facts(id).kind)
    }

    fn chmod(&mut self, at: Pick, mode: u32) -> Check {
        let path = at.path(&self.model);
        // chmod(2) follows symbolic links, a service is asked about the link: no common ground.
        if self.kind(&path) == Some(FileKind::Symlink) {
            return Ok(());
        }
        let expected = self.model.find(&path).map(|id| self.model.file(id).mode = mode);
        same(&path, expected, self.subject.chmod(Path::new(&path), mode))
    }

    fn open(&mut self, at: Pick) -> Check {
        let path = at.path(&self.model);
        let expected = match self.kind(&path) {
            // Opening a pipe is the business of the kernel above.
            Some(FileKind::Fifo) => return Ok(()),
            Some(FileKind::Directory) => Err(Errno::EISDIR),
            Some(FileKind::Symlink) => Err(Errno::ENOENT),
            _ => self.model.find(&path),
        };
        let found = self.subject.open(Path::new(&path), Flags::BOTH, 0);
        same(&path, expected.map(drop), found.map(drop))?;
        if let (Ok(id), Ok(fd)) = (expected, found) {
            self.open.push((id, fd));
        }
        Ok(())
    }

    fn close(&mut self, file: u8) -> Check {
        let Some((id, fd)) = self.file(file) else { return Ok(()) };
        self.open.retain(|entry| *entry != (id, fd));
        same("close", Ok(()), self.subject.close(fd))
    }

    fn xattr(&mut self, op: &Op) -> Check {
        match *op {
            Op::SetXattr(at, name, value, flags) => {
                let (path, name, value) =
                    (at.path(&self.model), xattr_name(name), vec![value; usize::from(value)]);
                let found = self.subject.set_xattr(Path::new(&path), &name, &value, flags);
                same(&path, self.model.set_xattr(&path, &name, &value, flags), found)
            }
            Op::GetXattr(at, name) => {
                let (path, name) = (at.path(&self.model), xattr_name(name));
                let expected = self.model.find(&path);
                let expected = expected
                    .and_then(|id| self.model.file(id).xattrs.get(&name).cloned().ok_or(Errno::ENODATA));
                same(&path, expected, self.subject.get_xattr(Path::new(&path), &name))
            }
            Op::RemoveXattr(at, name) => {
                let (path, name) = (at.path(&self.model), xattr_name(name));
                let refused = matches!(self.kind(&path), Some(FileKind::Symlink | FileKind::Fifo));
                let expected = match self.model.find(&path) {
                    Ok(_) if refused => Err(Errno::EPERM),
                    found => found.and_then(|id| {
                        self.model.file(id).xattrs.remove(&name).map(drop).ok_or(Errno::ENODATA)
                    }),
                };
                same(&path, expected, self.subject.remove_xattr(Path::new(&path), &name))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, range: Range, byte: u8) -> Check {
        let Some((id, fd)) = self.file(range.file) else { return Ok(()) };
        let (offset, len) = (range.offset as usize, range.len as usize);
        let data = vec![byte; len];
        let expected = self.model.bytes(id).map(|bytes| {
            if len > 0 {
                bytes.resize(bytes.len().max(offset + len), 0);
                bytes[offset..offset + len].copy_from_slice(&data);
            }
            len
        });
        same("write", expected, self.subject.write_at(fd, offset as u64, &data))
    }

    fn read(&mut self, range: Range) -> Check {
        let Some((id, fd)) = self.file(range.file) else { return Ok(()) };
        let expected = self.model.bytes(id).map(|bytes| {
            let start = bytes.len().min(range.offset as usize);
            let end = bytes.len().min((range.offset + range.len) as usize);
            bytes[start..end].to_vec()
        });
        same("read", expected, self.subject.read_at(fd, range.offset.into(), range.len as usize))
    }

    fn truncate(&mut self, file: u8, size: u32) -> Check {
        let Some((id, fd)) = self.file(file) else { return Ok(()) };
        let expected = self.model.bytes(id).map(|bytes| bytes.resize(size as usize, 0));
        same("truncate", expected, self.subject.ftruncate(fd, size.into()))
    }

    fn fallocate(&mut self, range: Range, mode: FallocateMode) -> Check {
        let Some((id, fd)) = self.file(range.file) else { return Ok(()) };
        let (start, end) = (range.offset as usize, (range.offset + range.len) as usize);
        let change = |bytes: &mut Vec<u8>| {
            if !mode.contains(FallocateMode::KEEP_SIZE) {
                bytes.resize(bytes.len().max(end), 0);
            }
            if mode.intersects(FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE) {
                let end = end.min(bytes.len());
                bytes[start.min(end)..end].fill(0);
            }
        };
        let expected = if range.len == 0 { Err(Errno::EINVAL) } else { self.model.bytes(id).map(change) };
        same("fallocate", expected, self.subject.fallocate(fd, mode, range.offset.into(), range.len.into()))
    }

    fn copy(&mut self, range: Range, to: u8, to_offset: u32) -> Check {
        let (Some((from_id, from)), Some((to_id, to))) = (self.file(range.file), self.file(to)) else {
            return Ok(());
        };
        let (start, to_start) = (range.offset as usize, to_offset as usize);
        let source = self.model.bytes(from_id).cloned();
        let expected = source.and_then(|source| {
            let count = source.len().saturating_sub(start).min(range.len as usize);
            if from_id == to_id && start < to_start + count && to_start < start + count {
                return Err(Errno::EINVAL);
            }
            let target = self.model.bytes(to_id)?;
            if count > 0 {
                target.resize(target.len().max(to_start + count), 0);
                target[to_start..to_start + count].copy_from_slice(&source[start..start + count]);
            }
            Ok(count as u64)
        });
        let found =
            self.subject.copy_range(from, range.offset.into(), to, to_offset.into(), range.len.into());
        same("copy", expected, found)
    }

    /// Everything a program can see must be the same on both sides.
    fn compare(&mut self) -> Check {
        self.compare_names("")?;
        for (path, id) in self.model.paths() {
            let facts = self.model.facts(id);
            let attr =
                self.subject.stat(Path::new(&path)).map_err(|errno| format!("stat {path}: {errno:?}"))?;
            let size = facts.size.is_none_or(|size| size == attr.size);
            // Some file systems do not count the subdirectories of a directory, and say so with a 1.
            let nlink = facts.nlink == attr.nlink || (attr.is_dir() && attr.nlink == 1);
            let mode = facts.mode == attr.permissions() || facts.kind == FileKind::Symlink;
            if facts.kind != attr.kind() || !size || !nlink || !mode {
                return Err(format!("stat {path}: expected {facts:?}, found {attr:?}"));
            }
            match facts.kind {
                FileKind::Directory => self.compare_names(&path)?,
                FileKind::Regular => self.compare_xattrs(&path, id)?,
                FileKind::Symlink => {
                    let target = self.subject.readlink(Path::new(&path));
                    same(&path, Ok(NOWHERE.as_bytes().to_vec()), target)?;
                }
                _ => {}
            }
        }
        for (id, fd) in self.open.clone() {
            let (nlink, bytes) = (self.model.facts(id).nlink, self.model.bytes(id).cloned());
            same("links of an open file", Ok(nlink), self.subject.fstat(fd).map(|attr| attr.nlink))?;
            same("an open file", bytes, self.subject.read_at(fd, 0, 1 << 17))?;
        }
        Ok(())
    }

    fn compare_names(&self, path: &str) -> Check {
        let listed =
            list(self.subject, Path::new(path)).map_err(|errno| format!("listing {path}: {errno:?}"))?;
        let names: BTreeSet<String> =
            listed.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
        if names.len() != listed.len() {
            return Err(format!("listing {path}: a name twice in {listed:?}"));
        }
        same(path, self.model.names(path), Ok(names))
    }

    fn compare_xattrs(&mut self, path: &str, id: Id) -> Check {
        let expected: BTreeSet<Vec<u8>> =
            self.model.file(id).xattrs.keys().map(|name| name.clone().into_bytes()).collect();
        let found = match self.subject.list_xattrs(Path::new(path)) {
            // Where there are no attributes, none are listed.
            Err(Errno::EOPNOTSUPP) => Ok(Vec::new()),
            found => found,
        };
        let found = found.map(|names| names.into_iter().filter(|name| name.starts_with(b"user.")).collect());
        same(path, Ok(expected), found)
    }
}

fn list(subject: &dyn Subject, path: &Path) -> Result<Vec<Listed>> {
    let fd = subject.open(path, Flags::READ | Flags::DIRECTORY, 0)?;
    let mut all: Vec<Listed> = Vec::new();
    loop {
        let piece = subject.read_dir(fd, all.last().map_or(0, |entry| entry.cookie), 300)?;
        let done = piece.eof || piece.entries.is_empty();
        all.extend(piece.entries);
        if done {
            subject.close(fd)?;
            return Ok(all);
        }
    }
}

/// Runs `list` on a new model and on `subject`, whose root is empty.
///
/// # Errors
/// The first difference, with the operation after which it was seen.
pub fn check(subject: &dyn Subject, list: &[Op]) -> Result<(), String> {
    let mut pair = Pair { model: Model::new(), subject, open: Vec::new() };
    let mut result = Ok(());
    for (index, op) in list.iter().enumerate() {
        result = pair.step(op).and_then(|()| pair.compare());
        if let Err(difference) = &mut result {
            *difference = format!("operation {index}, {op:?}: {difference}");
            break;
        }
    }
    subject.close_all();
    result
}

/// Tries `cases` random lists of up to `most` operations, each with a subject of its own made by `run`.
///
/// # Panics
/// With the seed and the shortest failing list when one fails.
pub fn explore(cases: u32, most: usize, run: impl Fn(&[Op]) -> Result<(), String>) {
    let nanos = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = std::env::var("MODEL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(nanos);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&ops(most), |list| run(&list).map_err(TestCaseError::fail));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, list)) => {
            panic!("MODEL_SEED={seed} repeats this\n{reason}\nthe shortest list that fails: {list:#?}")
        }
        Err(TestError::Abort(reason)) => panic!("MODEL_SEED={seed}: given up: {reason}"),
    }
}
