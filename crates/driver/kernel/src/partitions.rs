// SPDX-License-Identifier: MIT OR Apache-2.0
//! The partitions of an image side by side, as directories `p1`, `p2`, ... of one tree.
//!
//! Each is a [`Kernel`] of its own. Numbers of nodes and handles are the kernel's, with the place of the partition in their
//! lower bits; place 0 is the directory above them, which never changes.

use crate::image::{Image, Part};
use crate::{FsType, Kernel, Options};
use futures_channel::oneshot;
use outrigger_core::attr::{Attr, Time};
use outrigger_core::ops::{GetAttr, Parent, ReadDir, ReadDirPlus, SyncFs, Walk};
use outrigger_core::reply::{Attrs, Dirent, DirentPlus, Dirents, DirentsPlus, Entry, FsStat, Opened, Ttl};
use outrigger_core::supervise::History;
use outrigger_core::{
    Abilities, Answer, Class, Cx, DriverClass, Errno, FileKind, Generation, Handle, Name, Node, Notify,
    Reply, Request, Result, Service, Traverse, Visit, ask,
};
use outrigger_proto_disk::partition::{Partition, Table};
use outrigger_succession::ASKED;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// How many lower bits of a number are the place.
const PLACE: u32 = 16;
/// What a dirent costs beside its name, see [`ReadDir`] and [`ReadDirPlus`].
const DIRENT: usize = 24;
const DIRENT_PLUS: usize = 152;

/// A tree of all partitions.
pub struct Partitions {
    image: Arc<Image>,
    options: Arc<Options>,
    places: Vec<Place>,
    top: Attr,
}

/// A partition and its file system, once somebody has looked into it.
struct Place {
    name: Name,
    partition: Partition,
    /// None where nothing is known in it.
    kind: Option<&'static FsType>,
    kernel: Arc<OnceLock<Result<Kernel>>>,
}

impl Partitions {
    /// Reads the partition table of the image in the file `path`.
    ///
    /// # Errors
    /// When it cannot be opened or is in use (`EBUSY`), and when it has no partition table (`EINVAL`).
    pub fn start(path: &Path, options: &Options) -> Result<Self> {
        let image = Image::open(path, options)?;
        let table =
            image.table()?.ok_or_else(|| Errno::EINVAL.because("the image has no partition table"))?;
        Ok(Self::of(image, table, options))
    }

    pub(crate) fn of(image: Image, table: Table, options: &Options) -> Self {
        let place = |partition: Partition| {
            // What cannot be read fails when it is opened.
            let kind = Part::of(&partition).and_then(|part| image.detect(&part)).ok().flatten();
            let name = Name::try_from(format!("p{}", partition.number).as_str()).ok()?;
            Some(Place { name, partition, kind, kernel: Arc::default() })
        };
        let places: Vec<Place> = table.partitions.into_iter().filter_map(place).collect();
        let top = top(&image, &places);
        Partitions { image: Arc::new(image), options: Arc::new(options.clone()), places, top }
    }

    /// Whether none has a known file system.
    pub(crate) fn is_bare(&self) -> bool {
        self.places.iter().all(|place| place.kind.is_none())
    }

    /// The image they are in.
    pub(crate) fn image(&self) -> Arc<Image> {
        Arc::clone(&self.image)
    }

    /// What became of the workers of all that are mounted, if the image is guarded.
    pub(crate) fn history(&self) -> Option<History> {
        let histories = self.mounted().filter_map(|(place, kernel)| {
            let mut history = kernel.history()?;
            if let Some(death) = &mut history.last_death {
                death.reason = about(&place.partition, &death.reason);
            }
            Some(history)
        });
        self.options.guard.then(|| {
            let mut all = History::default();
            histories.for_each(|history| all.add(history));
            all
        })
    }

    /// The file systems that are mounted.
    fn mounted(&self) -> impl Iterator<Item = (&Place, &Kernel)> {
        self.places.iter().filter_map(|place| Some((place, place.kernel.get()?.as_ref().ok()?)))
    }

