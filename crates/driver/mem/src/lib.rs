// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree in memory with complete POSIX semantics.
//!
//! # Abilities
//! Every operation of the table. Files of any kind, sparse, up to 2^63-1 bytes; hard links; files that live on after
//! their last name while a door refers to them, and files made without one (`O_TMPFILE`); rename with `NOREPLACE`,
//! `EXCHANGE` and `WHITEOUT`; all of fallocate(2); copies that share pages; holes; extended attributes of the
//! `user`, `trusted` and `security` namespaces, POSIX access lists; POSIX and flock(2) locks with waiting, deadlock detection and
//! interruption; listings whose cookies stay valid whatever changes.
//!
//! Nothing needs to be opened (`stateless_files`, `stateless_dirs`): an inode lives while it has a name or a reference
//! counted by a lookup. Opening is supported all the same and keeps `APPEND`, `NOATIME` and the access mode in the
//! handle. A door that leaves out opens learns nothing of closes either, so it keeps advisory locks to itself.
//!
//! # Rules that are the door's
//! Permissions and the sticky bit (`default_permissions`), access lists (acl(5)) among them. The driver does what depends
//! on the file alone: set-group-id directories pass on their group, directories pass on their default access list or else
//! have the umask applied, changes of the mode show in the access list, and writing, truncating and changing the owner
//! clear set-id bits.
//!
//! # Limits
//! [`Options::size`] bounds content in pages of 4096 bytes, and extended attributes; [`Options::inodes`] the number of
//! files. Beyond them changes fail with `ENOSPC`. Pages shared by copies count for each file.
//! A tree of [`Mem::new`] dies with the driver; until then a [`Node`] number is never given to another file.
//!
//! # Surviving the process
//! A tree of [`Mem::with_keep`] is there again, with the same nodes, handles and locks, when a process that was killed
//! at any instruction is followed by another with the same keep. Every change is in a log before it is answered, as a
//! whole or not at all, except that content is overwritten in place. The log has a region of the keep, whose size
//! follows from the options; when it is full, changes fail with `ENOSPC`.
//! How and at what cost: `docs/design/0005-mem-survives.md`.
//!
//! # How it stays fast
//! Inodes are found in a sharded table and locked one by one (`inode` says in which order). Content is in a memory file
//! (`store`): large reads pass it on uncopied, and what was read is replaced rather than changed while somebody has it.
#![forbid(unsafe_code)]

mod acl;
mod compact;
mod content;
mod file;
mod group;
mod handle;
mod inode;
mod locks;
mod names;
mod options;
mod range;
mod record;
mod rename;
mod space;
mod store;
mod table;
mod takeover;
mod tree;
mod xattr;

pub use options::{DRIVER, OPTIONS, Options};

use bytes::Bytes;
use compact::Cursor;
use group::NAMES;
use inode::{Body, Inode, NewInode};
use locks::Waits;
use names::Names;
use outrigger_core::ops::*;
use outrigger_core::reply::*;
use outrigger_core::survive::Log;
use outrigger_core::{
    Abilities, Clock, Cx, DriverClass, Errno, FileKind, Generation, Identity, Node, Notice, Notify, OpSet,
    Payload, Prompt, Request, Result, Target, Time, XattrName,
};
use parking_lot::Mutex;
use record::{GONE_WORDS, Record};
use space::Space;
use std::sync::Arc;
use store::Store;
use table::Table;
use xattr::Xattrs;

/// The largest size of a file in bytes, as `off_t` has it.
const FILE_MAX: u64 = i64::MAX as u64;
/// The most bytes one read or write should have.
const MAX_IO: u32 = 1 << 20;
/// Kernels know that regular files are always ready, and would ask again and again (io_uring).
const NOT_SERVED: OpSet = OpSet::of(&[OpCode::Poll]);

/// A tree in memory.
pub struct Mem {
    options: Options,
    clock: Arc<dyn Clock>,
    space: Space,
    table: Table,
    store: Arc<Store>,
    log: Option<Log>,
    /// How far the work on a shorter log is.
    cursor: Mutex<Cursor>,
    waits: Waits,
    /// Held by whatever moves or removes directories.
    topology: Mutex<()>,
    /// Tells this tree's nodes from those of one that had the same numbers before.
    generation: Generation,
    /// Removed files that a door referred to when the process before died, if it had not just returned that reference.
    doubtful: Vec<Node>,
}

impl Mem {
    /// An empty tree whose times come from `clock`. It ends with this process.
    pub fn new(options: Options, clock: Arc<dyn Clock>) -> Self {
        Mem::planted(options, clock, Store::private(), None)
    }

