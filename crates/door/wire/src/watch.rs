// SPDX-License-Identifier: MIT OR Apache-2.0
//! What other programs change in a directory of this machine while clients have cached something of it (inotify(7)).
//!
//! Directories are watched in which clients have looked for names, up to [`DIRECTORIES`]. Of others, and of what was changed by another
//! name of a file, clients learn when their TTLs have passed. What was changed through this server is not told once more: its maker knows,
//! and the others were told. The system has an event in line when the call returns that caused it; so what is read of the line after that
//! is all there is of it.

use crate::hub::Hub;
use outrigger_core::ops::{Forget, Locate, Lookup};
use outrigger_core::paths::subjects;
use outrigger_core::{
    Credentials, Cx, Errno, Name, Node, Notice, Reply, Request, Result, Service, ask, lock,
};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// The most directories that are watched.
const DIRECTORIES: usize = 1 << 14;
/// For how long at most what happens to a name or a file counts as a change that was made through this server.
const OWN: Duration = Duration::from_secs(1);
/// The most changes of one's own that are remembered.
const OWN_MAX: usize = 1 << 12;
/// Between two readings of events, so that many of one file become one notice.
const PAUSE: Duration = Duration::from_millis(5);
/// What is read at once, in bytes.
const BUFFER: usize = 16 << 10;

const NAMES: WatchFlags =
    WatchFlags::CREATE.union(WatchFlags::DELETE).union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO);
const CONTENT: WatchFlags = WatchFlags::MODIFY;
const OWN_END: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF);

/// Watches a directory and what is below it.
pub(crate) struct Watch {
    root: PathBuf,
    events: AsyncFd<OwnedFd>,
    watched: Mutex<Watched>,
    own: Mutex<Own>,
}

/// A name in a directory, or a file.
type Place = (Node, Option<Name>);

/// Changes that are made through this server, as far as their events may be in line.
#[derive(Default)]
struct Own {
    places: HashMap<Place, Change>,
    /// How often the line has been read.
    readings: u64,
}

struct Change {
    /// How many requests are at work on it.
    running: u32,
    /// When the last one has ended, and after which reading.
    ended: (Instant, u64),
}

/// What a request changes.
fn places(request: &Request) -> Vec<Place> {
    if !request.changes_tree() {
        return Vec::new();
    }
    let effects = request.effects().into_iter();
    let names = effects.flat_map(|effect| effect.names().map(|(dir, name)| (dir, Some(name.clone()))));
    let files = subjects(&mut request.clone()).into_iter().map(|subject| (subject.node, None));
    names.collect::<Vec<_>>().into_iter().chain(files).collect()
}

/// A request that runs. Dropped before it has ended, as after a panic in the tree, it counts as made.
pub(crate) struct Running<'w> {
    watch: &'w Watch,
    places: Vec<Place>,
    was_refused: bool,
}

impl Running<'_> {
    /// It has been made, or was refused.
    pub(crate) fn ended(mut self, reply: &Reply) {
        self.was_refused = reply.error().is_some();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut own = lock(&self.watch.own);
        let now = (Instant::now(), own.readings);
        for place in self.places.drain(..) {
            let Some(change) = own.places.get_mut(&place) else { continue };
            change.running = change.running.saturating_sub(1);
            change.ended = now;
            if change.running == 0 && self.was_refused {
                own.places.remove(&place);
            }
        }
    }
}

