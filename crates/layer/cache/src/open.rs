// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files and directories, and the handles this layer gives out itself for what it need not open below, or not yet.
//!
//! Handles of its own are recognised by their number, so that the process that takes over after this one knows what to do
//! about them: open the directory, or the file for reading, when it becomes necessary.

use crate::delayed::ErrorsSeen;
use crate::file::{File, Version};
use crate::fill::{DirBelow, Fill};
use crate::inner::Inner;
use crate::moment::Moment;
use crate::readahead::Readahead;
use crate::record::SharedNames;
use outrigger_core::ops::{GetAttr, Open, OpenFlags, Release};
use outrigger_core::paths::subjects;
use outrigger_core::survive::{Layout, Slots};
use outrigger_core::{
    Cx, Errno, Handle, Keep, LockOwner, Node, Op, OpCode, Request, Result, Time, Traverse, Visit, ask, lock,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The high bits of handles of our own. Drivers count theirs from below, and layers above put two bits beside them.
const OWN: u64 = 0x3fff << 48;
/// Set in those of directories.
const DIRECTORY: u64 = 1 << 47;

/// An open directory.
pub(crate) struct OpenDirectory {
    pub(crate) node: Node,
    pub(crate) view: Mutex<View>,
    /// Whether it was read from its start.
    pub(crate) read: AtomicBool,
    /// Open below, for the few requests that need that.
    real: Mutex<Option<Arc<DirBelow>>>,
}

/// What the listing of an open directory is read from.
pub(crate) enum View {
    /// Nothing: a former process opened it.
    Nothing,
    /// Names that are known, as of this moment.
    Known(SharedNames, Moment),
    /// A listing that is being received.
    Arriving(Arc<Fill>),
    /// The tree below.
    Direct(Arc<DirBelow>),
}

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) node: Node,
    pub(crate) handle: Handle,
    pub(crate) file: Arc<File>,
    /// How it was opened; `None` when that was in a former process.
    pub(crate) flags: Option<OpenFlags>,
    /// Its content is not kept: a pipe, a device, or whatever its user wants to read past all caches.
    pub(crate) direct: bool,
    pub(crate) ahead: Mutex<Readahead>,
    /// Up to where its user has the errors of delayed writes.
    pub(crate) errors_seen: Mutex<ErrorsSeen>,
    /// How old the file was when it was opened; zero where that is not known.
    pub(crate) age: Duration,
    /// The tree below has something to do when one of its descriptors is closed.
    pub(crate) flushes: bool,
    /// close(2) has succeeded before all was written and stored: closing it below is the first to fail.
    pub(crate) flushed_early: AtomicBool,
    /// Where that is noted for another process, if the handle is one of ours.
    slot: Option<u32>,
    /// The handle below, where the handle is one of ours and the file had to be opened.
    real: Mutex<Option<Handle>>,
    /// Pieces of its content that are on their way by its handle below.
    uses: AtomicUsize,
    /// Of a handle of ours: whether the file that was opened below for it is of the version that its user began to read.
    pub(crate) same_version: OnceLock<bool>,
}

/// It is in use for a piece that is on its way.
pub(crate) struct InUse(Arc<OpenFile>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
        self.0.file.gate.open();
    }
}

outrigger_core::record! {
    /// A file that is open by a handle of ours, as another process finds it. It has to be opened below before it loses a name:
    /// without one it cannot be, when its content is not kept any more.
    pub(crate) struct KeptFile {
        pub(crate) node: Node,
        pub(crate) handle: Handle,
        /// The handle below and one more; 0 when there is none.
        pub(crate) below: u64,
    }
}

/// Files that are open.
#[derive(Default)]
struct Files {
    /// A file and a handle of it, and how often it was given out: drivers that need no state give out the same one again.
    open: BTreeMap<(Node, Handle), (Arc<OpenFile>, u32)>,
    /// How many of the handles are ours.
    own: usize,
    /// Those, for another process, if one would go on.
    kept: Option<Slots<KeptFile>>,
}

