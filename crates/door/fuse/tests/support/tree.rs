// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small tree in memory, and a service around it that misbehaves on demand.
use super::Gate;
use bytes::Bytes;
use outrigger_core::ops::{self, BlockingDriver, LockKind, OpCode, Request, Whence};
use outrigger_core::reply::{
    Attrs, Count, Created, Data, Dirent, DirentPlus, Dirents, DirentsPlus, Entry, FsStat, LockState, Names,
    Offset, Opened, Ttl, Value,
};
use outrigger_core::{
    Abilities, Answer, Attr, Backing, Cx, Errno, FileKind, FileSlice, Generation, Handle, Inline, Name, Node,
    Notify, OpSet, Payload, Prompt, ReadAt, Reply, Result, Runtime, Service, SetTime, Target, Time,
    XattrName,
};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, mpsc};
use std::task::Poll;

#[derive(Default)]
pub struct State {
    nodes: HashMap<u64, Inode>,
    last: u64,
    /// References the kernel holds, by node.
    pub references: HashMap<u64, i64>,
}

#[derive(Default, Clone)]
struct Inode {
    attr: Attr,
    content: Vec<u8>,
    names: BTreeMap<Vec<u8>, (u64, u64)>,
    cookies: u64,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
    lock: Option<ops::Lock>,
    parent: u64,
}

/// How the tree behaves.
#[derive(Default, Clone)]
pub struct Habits {
    pub attr_ttl: Ttl,
    /// The content of every file, served as slices of this host file.
    pub slices: Option<Arc<HostFile>>,
    /// The content of every file, offered for passthrough.
    pub backing: Option<Arc<OwnedFd>>,
    pub stateless: bool,
}

pub struct HostFile(pub std::fs::File);

impl ReadAt for HostFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(std::os::unix::fs::FileExt::read_at(&self.0, buf, offset)?)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

#[derive(Clone)]
pub struct Tree {
    state: Arc<Mutex<State>>,
    habits: Habits,
    pub notify: Arc<OnceLock<Arc<dyn Notify>>>,
}

