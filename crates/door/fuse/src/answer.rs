// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a reply of the core to a FUSE reply.
use crate::backing::Backings;
use crate::negotiate::Negotiated;
use crate::options::Options;
use crate::shape::{Body, Shape, Tail};
use crate::translate::{DOT, DOT_DOT, Listing, OFFSET_MAX};
use outrigger_core::ops::{self, Lock, LockKind};
use outrigger_core::reply::{COOKIE_MAX, DirentPlus, Entry, FsStat, Opened, Ttl};
use outrigger_core::{Abilities, Attr, Errno, Error, FileKind, Node, Payload, Reply, Time};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{DirBuf, Dirent, InitFlags, OpenFlags};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How attributes and lifetimes are shown, and how files are opened.
#[derive(Debug)]
pub(crate) struct View {
    attr_timeout: Option<Duration>,
    entry_timeout: Option<Duration>,
    negative: Duration,
    uid: Option<u32>,
    gid: Option<u32>,
    umask: Option<u32>,
    /// Added to what the driver says about every open file.
    open: OpenFlags,
    /// Whether files that are opened to append only are written past the page cache.
    appends_directly: AtomicBool,
}

/// An inode number for entries whose number is unknown.
const UNKNOWN_INO: u64 = 0xffff_ffff;

impl View {
    /// As the options and, where they leave it open, the service say.
    pub(crate) fn new(options: &Options, abilities: &Abilities) -> Self {
        let mut open = OpenFlags::empty();
        open.set(OpenFlags::DIRECT_IO, options.direct_io);
        open.set(OpenFlags::KEEP_CACHE, options.kernel_cache);
        Self {
            attr_timeout: options.attr_timeout,
            entry_timeout: options.entry_timeout,
            negative: options.negative_timeout.unwrap_or(abilities.negative_ttl.into()),
            uid: options.uid,
            gid: options.gid,
            umask: options.umask,
            open,
            appends_directly: AtomicBool::new(false),
        }
    }

    /// Takes over what the kernel can do.
    pub(crate) fn settle(&self, negotiated: &Negotiated) {
        // Before Linux 6.6, which brought that flag, such a write leaves cached pages as they were.
        let drops_pages = negotiated.has(InitFlags::DIRECT_IO_ALLOW_MMAP);
        let is_direct = drops_pages && !negotiated.has(InitFlags::WRITEBACK_CACHE);
        self.appends_directly.store(is_direct, Ordering::Relaxed);
    }

    /// Appends the body of the reply to `out`.
    ///
    /// # Errors
    /// The error the reply carries, or `EIO` when it belongs to another operation.
    pub(crate) fn write(
        &self,
        shape: Shape,
        reply: Reply,
        backings: &Backings,
        out: &mut Vec<u8>,
    ) -> Result<Tail, Error> {
        let mut body = Body { view: self, backings, out, tail: Tail::default() };
        shape.write(reply, &mut body)?;
        Ok(body.tail)
    }

    /// Success, unless the attributes are those of a file without any execute permission.
    pub(crate) fn executable(&self, attr: &Attr) -> Result<(), Error> {
        let forbidden = attr.kind() == FileKind::Regular && self.mode(attr.mode) & 0o111 == 0;
        if forbidden { Err(Errno::EACCES.into()) } else { Ok(()) }
    }

    /// A cacheable "there is no such name", if it may be cached.
    pub(crate) fn no_entry(&self) -> Option<fuse::EntryOut> {
        (!self.negative.is_zero()).then(|| fuse::EntryOut {
            entry_valid: self.negative.as_secs(),
            entry_valid_nsec: self.negative.subsec_nanos(),
            ..fuse::EntryOut::default()
        })
    }

    pub(crate) fn entry(&self, entry: &Entry, backings: &Backings) -> fuse::EntryOut {
        let (entry_valid, entry_valid_nsec) = lifetime(self.entry_timeout, entry.entry_ttl);
        let (attr_valid, attr_valid_nsec) =
            self.attr_lifetime(entry.node, &entry.attr, entry.attr_ttl, backings);
        fuse::EntryOut {
            nodeid: entry.node.0,
            generation: entry.generation.0,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr: self.attr(&entry.attr),
        }
    }

    /// How long the kernel may cache attributes of `node`. Those of a set-user-ID program for no time: the tree takes the bits
    /// away when another user writes, and the kernel would go on to obey them.
    pub(crate) fn attr_lifetime(
        &self,
        node: Node,
        attr: &Attr,
        driver: Ttl,
        backings: &Backings,
    ) -> (u64, u32) {
        let sets_id = attr.kind() == FileKind::Regular && attr.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        if sets_id || backings.changes_unseen(node) { (0, 0) } else { lifetime(self.attr_timeout, driver) }
    }