    /// Unmounts those that are mounted, side by side, and waits until everything is in the image.
    ///
    /// # Errors
    /// As [`Kernel::unmount`], of the first that failed.
    pub fn unmount(&self) -> Result<()> {
        std::thread::scope(|scope| {
            let ending: Vec<_> = self.mounted().map(|(_, kernel)| scope.spawn(|| kernel.unmount())).collect();
            let lost = |_| Err(Errno::EIO.because("the thread that unmounts a partition has ended"));
            let ended: Vec<_> = ending.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect();
            ended.into_iter().collect()
        })
    }

    /// The place with this number, counted from 1.
    fn place(&self, number: u64) -> Option<&Place> {
        self.places.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    /// The file system at a place, which starts now if it has not yet.
    async fn kernel<'a>(&self, place: &'a Place) -> Result<&'a Kernel> {
        if place.kernel.get().is_none() {
            let (sender, done) = oneshot::channel();
            let (slot, image, options) =
                (Arc::clone(&place.kernel), Arc::clone(&self.image), Arc::clone(&self.options));
            let (partition, kind) = (place.partition.clone(), place.kind);
            let all: Vec<Partition> = self.places.iter().map(|place| place.partition.clone()).collect();
            let start = move || {
                slot.get_or_init(|| mount(image, &partition, &all, kind, &options));
                // The caller may have gone.
                let _ = sender.send(());
            };
            std::thread::Builder::new().name("outrigger-partition".into()).spawn(start)?;
            let lost = |_| Errno::EIO.because("the thread that mounts the partition has ended");
            done.await.map_err(lost)?;
        }
        match place.kernel.get() {
            Some(Ok(kernel)) => Ok(kernel),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Errno::EIO.into()),
        }
    }

    /// Mounts one partition whose content is known: only that shows whether a file system takes the options passed to it.
    ///
    /// # Errors
    /// That of the first of them, when none can be mounted.
    pub(crate) fn try_one(&self) -> Result<()> {
        let all: Vec<Partition> = self.places.iter().map(|place| place.partition.clone()).collect();
        let mut first = Ok(());
        for place in self.places.iter().filter(|place| place.kind.is_some()) {
            let (image, options) = (Arc::clone(&self.image), &self.options);
            let begin = || mount(image, &place.partition, &all, place.kind, options);
            match place.kernel.get_or_init(begin) {
                Ok(_) => return Ok(()),
                Err(error) => first = first.and(Err(error.clone())),
            }
        }
        first
    }

    /// The root of the file system that the name stands for.
    async fn lookup(&self, cx: &Cx, name: &Name) -> Result<Entry> {
        let found = self.places.iter().zip(1..).find(|(place, _)| place.name == *name);
        let (place, number) = found.ok_or(Errno::ENOENT)?;
        let kernel = self.kernel(place).await?;
        let Attrs { mut attr, ttl } = ask(kernel, cx, GetAttr { node: Node::ROOT, handle: None }).await?;
        let mut outward = Outward { place: number };
        let mut node = Node::ROOT;
        outward.attr(&mut attr);
        outward.node(&mut node);
        Ok(Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::FOREVER, attr_ttl: ttl })
    }

    async fn walk(&self, cx: &Cx, op: Walk) -> Result<Vec<Entry>> {
        let mut names = op.names.into_iter();
        let Some(first) = names.next() else { return Ok(Vec::new()) };
        let first = self.lookup(cx, &first).await?;
        let mut entries = vec![first];
        if names.len() > 0 {
            let rest = Walk { dir: entries[0].node, names: names.collect() };
            // What fails further down fails when it is asked for.
            if let Ok(found) = ask(self, cx, rest).await {
                entries.extend(found);
            }
        }
        Ok(entries)
    }

    async fn sync(&self, cx: &Cx) -> Result<()> {
        for (_, kernel) in self.mounted() {
            ask(kernel, cx, SyncFs { node: Node::ROOT }).await?;
        }
        Ok(())
    }

    /// The partitions from a cookie on whose content is known.
    fn listed(&self, cookie: u64) -> impl Iterator<Item = (&Place, u64)> {
        let from = usize::try_from(cookie).unwrap_or(usize::MAX);
        self.places.iter().zip(1..).skip(from).filter(|(place, _)| place.kind.is_some())
    }

    fn readdir(&self, op: &ReadDir) -> Dirents {
        let (mut listing, mut room) = (Dirents { entries: Vec::new(), eof: true }, op.size as usize);
        for (place, cookie) in self.listed(op.cookie) {
            let Some(rest) = room.checked_sub(DIRENT + place.name.len()) else {
                listing.eof = false;
                break;
            };
            room = rest;
            let (ino, kind) = (node(Node::ROOT, cookie).0, Some(FileKind::Directory));
            listing.entries.push(Dirent { ino, cookie, kind, name: place.name.clone() });
        }
        listing
    }

    /// Names alone: what they lead to would have to be mounted to be described.
    fn readdirplus(&self, op: &ReadDirPlus) -> DirentsPlus {
        let (mut listing, mut room) = (DirentsPlus { entries: Vec::new(), eof: true }, op.size as usize);
        for (place, cookie) in self.listed(op.cookie) {
            let Some(rest) = room.checked_sub(DIRENT_PLUS + place.name.len()) else {
                listing.eof = false;
                break;
            };
            room = rest;
            let attr =
                Attr { ino: node(Node::ROOT, cookie).0, mode: FileKind::Directory.bits(), ..Attr::default() };
            let (entry_ttl, attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
            let entry = Entry { node: Node(0), generation: Generation(0), attr, entry_ttl, attr_ttl };
            listing.entries.push(DirentPlus { cookie, name: place.name.clone(), entry });
        }
        listing
    }

    /// Answers what is asked about the directory of the partitions itself.
    async fn above(&self, cx: &Cx, request: Request) -> Reply {
        match request {
            Request::Lookup(op) => self.lookup(cx, &op.name).await.into(),
            Request::Walk(op) => self.walk(cx, op).await.into(),
            Request::Parent(_) => Reply::Entry(self.top_entry()),
            Request::GetAttr(_) => Reply::Attrs(Attrs { attr: self.top.clone(), ttl: Ttl::FOREVER }),
            Request::OpenDir(_) => Reply::Opened(Opened::default()),
            Request::ReadDir(op) => Reply::Dirents(self.readdir(&op)),
            Request::ReadDirPlus(op) => Reply::DirentsPlus(self.readdirplus(&op)),
            Request::Forget(_) | Request::ReleaseDir(_) | Request::FSyncDir(_) => Reply::Done(()),
            Request::SyncFs(_) => self.sync(cx).await.into(),
            Request::StatFs(_) => Reply::FsStat(self.statfs()),
            Request::ListXattr(_) => Reply::Names(Vec::new()),
            Request::GetXattr(_) => Reply::Error(Errno::ENODATA.into()),
            Request::ReadLink(_) => Reply::Error(Errno::EINVAL.into()),
            Request::Open(_) => Reply::Error(Errno::EISDIR.into()),
            other if other.class() == Class::Change => Reply::Error(match self.image.writable() {
                true => {
                    Errno::EPERM.because("this directory is the partition table, which is not changed here")
                }
                false => Errno::EROFS.into(),
            }),
            _ => Reply::Error(Errno::ENOSYS.into()),
        }
    }

    /// The directory of the partitions, which is its own parent and that of each of their roots.
    fn top_entry(&self) -> Entry {
        let (node, generation) = (Node::ROOT, Generation::default());
        Entry { node, generation, attr: self.top.clone(), entry_ttl: Ttl::FOREVER, attr_ttl: Ttl::FOREVER }
    }

    fn statfs(&self) -> FsStat {
        let (bsize, blocks) = (512, self.image.size() / 512);
        FsStat { blocks, bsize, frsize: bsize, namelen: 255, ..FsStat::default() }
    }
}

