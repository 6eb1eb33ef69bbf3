// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of files in the mirror: fetched when a file is opened, and stored in the tree after it was written to.

use super::mirror::os;
use super::unsaved::{kept, unfinished, unkept};
use super::{say, shown};
use bytes::Bytes;
use libc::F_RDLCK;
use outrigger_client::{File, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Attr, Errno, Error, Node, Result, SetAttrs, SetTime, Time};
use rustix::fs::{fstat, ftruncate};
use rustix::io::{pread, pwrite};
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much is read at once when content is stored.
pub(super) const PIECE: usize = 1 << 20;
/// How long a tree that has not taken content is left alone by those who only look at the file.
const PAUSE: Duration = Duration::from_secs(5);

/// What tells whether the content of a file in the tree is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64, Time, u64);

impl Key {
    /// That of no file.
    const NONE: Key = Key(u64::MAX, Time { secs: 0, nanos: 0 }, 0);

    pub(crate) fn of(attr: &Attr) -> Self {
        Key(attr.size, attr.mtime, attr.change)
    }

    /// Whether a file that is known by this has changed. Some trees tell times to the second. The time of an empty file does not count: it may
    /// have been made or emptied just now, and a cache may have predicted its time.
    fn has_changed(self, now: &Attr, since: Since) -> bool {
        let Key(size, mtime, change) = self;
        let is_another_time = size > 0 && !is_same_time(mtime, now.mtime);
        size != now.size
            || match since {
                Since::Opened => change != now.change && size > 0 || is_another_time,
                Since::Stored { is_timed } => is_timed && is_another_time,
            }
    }
}

/// Whether two times of a file may be the same one: trees round down, and predict what they will tell.
fn is_same_time(one: Time, other: Time) -> bool {
    let is_coarse = one.nanos == 0 || other.nanos == 0;
    one.secs == other.secs && (is_coarse || one.nanos / 1000 == other.nanos / 1000)
}

/// Since when programs of this run alone may have changed a file in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// Since it was opened, made or emptied.
    Opened,
    /// Since its content was stored: the size is known then, and the time of change if the tree keeps it exactly.
    Stored { is_timed: bool },
}

/// What tells whether a copy was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(i64, (i64, u64), (i64, u64));

impl Stamp {
    fn of(file: impl AsFd) -> Result<Self> {
        let found = os(fstat(file))?;
        let (mtime, ctime) =
            ((found.st_mtime, found.st_mtime_nsec as u64), (found.st_ctime, found.st_ctime_nsec as u64));
        Ok(Stamp(found.st_size, mtime, ctime))
    }
}

/// The content of a copy.
pub(crate) struct Content {
    /// The path of the file, for messages.
    pub(crate) path: Vec<u8>,
    /// What the file in the tree was when it was looked at.
    pub(crate) key: Key,
    is_here: bool,
    /// A program has removed its last name.
    pub(crate) is_removed: bool,
    /// Of the content that the tree has.
    hash: u64,
    writing: Option<Writing>,
}

/// What was done for a copy when a program was given it to write to.
pub(super) struct Noted {
    pub(super) watch: i32,
    /// Says that there is something to be stored, should the server be killed.
    pub(super) note: PathBuf,
    /// The note is to be found by the next server.
    pub(super) stays: bool,
}

impl Noted {
    fn staying(self) -> Self {
        Noted { stays: true, ..self }
    }
}

/// A copy that programs write to.
struct Writing {
    /// The file in the tree.
    file: File,
    /// Its number, which is no other file's as long as it is open.
    node: Node,
    /// The copy.
    copy: OwnedFd,
    stamp: Stamp,
    noted: Noted,
    /// What tells that others have changed the file; none after a part of the content was stored.
    since: Option<Since>,
    /// When the tree did not take the content, which the user was told.
    failed: Option<Instant>,
    /// Others have changed the file: what is here is not stored any more.
    is_stale: bool,
}

/// Opens a file in the tree of which there can be a copy.
///
/// # Errors
/// Those of opening it; `EOPNOTSUPP` for a stream.
pub(crate) fn open_whole(inode: &Inode, flags: OpenFlags) -> Result<File> {
    let file = inode.open(flags)?;
    match file.is_stream() {
        true => {
            Err(Errno::EOPNOTSUPP.because("a stream has no copy: it needs a mount, or run --via namespace"))
        }
        false => Ok(file),
    }
}

