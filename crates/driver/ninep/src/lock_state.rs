// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has locked what on this machine, and what follows from that for the server, which knows this client as one owner of locks.

use crate::wire::Fid;
use outrigger_core::ops::{Lock, LockKind, OpenFlags, SetLock};
use outrigger_core::range_locks::{HeldLock, RangeLocks};
use outrigger_core::{Errno, Handle, Keep, LockOwner, Node, Result, lock};
use outrigger_proto_ninep::Text;
use outrigger_toolkit_remote::Notes;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// How many locks of all files are noted for the process that takes over.
const NOTES: usize = 4096;
/// A lock as it is noted: its number, node, owner, first and last byte, what it is, and the handle it was taken by.
type Note = [u64; 7];
/// In the last word of a note: an exclusive lock, and one of flock(2). The process is above.
const WRITE: u64 = 1;
const WHOLE: u64 = 2;
/// In the place of all owners here.
const CLIENT: LockOwner = LockOwner(0);

/// The locks of one file.
#[derive(Default)]
pub(crate) struct FileLocks {
    pub(crate) held: tokio::sync::Mutex<Held>,
    /// The fid by which the server knows the locks.
    pub(crate) fid: Mutex<Option<Arc<LockFid>>>,
    /// Notified when a lock is given back here.
    pub(crate) freed: Notify,
    /// Another client got one of the locks while the connection was lost.
    pub(crate) is_lost: AtomicBool,
}

/// A file that is open for its locks.
pub(crate) struct LockFid {
    pub(crate) fid: Fid,
    /// Whose its locks are. A server that gives back all of an owner when a fid is closed must not take those of the next one.
    pub(crate) client_id: Text,
}

/// What is held of a file.
#[derive(Default)]
pub(crate) struct Held {
    /// By fcntl(2).
    ranges: RangeLocks,
    /// By flock(2).
    wholes: RangeLocks,
    /// By which open file each owner has taken a lock last.
    takers: HashMap<LockOwner, Handle>,
    /// Open files of which a descriptor was closed since, perhaps the last one: the kernel tells that later.
    closing: HashSet<Handle>,
    /// By whom, and how, the file is opened for its locks.
    pub(crate) by: Option<(u32, OpenFlags)>,
    noted: Vec<u64>,
}

impl Held {
    pub(crate) fn list(&mut self, flock: bool) -> &mut RangeLocks {
        if flock { &mut self.wholes } else { &mut self.ranges }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.wholes.is_empty()
    }

    /// The other owner here whose lock stands in the way.
    pub(crate) fn conflict(&self, op: &SetLock) -> Option<LockOwner> {
        let list = if op.flock { &self.wholes } else { &self.ranges };
        let wanted = (op.lock.kind != LockKind::Unlock).then_some(&op.lock)?;
        list.conflict(op.owner, wanted).map(|held| held.owner)
    }

    /// Whether the owner of an open file has another kind of lock of flock(2), which a new one replaces.
    pub(crate) fn converts(&self, op: &SetLock) -> bool {
        let is_other = |held: &HeldLock| held.owner == op.owner && held.lock.kind != op.lock.kind;
        op.flock && op.lock.kind != LockKind::Unlock && self.wholes.iter().any(is_other)
    }

    /// What the server has to know; of one that only locks whole files, the strongest lock for all of it.
    pub(crate) fn union(&self, is_whole: bool) -> RangeLocks {
        let mut union = RangeLocks::default();
        for kind in [LockKind::Read, LockKind::Write] {
            let all = self.ranges.iter().chain(self.wholes.iter());
            for held in all.filter(|held| held.lock.kind == kind) {
                let (start, end) = if is_whole { (0, u64::MAX) } else { (held.lock.start, held.lock.end) };
                union.apply(CLIENT, Lock { start, end, kind, pid: 0 });
            }
        }
        union
    }

    /// What would be held.
    pub(crate) fn with(&self, op: &SetLock) -> Held {
        let (ranges, wholes) = (self.ranges.clone(), self.wholes.clone());
        let (takers, closing) = (self.takers.clone(), self.closing.clone());
        let mut held = Held { ranges, wholes, takers, closing, by: self.by, noted: Vec::new() };
        if op.lock.kind != LockKind::Unlock {
            held.closing.remove(&op.handle);
            held.takers.insert(op.owner, op.handle);
        }
        held.list(op.flock).apply(op.owner, op.lock);
        let Held { ranges, wholes, takers, .. } = &mut held;
        takers.retain(|owner, _| ranges.iter().chain(wholes.iter()).any(|held| held.owner == *owner));
        held
    }