/// Everything that is open.
pub(crate) struct Handles {
    directories: Mutex<HashMap<(Node, Handle), Arc<OpenDirectory>>>,
    files: Mutex<Files>,
    next: AtomicU64,
}

/// The region with files that are open by handles of ours, of which there may be so many; others are opened below at once.
const REGION: &str = "cache-open";
const KEPT_MAX: usize = 1 << 15;

/// The files in `keep` that former processes opened by handles of ours.
///
/// # Errors
/// Those of [`Layout::attach`].
pub(crate) fn kept_files(keep: &dyn Keep) -> Result<Slots<KeptFile>> {
    Ok(Slots::open(Layout::of(REGION).attach(keep, Slots::<KeptFile>::words(KEPT_MAX))?.area))
}

/// Whether the number of a handle is one of ours.
pub(crate) fn is_own(handle: Handle) -> bool {
    handle.0 & OWN == OWN
}

impl OpenFile {
    pub(crate) fn new(
        node: Node,
        handle: Handle,
        file: Arc<File>,
        flags: Option<OpenFlags>,
        direct: bool,
    ) -> Self {
        let (ahead, real) = (Mutex::default(), Mutex::default());
        let (errors_seen, uses) = (Mutex::new(lock(&file.delayed).errors_seen()), AtomicUsize::new(0));
        let flushed_early = AtomicBool::new(false);
        OpenFile {
            node,
            handle,
            file,
            flags,
            direct,
            ahead,
            errors_seen,
            age: Duration::ZERO,
            flushes: true,
            flushed_early,
            slot: None,
            real,
            uses,
            same_version: OnceLock::new(),
        }
    }

    /// The same, of a file that was this old; whether the tree below has something to do when a descriptor is closed.
    pub(crate) fn opened(self, age: Duration, flushes: bool) -> Self {
        OpenFile { age, flushes, ..self }
    }

    /// Uses it until what is returned is dropped.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        self.uses.fetch_add(1, Ordering::AcqRel);
        InUse(Arc::clone(self))
    }

    /// Waits until nothing is on its way by its handle below.
    pub(crate) async fn unused(&self) {
        self.file.gate.wait(|| (self.uses.load(Ordering::Acquire) == 0).then_some(())).await;
    }

    /// Whether it was opened for writing, as far as is known: then writes may be delayed, and errors reported.
    pub(crate) fn delays(&self) -> bool {
        self.flags.is_none_or(OpenFlags::writes)
    }

    /// Notes that the file can be changed by this handle.
    fn note_writer(&self) {
        if self.flags.is_some_and(|flags| flags.writes() && !flags.contains(OpenFlags::APPEND))
            && !is_own(self.handle)
        {
            lock(&self.file.writers).push(self.handle);
        }
    }

    /// Whether it was opened for reading, as far as is known.
    pub(crate) fn may_read(&self) -> bool {
        self.flags.is_none_or(OpenFlags::reads)
    }

    /// That what can be read by it is of the version that its user has begun to read.
    ///
    /// # Errors
    /// `ESTALE` where it is not.
    pub(crate) fn is_one_version(&self) -> Result<()> {
        match self.same_version.get() {
            Some(false) => Err(Errno::ESTALE.because("it was changed by others while it was open")),
            _ => Ok(()),
        }
    }

    /// The handle below, if there is one yet.
    pub(crate) fn real(&self) -> Option<Handle> {
        match is_own(self.handle) {
            true => *lock(&self.real),
            false => Some(self.handle),
        }
    }
}

impl Handles {
    /// Nothing is open. The numbers of former processes, which counted from an earlier time of day, do not come again.
    pub(crate) fn new(wall: Time, kept: Option<Slots<KeptFile>>) -> Self {
        let micros = (wall.secs as u64).wrapping_mul(1_000_000).wrapping_add(u64::from(wall.nanos / 1000));
        let files = Mutex::new(Files { kept, ..Files::default() });
        Handles { directories: Mutex::default(), files, next: AtomicU64::new(micros) }
    }

