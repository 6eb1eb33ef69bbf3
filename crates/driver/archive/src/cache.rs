// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's cache of indexes and spilled blocks.
//!
//! A file is named by a hash of the source's identity and the options that change the index, and starts with a header:
//! magic, a CRC-32 of the rest, the length of the identity, the identity. What does not check out is ignored and
//! replaced. Files are written under a temporary name and renamed, so that readers see a whole one or none. When the
//! directory grows beyond its bound the least recently used files are removed (their time of change is the time of
//! their last use).

use crate::{CacheConfig, source::Identity, spill::Spill};
use bytes::{Buf, Bytes};
use outrigger_core::hash::fnv1a;
use outrigger_host::PrivateDir;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, openat, renameat, statat, unlinkat};
use std::{
    fs::{File, FileTimes},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    time::SystemTime,
};

/// Raised whenever the layout of a cached file changes.
const MAGIC: &[u8; 8] = b"outrica\x01";
const HEADER: usize = 16;
/// Larger indexes are of archives with more than 10 million entries.
const MAX_INDEX: u64 = 4 << 30;

/// The place of one archive in the cache.
#[derive(Debug)]
pub(crate) struct Slot {
    config: CacheConfig,
    /// What the file must say it is about.
    key: String,
    stem: String,
}

impl Slot {
    /// The place for a source; `variant` tells apart indexes made with different options.
    pub fn new(config: &CacheConfig, id: &Identity, variant: &str) -> Slot {
        let key = format!("{}\n{}\n{}\n{variant}", id.key, id.size, id.version);
        let stem = format!("{:016x}", fnv1a(key.bytes()));
        Slot { config: config.clone(), key, stem }
    }

    fn name(&self, extension: &str) -> String {
        format!("{}.{extension}", self.stem)
    }

    fn dir(&self) -> io::Result<PrivateDir> {
        PrivateDir::open(&self.config.base, &["outrigger", "index"])
    }

    /// The bytes stored for this source, when they are intact.
    pub fn load(&self) -> Option<Bytes> {
        let mut file = open_private(&self.dir().ok()?, &self.name("idx")).ok()?;
        let size = file.metadata().ok()?.len();
        if size > MAX_INDEX {
            return None;
        }
        let mut bytes = Vec::with_capacity(size as usize + 1);
        file.read_to_end(&mut bytes).ok()?;
        let payload = open_envelope(bytes.into(), &self.key)?;
        touch(&file);
        Some(payload)
    }

    /// Stores an encoded index; what does not fit the bound is not stored.
    ///
    /// # Errors
    /// Those of the file system. The archive is usable without.
    pub fn store(&self, payload: &[u8]) -> io::Result<()> {
        if (payload.len() + self.key.len()) as u64 > self.config.max_bytes {
            return Ok(());
        }
        let dir = self.dir()?;
        let temporary = self.name(&format!("{}.tmp", std::process::id()));
        let written = write_new(&dir, &temporary, &seal(&self.key, payload))
            .and_then(|()| Ok(renameat(&dir, &*temporary, &dir, self.name("idx"))?));
        if written.is_err() {
            let _ = unlinkat(&dir, &*temporary, AtFlags::empty());
        }
        written?;
        self.evict(&dir);
        Ok(())
    }

    /// The file for spilled blocks of this source, unless another process uses it; then an unnamed one.
    pub fn spill(&self) -> Option<Spill> {
        let dir = self.dir().ok()?;
        // Block files grow while they are used, so they are counted when the next one is opened.
        self.evict(&dir);
        let max = self.config.max_bytes / 2;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let named = openat(&dir, self.name("blk"), flags, mode).map(File::from).ok()?;
        if rustix::fs::flock(&named, FlockOperation::NonBlockingLockExclusive).is_ok() {
            touch(&named);
            return Spill::new(named, max).ok();
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let unnamed = openat(&dir, ".", flags, mode).map(File::from).ok()?;
        Spill::new(unnamed, max).ok()
    }

    /// Removes the least recently used files of this cache beyond the bound, but not this slot's.
    fn evict(&self, dir: &PrivateDir) {
        let Ok(entries) = Dir::read_from(dir) else { return };
        let mut files: Vec<((i64, u64), u64, String)> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().to_str().ok().filter(|name| is_ours(name))?.to_owned();
                let stat = statat(dir, &*name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                let regular = FileType::from_raw_mode(stat.st_mode).is_file();
                // Sparse and growing files count as what they occupy.
                let size = (stat.st_blocks as u64).saturating_mul(512);
                regular.then_some(((stat.st_mtime as i64, stat.st_mtime_nsec as u64), size, name))
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|f| f.1).sum();
        for (_, size, name) in files {
            if total <= self.config.max_bytes {
                break;
            }
            let own = name.split('.').next() == Some(&self.stem);
            if !own && unlinkat(dir, &*name, AtFlags::empty()).is_ok() {
                total -= size;
            }
        }
    }
}

/// Whether a file has a name that this cache gives: a hash, and what it is.
fn is_ours(name: &str) -> bool {
    let hex = |stem: &str| stem.len() == 16 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.split('.').collect::<Vec<_>>()[..] {
        [stem, "idx" | "blk"] => hex(stem),
        [stem, process, "tmp"] => hex(stem) && number(process),
        _ => false,
    }
}

/// The envelope around an index: see the module's description.
fn seal(key: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + key.len() + payload.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(payload);
    let crc = crc32fast::hash(&out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

fn open_envelope(bytes: Bytes, key: &str) -> Option<Bytes> {
    let mut h = bytes.get(..HEADER)?;
    if !h.starts_with(MAGIC) {
        return None;
    }
    h.advance(MAGIC.len());
    let (crc, len) = (h.get_u32_le(), h.get_u32_le() as usize);
    let end = HEADER.checked_add(len)?;
    if bytes.get(HEADER..end)? != key.as_bytes() || crc32fast::hash(&bytes[12..]) != crc {
        return None;
    }
    Some(bytes.slice(end..))
}

/// Opens a regular file of ours for reading; a link or somebody else's file is refused.
fn open_private(dir: &PrivateDir, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(openat(dir, name, flags, Mode::empty())?);
    let m = file.metadata()?;
    if !m.is_file() || m.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(file)
}

fn write_new(dir: &PrivateDir, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(bytes)
}

/// Marks a file as used now. A failure only makes it look older.
fn touch(file: &File) {
    let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
}
