// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of files in the mirror: fetched when a file is opened, and stored in the tree after it was written to.

use super::mirror::os;
use super::unsaved::{kept, note_at, unfinished, unkept};
use super::{say, telling};
use bytes::Bytes;
use libc::F_RDLCK;
use outrigger_client::{File, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Attr, Errno, Error, Node, Result, SetAttrs, SetTime, Time, lock};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Stat, fstat, ftruncate, rename, symlink};
use rustix::io::{pread, pwrite};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How much is read at once when content is stored.
pub(super) const PIECE: usize = 1 << 20;
/// The name of a note that takes the place of another one; all others are numbers.
const MOVED: &str = "moved";

/// What tells whether the content of a file in the tree is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64, Time, u64);

impl Key {
    pub(crate) fn of(attr: &Attr) -> Self {
        Key(attr.size, attr.mtime, attr.change)
    }

    /// Whether a file that is known by this has changed. Some trees tell times to the second. The time of a file that was made or
    /// emptied just now may be predicted, and so may that of trees that may refuse to set it.
    fn has_changed(self, file: &File, now: &Attr, since: Since) -> bool {
        let Key(size, mtime, change) = self;
        let is_another_time = size > 0 && !is_same_time(mtime, now.mtime);
        size != now.size
            || match since {
                Since::Opened => {
                    let time_counts = !file.client().abilities().attrs_may_fail;
                    change != now.change && size > 0 || time_counts && is_another_time
                }
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
    /// Since it was opened, when all its attributes were asked for.
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

/// A copy that programs write to.
struct Writing {
    /// The file in the tree.
    file: File,
    /// Its number, which is no other file's as long as it is open.
    node: Node,
    /// The copy.
    copy: OwnedFd,
    stamp: Stamp,
    watch: i32,
    /// Says that there is something to be stored, should the server be killed.
    note: PathBuf,
    /// What tells that others have changed the file; none after a part of the content was stored.
    since: Option<Since>,
    /// The user knows that it cannot be stored.
    told: bool,
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
        let is_gone = self.is_removed || os(fstat(&writing.copy))?.st_nlink == 0;
        if is_gone && writing.is_removed()? {
            // Its names were removed, and no program can open it any more.
            return Ok(());
        }
        // As a whole, what is here would undo what others have stored.
        if let Some(since) = writing.since
            && self.key.has_changed(&writing.file, &writing.file.attr()?, since)
        {
            return Err(Errno::ESTALE.because("it was changed by another program since it was opened"));
        }
        writing.since = None;
        let (hash, attr, since) = writing.store(stamp)?;
        (writing.stamp, writing.since) = (stamp, Some(since));
        (self.hash, self.key) = (hash, Key::of(&attr));
        Ok(())
    }

    /// Stores what was written to the copy, and says whether it has arrived.
    ///
    /// # Errors
    /// Those of the tree. The copy keeps the content, and all of it is stored the next time.
    fn settle(&mut self) -> Result<()> {
        self.store()?;
        let Some(writing) = &mut self.writing else { return Ok(()) };
        writing.file.flush().inspect_err(|_| writing.since = None)
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
        let is_known = writing.since.is_none_or(|since| {
            writing.file.attr().is_ok_and(|now| !self.key.has_changed(&writing.file, &now, since))
        });
        let set = writing.file.set(attrs);
        if let (true, Ok(attr)) = (is_known, &set) {
            self.key = Key::of(attr);
        }
        Some(set)
    }
}

impl Content {
    /// Stores it, or keeps what was written: see [`Contents::finish`].
    fn finish(&mut self, keep: &Path, early: bool) -> Option<String> {
        // Before it is stored: what is written and closed meanwhile would pass for stored.
        let is_open = early && self.writing.as_ref().is_some_and(|writing| !writing.is_closed());
        let stored = self.settle();
        let path = String::from_utf8_lossy(&self.path).into_owned();
        let Writing { copy, note, .. } = self.writing.take()?;
        let left = is_open.then(|| unfinished(&path, stored.as_ref().err(), &note, keep)).flatten();
        if left.is_some() {
            return left;
        }
        let lost = match stored {
            Ok(()) => None,
            Err(error) => match kept(keep, &path, &copy) {
                Ok(place) => Some(format!(
                    "'{path}' is not stored: {error}; what was written is in '{}'",
                    place.display()
                )),
                Err(why) => return Some(unkept(&path, &error, &note, (keep, &why))),
            },
        };
        let _ = std::fs::remove_file(note);
        lost
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
        let is_set = self.file.set(mtime).is_ok() && !self.file.client().abilities().attrs_may_fail;
        let attr = self.file.attr()?;
        // A server that rounds times may tell another one once the content has arrived there.
        let is_timed = is_set && attr.mtime == time;
        Ok((hash.finish(), attr, Since::Stored { is_timed }))
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

/// What is known of the contents of all copies, by their inode numbers.
pub(crate) struct Contents {
    all: Mutex<HashMap<u64, Arc<Mutex<Content>>>>,
    watches: OwnedFd,
    watched: Mutex<HashMap<i32, Arc<Mutex<Content>>>>,
    /// Programs are given no more files to write to.
    is_ending: AtomicBool,
    /// How often content was stored.
    stored: AtomicU64,
    /// Where it is noted what is written.
    notes: PathBuf,
}

impl Contents {
    /// Of none. A link to each copy that is written is in the directory `notes`.
    ///
    /// # Errors
    /// Those of inotify_init(2).
    pub(crate) fn new(notes: PathBuf) -> io::Result<Self> {
        let watches = inotify::init(CreateFlags::CLOEXEC)?;
        Ok(Contents {
            all: Mutex::default(),
            watches,
            watched: Mutex::default(),
            is_ending: AtomicBool::new(false),
            stored: AtomicU64::new(0),
            notes,
        })
    }

    /// How often content was stored: attributes that were asked for before the last time may be old.
    pub(crate) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Acquire)
    }

    /// Gives programs no more files to write to: calls that are being answered may still ask for some when everything is stored.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// Whether trees are closed.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Stores what was written to a copy, be it closed or not.
    ///
    /// # Errors
    /// Those of the tree.
    pub(crate) fn store(&self, content: &mut Content) -> Result<()> {
        let stored = content.store();
        self.stored.fetch_add(1, Ordering::AcqRel);
        stored
    }

    pub(crate) fn add(&self, found: &Stat, content: Content) {
        lock(&self.all).insert(found.st_ino, Arc::new(Mutex::new(content)));
    }

    pub(crate) fn forget(&self, found: &Stat) {
        lock(&self.all).remove(&found.st_ino);
    }

    pub(crate) fn of(&self, found: &Stat) -> Option<Arc<Mutex<Content>>> {
        lock(&self.all).get(&found.st_ino).cloned()
    }

    /// Whether programs write to a copy that is one of another file than this.
    pub(crate) fn is_of_another(&self, found: &Stat, node: Node) -> bool {
        self.of(found).is_some_and(|content| content.try_lock().is_ok_and(|content| content.is_other(node)))
    }

    /// Whether programs write to a copy.
    pub(crate) fn is_written(&self, found: &Stat) -> bool {
        // What is fetched or stored at the moment must not be removed either.
        self.of(found).is_some_and(|content| content.try_lock().map_or(true, |content| content.is_written()))
    }

    /// Copies were moved: notes lead to where they are. With `exchanged`, what was at `to` is at `from`.
    pub(crate) fn moved(&self, from: &Path, to: &Path, exchanged: bool) -> Result<()> {
        // Those that are changed may come once more otherwise.
        for entry in std::fs::read_dir(&self.notes)?.collect::<Vec<_>>() {
            let note = entry?.path();
            // One that is gone meanwhile is of content that is stored.
            let Ok(real) = std::fs::read_link(&note) else { continue };
            let place = match exchanged {
                true => replaced(&real, from, to).or_else(|| replaced(&real, to, from)),
                false => replaced(&real, from, to),
            };
            let Some(place) = place else { continue };
            // In one step: the process may be killed.
            let new = self.notes.join(MOVED);
            os(symlink(&place, &new))?;
            os(rename(&new, &note))?;
        }
        Ok(())
    }

    /// A program is given a descriptor for writing to a copy, of which `copy` is one for reading. It is watched and noted before the file is
    /// opened in the tree by `open`: nothing may have changed there when the program gets an error.
    ///
    /// # Errors
    /// When it cannot be watched; `ENOTCONN` in the end; those of `open`.
    pub(crate) fn begin(
        &self,
        content: &Arc<Mutex<Content>>,
        guard: &mut Content,
        (copy, real): (OwnedFd, &Path),
        open: impl FnOnce(&mut Content) -> Result<(File, Node)>,
    ) -> Result<()> {
        if self.is_ending() {
            // Who stores everything has not seen it, or waits for this content.
            return Err(Errno::ENOTCONN.into());
        }
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let watch = os(inotify::add_watch(&self.watches, path, WatchFlags::CLOSE_WRITE))?;
        let note = self.notes.join(os(fstat(&copy))?.st_ino.to_string());
        let begun = note_at(&note, real).and_then(|()| {
            let (file, node) = open(guard)?;
            if guard.is_empty() {
                // It was emptied at the tree by opening it, or made there.
                guard.key = Key::of(&file.attr()?);
            }
            lock(&self.watched).insert(watch, Arc::clone(content));
            let (stamp, note, since) = (Stamp::of(&copy)?, note.clone(), Some(Since::Opened));
            guard.writing = Some(Writing { file, node, copy, stamp, watch, note, since, told: false });
            Ok(())
        });
        begun.inspect_err(|_| self.forget_written(watch, &note))
    }

    /// Nothing is left to be stored of a copy.
    fn forget_written(&self, watch: i32, note: &Path) {
        let _ = std::fs::remove_file(note);
        lock(&self.watched).remove(&watch);
        // It is gone with the last name of the copy.
        let _ = inotify::remove_watch(&self.watches, watch);
    }

    /// Stores what was written to a copy that no program has open for writing any more.
    ///
    /// # Errors
    /// Those of the tree, about which the user is told: the content is kept, and it is tried again.
    pub(crate) fn settle(&self, content: &mut Content) -> Result<()> {
        if !content.writing.as_ref().is_some_and(Writing::is_closed) {
            return Ok(());
        }
        let stored = content.settle();
        self.stored.fetch_add(1, Ordering::AcqRel);
        match stored {
            Ok(()) => {
                if let Some(Writing { watch, note, .. }) = content.writing.take() {
                    content.is_here = true;
                    self.forget_written(watch, &note);
                }
                // It is closed now, which is when a server of whole files stores it.
                self.stored.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
            Err(error) => {
                tell(content, &error);
                Err(error)
            }
        }
    }

    /// Stores what programs write, when they close it, for as long as this process lives.
    pub(crate) fn attend(&self) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watches, &mut buffer);
        loop {
            let event = match events.next() {
                Err(rustix::io::Errno::INTR) => continue,
                event => os(event)?,
            };
            let closed = lock(&self.watched).get(&event.wd()).cloned();
            if let Some(content) = closed {
                // The user was told.
                let _ = self.settle(&mut lock(&content));
            }
        }
    }

    /// Whether a program has a file open for writing. What others have closed is stored, if that is possible.
    pub(crate) fn are_written(&self) -> bool {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        all.iter().any(|content| {
            let mut content = lock(content);
            // Its failure stands on standard error.
            let _ = self.settle(&mut content);
            content.writing.as_ref().is_some_and(|writing| !writing.is_closed())
        })
    }

    /// Stores everything that is left. What cannot be stored goes to the directory `keep`, or stays where it is if that cannot take it, and
    /// a note with it; answers what was lost to the trees. With `early`, programs go on: what they have open for writing stays where it is,
    /// too, as they may write to it after it was stored.
    pub(crate) fn finish(&self, keep: &Path, early: bool) -> Vec<String> {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        // What is locked is being stored.
        let is_left =
            |content: &Arc<Mutex<Content>>| content.try_lock().map_or(true, |content| content.is_written());
        let left = || all.iter().filter(|content| is_left(content)).count();
        let waits = || match left() {
            1 => "what was written to a file is being stored; Ctrl-C gives up".to_owned(),
            count => format!("what was written to {count} files is being stored; Ctrl-C gives up"),
        };
        telling(waits, || all.iter().filter_map(|content| lock(content).finish(keep, early)).collect())
    }
}

/// The path of what was moved with a directory, or is that itself.
fn replaced(real: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let below = real.strip_prefix(from).ok()?;
    Some(if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) })
}

/// Tells the user once that something is not stored.
fn tell(content: &mut Content, error: &Error) {
    let Content { path, writing: Some(writing), .. } = content else { return };
    if !std::mem::replace(&mut writing.told, true) {
        let path = String::from_utf8_lossy(path);
        say(format_args!("'{path}': what was written cannot be stored: {error}"));
    }
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