    /// Files that former processes opened by handles of ours, each with its slot.
    pub(crate) fn kept(&self) -> Vec<(u32, KeptFile)> {
        let files = lock(&self.files);
        files.kept.iter().flat_map(Slots::iter).map(|(slot, kept)| (slot.index, kept)).collect()
    }

    /// A handle that nothing else has, of a directory or a file.
    pub(crate) fn number(&self, directory: bool) -> Handle {
        let count = self.next.fetch_add(1, Ordering::Relaxed) & (DIRECTORY - 1);
        Handle(OWN | if directory { DIRECTORY } else { 0 } | count)
    }

    /// Opens a directory.
    pub(crate) fn open_directory(&self, node: Node, view: View) -> Handle {
        let handle = self.number(true);
        self.insert_directory(node, handle, view);
        handle
    }

    fn insert_directory(&self, node: Node, handle: Handle, view: View) -> Arc<OpenDirectory> {
        let (view, read) = (Mutex::new(view), AtomicBool::new(false));
        let open = Arc::new(OpenDirectory { node, view, read, real: Mutex::default() });
        lock(&self.directories).insert((node, handle), Arc::clone(&open));
        open
    }

    /// An open directory; one that a former process opened is opened again. `None` for handles of others.
    pub(crate) fn directory(&self, node: Node, handle: Handle) -> Option<Arc<OpenDirectory>> {
        if !is_own(handle) || handle.0 & DIRECTORY == 0 {
            return None;
        }
        let known = lock(&self.directories).get(&(node, handle)).cloned();
        Some(known.unwrap_or_else(|| self.insert_directory(node, handle, View::Nothing)))
    }

    /// Closes a directory; answers whether it was ours.
    pub(crate) fn close_directory(&self, node: Node, handle: Handle) -> bool {
        lock(&self.directories).remove(&(node, handle));
        is_own(handle)
    }

    /// Notes that a file was opened below, perhaps once more.
    pub(crate) fn add_file(&self, open: OpenFile) {
        let mut files = lock(&self.files);
        let (_, count) = files.open.entry((open.node, open.handle)).or_insert_with(|| {
            open.note_writer();
            (Arc::new(open), 0)
        });
        *count += 1;
    }

    /// Opens a file for reading here alone; `None` when there is no room to note that for another process.
    pub(crate) fn open_own(&self, node: Node, file: Arc<File>, flags: OpenFlags) -> Option<Handle> {
        let handle = self.number(false);
        let mut open = OpenFile::new(node, handle, file, Some(flags), false);
        let mut files = lock(&self.files);
        if let Some(kept) = &mut files.kept {
            open.slot = Some(kept.insert(&KeptFile { node, handle, below: 0 })?.index);
        }
        files.own += 1;
        files.open.insert((node, handle), (Arc::new(open), 1));
        Some(handle)
    }

    /// Notes a file that a former process opened, unless that was done a moment ago: however many requests mention it first, it
    /// was opened once. Answers it, and whether it was noted now.
    fn adopt(&self, open: OpenFile) -> (Arc<OpenFile>, bool) {
        let mut files = lock(&self.files);
        let (mut new, own) = (false, is_own(open.handle));
        let (open, _) = files.open.entry((open.node, open.handle)).or_insert_with(|| {
            new = true;
            (Arc::new(open), 1)
        });
        let open = Arc::clone(open);
        files.own += usize::from(new && own);
        (open, new)
    }

    /// An open file, if this process knows it.
    pub(crate) fn file(&self, node: Node, handle: Handle) -> Option<Arc<OpenFile>> {
        lock(&self.files).open.get(&(node, handle)).map(|(open, _)| Arc::clone(open))
    }

