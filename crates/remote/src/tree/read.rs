// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading: one transfer for a file that is read from the front to the back.

use super::inner::Inner;
use super::{Asked, Begun, FileServer, Found};
use crate::diagnosis::Attempt;
use crate::fault::Fault;
use crate::inode_table::hash;
use crate::reconnect::{Repeats, repeated};
use bytes::{Buf, Bytes, BytesMut};
use outrigger_core::{Errno, Error, Handle, Node, Notice, Result, lock};
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Mutex, MutexGuard};

/// How much of what was received stays for requests that come out of their order, in bytes.
const WINDOW: usize = 2 << 20;
/// How far ahead of a transfer a request may be, so that the transfer goes on to there, in bytes.
const GAP: u64 = 1 << 20;
/// How often it is tried out whether a server begins where it is told to, with a file that changes meanwhile.
const TRIALS: u32 = 3;

/// The number of no version of a file, for a handle by which nothing can be read any more.
const NO_VERSION: NonZero<u64> = NonZero::<u64>::MIN;

/// That of what this client has stored itself.
pub(super) const OUR_VERSION: NonZero<u64> = NonZero::<u64>::MAX;

/// Size and time of a file when a transfer began, where the server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version {
    /// The size in bytes.
    pub size: Option<u64>,
    /// The time of change, in seconds since 1970.
    pub modified: Option<i64>,
    /// A hash of the mark that the server gives to this content, as an entity tag.
    pub tag: Option<u64>,
}

impl Version {
    /// What was found.
    pub(super) fn of(found: &Found) -> Self {
        Version { size: found.size, modified: found.modified, tag: found.tag }
    }

    /// The same, where both are known.
    pub fn complete(self) -> Option<Self> {
        self.size.and(self.modified).map(|_| self)
    }

    /// A number that is another one for another version.
    fn number(self) -> NonZero<u64> {
        let Version { size, modified, tag } = self;
        let word = |word: Option<u64>| {
            [&[u8::from(word.is_some())][..], &word.unwrap_or_default().to_le_bytes()].concat()
        };
        let parts = [size, modified.map(|time| time as u64), tag].map(word);
        NonZero::new(hash(&[&parts[0], &parts[1], &parts[2]])).unwrap_or(NonZero::<u64>::MAX)
    }
}

/// What came of a transfer that was to begin with the last byte of a file.
enum Trial<T> {
    /// That byte.
    Last,
    /// It begins elsewhere, as the server says.
    Elsewhere(Begun<T>),
    /// More than was there, so that the file reaches to here, if it began where it was to.
    UpTo(u64),
    /// Nothing.
    Nothing,
}

/// Which versions of files were read, where the server tells.
#[derive(Default)]
pub(super) struct Versions {
    /// What open files were when they were first read.
    pub(super) of_handles: HashMap<Handle, NonZero<u64>>,
    /// What files are that were staged to be read.
    pub(super) of_staged: HashMap<Node, NonZero<u64>>,
    /// What was last told of nodes, which others may have kept together with content.
    told: HashMap<Node, Told>,
}

/// What was told of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Told {
    size: Option<u64>,
    modified: Option<i64>,
    /// Content of it was given out since then.
    was_read: bool,
}

impl Versions {
    /// Attributes of a node are given out.
    pub(super) fn tell(&mut self, node: Node, found: &Found) {
        let modified = found.modified.filter(|_| !found.is_rounded);
        let told = Told { size: found.size, modified, was_read: false };
        let known = self.told.entry(node).or_default();
        if (known.size, known.modified) != (told.size, told.modified) {
            *known = told;
        }
    }

    /// Nobody knows a node any more, or what is known of it is wrong.
    pub(super) fn forget(&mut self, node: Node) {
        self.told.remove(&node);
    }