impl Content {
    /// That of a file that was only looked at.
    pub(crate) fn unknown(path: &[u8], attr: &Attr) -> Self {
        Content {
            path: path.to_vec(),
            key: Key::of(attr),
            is_here: false,
            is_removed: false,
            hash: hash_of(&[]),
            writing: None,
        }
    }

    /// Whether the copy is that of a file with these attributes, or newer.
    pub(crate) fn is_of(&self, attr: &Attr) -> bool {
        self.writing.is_some() || self.key == Key::of(attr)
    }

    /// Whether programs write to another file than this one, which had the name before.
    pub(crate) fn is_other(&self, node: Node) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.node != node)
    }

    /// Whether the copy has the content.
    pub(crate) fn is_here(&self) -> bool {
        self.is_here || self.writing.is_some()
    }

    /// Whether programs write to it, or what they have written is not stored yet.
    pub(crate) fn is_written(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether a program has it open for writing.
    pub(super) fn is_open(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| !writing.is_closed())
    }

    /// The file has these attributes: a copy of what it had before is of no use.
    pub(crate) fn become_of(&mut self, attr: &Attr) {
        if !self.is_of(attr) {
            (self.key, self.is_here) = (Key::of(attr), false);
        }
    }

    /// The file got another name, or one more: the change of its attributes is ours. Where these cannot be asked for, what is written may be
    /// taken for stale, and is kept then.
    pub(crate) fn renamed(&mut self) {
        if let Some(writing) = &self.writing
            && writing.since == Some(Since::Opened)
            && !writing.is_stale
            && let Ok(now) = writing.now()
        {
            self.key = Key::of(&now);
        }
    }

    /// Fetches it from the tree.
    ///
    /// # Errors
    /// Those of reading there and of writing here; `EIO` when the tree gives less than it declares.
    pub(crate) fn fetch(&mut self, to: &OwnedFd, inode: &Inode) -> Result<()> {
        let fetched = open_whole(inode, OpenFlags::empty()).and_then(|file| {
            let (mut reader, mut hash, mut end) = (file.reader(0), DefaultHasher::new(), 0);
            loop {
                let chunk = reader.chunk()?;
                if chunk.is_empty() {
                    break;
                }
                hash.write(&chunk);
                write_at(to, end, &chunk)?;
                end += chunk.len() as u64;
            }
            file.check_end(inode.attr(), end)?;
            os(ftruncate(to, end))?;
            Ok(hash.finish())
        });
        match fetched {
            Ok(hash) => (self.hash, self.is_here) = (hash, true),
            // No half of it is left.
            Err(_) => os(ftruncate(to, 0).and_then(|()| ftruncate(to, inode.attr().size)))?,
        }
        fetched.map(drop)
    }

    /// Whether there is no content.
    fn is_empty(&self) -> bool {
        self.hash == hash_of(&[])
    }

    /// Empties the copy, as opening for that has emptied the file.
    pub(crate) fn empty(&mut self, copy: &OwnedFd) -> Result<()> {
        os(ftruncate(copy, 0))?;
        (self.hash, self.is_here) = (hash_of(&[]), true);
        Ok(())
    }

    /// Stores what was written to the copy, if anything was.
    ///
    /// # Errors
    /// Those of the tree. The copy keeps the content.
    pub(crate) fn store(&mut self) -> Result<()> {
        let Some(writing) = &mut self.writing else { return Ok(()) };
        let stamp = Stamp::of(&writing.copy)?;
        if writing.since.is_some() && stamp == writing.stamp && hash(&writing.copy)? == self.hash {
            return Ok(());
        }
        if self.is_removed && writing.is_removed()? {
            // Its names were removed, and no program can open it any more.
            return Ok(());
        }
        // As a whole, what is here would undo what others have stored.
        writing.is_stale |= match writing.since {
            Some(since) => match writing.now() {
                // Another one has its name, or none.
                Err(error) if error.errno == Errno::ESTALE => true,
                now => self.key.has_changed(&now?, since),
            },
            None => false,
        };
        if writing.is_stale {
            return Err(Errno::ESTALE.because("it was changed by another program since it was opened"));
        }
        writing.since = None;
        let stored = writing.store(stamp);
        writing.is_stale = stored.as_ref().is_err_and(|error| error.errno == Errno::ESTALE);
        let (hash, attr, since) = stored?;
        (writing.stamp, writing.since) = (stamp, Some(since));
        (self.hash, self.key) = (hash, Key::of(&attr));
        Ok(())
    }

    /// Whether something is to be stored that no program writes to any more. With `again`, also what the tree did not take just now.
    pub(super) fn is_to_settle(&self, again: bool) -> bool {
        self.writing.as_ref().is_some_and(|writing| {
            let is_paused = writing.failed.is_some_and(|failed| failed.elapsed() < PAUSE);
            (again || !is_paused) && writing.is_closed()
        })
    }

    /// Whether it is never stored, as others have changed the file.
    pub(super) fn is_stale(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.is_stale)
    }

    /// Stores what was written to the copy, and says whether it has arrived.
    ///
    /// # Errors
    /// Those of the tree. The copy keeps the content, and all of it is stored the next time.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.store()?;
        let Some(writing) = &mut self.writing else { return Ok(()) };
        writing.file.flush().inspect_err(|error| {
            writing.since = None;
            writing.is_stale = error.errno == Errno::ESTALE;
        })
    }

    /// Tells the user once that something is not stored.
    pub(super) fn tell(&mut self, error: &Error) {
        let Some(writing) = &mut self.writing else { return };
        if writing.failed.replace(Instant::now()).is_none() {
            let path = shown(&self.path);
            say(format_args!("'{path}': what was written cannot be stored: {error}"));
        }
    }

    /// Stores it on stable storage.
    ///
    /// # Errors
    /// Those of the tree.
    pub(crate) fn sync(&mut self, data_only: bool) -> Result<()> {
        self.store()?;
        match self.writing.as_ref().map_or(Ok(()), |writing| writing.file.sync(data_only)) {
            Err(error) if [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP].contains(&error.errno) => Ok(()),
            synced => synced,
        }
    }

    /// The attributes of a file that programs write to, in the tree.
    pub(crate) fn set_through(&mut self, attrs: SetAttrs) -> Option<Result<Attr>> {
        let writing = self.writing.as_ref()?;
        let is_known = writing
            .since
            .is_none_or(|since| writing.now().is_ok_and(|now| !self.key.has_changed(&now, since)));
        let set = writing.file.set(attrs);
        if let (true, Ok(attr)) = (is_known, &set) {
            self.key = Key::of(attr);
        }
        Some(set)
    }
}