    /// The files that are open for writing, as far as that is known, and how often.
    pub(crate) fn written_files(&self) -> Vec<(Arc<OpenFile>, u32)> {
        let files = lock(&self.files);
        // What is asked for without a handle opens nothing.
        let is_open =
            |open: &OpenFile| open.handle != Handle::NONE && open.flags.is_none_or(OpenFlags::writes);
        let written = files.open.values().filter(|(open, _)| is_open(open));
        written.map(|(open, count)| (Arc::clone(open), *count)).collect()
    }

    /// Whether any file is open by a handle of ours.
    pub(crate) fn has_own(&self) -> bool {
        lock(&self.files).own > 0
    }

    /// What is open of a file by handles of ours.
    fn own_of(&self, node: Node) -> Vec<Arc<OpenFile>> {
        let files = lock(&self.files);
        let own = files.open.range((node, Handle(OWN))..=(node, Handle(u64::MAX)));
        own.filter(|((_, handle), _)| is_own(*handle)).map(|(_, (open, _))| Arc::clone(open)).collect()
    }

    /// Notes for another process by which handle a file is open below.
    fn keep_below(&self, open: &OpenFile, below: Handle) {
        let files = lock(&self.files);
        let (node, handle) = (open.node, open.handle);
        if let (Some(kept), Some(slot)) = (&files.kept, open.slot)
            && files.open.contains_key(&(node, handle))
        {
            kept.update(slot, &KeptFile { node, handle, below: below.0.wrapping_add(1) });
        }
    }

    /// Closes a file; answers what it was, and whether that was the last use of this handle, if this process knows it.
    pub(crate) fn close_file(&self, node: Node, handle: Handle) -> Option<(Arc<OpenFile>, bool)> {
        let mut files = lock(&self.files);
        let (open, count) = files.open.get_mut(&(node, handle))?;
        *count -= 1;
        let (open, count) = (Arc::clone(open), *count);
        if count == 0 {
            files.open.remove(&(node, handle));
            files.own -= usize::from(is_own(handle));
            files.kept.iter_mut().zip(open.slot).for_each(|(kept, slot)| kept.remove(slot));
            lock(&open.file.writers).retain(|&writer| writer != handle);
            let others = files.open.range((node, Handle(0))..=(node, Handle(u64::MAX))).next();
            open.file.may_be_locked.fetch_and(others.is_some(), Ordering::AcqRel);
        }
        Some((open, count == 0))
    }
}

/// Does something with each handle in a request.
struct EachHandle<F>(F);

impl<F: FnMut(&mut Handle)> Visit for EachHandle<F> {
    fn handle(&mut self, handle: &mut Handle) {
        (self.0)(handle);
    }
}

/// The handles of ours in a request.
pub(crate) fn own_handles(request: &mut Request) -> Vec<Handle> {
    let mut own = Vec::new();
    request.traverse(&mut EachHandle(|handle: &mut Handle| own.extend(is_own(*handle).then_some(*handle))));
    own
}

impl Inner {
    /// An open file; one that a former process opened is noted again.
    pub(crate) fn open_file(&self, node: Node, handle: Handle) -> Arc<OpenFile> {
        if let Some(open) = self.handles.file(node, handle) {
            return open;
        }
        self.adopt(&KeptFile { node, handle, below: 0 }, None)
    }

    /// Notes a file that a former process opened.
    pub(crate) fn adopt(
        &self,
        &KeptFile { node, handle, below }: &KeptFile,
        slot: Option<u32>,
    ) -> Arc<OpenFile> {
        let mut table = lock(&self.table);
        let file = table.file(node, self.now());
        table.pin(node);
        file.may_be_locked.store(true, Ordering::Release);
        // The former process may have done so; a handle of ours is never written.
        let flushed_early = !is_own(handle) && table.policy(node).writes.is_behind();
        let flushed_early = AtomicBool::new(flushed_early);
        drop(table);
        let flags = is_own(handle).then_some(OpenFlags::empty());
        let adopted = OpenFile { slot, flushed_early, ..OpenFile::new(node, handle, file, flags, false) };
        *lock(&adopted.real) = below.checked_sub(1).map(Handle);
        let (open, new) = self.handles.adopt(adopted);
        if !new {
            lock(&self.table).unpin(node);
        }
        open
    }