    pub(crate) fn attr(&self, attr: &Attr) -> fuse::Attr {
        fuse::Attr {
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.secs.cast_unsigned(),
            mtime: attr.mtime.secs.cast_unsigned(),
            ctime: attr.ctime.secs.cast_unsigned(),
            atimensec: attr.atime.nanos,
            mtimensec: attr.mtime.nanos,
            ctimensec: attr.ctime.nanos,
            mode: self.mode(attr.mode),
            nlink: attr.nlink,
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            rdev: attr.rdev,
            blksize: attr.blksize,
            flags: 0,
        }
    }

    pub(crate) fn statx(&self, attr: &Attr) -> fuse::Statx {
        let time = |time: Time| fuse::StatxTime { sec: time.secs, nsec: time.nanos };
        let birth = if attr.btime.is_some() { libc::STATX_BTIME } else { 0 };
        fuse::Statx {
            mask: libc::STATX_BASIC_STATS | birth,
            blksize: attr.blksize,
            nlink: attr.nlink,
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            mode: self.mode(attr.mode) as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime),
            btime: time(attr.btime.unwrap_or_default()),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major: attr.rdev >> 8 & 0xfff,
            rdev_minor: attr.rdev & 0xff | attr.rdev >> 12 & 0xfff00,
            ..fuse::Statx::default()
        }
    }

    fn mode(&self, mode: u32) -> u32 {
        match self.umask {
            Some(umask) => mode & libc::S_IFMT | 0o777 & !umask,
            None => mode,
        }
    }

    /// A file that was opened with `how`, served by the kernel itself when the driver has a host file for it.
    pub(crate) fn opened_file(
        &self,
        node: Node,
        opened: &Opened,
        how: ops::OpenFlags,
        backings: &Backings,
    ) -> fuse::OpenOut {
        let mut flags = OpenFlags::from_bits_retain(opened.how.bits()) | self.open;
        let backing_id = if flags.contains(OpenFlags::DIRECT_IO) && opened.backing.fd().is_none() {
            backings.open_direct(node);
            0
        } else {
            match backings.open(node, opened.backing.fd(), how.writes()) {
                crate::backing::Mode::Cached => {
                    // Through the cache the kernel makes two writes of one that crosses the border of a page: what another client
                    // appends could come between.
                    let appends_only = how.contains(ops::OpenFlags::APPEND | ops::OpenFlags::WRITE_ONLY);
                    if appends_only && self.appends_directly.load(Ordering::Relaxed) {
                        flags |= OpenFlags::DIRECT_IO;
                    }
                    0
                }
                crate::backing::Mode::Direct => {
                    flags |= OpenFlags::DIRECT_IO;
                    0
                }
                crate::backing::Mode::Passthrough(id) => {
                    flags -= OpenFlags::DIRECT_IO | OpenFlags::KEEP_CACHE;
                    flags |= OpenFlags::PASSTHROUGH;
                    // The kernel would append by the backing file even after fcntl(2) has cleared `O_APPEND` of this one. With
                    // both flags it maps the backing file, and asks for each read and write.
                    flags.set(OpenFlags::DIRECT_IO, how.contains(ops::OpenFlags::APPEND));
                    id
                }
            }
        };
        fuse::OpenOut { fh: opened.handle.0, open_flags: flags.bits(), backing_id }
    }

    pub(crate) fn dirents(
        &self,
        listing: Listing,
        entries: &[outrigger_core::reply::Dirent],
        out: &mut Vec<u8>,
    ) {
        let mut buf = DirBuf::new(out, listing.size as usize);
        for (dot, ino) in dots(listing) {
            if !buf.push(&dirent(dot, ino)) {
                return;
            }
        }
        for entry in entries {
            let kind = entry.kind.map_or(0, |kind| kind.dirent_type().into());
            let raw = Dirent { ino: entry.ino, off: entry.cookie, kind, name: entry.name.as_bytes() };
            if !buf.push(&raw) {
                return;
            }
        }
    }

    /// Gives the nodes of entries that did not fit: the kernel will ask for them again.
    pub(crate) fn dirents_plus(
        &self,
        listing: Listing,
        entries: &[DirentPlus],
        backings: &Backings,
        out: &mut Vec<u8>,
    ) -> Vec<Node> {
        let mut buf = DirBuf::new(out, listing.size as usize);
        let mut fits = true;
        for (dot, ino) in dots(listing) {
            let attr = fuse::Attr { ino, mode: FileKind::Directory.bits(), ..fuse::Attr::default() };
            fits = fits && buf.push_plus(&dirent(dot, ino), &fuse::EntryOut { attr, ..Default::default() });
        }
        let mut forgotten = Vec::new();
        for DirentPlus { cookie, name, entry } in entries {
            let kind = FileKind::of_mode(entry.attr.mode).map_or(0, |kind| kind.dirent_type().into());
            let raw = Dirent { ino: entry.attr.ino, off: *cookie, kind, name: name.as_bytes() };
            fits = fits && buf.push_plus(&raw, &self.entry(entry, backings));
            if !fits && entry.node != Node(0) {
                forgotten.push(entry.node);
            }
        }
        forgotten
    }
}