    /// Who has taken locks by an open file. When that is closed, processes have given back theirs, but not open files (`F_OFD_SETLK`).
    pub(crate) fn owners(&self, handle: Handle) -> Vec<LockOwner> {
        self.takers.iter().filter(|(_, taker)| **taker == handle).map(|(owner, _)| *owner).collect()
    }

    /// A descriptor of an open file is closed.
    pub(crate) fn closes(&mut self, handle: Handle) {
        if self.takers.values().any(|taker| *taker == handle) {
            self.closing.insert(handle);
        }
    }

    /// Whether the lock that stands in the way may be about to end.
    pub(crate) fn may_end(&self, op: &SetLock) -> bool {
        let taker = self.conflict(op).and_then(|owner| self.takers.get(&owner));
        taker.is_some_and(|handle| self.closing.contains(handle))
    }

    /// How many locks there are.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len() + self.wholes.len()
    }

    fn notes(&self, node: Node) -> impl Iterator<Item = Note> {
        let note = move |whole: u64| {
            move |&HeldLock { owner, lock }: &HeldLock| {
                let taker = self.takers.get(&owner).map_or(0, |handle| handle.0);
                let write = if lock.kind == LockKind::Write { WRITE } else { 0 };
                [0, node.0, owner.0, lock.start, lock.end, write | whole | u64::from(lock.pid) << 32, taker]
            }
        };
        self.ranges.iter().map(note(0)).chain(self.wholes.iter().map(note(WHOLE)))
    }
}

/// A range whose lock at the server changes: from which kind to which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) from: Lock,
    pub(crate) to: Lock,
}

/// What has to be asked of the server, from what it knows to what it is to know.
pub(crate) fn steps(before: &RangeLocks, after: &RangeLocks) -> Vec<Step> {
    let all = || before.iter().chain(after.iter()).map(|held| held.lock);
    let mut starts: BTreeSet<u64> = all().map(|lock| lock.start).collect();
    starts.extend(all().filter_map(|lock| lock.end.checked_add(1)));
    let starts: Vec<u64> = starts.into_iter().collect();
    let kind = |locks: &RangeLocks, at: u64| {
        let found = locks.iter().find(|held| (held.lock.start..=held.lock.end).contains(&at));
        found.map_or(LockKind::Unlock, |held| held.lock.kind)
    };
    let mut steps: Vec<Step> = Vec::new();
    for (at, &start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).map_or(u64::MAX, |next| next - 1);
        let [from, to] = [before, after].map(|locks| Lock { start, end, kind: kind(locks, start), pid: 0 });
        if from.kind == to.kind {
            continue;
        }
        match steps.last_mut() {
            Some(last)
                if last.to.end + 1 == start && (last.from.kind, last.to.kind) == (from.kind, to.kind) =>
            {
                (last.from.end, last.to.end) = (end, end);
            }
            _ => steps.push(Step { from, to }),
        }
    }
    steps
}

/// Who waits for a lock of fcntl(2) of whom here, by files: a circle is a deadlock.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Vec<(Node, LockOwner, LockOwner)>>);

impl Waits {
    /// Notes that `waiter` waits for `holder`.
    ///
    /// # Errors
    /// `EDEADLK` when that one waits, through others perhaps, for `waiter`.
    pub(crate) fn begin(&self, node: Node, waiter: LockOwner, holder: LockOwner) -> Result<()> {
        let mut waits = lock(&self.0);
        let mut seen = vec![holder];
        let mut next = 0;
        while let Some(&owner) = seen.get(next) {
            if owner == waiter {
                return Err(Errno::EDEADLK.because("the holder of the lock waits for the owner that asks"));
            }
            let further = waits.iter().filter(|(_, from, _)| *from == owner).map(|(_, _, to)| *to);
            let further: Vec<_> = further.filter(|to| !seen.contains(to)).collect();
            seen.extend(further);
            next += 1;
        }
        waits.push((node, waiter, holder));
        Ok(())
    }