    /// A tree with nothing but its root.
    fn planted(options: Options, clock: Arc<dyn Clock>, store: Arc<Store>, log: Option<Log>) -> Self {
        let time = clock.wall();
        let nanos = time.secs.wrapping_mul(1_000_000_000).wrapping_add(time.nanos.into());
        let birth = NewInode {
            kind: FileKind::Directory,
            mode: options.mode,
            uid: options.uid,
            gid: options.gid,
            nlink: 2,
            rdev: 0,
            parent: Node::ROOT.0,
            unnamed: false,
            references: 1,
            time,
            xattrs: Xattrs::default(),
            body: Body::Dir(Names::default()),
        };
        let mem = Mem::bare(options, clock, store, log, Generation(nanos as u64));
        // The root counts, and a tree without room for it would be of no use.
        let _ = mem.space.take_inode();
        let root = Arc::new(Inode::new(mem.table.next_number(), birth));
        // In one group: a log with anything in it is that of a tree.
        let mut group = mem.change_anyway(NAMES);
        group.push(|| mem.tree_record());
        group.born(&root);
        group.commit();
        drop(group);
        mem
    }

    /// A tree without any inode.
    fn bare(
        options: Options,
        clock: Arc<dyn Clock>,
        store: Arc<Store>,
        log: Option<Log>,
        generation: Generation,
    ) -> Self {
        let space = Space::new(options.size, options.inodes);
        Mem {
            options,
            clock,
            space,
            table: Table::new(),
            store,
            log,
            cursor: Mutex::default(),
            waits: Waits::default(),
            topology: Mutex::new(()),
            generation,
            doubtful: Vec::new(),
        }
    }

    fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    fn now(&self) -> Time {
        self.clock.wall()
    }

    /// The entry of an inode to which a reference was counted.
    fn entry(&self, inode: &Inode) -> Entry {
        Entry {
            node: Node(inode.ino),
            generation: self.generation,
            attr: inode.attr(&inode.state.read()),
            entry_ttl: self.options.ttl,
            attr_ttl: self.options.ttl,
        }
    }

    /// Returns references. The caller holds no lock of an inode.
    fn forget_inode(&self, inode: &Inode, count: u64) {
        self.tend_log();
        if inode.unreference(count, self.log()) && inode.state.read().nlink == 0 {
            self.reap(inode);
        }
    }

    /// Removes an inode that has neither names nor references. The caller holds no lock of an inode.
    fn reap(&self, inode: &Inode) {
        if inode.is_referenced() {
            return;
        }
        let mut group = self.change_anyway(GONE_WORDS);
        let mut edit = self.edit();
        let mut state = inode.state.write();
        if state.nlink > 0 || state.dead || inode.is_referenced() {
            return;
        }
        state.dead = true;
        self.space.give_back_bytes(state.xattrs.charge());
        if let Body::File(content) = &mut state.body {
            content.clear(&mut edit);
        }
        edit.changes.clear();
        group.push(|| Record::Gone(inode.ino));
        group.content(inode, edit);
        group.commit();
        drop(state);
        self.space.give_back_inode();
        self.table.remove(inode.ino);
    }

    /// Nothing is kept anywhere but in memory, so all there is to check is that the file exists.
    fn synced(&self, node: Node) -> Result<()> {
        self.table.get(node).map(drop)
    }
}

impl Drop for Mem {
    /// Leaves the content to the process that takes over.
    fn drop(&mut self) {
        self.store.end();
    }
}

impl Prompt for Mem {
    fn is_prompt(&self, request: &Request) -> bool {
        !matches!(request, Request::SetLock(SetLock { wait: true, .. }))
    }
}