/// The attributes of the directory above: owner and time of the image.
fn top(image: &Image, places: &[Place]) -> Attr {
    use std::os::unix::fs::MetadataExt;
    let metadata = image.disk().place.host().and_then(|file| file.metadata().ok());
    let [uid, gid] = metadata.as_ref().map_or([0; 2], |data| [data.uid(), data.gid()]);
    let time = metadata.map_or(Time::default(), |data| Time::new(data.mtime(), data.mtime_nsec() as u32));
    let known = places.iter().filter(|place| place.kind.is_some()).count();
    Attr {
        ino: Node::ROOT.0,
        mode: FileKind::Directory.bits() | 0o555,
        nlink: 2 + known as u32,
        uid,
        gid,
        atime: time,
        mtime: time,
        ctime: time,
        blksize: 4096,
        ..Attr::default()
    }
}

fn mount(
    image: Arc<Image>,
    partition: &Partition,
    all: &[Partition],
    kind: Option<&'static FsType>,
    options: &Options,
) -> Result<Kernel> {
    let mut part = Part::of(partition)?;
    let kind = kind.ok_or_else(|| {
        let purpose = partition.purpose().unwrap_or("unknown type");
        let number = partition.number;
        let error = image.unknown(&part);
        let why = error.reason.as_deref().unwrap_or(error.errno.message());
        error.errno.because(format!("partition {number} ({purpose}): {why}"))
    })?;
    part.read_only = part.read_only.or_else(|| image.shared(partition, all));
    Kernel::mount(image, part, kind, options).map_err(|error| {
        let reason = error.reason.as_deref().unwrap_or(error.errno.message());
        // A lookup would take the name for absent, and the program would go on without.
        let errno = if error.errno == Errno::ENOENT { Errno::EIO } else { error.errno };
        errno.because(about(partition, reason))
    })
}