impl Content {
    /// A program is given the copy to write to it.
    pub(super) fn begin(&mut self, (file, node): (File, Node), copy: OwnedFd, noted: Noted) -> Result<()> {
        if self.is_empty() {
            // It was emptied at the tree by opening it, or made there.
            self.key = Key::of(&file.attr()?);
        }
        let (stamp, since) = (Stamp::of(&copy)?, Some(Since::Opened));
        self.writing = Some(Writing { file, node, copy, stamp, noted, since, failed: None, is_stale: false });
        Ok(())
    }

    /// Closes the file in the tree, after its content was stored.
    ///
    /// # Errors
    /// Those of the tree: some say only then that they have not taken the content. It is not stored again.
    pub(super) fn close(&mut self) -> Result<()> {
        let closed = self.writing.as_mut().map_or(Ok(()), |writing| writing.file.release());
        if self.is_removed { Ok(()) } else { closed }
    }

    /// Ends writing, after the content was stored and its file closed, or not for this reason. What the tree has not taken goes to the
    /// directory `keep`, or stays where it is if that cannot take it. Answers what can be forgotten, and what is said of a loss.
    pub(super) fn end(&mut self, stored: Result<()>, keep: &Path) -> Option<(Noted, Option<String>)> {
        let Writing { copy, noted, .. } = self.writing.take()?;
        let Err(error) = stored else {
            self.is_here = true;
            return Some((noted, None));
        };
        // What programs see is what the tree has.
        (self.key, self.is_here) = (Key::NONE, false);
        let path = shown(&self.path);
        let (noted, lost) = match kept(keep, &path, &copy) {
            Ok(place) => {
                let place = place.display();
                (noted, format!("'{path}' is not stored: {error}; what was written is in '{place}'"))
            }
            Err(why) => {
                let lost = unkept(&path, &error, &noted.note, (keep, &why));
                (noted.staying(), lost)
            }
        };
        Some((noted, Some(lost)))
    }