impl BlockingDriver for Mem {
    fn abilities(&self) -> Abilities {
        Abilities {
            identity: Identity::Persistent,
            class: DriverClass::Memory,
            stateless_files: true,
            stateless_dirs: true,
            lasting_cookies: true,
            resolves_inside: true,
            anonymous_io: true,
            initial_attrs: true,
            acl: true,
            negative_ttl: self.options.ttl,
            max_io: MAX_IO,
            ..Abilities::new("mem", "mem:", OpSet::all().without(NOT_SERVED))
        }
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.doubtful.iter().for_each(|&node| notify.notify(Notice::Revalidate { node }));
    }
    fn lookup(&self, _: &Cx, op: Lookup) -> Result<Entry> {
        tree::lookup(self, op.dir, &op.name)
    }
    fn walk(&self, _: &Cx, op: Walk) -> Result<Entries> {
        tree::walk(self, &op)
    }
    fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        file::getattr(self, &op)
    }
    fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        file::setattr(self, cx, &op)
    }
    fn locate(&self, _: &Cx, op: Locate) -> Result<Target> {
        tree::locate(self, op.node)
    }
    fn parent(&self, _: &Cx, op: Parent) -> Result<Entry> {
        tree::parent(self, op.dir)
    }
    fn resolve(&self, _: &Cx, op: Resolve) -> Result<Entry> {
        tree::resolve(self, &op)
    }
    fn readlink(&self, _: &Cx, op: ReadLink) -> Result<Target> {
        file::readlink(self, &op)
    }
    fn mknod(&self, cx: &Cx, op: MkNod) -> Result<Entry> {
        tree::mknod(self, cx, &op)
    }
    fn mkdir(&self, cx: &Cx, op: MkDir) -> Result<Entry> {
        tree::mkdir(self, cx, &op)
    }
    fn symlink(&self, cx: &Cx, op: SymLink) -> Result<Entry> {
        tree::symlink(self, cx, &op)
    }
    fn link(&self, cx: &Cx, op: Link) -> Result<Entry> {
        tree::link(self, cx, &op)
    }
    fn unlink(&self, cx: &Cx, op: Unlink) -> Result<Done> {
        tree::unlink(self, cx, &op)
    }
    fn rmdir(&self, cx: &Cx, op: RmDir) -> Result<Done> {
        tree::rmdir(self, cx, &op)
    }
    fn rename(&self, cx: &Cx, op: Rename) -> Result<Done> {
        rename::rename(self, cx, &op)
    }
    fn open(&self, cx: &Cx, op: Open) -> Result<Opened> {
        file::open(self, cx, &op)
    }
    fn create(&self, cx: &Cx, op: Create) -> Result<Created> {
        file::create(self, cx, &op)
    }
    fn tmpfile(&self, cx: &Cx, op: TmpFile) -> Result<Created> {
        file::tmpfile(self, cx, &op)
    }
    fn read(&self, _: &Cx, op: Read) -> Result<Payload> {
        file::read(self, &op)
    }
    fn write(&self, cx: &Cx, op: Write) -> Result<Count> {
        file::write(self, cx, op)
    }
    fn flush(&self, _: &Cx, op: Flush) -> Result<Done> {
        locks::release_all(self, op.node, op.owner, false)
    }
    fn fsync(&self, _: &Cx, op: FSync) -> Result<Done> {
        self.synced(op.node)
    }
    fn fallocate(&self, cx: &Cx, op: Fallocate) -> Result<Done> {
        range::fallocate(self, cx, &op)
    }
    fn lseek(&self, _: &Cx, op: Seek) -> Result<Offset> {
        file::seek(self, &op)
    }
    fn copy_range(&self, cx: &Cx, op: CopyRange) -> Result<Count> {
        range::copy(self, cx, &op)
    }
    fn release(&self, _: &Cx, op: Release) -> Result<Done> {
        locks::release_all(self, op.node, op.owner, op.flock_release)
    }
    fn opendir(&self, _: &Cx, op: OpenDir) -> Result<Opened> {
        self.table.get(op.node)?.state.read().names()?;
        Ok(Opened { how: OpenHow::KEEP_CACHE | OpenHow::CACHE_DIR, ..Opened::default() })
    }
    fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        tree::readdir(self, &op)
    }
    fn readdirplus(&self, _: &Cx, op: ReadDirPlus) -> Result<DirentsPlus> {
        tree::readdirplus(self, &op)
    }
    fn releasedir(&self, _: &Cx, op: ReleaseDir) -> Result<Done> {
        self.synced(op.node)
    }
    fn fsyncdir(&self, _: &Cx, op: FSyncDir) -> Result<Done> {
        self.synced(op.node)
    }
    fn getxattr(&self, cx: &Cx, op: GetXattr) -> Result<Bytes> {
        xattr::get(self, cx, &op)
    }
    fn setxattr(&self, cx: &Cx, op: SetXattr) -> Result<Done> {
        xattr::set(self, cx, &op)
    }
    fn listxattr(&self, cx: &Cx, op: ListXattr) -> Result<Vec<XattrName>> {
        xattr::list(self, cx, &op)
    }
    fn removexattr(&self, cx: &Cx, op: RemoveXattr) -> Result<Done> {
        xattr::remove(self, cx, &op)
    }
    fn getlk(&self, _: &Cx, op: GetLock) -> Result<LockState> {
        locks::get(self, &op)
    }
    fn setlk(&self, cx: &Cx, op: SetLock) -> Result<Done> {
        locks::set(self, cx, &op)
    }
    fn statfs(&self, _: &Cx, op: StatFs) -> Result<FsStat> {
        file::statfs(self, op.node)
    }
    fn ioctl(&self, _: &Cx, op: Ioctl) -> Result<IoctlDone> {
        self.synced(op.node)?;
        Err(Errno::ENOTTY.into())
    }
    fn forget(&self, _: &Cx, op: Forget) -> Result<Done> {
        if let Ok(inode) = self.table.get(op.node) {
            self.forget_inode(&inode, op.count);
        }
        Ok(())
    }
    fn access(&self, cx: &Cx, op: Access) -> Result<Granted> {
        file::access(self, cx, &op)
    }
    fn syncfs(&self, _: &Cx, op: SyncFs) -> Result<Done> {
        self.synced(op.node)
    }
}