#[derive(Default)]
struct Watched {
    dirs: HashMap<i32, Node>,
    numbers: HashMap<Node, i32>,
    /// The system gives no more watches.
    is_full: bool,
}

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Anything: events were lost.
    All,
    /// To the directory itself.
    Directory(Node),
    /// To what a name in a directory leads to: another file, its content, its attributes.
    Name(Node, Vec<u8>, What),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Leads,
    Content,
    Attributes,
}

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub(crate) fn new(root: PathBuf) -> Result<Arc<Self>> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let events =
            events.map_err(|errno| Errno(errno.raw_os_error()).because("changes cannot be watched"))?;
        #[expect(
            deprecated,
            reason = "it is unsound for types that do not own their descriptor, and what replaces it is unsafe"
        )]
        let events = AsyncFd::new(events)?;
        Ok(Arc::new(Watch { root, events, watched: Mutex::default(), own: Mutex::default() }))
    }

    /// A request is about to be made: watches the directory in which it looks for names, so that no later change is missed, and notes
    /// what it changes.
    pub(crate) async fn begins(&self, service: &Arc<dyn Service>, cx: &Cx, request: &Request) -> Running<'_> {
        let running = self.running(request);
        let looks =
            matches!(request.op().reply(), "Entry" | "Entries" | "Created" | "Dirents" | "DirentsPlus");
        let dir = subjects(&mut request.clone()).last().map(|subject| subject.node).filter(|_| looks);
        if let Some(dir) = dir.filter(|dir| self.wants(*dir)) {
            self.add(service, cx, dir).await;
        }
        running
    }

    /// Notes what a request changes, as far as there is room.
    fn running(&self, request: &Request) -> Running<'_> {
        let mut own = lock(&self.own);
        let mut noted = places(request);
        noted.retain(|place| {
            let has_room = own.places.len() < OWN_MAX || own.places.contains_key(place);
            if has_room {
                let ended = (Instant::now(), own.readings);
                own.places.entry(place.clone()).or_insert(Change { running: 0, ended }).running += 1;
            }
            has_room
        });
        Running { watch: self, places: noted, was_refused: false }
    }

    fn is_own(&self, node: Node, name: Option<&Name>) -> bool {
        let own = lock(&self.own);
        let change = own.places.get(&(node, name.cloned()));
        change.is_some_and(|change| change.running > 0 || change.ended.0.elapsed() < OWN)
    }

    fn wants(&self, dir: Node) -> bool {
        let watched = lock(&self.watched);
        !watched.is_full && !watched.numbers.contains_key(&dir) && watched.dirs.len() < DIRECTORIES
    }

    async fn add(&self, service: &Arc<dyn Service>, cx: &Cx, dir: Node) {
        let Ok(path) = ask(&**service, &cx.aside(), Locate { node: dir }).await else { return };
        let below = path.as_bytes().strip_prefix(b"/").unwrap_or(path.as_bytes());
        let path = self.root.join(OsStr::from_bytes(below));
        let flags =
            NAMES | CONTENT | OWN_END | WatchFlags::ATTRIB | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(self.events.get_ref(), &path, flags) {
            Ok(number) => {
                let mut watched = lock(&self.watched);
                // The same directory under another node number, as after it was forgotten.
                if let Some(before) = watched.dirs.insert(number, dir) {
                    watched.numbers.remove(&before);
                }
                watched.numbers.insert(dir, number);
            }
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::NOMEM) => {
                tracing::info!("the system watches no more directories (fs.inotify.max_user_watches)");
                lock(&self.watched).is_full = true;
            }
            Err(error) => tracing::debug!(%error, path = %path.display(), "a directory is not watched"),
        }
    }

    /// Passes on what happens, until the future is dropped.
    pub(crate) async fn run(self: Arc<Self>, service: Arc<dyn Service>, hub: Arc<Hub>) {
        while self.pass_on(&*service, &hub).await.is_some() {}
    }

    async fn pass_on(&self, service: &dyn Service, hub: &Hub) -> Option<()> {
        let mut ready = self.events.readable().await.ok()?;
        let reading = {
            let mut own = lock(&self.own);
            own.readings += 1;
            own.readings
        };
        let events = self.read();
        ready.clear_ready();
        drop(ready);
        for event in events {
            self.tell(service, hub, event).await;
        }
        // What had ended before the line was read has no events in it any more.
        lock(&self.own).places.retain(|_, change| change.running > 0 || change.ended.1 >= reading);
        tokio::time::sleep(PAUSE).await;
        Some(())
    }

    /// What has happened, each thing once.
    fn read(&self) -> BTreeSet<Event> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = inotify::Reader::new(self.events.get_ref(), &mut buffer);
        let mut events = BTreeSet::new();
        // The descriptor does not block: an error is the end of what there is.
        while let Ok(event) = reader.next() {
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                events.insert(Event::All);
                continue;
            }
            let mut watched = lock(&self.watched);
            let Some(&dir) = watched.dirs.get(&event.wd()) else { continue };
            if flags.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                // Below another directory it has another path: it is watched again when it is looked at.
                watched.dirs.remove(&event.wd());
                watched.numbers.remove(&dir);
                watched.is_full = false;
                let _ = inotify::remove_watch(self.events.get_ref(), event.wd());
            }
            events.insert(match event.file_name() {
                None => Event::Directory(dir),
                Some(name) if flags.contains(ReadFlags::MODIFY) => {
                    Event::Name(dir, name.to_bytes().to_vec(), What::Content)
                }
                Some(name) if flags.contains(ReadFlags::ATTRIB) => {
                    Event::Name(dir, name.to_bytes().to_vec(), What::Attributes)
                }
                Some(name) => Event::Name(dir, name.to_bytes().to_vec(), What::Leads),
            });
        }
        events
    }

    async fn tell(&self, service: &dyn Service, hub: &Hub, event: Event) {
        let changed = |node, offset| hub.tell(None, &Notice::InvalidateNode { node, offset, len: 0 });
        match event {
            Event::All => hub.tell(None, &Notice::InvalidateAll),
            Event::Directory(dir) if !self.is_own(dir, None) => changed(dir, -1),
            Event::Directory(_) => {}
            Event::Name(dir, name, what) => {
                let Ok(name) = Name::new(name) else { return };
                if what == What::Leads {
                    if !self.is_own(dir, Some(&name)) {
                        hub.tell(None, &Notice::InvalidateEntry { dir, name });
                    }
                    return;
                }
                let Some(node) = node_of(service, dir, name).await else { return };
                if !self.is_own(node, None) {
                    changed(node, if what == What::Content { 0 } else { -1 });
                }
            }
        }
    }
}

/// The node of a file that was changed, if it still has that name.
async fn node_of(service: &dyn Service, dir: Node, name: Name) -> Option<Node> {
    let cx = Cx { slot: Cx::NO_SLOT, ..Cx::new(0, Credentials::ROOT, "wire") };
    let Reply::Entry(entry) = service.call(&cx, Lookup { dir, name }.into()).await else { return None };
    service.call(&cx, Forget { node: entry.node, count: 1 }.into()).await;
    Some(entry.node)
}