    /// Content of this version is given out for a node. False when others would take it for that of what they were told: they may have
    /// some of that, or would cut it off at another size.
    fn give_out(&mut self, node: Node, version: Version) -> bool {
        let Some(told) = self.told.get_mut(&node) else { return true };
        let differs =
            |one: Option<u64>, other: Option<u64>| one.zip(other).is_some_and(|(one, other)| one != other);
        let as_word = |time: Option<i64>| time.map(|time| time as u64);
        let is_other_size = differs(told.size, version.size);
        let is_other = is_other_size || differs(as_word(told.modified), as_word(version.modified));
        if is_other && (is_other_size || told.was_read) {
            return false;
        }
        told.was_read = true;
        true
    }
}

/// The error for an open file of which another version was read.
fn changed() -> Error {
    Errno::ESTALE
        .because("the file was changed at the server since it was first read: it has to be opened again")
}

/// A transfer, and the last of what it brought.
pub(super) struct Reading<T> {
    /// Where in the file the transfer began.
    from: u64,
    /// Where in the file the window begins.
    start: u64,
    window: BytesMut,
    /// `None` when the file has ended.
    transfer: Option<T>,
    version: Version,
    /// The server sends the file from its front only.
    from_front: bool,
}

/// Transfers by node, while nothing waits for them.
pub struct Readings<T>(Mutex<HashMap<Node, Reading<T>>>);

impl<T> Default for Readings<T> {
    fn default() -> Self {
        Readings(Mutex::default())
    }
}

impl<T> Readings<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Node, Reading<T>>> {
        lock(&self.0)
    }

    /// Ends a transfer that nothing waits for; whether there was one.
    pub fn end_one(&self) -> bool {
        let mut readings = self.lock();
        let found = readings.iter().find(|(_, reading)| reading.transfer.is_some()).map(|(&node, _)| node);
        found.is_some_and(|node| readings.remove(&node).is_some())
    }

    pub(super) fn take(&self, node: Node) -> Option<Reading<T>> {
        self.lock().remove(&node)
    }
}

impl<T> Reading<T> {
    fn end(&self) -> u64 {
        self.start + self.window.len() as u64
    }

    /// Whether a transfer that has ended brought what the server said there is.
    ///
    /// # Errors
    /// `EIO` when it did not: what is missing must not be taken for the end of the file.
    fn is_whole(&self) -> Result<()> {
        match self.version.size {
            Some(size) if self.transfer.is_none() && self.end() < size => {
                let why = format!("the server sent a file of {size} bytes up to byte {} only", self.end());
                Err(Errno::EIO.because(why))
            }
            _ => Ok(()),
        }
    }

    /// Whether more has come than there was after the place at which the server was to begin; that may be beyond the end.
    fn exceeds(&self) -> bool {
        self.from > 0 && self.version.size.is_some_and(|size| self.end() > size.max(self.from))
    }

    /// Whether a request at this place is best served by this transfer.
    fn serves(&self, offset: u64) -> bool {
        let gap = match self.transfer {
            _ if self.from_front => u64::MAX,
            Some(_) => GAP,
            None => 0,
        };
        self.start <= offset && offset <= self.end().saturating_add(gap)
    }

    fn take(&self, offset: u64, len: usize) -> Bytes {
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX).min(self.window.len());
        Bytes::copy_from_slice(&self.window[from..self.window.len().min(from.saturating_add(len))])
    }
}

impl<S: FileServer> Inner<S> {
    /// Whether a request lies before what the transfer of a file still has, which the server cannot begin there.
    pub(super) fn goes_back(&self, node: Node, offset: u64) -> bool {
        let readings = self.server.readings().lock();
        readings.get(&node).is_some_and(|reading| reading.from_front && offset < reading.start)
    }

    /// What the file was when it was first read by this handle, where the server tells.
    pub(super) fn read_version(&self, handle: Handle) -> Option<NonZero<u64>> {
        lock(&self.versions).of_handles.get(&handle).copied()
    }

    /// Whether what is staged of a file may be read by `handle`.
    ///
    /// # Errors
    /// `ESTALE` when that has read another version.
    pub(super) fn may_read_staged(&self, node: Node, handle: Handle) -> Result<()> {
        let versions = lock(&self.versions);
        match (versions.of_handles.get(&handle), versions.of_staged.get(&node)) {
            (Some(read), Some(staged)) if read != staged => Err(changed()),
            _ => Ok(()),
        }
    }