/// The entries the door adds at this place of a listing, with their inode numbers.
fn dots(listing: Listing) -> impl Iterator<Item = (u64, u64)> {
    let all = [(DOT, listing.node), (DOT_DOT, UNKNOWN_INO)];
    let skip = match listing.from {
        0 => 0,
        DOT => 1,
        _ => 2,
    };
    all.into_iter().skip(skip)
}

fn dirent(dot: u64, ino: u64) -> Dirent<'static> {
    let name: &[u8] = if dot == DOT { b"." } else { b".." };
    Dirent { ino, off: dot, kind: FileKind::Directory.dirent_type().into(), name }
}

const _: () = assert!(DOT_DOT <= OFFSET_MAX && DOT > COOKIE_MAX, "the kernel's file positions are signed");

/// Content that is not longer than was asked for.
pub(crate) fn checked(data: Payload, room: u32) -> Result<Payload, Error> {
    if data.len() > room as usize {
        let reason = format!("the driver answered {} bytes where {room} were asked for", data.len());
        return Err(Errno::EIO.because(reason));
    }
    Ok(data)
}

/// Writes a value of `len` bytes, or only its size when `room` is zero (getxattr(2), listxattr(2)).
pub(crate) fn sized(
    out: &mut Vec<u8>,
    room: u32,
    len: usize,
    put: impl FnOnce(&mut Vec<u8>),
) -> Result<(), Error> {
    if room == 0 {
        let size = u32::try_from(len).map_err(|_| Errno::E2BIG)?;
        out.extend_from_slice(&fuse::GetxattrOut { size }.encode());
        Ok(())
    } else if len > room as usize {
        Err(Errno::ERANGE.into())
    } else {
        put(out);
        Ok(())
    }
}

fn lifetime(option: Option<Duration>, driver: Ttl) -> (u64, u32) {
    let lifetime = option.unwrap_or(driver.into());
    (lifetime.as_secs(), lifetime.subsec_nanos())
}

/// Totals as the kernel has them.
pub(crate) fn statfs(stat: &FsStat) -> fuse::StatfsOut {
    fuse::StatfsOut {
        blocks: stat.blocks,
        bfree: stat.bfree,
        bavail: stat.bavail,
        files: stat.files,
        ffree: stat.ffree,
        bsize: stat.bsize,
        namelen: stat.namelen,
        frsize: stat.frsize,
    }
}

/// A lock in the way, or none, as the kernel has it.
pub(crate) fn lock_out(lock: Option<Lock>) -> fuse::FileLock {
    let (start, end, kind, pid) = match lock {
        None => (0, 0, libc::F_UNLCK, 0),
        Some(Lock { start, end, kind, pid }) => {
            let kind = match kind {
                LockKind::Read => libc::F_RDLCK,
                LockKind::Write => libc::F_WRLCK,
                LockKind::Unlock => libc::F_UNLCK,
            };
            (start, end.min(OFFSET_MAX), kind, pid)
        }
    };
    fuse::FileLock { start, end, kind: kind.cast_unsigned(), pid }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use outrigger_core::{Generation, Name, OpSet};
    use std::fs::File;
    use std::sync::Arc;

    #[test]
    fn a_listed_name_of_unknown_kind_is_not_called_a_regular_file() {
        let view = View::new(&Options::default(), &Abilities::new("test", "", OpSet::all()));
        let device = Device::from_fd(File::open("/dev/null").unwrap().into());
        let backings = Backings::new(Arc::new(device), None);
        let entry = |mode| Entry {
            node: Node(0),
            generation: Generation(0),
            attr: Attr { mode, ..Attr::default() },
            entry_ttl: Ttl::NEVER,
            attr_ttl: Ttl::NEVER,
        };
        for (mode, kind) in [(0, 0), (libc::S_IFDIR | 0o755, libc::DT_DIR), (libc::S_IFREG, libc::DT_REG)] {
            let name = Name::try_from("name").unwrap();
            let listed = DirentPlus { cookie: 7, name, entry: entry(mode) };
            let mut out = Vec::new();
            let listing = Listing { node: 1, from: DOT_DOT, size: 4096 };
            view.dirents_plus(listing, &[listed], &backings, &mut out);
            // struct fuse_direntplus: 128 bytes of entry, inode number, offset, length of the name, type.
            assert_eq!(out[148..152], u32::from(kind).to_ne_bytes(), "mode {mode:o}");
        }
    }
}