    /// Makes a request that may mention handles of ours one that the tree below understands.
    pub(crate) async fn translate(&self, cx: &Cx, request: &mut Request) -> Result<()> {
        // Attributes need no handle; so nothing has to be opened for them.
        match request {
            Request::GetAttr(op) => op.handle = op.handle.filter(|&handle| !is_own(handle)),
            Request::SetAttr(op) => op.handle = op.handle.filter(|&handle| !is_own(handle)),
            _ => {}
        }
        for handle in own_handles(request) {
            // With two files, the handle is that of one of them.
            let nodes: Vec<Node> = subjects(request).into_iter().map(|subject| subject.node).collect();
            let known = nodes.iter().copied().find(|&node| self.handles.file(node, handle).is_some());
            let Some(node) = known.or(nodes.first().copied()) else { continue };
            let real = match self.handles.directory(node, handle) {
                Some(open) => self.really_open_directory(cx, &open).await?.handle,
                None => self.really_open(cx, &self.open_file(node, handle)).await?,
            };
            request.traverse(&mut EachHandle(|one: &mut Handle| {
                *one = if *one == handle { real } else { *one }
            }));
        }
        Ok(())
    }

    /// Opens a directory below that was not opened yet.
    async fn really_open_directory(&self, cx: &Cx, open: &OpenDirectory) -> Result<Arc<DirBelow>> {
        if let Some(real) = &*lock(&open.real) {
            return Ok(Arc::clone(real));
        }
        let opened = Arc::new(self.open_dir(cx, open.node).await?);
        // The second one gives its own back.
        Ok(Arc::clone(lock(&open.real).get_or_insert(opened)))
    }

    /// The handle below of an open file, which is opened now if it was not yet.
    pub(crate) async fn really_open(&self, cx: &Cx, open: &OpenFile) -> Result<Handle> {
        if let Some(handle) = open.real() {
            return Ok(handle);
        }
        let below = self.below();
        let op = Open { node: open.node, flags: open.flags.unwrap_or(OpenFlags::empty()) };
        let flags = op.flags;
        // Where the handle is known to the next process, that is to know what it stands for.
        let is_known = cx.slot != Cx::NO_SLOT && open.slot.is_some();
        let mut own = self.cx(cx);
        own.slot = if is_known { cx.slot } else { own.slot };
        let handle = ask(&*below.service, &own, op).await?.handle;
        let first = *lock(&open.real).get_or_insert(handle);
        if first != handle && self.has(OpCode::Release) {
            // Another request came first.
            let (node, owner) = (open.node, LockOwner::default());
            self.tell(cx, Release { node, handle, flags, owner, flock_release: false }).await;
        }
        if is_known && first == handle {
            self.handles.keep_below(open, first);
        }
        Ok(first)
    }

    /// The same, to read from it what is not kept any more of the content that its user has begun to read.
    ///
    /// # Errors
    /// `ESTALE`, from then on, when others have changed the file since it was opened here.
    pub(crate) async fn open_to_read_on(self: &Arc<Self>, cx: &Cx, open: &OpenFile) -> Result<Handle> {
        let handle = self.really_open(cx, open).await?;
        if !is_own(open.handle) || open.same_version.get().is_some() {
            return open.is_one_version().map(|()| handle);
        }
        let begun = lock(&open.file.content).kept_version();
        if let Some(begun) = begun {
            let get = GetAttr { node: open.node, handle: Some(handle) };
            let attr = GetAttr::result(self.getattr_below(cx, get).await)?.attr;
            let _ = open.same_version.set(begun == Version::of(&attr));
        }
        open.is_one_version().map(|()| handle)
    }