    /// A file is another one by now: who keeps anything of it is told.
    pub(super) fn has_changed(&self, node: Node) {
        lock(&self.versions).forget(node);
        if let Some(notify) = self.notify.get() {
            notify.notify(Notice::InvalidateNode { node, offset: 0, len: 0 });
        }
    }

    /// A first read by `handle` has brought this version of the file; the process that takes over has to know it, too.
    ///
    /// # Errors
    /// `ESTALE` when others know another version.
    fn note_version(&self, node: Node, handle: Handle, version: Version) -> Result<()> {
        let mut versions = lock(&self.versions);
        let is_known = versions.give_out(node, version);
        // What was read by the handle before may have come from others: it stays stale.
        let number = if is_known { version.number() } else { NO_VERSION };
        versions.of_handles.insert(handle, number);
        drop(versions);
        if let Some(notes) = self.open.notes() {
            notes.change(handle, |own| own[0] = number.get());
        }
        if is_known { Ok(()) } else { Err(changed()) }
    }

    /// Up to `len` bytes at `offset` of the server's file, by `handle` if a program reads it; the caller holds the lock of the node.
    pub(super) async fn read_at(
        &self,
        (node, handle): (Node, Option<Handle>),
        offset: u64,
        len: usize,
    ) -> Result<Bytes> {
        let (readings, handle) = (self.server.readings(), handle.filter(|_| S::TELLS_VERSIONS));
        let pinned = handle.and_then(|handle| self.read_version(handle));
        let fits = |reading: &Reading<_>| {
            reading.serves(offset) && pinned.is_none_or(|pinned| reading.version.number() == pinned)
        };
        let mut known = readings.take(node).filter(fits);
        let (mut before, mut repeats, mut has_grown) = (None, Repeats::default(), false);
        loop {
            let mut reading = match known.take() {
                Some(reading) => reading,
                None => {
                    let begun = self.begin_reading(&self.inodes.path(node)?, offset).await?;
                    let Begun { transfer, at: start, version } = begun;
                    if before.is_some_and(|before| before != version) {
                        let why = "the file was changed while the connection was lost";
                        return Err(Errno::ESTALE.because(why));
                    }
                    if pinned.is_some_and(|pinned| version.number() != pinned) {
                        return Err(changed());
                    }
                    let (from, from_front, window) = (start, start < offset, BytesMut::new());
                    Reading { from, start, window, transfer, version, from_front }
                }
            };
            match self.receive_until(&mut reading, offset, len).await? {
                None if reading.exceeds() && !has_grown => {
                    // Its connection may be needed for the question.
                    let end = reading.end();
                    drop(reading);
                    self.reaches(node, end).await?;
                    (before, has_grown) = (None, true);
                }
                None => {
                    let data = reading.take(offset, len);
                    if let Some(handle) = handle.filter(|_| pinned.is_none()) {
                        self.note_version(node, handle, reading.version)?;
                    }
                    readings.lock().insert(node, reading);
                    return Ok(data);
                }
                Some(lost) if !repeats.another(&lost) => return Err(lost),
                Some(_) => before = Some(reading.version),
            }
        }
    }

    /// Whether a file reaches to `end` by now, which it did not when its transfer began.
    ///
    /// # Errors
    /// `EIO` when it does not: the server has taken the place at which to begin for nothing, and what has come is of another one.
    async fn reaches(&self, node: Node, end: u64) -> Result<()> {
        match self.version(&self.inodes.path(node)?, None).await?.size {
            Some(size) if size < end => Err(Errno::EIO.because(
                "the server sends more of the file than there is: it does not begin where it says that it does (REST)",
            )),
            _ => Ok(()),
        }
    }

    /// Begins a transfer from which `offset` can be read.
    async fn begin_reading(&self, path: &[u8], offset: u64) -> Result<Begun<S::Transfer>> {
        let is_known = offset == 0 || S::TELLS_PLACES || lock(&self.begins_anywhere).is_some();
        if !is_known && let Some(begun) = self.try_out_places(path, offset).await? {
            return Ok(begun);
        }
        let from_front = *lock(&self.begins_anywhere) == Some(false);
        self.begin_at(path, if from_front { 0 } else { offset }).await
    }