    /// An owner looks again, or has given up.
    pub(crate) fn end(&self, node: Node, waiter: LockOwner) {
        lock(&self.0).retain(|(at, from, _)| (*at, *from) != (node, waiter));
    }

    /// A lock of a file was given back: all who wait for one of it look again.
    fn freed(&self, node: Node) {
        lock(&self.0).retain(|(at, ..)| *at != node);
    }
}

/// The locks of all files.
pub(crate) struct Locks {
    pub(crate) waits: Waits,
    files: Mutex<HashMap<Node, Arc<FileLocks>>>,
    notes: Option<Notes<u64, Note>>,
    /// The last number of a note, or of an owner.
    last: AtomicU64,
    /// What the names of owners begin with that the server is told.
    client: String,
    /// Locks of a lost connection are being taken again.
    pub(crate) are_taken_again: AtomicBool,
    /// Whether the server keeps no locks: they hold in this mount only.
    pub(crate) are_here: AtomicBool,
    /// Whether the server locks whole files, whatever range it is asked for; found out when it matters.
    pub(crate) is_whole: Mutex<Option<bool>>,
}

impl Locks {
    /// Those that a former process has noted in `keep`, of which the server does not know any more.
    pub(crate) fn open(keep: Option<&dyn Keep>) -> Result<Self> {
        let open = |keep| Notes::open(keep, "remote-locks", NOTES, |note: &Note| note[0]);
        let notes = keep.map(open).transpose()?;
        let mut files = HashMap::<Node, FileLocks>::new();
        let mut last = 0;
        for [number, node, owner, start, end, what, taker] in notes.iter().flat_map(Notes::all) {
            let kind = if what & WRITE != 0 { LockKind::Write } else { LockKind::Read };
            let held = files.entry(Node(node)).or_default().held.get_mut();
            let lock = Lock { start, end, kind, pid: (what >> 32) as u32 };
            held.list(what & WHOLE != 0).apply(LockOwner(owner), lock);
            held.takers.insert(LockOwner(owner), Handle(taker));
            held.noted.push(number);
            last = last.max(number);
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Locks {
            waits: Waits::default(),
            files: Mutex::new(files.into_iter().map(|(node, locks)| (node, Arc::new(locks))).collect()),
            notes,
            last: AtomicU64::new(last),
            client: format!("{host}-{:016x}", fastrand::u64(..)),
            are_taken_again: AtomicBool::new(false),
            are_here: AtomicBool::new(false),
            is_whole: Mutex::default(),
        })
    }

    /// An owner of locks that the server has not heard of.
    pub(crate) fn new_owner(&self) -> Text {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Text::new(format!("{}-{number}", self.client)).unwrap_or_default()
    }

    /// The locks of a file.
    pub(crate) fn of(&self, node: Node) -> Arc<FileLocks> {
        Arc::clone(lock(&self.files).entry(node).or_default())
    }

    /// The locks of a file, if a lock was requested since it was opened.
    pub(crate) fn known(&self, node: Node) -> Option<Arc<FileLocks>> {
        lock(&self.files).get(&node).cloned()
    }

    /// Whether there are locks by a connection that is lost. Asked once more, there are none.
    pub(crate) fn take_lost(&self) -> bool {
        let mut any = false;
        for locks in lock(&self.files).values() {
            any |= lock(&locks.fid).take_if(|open| !open.fid.session.mux.is_open()).is_some();
        }
        any
    }