    /// Opens below what is open here alone of a file.
    pub(crate) async fn open_below(&self, cx: &Cx, node: Node) {
        for open in self.handles.own_of(node) {
            // Where it cannot be, neither could it be later; its user gets the error when it matters.
            let _ = self.really_open(cx, &open).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    const FLAGS: OpenFlags = OpenFlags::empty();

    fn file() -> Arc<File> {
        Arc::new(File::new(1))
    }

    #[test]
    fn a_file_that_a_former_process_opened_is_closed_once_however_many_asked_for_it_first() {
        let handles = Handles::new(Time::new(0, 0), None);
        let (node, handle) = (Node(7), Handle(3));
        let open = || OpenFile::new(node, handle, file(), None, false);
        // Both found that it is not known, and then noted it.
        let (first, second) = (handles.adopt(open()), handles.adopt(open()));
        assert!(first.1 && !second.1 && Arc::ptr_eq(&first.0, &second.0));
        assert!(handles.close_file(node, handle).is_some_and(|(_, last)| last));
        assert!(handles.file(node, handle).is_none());
    }

    #[test]
    fn who_takes_over_knows_what_was_open() {
        let keep = HeapKeep::default();
        let process = |seconds| {
            let handles = Handles::new(Time::new(seconds, 0), Some(kept_files(&keep).expect("a region")));
            for (slot, KeptFile { node, handle, .. }) in handles.kept() {
                let open = OpenFile::new(node, handle, file(), Some(OpenFlags::empty()), false);
                assert!(handles.adopt(OpenFile { slot: Some(slot), ..open }).1);
            }
            handles
        };
        let own = |handles: &Handles, node| -> Vec<Handle> {
            handles.own_of(Node(node)).iter().map(|open| open.handle).collect()
        };
        let below = |handles: &Handles| -> Vec<u64> {
            handles.kept().into_iter().map(|(_, kept)| kept.below).collect()
        };
        let first = process(1);
        let open = |number: u64| first.open_own(Node(number % 2 + 1), file(), FLAGS).expect("room");
        let [one, two, three, four] = [1, 2, 3, 4].map(open);
        first.keep_below(&first.file(Node(2), three).expect("open"), Handle(0));
        assert!(first.close_file(Node(1), two).is_some_and(|(_, last)| last));
        assert!(first.close_file(Node(1), Handle(7)).is_none());
        let next = process(2);
        assert_eq!(
            (own(&next, 1), own(&next, 2), below(&next)),
            (vec![four], vec![one, three], vec![0, 1, 0])
        );
        let five = next.open_own(Node(5), file(), FLAGS).expect("room");
        let closed = next.file(Node(2), three).expect("open");
        assert!(next.close_file(Node(2), three).is_some());
        next.keep_below(&closed, Handle(9));
        let last = process(3);
        assert_eq!((own(&last, 2), own(&last, 5), below(&last)), (vec![one], vec![five], vec![0, 0, 0]));
        for (node, handle) in [(1, four), (2, one), (5, five)] {
            last.close_file(Node(node), handle);
        }
        assert!(!last.has_own() && last.kept().is_empty());
    }

    #[test]
    fn there_is_an_end_of_what_is_noted_for_another_process() {
        let handles =
            Handles::new(Time::new(0, 0), Some(kept_files(&HeapKeep::default()).expect("a region")));
        let all: Vec<Handle> =
            (0..KEPT_MAX).map(|_| handles.open_own(Node(2), file(), FLAGS).expect("room")).collect();
        assert_eq!(handles.open_own(Node(2), file(), FLAGS), None);
        handles.close_file(Node(2), all[5]);
        assert!(handles.open_own(Node(2), file(), FLAGS).is_some());
    }
}