    /// Begins a transfer. Servers refuse to begin where a file has ended.
    async fn begin_at(&self, path: &[u8], offset: u64) -> Result<Begun<S::Transfer>> {
        match self.server.begin(path, offset).await {
            Ok(begun) => Ok(begun),
            Err(Fault::Refused(_))
                if offset > 0 && self.look(path).await?.size.is_some_and(|size| size <= offset) =>
            {
                Ok(Begun { transfer: None, at: offset, version: Version::default() })
            }
            Err(fault) => Err(self.why(fault, Attempt::Open { path, writes: false }).await),
        }
    }

    /// Finds out, once for a server, whether it begins transfers where it is told to: what a server sends that ignores the place
    /// looks like what is there. Where that is not known afterwards, a transfer from which `offset` can be read all the same.
    async fn try_out_places(&self, path: &[u8], offset: u64) -> Result<Option<Begun<S::Transfer>>> {
        let learn = |begins| *lock(&self.begins_anywhere) = Some(begins);
        for _ in 0..TRIALS {
            let Some(size) = self.look(path).await?.size else { break };
            if size <= offset {
                return Ok(Some(Begun { transfer: None, at: offset, version: Version::default() }));
            }
            match repeated(|_| self.last_byte(path, size - 1)).await {
                Ok(Trial::Last) => {
                    learn(true);
                    return Ok(None);
                }
                Ok(Trial::Elsewhere(begun)) => {
                    learn(false);
                    return Ok(Some(begun));
                }
                // It may have grown.
                Ok(Trial::UpTo(end)) if self.look(path).await?.size.is_some_and(|size| size < end) => {
                    learn(false);
                    return Ok(None);
                }
                Ok(Trial::UpTo(_) | Trial::Nothing) => {}
                Err(Fault::Refused(_)) => break,
                Err(fault) => return Err(fault.into()),
            }
        }
        self.begin_at(path, 0).await.map(Some)
    }

    /// Has a file sent from its last byte on.
    async fn last_byte(&self, path: &[u8], last: u64) -> Asked<Trial<S::Transfer>, S> {
        let begun = self.server.begin(path, last).await?;
        if begun.at != last {
            return Ok(Trial::Elsewhere(begun));
        }
        let Some(mut transfer) = begun.transfer else { return Ok(Trial::Nothing) };
        let mut came = BytesMut::new();
        loop {
            came.reserve(1 << 12);
            if self.server.receive(&mut transfer, &mut came).await? == 0 {
                self.server.finish(transfer).await?;
                return Ok(if came.is_empty() { Trial::Nothing } else { Trial::Last });
            }
            if came.len() > 1 {
                return Ok(Trial::UpTo(last + came.len() as u64));
            }
        }
    }

    /// Why the connection was lost, if it was.
    async fn receive_until(
        &self,
        reading: &mut Reading<S::Transfer>,
        offset: u64,
        len: usize,
    ) -> Result<Option<Error>> {
        let wanted = offset.saturating_add(len as u64);
        while reading.end() < wanted
            && let Some(transfer) = &mut reading.transfer
        {
            reading.window.reserve(1 << 17);
            let received = match self.server.receive(transfer, &mut reading.window).await {
                Ok(0) => match reading.transfer.take() {
                    Some(transfer) => self.server.finish(transfer).await,
                    None => Ok(()),
                },
                received => received.map(drop),
            };
            match received {
                Err(Fault::Lost(lost)) => return Ok(Some(lost)),
                received => received?,
            }
            reading.is_whole()?;
            let excess = reading.window.len().saturating_sub(WINDOW);
            let before = usize::try_from(offset.saturating_sub(reading.start)).unwrap_or(usize::MAX);
            let dropped = excess.min(before);
            reading.window.advance(dropped);
            reading.start += dropped as u64;
        }
        Ok(None)
    }
}