    /// The files that may have locks.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        lock(&self.files).keys().copied().collect()
    }

    /// A file was closed: unless it is open again, it has no locks.
    pub(crate) async fn closed(&self, node: Node, is_open: impl Fn() -> bool) {
        let locks = {
            let mut files = lock(&self.files);
            if is_open() {
                return;
            }
            files.remove(&node)
        };
        let Some(locks) = locks else { return };
        let held = &mut *locks.held.lock().await;
        self.becomes(node, held, Held::default());
    }

    /// Some of the locks of a file may be free.
    pub(crate) fn freed(&self, node: Node, locks: &FileLocks) {
        self.waits.freed(node);
        locks.freed.notify_waiters();
    }

    /// Notes that this is what is held of a file now.
    pub(crate) fn becomes(&self, node: Node, held: &mut Held, mut now: Held) {
        if let Some(notes) = &self.notes {
            for mut note in now.notes(node).collect::<Vec<_>>() {
                note[0] = self.last.fetch_add(1, Ordering::Relaxed) + 1;
                match notes.put(note[0], &note) {
                    Ok(()) => now.noted.push(note[0]),
                    Err(error) => tracing::warn!(%error, "a lock does not outlive this process"),
                }
            }
            held.noted.iter().for_each(|number| notes.remove(number));
        }
        *held = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    fn op(owner: u64, kind: LockKind, (start, end): (u64, u64), flock: bool) -> SetLock {
        let lock = Lock { start, end, kind, pid: 7 };
        SetLock { node: Node(5), handle: Handle(1), owner: LockOwner(owner), lock, wait: false, flock }
    }

    #[test]
    fn a_circle_of_waiting_owners_is_noticed_and_ends_with_a_release() {
        let (waits, [a, b, c]) = (Waits::default(), [1, 2, 3].map(LockOwner));
        waits.begin(Node(5), a, b).unwrap();
        waits.begin(Node(6), b, c).unwrap();
        assert_eq!(waits.begin(Node(5), c, a).unwrap_err().errno, Errno::EDEADLK);
        waits.freed(Node(5));
        waits.begin(Node(5), c, a).unwrap();
        waits.end(Node(6), b);
        waits.begin(Node(5), a, b).unwrap();
    }

    fn told(before: &Held, after: &Held, is_whole: bool) -> Vec<(u64, u64, LockKind, LockKind)> {
        let steps = steps(&before.union(is_whole), &after.union(is_whole));
        steps.iter().map(|Step { from, to }| (to.start, to.end, from.kind, to.kind)).collect()
    }

    #[test]
    fn the_server_is_told_what_changes_for_all_owners_together() {
        use LockKind::{Read, Unlock, Write};
        let none = Held::default();
        let one = none.with(&op(1, Read, (0, 99), false));
        assert_eq!(told(&none, &one, false), [(0, 99, Unlock, Read)]);
        let two = one.with(&op(2, Read, (50, 149), false));
        assert_eq!(told(&one, &two, false), [(100, 149, Unlock, Read)]);
        assert_eq!(told(&one, &two, true), [], "a whole file is locked already");
        let less = two.with(&op(1, Unlock, (0, u64::MAX), false));
        assert_eq!(told(&two, &less, false), [(0, 49, Read, Unlock)]);
        assert_eq!(told(&two, &less, true), [], "one of the two still has it");
        let both = less.with(&op(3, Write, (0, u64::MAX), true));
        let upgraded = [(0, 49, Unlock, Write), (50, 149, Read, Write), (150, u64::MAX, Unlock, Write)];
        assert_eq!(told(&less, &both, false), upgraded);
        assert_eq!(told(&less, &both, true), [(0, u64::MAX, Read, Write)]);
        let ended = both.with(&op(3, Unlock, (0, u64::MAX), true)).with(&op(2, Unlock, (0, 149), false));
        assert!(ended.is_empty());
        assert_eq!(told(&both, &ended, false), [(0, u64::MAX, Write, Unlock)]);
    }

    #[tokio::test]
    async fn the_process_that_takes_over_knows_the_locks() {
        let keep = HeapKeep::default();
        {
            let locks = Locks::open(Some(&keep)).unwrap();
            let (file, taken) = (locks.of(Node(5)), op(1, LockKind::Write, (3, 9), false));
            let held = &mut *file.held.lock().await;
            for op in [&taken, &op(2, LockKind::Read, (0, u64::MAX), true)] {
                let now = held.with(op);
                locks.becomes(Node(5), held, now);
            }
        }
        let locks = Locks::open(Some(&keep)).unwrap();
        let file = locks.known(Node(5)).unwrap();
        assert_eq!(file.held.lock().await.owners(Handle(1)).len(), 2);
        assert!(file.held.lock().await.conflict(&op(9, LockKind::Read, (9, 20), false)).is_some());
        assert!(file.held.lock().await.conflict(&op(9, LockKind::Read, (10, 20), false)).is_none());
        assert!(file.held.lock().await.conflict(&op(9, LockKind::Write, (0, u64::MAX), true)).is_some());
        locks.closed(Node(5), || true).await;
        assert!(locks.known(Node(5)).is_some());
        locks.closed(Node(5), || false).await;
        assert!(Locks::open(Some(&keep)).unwrap().known(Node(5)).is_none());
    }
}
