// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs do with files, as samplers of one measurement.

use crate::compare::micros_each;
use anyhow::{Result, ensure};
use rustix::fs::{Advice, CWD, Dir, Mode, OFlags, fadvise, fstat, openat, stat, statat, unlinkat};
use rustix::io::{pread, read, write};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// What `cat` and `cp` ask for at once, in bytes.
const BLOCK: usize = 128 << 10;
const PAGE: usize = 4096;

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?)
}

/// fstat(2) on an open file: one GETATTR where attributes are not cached.
pub fn fstat_each(path: &Path, time: Duration) -> Result<Option<f64>> {
    let file = open(path, OFlags::RDONLY)?;
    micros_each(time, || Ok(fstat(&file).map(drop)?))
}

/// As many fstat(2) on an open file as `count` says.
pub fn fstat_times(path: &Path, count: u32) -> io::Result<()> {
    let file = open(path, OFlags::RDONLY)?;
    for _ in 0..count {
        fstat(&file)?;
    }
    Ok(())
}

/// stat(2) of a path.
pub fn stat_each(path: &Path, time: Duration) -> Result<Option<f64>> {
    micros_each(time, || Ok(stat(path).map(drop)?))
}

/// open(2) and close(2).
pub fn open_close_each(path: &Path, time: Duration) -> Result<Option<f64>> {
    micros_each(time, || open(path, OFlags::RDONLY).map(drop))
}

/// Creating a file, closing it, removing it.
pub fn create_unlink_each(dir: &Path, time: Duration) -> Result<Option<f64>> {
    let path = dir.join("created");
    micros_each(time, || {
        drop(open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)?);
        Ok(unlinkat(CWD, &path, rustix::fs::AtFlags::empty())?)
    })
}

/// Making so many empty files in a new directory, asking for the attributes of each, and removing them; seconds.
pub fn crowd(dir: &Path, count: usize) -> Result<Option<f64>> {
    let dir = dir.join("crowd");
    let start = Instant::now();
    std::fs::create_dir(&dir)?;
    let paths = || (0..count).map(|number| dir.join(format!("file{number}")));
    paths().try_for_each(|path| open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR).map(drop))?;
    paths().try_for_each(|path| path.metadata().map(drop))?;
    std::fs::remove_dir_all(&dir)?;
    Ok(Some(start.elapsed().as_secs_f64()))
}

/// Reading all names of a directory; microseconds a name. `expected` is how many there are.
pub fn names_each(dir: &Path, expected: usize, time: Duration) -> Result<Option<f64>> {
    let start = Instant::now();
    let mut names = 0_usize;
    while start.elapsed() < time {
        let found = Dir::new(open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?)?.count();
        // With "." and "..".
        ensure!(found == expected + 2, "{} has {found} names", dir.display());
        names += found;
    }
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 names")]
    let each = start.elapsed().as_secs_f64() * 1e6 / names as f64;
    Ok(Some(each))
}

/// Megabytes a second of reading the file once from start to end. With `through_fuse` the pages that FUSE itself keeps
/// are dropped first, so that every byte comes from the server, or from the backing file, whose pages stay.
pub fn read_rate(path: &Path, through_fuse: bool) -> Result<Option<f64>> {
    let file = open(path, OFlags::RDONLY)?;
    if through_fuse {
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    let mut buffer = vec![0; BLOCK];
    let mut bytes = 0;
    let start = Instant::now();
    loop {
        match read(&file, &mut buffer[..])? {
            0 => return Ok(Some(rate(bytes, start))),
            count => bytes += count,
        }
    }
}

/// Megabytes a second of writing a new file of `size` bytes, closed but not synchronised.
pub fn write_rate(dir: &Path, size: usize) -> Result<Option<f64>> {
    let path = dir.join("written");
    let buffer = vec![0x5a; BLOCK];
    let start = Instant::now();
    let file = open(&path, OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY)?;
    let mut bytes = 0;
    while bytes < size {
        bytes += write(&file, &buffer)?;
    }
    drop(file);
    let rate = rate(bytes, start);
    unlinkat(CWD, &path, rustix::fs::AtFlags::empty())?;
    Ok(Some(rate))
}

#[expect(clippy::cast_precision_loss, reason = "far less than 2^52 bytes")]
fn rate(bytes: usize, start: Instant) -> f64 {
    bytes as f64 / 1e6 / start.elapsed().as_secs_f64()
}

/// Microseconds of a read of 4 KiB at random places, for `jobs` at once, each with a descriptor of its own: time
/// divided by all reads. Read-ahead is off and what FUSE keeps is dropped first.
pub fn random_read_each(path: &Path, jobs: u64, time: Duration) -> Result<Option<f64>> {
    fadvise(&open(path, OFlags::RDONLY)?, 0, None, Advice::DontNeed)?;
    let one = |seed: u64| -> Result<f64> {
        let file = open(path, OFlags::RDONLY)?;
        fadvise(&file, 0, None, Advice::Random)?;
        let pages = u64::try_from(fstat(&file)?.st_size)? / PAGE as u64;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut page = [0; PAGE];
        let each = micros_each(time, || {
            pread(&file, &mut page[..], random.u64(..pages) * PAGE as u64)?;
            Ok(())
        })?;
        Ok(1.0 / each.unwrap_or(f64::INFINITY))
    };
    // Every round reads other places, or the second would find them in the page cache.
    let round = fastrand::u64(..);
    let per_micro: Result<Vec<f64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|job| scope.spawn(move || one(round ^ job))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a reader died"))?)
            .collect()
    });
    Ok(Some(1.0 / per_micro?.iter().sum::<f64>()))
}

/// Visits every file below `dir` and asks for its attributes; how many there are.
pub fn walk(dir: &Path) -> io::Result<u64> {
    let mut found = 0;
    let mut waiting: VecDeque<PathBuf> = VecDeque::from([dir.to_owned()]);
    while let Some(dir) = waiting.pop_front() {
        let handle = open(&dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::read_from(&handle)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let attributes = statat(&handle, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
            found += 1;
            if rustix::fs::FileType::from_raw_mode(attributes.st_mode).is_dir() {
                waiting.push_back(dir.join(std::ffi::OsStr::new(&*name.to_string_lossy())));
            }
        }
    }
    Ok(found)
}