impl Tree {
    pub fn new(habits: Habits) -> Self {
        let root = Inode { attr: attr(1, FileKind::Directory.bits() | 0o755), parent: 1, ..Inode::default() };
        let state = State { nodes: HashMap::from([(1, root)]), last: 1, references: HashMap::new() };
        Self { state: Arc::new(Mutex::new(state)), habits, notify: Arc::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn attrs(&self, state: &State, node: Node) -> Result<Attrs> {
        let inode = state.nodes.get(&node.0).ok_or(Errno::ESTALE)?;
        Ok(Attrs { attr: inode.attr.clone(), ttl: self.habits.attr_ttl })
    }

    fn entry(&self, state: &mut State, node: u64) -> Result<Entry> {
        let Attrs { attr, ttl } = self.attrs(state, Node(node))?;
        *state.references.entry(node).or_default() += 1;
        Ok(Entry { node: Node(node), generation: Generation(0), attr, entry_ttl: ttl, attr_ttl: ttl })
    }

    fn add(&self, dir: Node, name: &Name, mode: u32) -> Result<(MutexGuard<'_, State>, u64)> {
        let mut state = self.state();
        state.last += 1;
        let new = state.last;
        let parent = state.nodes.get_mut(&dir.0).ok_or(Errno::ESTALE)?;
        if parent.names.contains_key(name.as_bytes()) {
            return Err(Errno::EEXIST.into());
        }
        parent.cookies += 1;
        parent.names.insert(name.to_vec(), (new, parent.cookies));
        state.nodes.insert(new, Inode { attr: attr(new, mode), parent: dir.0, ..Inode::default() });
        Ok((state, new))
    }

    fn opened(&self) -> Opened {
        let backing = self.habits.backing.clone().map_or(Backing::NONE, Backing::new);
        Opened { handle: Handle(7), backing, ..Opened::default() }
    }

    /// Entries after a cookie, in the order of cookies.
    fn after(&self, dir: Node, cookie: u64) -> Result<Vec<(u64, Vec<u8>, u64)>> {
        let state = self.state();
        let inode = state.nodes.get(&dir.0).ok_or(Errno::ESTALE)?;
        let mut all: Vec<_> =
            inode.names.iter().map(|(name, (node, at))| (*at, name.clone(), *node)).collect();
        all.retain(|entry| entry.0 > cookie);
        all.sort_unstable();
        Ok(all)
    }
}

fn attr(ino: u64, mode: u32) -> Attr {
    Attr { ino, mode, nlink: 1, blksize: 4096, btime: Some(Time::new(77, 0)), ..Attr::default() }
}

fn name_of(bytes: Vec<u8>) -> Name {
    Name::new(bytes).unwrap()
}

impl BlockingDriver for Tree {
    fn abilities(&self) -> Abilities {
        use OpCode::*;
        const OPS: &[OpCode] = &[
            Lookup,
            GetAttr,
            SetAttr,
            ReadLink,
            MkDir,
            MkNod,
            SymLink,
            Unlink,
            RmDir,
            Rename,
            Open,
            Create,
            Read,
            Write,
            Release,
            ReadDir,
            ReadDirPlus,
            GetXattr,
            SetXattr,
            ListXattr,
            RemoveXattr,
            StatFs,
            Forget,
            Seek,
            CopyRange,
            GetLock,
            SetLock,
            Flush,
        ];
        let mut abilities = Abilities::new("test", "test:", OpSet::of(OPS));
        abilities.stateless_files = self.habits.stateless;
        abilities.stateless_dirs = true;
        abilities
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        let _ = self.notify.set(notify);
    }

    fn lookup(&self, _: &Cx, op: ops::Lookup) -> Result<Entry> {
        let mut state = self.state();
        let dir = state.nodes.get(&op.dir.0).ok_or(Errno::ESTALE)?;
        let (node, _) = *dir.names.get(op.name.as_bytes()).ok_or(Errno::ENOENT)?;
        self.entry(&mut state, node)
    }

    fn getattr(&self, _: &Cx, op: ops::GetAttr) -> Result<Attrs> {
        self.attrs(&self.state(), op.node)
    }

    fn setattr(&self, _: &Cx, op: ops::SetAttr) -> Result<Attrs> {
        let mut state = self.state();
        let inode = state.nodes.get_mut(&op.node.0).ok_or(Errno::ESTALE)?;
        if let Some(size) = op.attrs.size {
            inode.content.resize(size as usize, 0);
            inode.attr.size = size;
        }
        if let Some(mode) = op.attrs.mode {
            inode.attr.mode = inode.attr.mode & 0o170_000 | mode;
        }
        inode.attr.uid = op.attrs.uid.unwrap_or(inode.attr.uid);
        if let Some(SetTime::To(time)) = op.attrs.mtime {
            inode.attr.mtime = time;
        }
        self.attrs(&state, op.node)
    }

    fn readlink(&self, _: &Cx, op: ops::ReadLink) -> Result<Target> {
        let state = self.state();
        Target::new(state.nodes.get(&op.node.0).ok_or(Errno::ESTALE)?.content.clone())
    }

    fn mkdir(&self, _: &Cx, op: ops::MkDir) -> Result<Entry> {
        let (mut state, new) = self.add(op.dir, &op.name, FileKind::Directory.bits() | op.mode)?;
        self.entry(&mut state, new)
    }

    fn mknod(&self, _: &Cx, op: ops::MkNod) -> Result<Entry> {
        let (mut state, new) = self.add(op.dir, &op.name, op.mode)?;
        state.nodes.get_mut(&new).unwrap().attr.rdev = op.rdev;
        self.entry(&mut state, new)
    }

    fn symlink(&self, _: &Cx, op: ops::SymLink) -> Result<Entry> {
        let (mut state, new) = self.add(op.dir, &op.name, FileKind::Symlink.bits() | 0o777)?;
        state.nodes.get_mut(&new).unwrap().content = op.target.to_vec();
        self.entry(&mut state, new)
    }

    fn unlink(&self, _: &Cx, op: ops::Unlink) -> Result<()> {
        let mut state = self.state();
        let dir = state.nodes.get_mut(&op.dir.0).ok_or(Errno::ESTALE)?;
        dir.names.remove(op.name.as_bytes()).ok_or(Errno::ENOENT)?;
        Ok(())
    }

    fn rmdir(&self, cx: &Cx, op: ops::RmDir) -> Result<()> {
        self.unlink(cx, ops::Unlink { dir: op.dir, name: op.name })
    }

    fn rename(&self, _: &Cx, op: ops::Rename) -> Result<()> {
        let mut state = self.state();
        let dir = state.nodes.get_mut(&op.dir.0).ok_or(Errno::ESTALE)?;
        let moved = *dir.names.get(op.name.as_bytes()).ok_or(Errno::ENOENT)?;
        let to = state.nodes.get_mut(&op.to_dir.0).ok_or(Errno::ESTALE)?;
        if op.flags.contains(ops::RenameFlags::NOREPLACE) && to.names.contains_key(op.to_name.as_bytes()) {
            return Err(Errno::EEXIST.into());
        }
        to.cookies += 1;
        to.names.insert(op.to_name.to_vec(), (moved.0, to.cookies));
        state.nodes.get_mut(&op.dir.0).unwrap().names.remove(op.name.as_bytes());
        Ok(())
    }

    fn open(&self, _: &Cx, _: ops::Open) -> Result<Opened> {
        Ok(self.opened())
    }

    fn create(&self, _: &Cx, op: ops::Create) -> Result<Created> {
        let (mut state, new) = self.add(op.dir, &op.name, FileKind::Regular.bits() | op.mode)?;
        if let Some(slices) = &self.habits.slices {
            state.nodes.get_mut(&new).unwrap().attr.size = slices.0.metadata()?.len();
        }
        Ok(Created { entry: self.entry(&mut state, new)?, opened: self.opened() })
    }

    fn read(&self, _: &Cx, op: ops::Read) -> Result<Data> {
        if let Some(file) = &self.habits.slices {
            return Ok(Payload::File(FileSlice {
                file: Arc::clone(file) as _,
                offset: op.offset,
                len: op.len,
            }));
        }
        let state = self.state();
        let content = &state.nodes.get(&op.node.0).ok_or(Errno::ESTALE)?.content;
        let start = content.len().min(op.offset as usize);
        let end = content.len().min(start + op.len as usize);
        // Two chunks, so that replies of several parts are exercised.
        let middle = start + (end - start) / 2;
        let chunk = |range: &[u8]| Bytes::copy_from_slice(range);
        Ok(Payload::Chunks(vec![chunk(&content[start..middle]), chunk(&content[middle..end])]))
    }

    fn write(&self, _: &Cx, op: ops::Write) -> Result<Count> {
        let data = op.data.into_bytes()?;
        let mut state = self.state();
        let inode = state.nodes.get_mut(&op.node.0).ok_or(Errno::ESTALE)?;
        let end = op.offset as usize + data.len();
        if inode.content.len() < end {
            inode.content.resize(end, 0);
        }
        inode.content[op.offset as usize..end].copy_from_slice(&data);
        inode.attr.size = inode.content.len() as u64;
        Ok(Count(data.len() as u64))
    }

    fn flush(&self, _: &Cx, _: ops::Flush) -> Result<()> {
        Ok(())
    }

    fn release(&self, _: &Cx, _: ops::Release) -> Result<()> {
        Ok(())
    }

    fn readdir(&self, _: &Cx, op: ops::ReadDir) -> Result<Dirents> {
        let mut entries = Vec::new();
        let mut room = op.size as usize;
        for (cookie, name, ino) in self.after(op.node, op.cookie)? {
            let Some(left) = room.checked_sub(24 + name.len()) else { break };
            room = left;
            entries.push(Dirent { ino, cookie, kind: None, name: name_of(name) });
        }
        Ok(Dirents { entries, eof: false })
    }

    fn readdirplus(&self, _: &Cx, op: ops::ReadDirPlus) -> Result<DirentsPlus> {
        let mut entries = Vec::new();
        let mut room = op.size as usize;
        for (cookie, name, ino) in self.after(op.node, op.cookie)? {
            let Some(left) = room.checked_sub(152 + name.len()) else { break };
            room = left;
            let entry = self.entry(&mut self.state(), ino)?;
            entries.push(DirentPlus { cookie, name: name_of(name), entry });
        }
        Ok(DirentsPlus { entries, eof: false })
    }

    fn getxattr(&self, _: &Cx, op: ops::GetXattr) -> Result<Value> {
        let state = self.state();
        let inode = state.nodes.get(&op.node.0).ok_or(Errno::ESTALE)?;
        Ok(inode.xattrs.get(op.name.as_bytes()).cloned().ok_or(Errno::ENODATA)?)
    }

    fn setxattr(&self, _: &Cx, op: ops::SetXattr) -> Result<()> {
        let mut state = self.state();
        let inode = state.nodes.get_mut(&op.node.0).ok_or(Errno::ESTALE)?;
        inode.xattrs.insert(op.name.to_vec(), op.value);
        Ok(())
    }

    fn listxattr(&self, _: &Cx, op: ops::ListXattr) -> Result<Names> {
        let state = self.state();
        let inode = state.nodes.get(&op.node.0).ok_or(Errno::ESTALE)?;
        inode.xattrs.keys().map(|name| XattrName::new(name.clone())).collect()
    }

    fn removexattr(&self, _: &Cx, op: ops::RemoveXattr) -> Result<()> {
        let mut state = self.state();
        let inode = state.nodes.get_mut(&op.node.0).ok_or(Errno::ESTALE)?;
        inode.xattrs.remove(op.name.as_bytes()).map(drop).ok_or(Errno::ENODATA.into())
    }

    fn statfs(&self, _: &Cx, _: ops::StatFs) -> Result<FsStat> {
        Ok(FsStat {
            blocks: 1000,
            bfree: 500,
            bavail: 400,
            bsize: 4096,
            frsize: 4096,
            namelen: 255,
            ..FsStat::default()
        })
    }

    fn forget(&self, _: &Cx, op: ops::Forget) -> Result<()> {
        *self.state().references.entry(op.node.0).or_default() -= op.count as i64;
        Ok(())
    }

    fn lseek(&self, _: &Cx, op: ops::Seek) -> Result<Offset> {
        let size = self.attrs(&self.state(), op.node)?.attr.size;
        match op.whence {
            _ if op.offset >= size => Err(Errno::ENXIO.into()),
            Whence::Data => Ok(Offset(op.offset)),
            Whence::Hole => Ok(Offset(size)),
        }
    }

    fn copy_range(&self, cx: &Cx, op: ops::CopyRange) -> Result<Count> {
        let data = {
            let state = self.state();
            let content = &state.nodes.get(&op.node.0).ok_or(Errno::ESTALE)?.content;
            let end = content.len().min((op.offset + op.len) as usize);
            Bytes::copy_from_slice(&content[op.offset as usize..end])
        };
        let (node, handle) = (op.to_node, op.to_handle);
        let data = Payload::Bytes(data);
        self.write(
            cx,
            ops::Write { node, handle, offset: op.to_offset, data, cached: false, kill_setid: false },
        )
    }

    fn getlk(&self, _: &Cx, op: ops::GetLock) -> Result<LockState> {
        Ok(self.state().nodes.get(&op.node.0).ok_or(Errno::ESTALE)?.lock)
    }

    fn setlk(&self, _: &Cx, op: ops::SetLock) -> Result<()> {
        let mut state = self.state();
        let lock = &mut state.nodes.get_mut(&op.node.0).ok_or(Errno::ESTALE)?.lock;
        *lock = (op.lock.kind != LockKind::Unlock).then_some(op.lock);
        Ok(())
    }
}

impl Prompt for Tree {}

/// Lets inline calls through when opened.
#[derive(Default)]
pub struct Barrier {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Barrier {
    pub fn pass(&self) {
        drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }
    pub fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// The tree, and names that bring trouble when looked up:
///
/// * `later`: answered when the gate opens
/// * `hang`: answered with EINTR when cancelled
/// * `deaf`: never answered
/// * `stuck`: blocks the calling thread until the barrier opens
/// * `panic`, `lost`: panics at once, or later
///
/// While it is frozen, it never answers FLUSH.
pub struct Trouble {
    tree: Inline<Tree>,
    gate: Mutex<Option<mpsc::Receiver<()>>>,
    pub barrier: Barrier,
    pub frozen: AtomicBool,
}

impl Trouble {
    pub fn new(tree: Tree, runtime: Arc<dyn Runtime>) -> (Arc<Self>, mpsc::Sender<()>) {
        let (sender, receiver) = mpsc::channel();
        let gate = Mutex::new(Some(receiver));
        let tree = Inline::new(tree, runtime);
        let (barrier, frozen) = (Barrier::default(), AtomicBool::new(false));
        (Arc::new(Self { tree, gate, barrier, frozen }), sender)
    }
}

impl Service for Trouble {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let name = match &request {
            Request::Lookup(lookup) => lookup.name.to_vec(),
            Request::Flush(_) if self.frozen.load(Ordering::SeqCst) => b"deaf".to_vec(),
            _ => Vec::new(),
        };
        match &name[..] {
            b"later" => Answer::later(async move {
                let gate = self.gate.lock().unwrap().take();
                if let Some(gate) = gate {
                    Gate(gate).await;
                }
                match self.tree.call(cx, request) {
                    Answer::Ready(reply) => reply,
                    Answer::Later(reply) => reply.await,
                }
            }),
            b"hang" => Answer::later(async move {
                cx.cancel.raised().await;
                Reply::Error(Errno::EINTR.into())
            }),
            b"deaf" => Answer::later(std::future::pending()),
            b"stuck" => {
                self.barrier.pass();
                Answer::error(Errno::ENOENT)
            }
            b"panic" => panic!("on demand"),
            b"lost" => Answer::later(async move {
                tick().await;
                panic!("on demand, later");
            }),
            _ => self.tree.call(cx, request),
        }
    }

    fn abilities(&self) -> Abilities {
        self.tree.abilities()
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        self.tree.attach(notify);
    }
}

/// Not ready at the first poll.
async fn tick() {
    let mut polled = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