fn about(partition: &Partition, what: &str) -> String {
    format!("partition {}: {what}", partition.number)
}

/// The number that a node of the partition at a place has outside.
fn node(inner: Node, place: u64) -> Node {
    Node(inner.0 << PLACE | place)
}

/// Takes the place out of the numbers in a request; what belongs to place 0 stays as it is.
#[derive(Default)]
struct Inward {
    place: Option<u64>,
    several: bool,
}

impl Inward {
    fn number(&mut self, number: &mut u64) {
        let place = *number & ((1 << PLACE) - 1);
        *number >>= PLACE;
        self.several |= self.place.replace(place).is_some_and(|before| before != place);
    }
}

impl Visit for Inward {
    fn node(&mut self, node: &mut Node) {
        match *node {
            Node::ROOT => {
                let mut number = 0;
                self.number(&mut number);
            }
            _ => self.number(&mut node.0),
        }
    }

    fn handle(&mut self, handle: &mut Handle) {
        self.number(&mut handle.0);
    }
}

/// Puts the place into the numbers in a reply.
struct Outward {
    place: u64,
}

impl Outward {
    /// Unique as long as the partition's own numbers have no more than 48 bits.
    fn ino(&self, ino: u64) -> u64 {
        ino.rotate_left(PLACE) ^ self.place
    }

    fn reply(mut self, mut reply: Reply) -> Reply {
        reply.traverse(&mut self);
        if let Reply::Dirents(listing) = &mut reply {
            listing.entries.iter_mut().for_each(|entry| entry.ino = self.ino(entry.ino));
        }
        reply
    }
}

impl Visit for Outward {
    fn node(&mut self, inner: &mut Node) {
        // Number 0 stands for no node at all.
        if inner.0 != 0 {
            *inner = node(*inner, self.place);
        }
    }

    fn handle(&mut self, handle: &mut Handle) {
        handle.0 = handle.0 << PLACE | self.place;
    }

    fn attr(&mut self, attr: &mut Attr) {
        attr.ino = self.ino(attr.ino);
    }
}

impl Service for Partitions {
    fn call<'a>(&'a self, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if !ASKED.has(request.op()) {
            return Answer::error(Errno::ENOSYS);
        }
        let mut inward = Inward::default();
        request.traverse(&mut inward);
        match inward {
            Inward { several: true, .. } => Answer::error(Errno::EXDEV),
            Inward { place: Some(_), .. }
                if matches!(request, Request::Parent(Parent { dir: Node::ROOT })) =>
            {
                Answer::Ready(Reply::Entry(self.top_entry()))
            }
            Inward { place: None | Some(0), .. } => Answer::later(self.above(cx, request)),
            Inward { place: Some(number), .. } => {
                match self.place(number).and_then(|place| place.kernel.get()) {
                    Some(Ok(kernel)) => {
                        kernel.call(cx, request).map(move |reply| Outward { place: number }.reply(reply))
                    }
                    _ => Answer::error(Errno::ESTALE),
                }
            }
        }
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            class: DriverClass::Block,
            read_only: !self.image.writable(),
            acl: true,
            negative_ttl: Ttl::FOREVER,
            ..Abilities::new("kernel", self.image.name(), ASKED)
        }
    }

    /// No one else changes the image, so there are no notices.
    fn attach(&self, _: Arc<dyn Notify>) {}
}