    /// Stores it, or keeps what was written: see [`Contents::finish`](super::contents::Contents::finish).
    pub(super) fn finish(&mut self, keep: &Path, early: bool) -> Option<(Noted, Option<String>)> {
        // Before it is stored: what is written and closed meanwhile would pass for stored.
        let is_open = early && self.is_open();
        let stored = self.settle();
        if is_open {
            let path = shown(&self.path);
            let left = unfinished(&path, stored.as_ref().err(), &self.writing.as_ref()?.noted.note, keep);
            if left.is_some() {
                return Some((self.writing.take()?.noted.staying(), left));
            }
        }
        let closed = stored.and_then(|()| self.close());
        self.end(closed, keep)
    }
}

impl Writing {
    /// Stores the copy: content, size, and the time of the last change. Answers what was stored, and what is known by that.
    fn store(&self, stamp: Stamp) -> Result<(u64, Attr, Since)> {
        let (mut offset, mut hash) = (0, DefaultHasher::new());
        let mut buffer = vec![0; PIECE];
        loop {
            let count = os(pread(&self.copy, &mut buffer, offset))?;
            if count == 0 {
                break;
            }
            hash.write(&buffer[..count]);
            self.file.write_all_at(offset, Bytes::copy_from_slice(&buffer[..count]))?;
            offset += count as u64;
        }
        let Stamp(_, (secs, nanos), _) = stamp;
        let time = Time::new(secs, nanos as u32);
        let size = SetAttrs { size: Some(offset), ..SetAttrs::default() };
        self.file.set(size)?;
        let mtime = SetAttrs { mtime: Some(SetTime::To(time)), ..SetAttrs::default() };
        // Trees without such times show those they have.
        let is_set = self.file.set(mtime).is_ok() && !self.file.client().abilities().whole_files;
        let attr = if is_set { self.now()? } else { self.file.attr()? };
        let is_timed = is_set && is_same_time(attr.mtime, time);
        Ok((hash.finish(), attr, Since::Stored { is_timed }))
    }

    /// The attributes of the file in the tree.
    fn now(&self) -> Result<Attr> {
        match self.file.fresh_attr() {
            // It gets its name with its content.
            Err(error) if error.errno == Errno::ENOENT => self.file.attr(),
            found => found,
        }
    }

    /// Whether the file has no name in the tree.
    ///
    /// # Errors
    /// When that is not known.
    fn is_removed(&self) -> Result<bool> {
        match self.file.attr() {
            Ok(attr) => Ok(attr.nlink == 0),
            Err(error) if [Errno::ENOENT, Errno::ESTALE].contains(&error.errno) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn is_closed(&self) -> bool {
        is_closed(&self.copy)
    }
}

/// Whether no program has a file open for writing any more, or mapped: the kernel grants no lease for reading otherwise.
pub(crate) fn is_closed(file: &impl AsRawFd) -> bool {
    let lease = |kind: libc::c_int| {
        // SAFETY: the call takes numbers.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
    };
    let is_closed = lease(F_RDLCK);
    lease(libc::F_UNLCK);
    is_closed
}

pub(super) fn write_at(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let count = os(pwrite(file, bytes, offset))?;
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

/// A number that tells contents apart.
fn hash_of(bytes: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    hash.write(bytes);
    hash.finish()
}

fn hash(file: &OwnedFd) -> Result<u64> {
    let (mut hash, mut offset, mut buffer) = (DefaultHasher::new(), 0, vec![0; PIECE]);
    loop {
        let count = os(pread(file, &mut buffer, offset))?;
        if count == 0 {
            return Ok(hash.finish());
        }
        hash.write(&buffer[..count]);
        offset += count as u64;
    }
}
