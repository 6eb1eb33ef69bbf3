// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contents of all copies: which are written to, and storing them when programs close them and in the end.

use super::content::{Content, Noted};
use super::mirror::os;
use super::telling;
use super::unsaved::note_at;
use outrigger_client::File;
use outrigger_core::{Errno, Node, Result, lock};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Stat, fstat, rename, symlink};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// The name of a note that takes the place of another one; all others are numbers.
const MOVED: &str = "moved";
/// How many files are stored side by side in the end: one host that hangs does not hold up the others.
const SIDE_BY_SIDE: usize = 16;

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
    /// The directory for content that no tree takes.
    keep: PathBuf,
    /// What is said in the end of content that went there.
    lost: Mutex<Vec<String>>,
}

impl Contents {
    /// Of none. A link to each copy that is written is in the directory `notes`; what no tree takes goes to the directory `keep`.
    ///
    /// # Errors
    /// Those of inotify_init(2).
    pub(crate) fn new(notes: PathBuf, keep: PathBuf) -> io::Result<Self> {
        let watches = inotify::init(CreateFlags::CLOEXEC)?;
        Ok(Contents {
            all: Mutex::default(),
            watches,
            watched: Mutex::default(),
            is_ending: AtomicBool::new(false),
            stored: AtomicU64::new(0),
            notes,
            keep,
            lost: Mutex::default(),
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
        let noted = Noted { watch, note: note.clone(), stays: false };
        let begun = note_at(&note, real).and_then(|()| {
            let opened = open(guard)?;
            lock(&self.watched).insert(watch, Arc::clone(content));
            guard.begin(opened, copy, noted)
        });
        begun.inspect_err(|_| self.forget_written(&Noted { watch, note, stays: false }))
    }

    /// Nothing is left to be stored of a copy.
    fn forget_written(&self, noted: &Noted) {
        if !noted.stays {
            let _ = std::fs::remove_file(&noted.note);
        }
        lock(&self.watched).remove(&noted.watch);
        // It is gone with the last name of the copy.
        let _ = inotify::remove_watch(&self.watches, noted.watch);
    }

    /// Stores what was written to a copy that no program has open for writing any more. With `again`, also where the tree did not take it a
    /// moment ago.
    ///
    /// # Errors
    /// Those of the tree, about which the user is told: the content is kept, and it is tried again, unless others have changed the file or
    /// the tree has closed it. Who opens it next sees what the tree has.
    pub(crate) fn settle(&self, content: &mut Content, again: bool) -> Result<()> {
        if !content.is_to_settle(again) {
            return Ok(());
        }
        let stored = content.settle();
        self.stored.fetch_add(1, Ordering::AcqRel);
        if let Err(error) = &stored
            && !content.is_stale()
        {
            content.tell(error);
            return stored;
        }
        let closed = stored.and_then(|()| content.close());
        if let Err(error) = &closed {
            content.tell(error);
        }
        let ended = content.end(closed.clone(), &self.keep);
        // It is closed now, which is when a server of whole files stores it.
        self.stored.fetch_add(1, Ordering::AcqRel);
        self.conclude(ended);
        closed
    }

    /// Forgets what was done for a copy that is not written any more, and remembers what is said of it in the end.
    fn conclude(&self, ended: Option<(Noted, Option<String>)>) {
        let Some((noted, lost)) = ended else { return };
        self.forget_written(&noted);
        lock(&self.lost).extend(lost);
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
                let _ = self.settle(&mut lock(&content), true);
            }
        }
    }

    /// Whether a program has a file open for writing. What others have closed is stored, if that is possible.
    pub(crate) fn are_written(&self) -> bool {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        all.iter().any(|content| {
            let mut content = lock(content);
            // Its failure stands on standard error.
            let _ = self.settle(&mut content, false);
            content.is_open()
        })
    }

    /// Stores everything that is left. What cannot be stored goes to the directory for that, or stays where it is if that cannot take it, and
    /// a note with it; answers what was lost to the trees. With `early`, programs go on: what they have open for writing stays where it is,
    /// too, as they may write to it after it was stored.
    pub(crate) fn finish(&self, early: bool) -> Vec<String> {
        let all: Vec<_> = lock(&self.all).values().cloned().collect();
        // What is locked is being stored.
        let is_left =
            |content: &&Arc<Mutex<Content>>| content.try_lock().map_or(true, |content| content.is_written());
        let left: Vec<_> = all.iter().filter(is_left).collect();
        let waits = || match left.iter().copied().filter(is_left).count() {
            1 => "what was written to a file is being stored; Ctrl-C gives up".to_owned(),
            count => format!("what was written to {count} files is being stored; Ctrl-C gives up"),
        };
        let rest = Mutex::new(left.iter());
        let next = || lock(&rest).next();
        let finish = || {
            while let Some(content) = next() {
                self.conclude(lock(content).finish(&self.keep, early));
            }
        };
        telling(waits, || side_by_side(left.len().min(SIDE_BY_SIDE), finish));
        std::mem::take(&mut lock(&self.lost))
    }
}

/// Does the same in so many threads, of which this is one.
fn side_by_side(count: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 1..count {
            // Those that there are do it all.
            let _ = thread::Builder::new().name("finish".into()).spawn_scoped(scope, &work);
        }
        work();
    });
}

/// The path of what was moved with a directory, or is that itself.
fn replaced(real: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let below = real.strip_prefix(from).ok()?;
    Some(if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) })
}
