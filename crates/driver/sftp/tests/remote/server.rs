// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server that keeps its files in memory and does what a test wants.

use bytes::Bytes;
use outrigger_proto_sftp::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

/// A file of the server.
#[derive(Debug, Clone)]
pub enum File {
    Dir,
    Regular(Content),
    Link(Vec<u8>),
}

/// What is in a regular file, whatever names it has.
type Content = Arc<Mutex<Body>>;

/// Bytes, and when they were changed last.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    mtime: u32,
}

impl Default for Body {
    fn default() -> Self {
        Body { bytes: Vec::new(), mtime: 2 }
    }
}

impl Deref for Body {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Body {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Body {
    /// Applies what is asked for in these attributes.
    fn set(&mut self, attrs: &Attrs) {
        if let Some(size) = attrs.size {
            self.resize(size as usize, 0);
            self.mtime += 1;
        }
        self.mtime = attrs.times.map_or(self.mtime, |times| times.mtime);
    }
}

impl File {
    pub fn new(content: Vec<u8>) -> Self {
        File::of_time(content, 2)
    }

    /// When a regular file was changed last.
    pub fn mtime(&self) -> u32 {
        match self {
            File::Regular(content) => locked(content).mtime,
            other => panic!("{other:?} has no content"),
        }
    }

    pub fn of_time(bytes: Vec<u8>, mtime: u32) -> Self {
        File::Regular(Arc::new(Mutex::new(Body { bytes, mtime })))
    }

    fn is_dir(&self) -> bool {
        matches!(self, File::Dir)
    }
}

fn locked(content: &Content) -> MutexGuard<'_, Body> {
    content.lock().expect("no test panics with it")
}

/// Everything a server has, on any connection.
#[derive(Default)]
pub struct Store {
    state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    /// Content by path.
    pub files: BTreeMap<Vec<u8>, File>,
    /// What it promises.
    pub extensions: Extensions,
    /// How often each kind of request came.
    pub counts: HashMap<&'static str, usize>,
    /// Requests that came at all.
    pub requests: usize,
    /// Up to where a file was read at most.
    pub read_to: u64,
    /// Names per piece of a listing.
    pub piece: usize,
    /// Leaves attributes out of listings.
    pub bare: bool,
    /// Fails every write.
    pub full: bool,
    /// Says of a file that it ends where it did when the handle was opened, as proftpd does, until that handle writes.
    pub forgetful: bool,
    /// Its processes, one for each connection; `None` when it does not show them.
    pub processes: Option<BTreeSet<u32>>,
    /// How often it was started anew.
    pub boots: u32,
    /// How many processes were started.
    started: u32,
}

/// The handles of one connection.
#[derive(Default)]
pub struct Handles {
    /// The process they belong to.
    process: u32,
    open: HashMap<Vec<u8>, Open>,
}

enum Open {
    File { content: Content, append: bool, path: Vec<u8>, length: usize },
    Dir { names: Vec<Named>, at: usize },
}

impl Store {
    /// A server with the extensions of OpenSSH and an empty directory `/home`.
    pub fn new() -> Arc<Self> {
        let store = Store::default();
        {
            let mut state = store.state();
            state.extensions = Extensions::all();
            state.piece = 100;
            state.processes = Some(BTreeSet::from([1]));
            state.files.insert(b"/".to_vec(), File::Dir);
            state.files.insert(b"/home".to_vec(), File::Dir);
        }
        Arc::new(store)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    /// What is in a file.
    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        match self.state().files.get(path.as_bytes()) {
            Some(File::Regular(content)) => Some(locked(content).bytes.clone()),
            _ => None,
        }
    }

    /// Another client writes this byte all over a file.
    pub fn overwrite(&self, path: &str, byte: u8) {
        match &self.state().files[path.as_bytes()] {
            File::Regular(content) => locked(content).fill(byte),
            _ => panic!("{path} is no file"),
        }
    }

    /// Another client makes a file shorter or longer.
    pub fn resize(&self, path: &str, len: usize) {
        match &self.state().files[path.as_bytes()] {
            File::Regular(content) => locked(content).resize(len, 0),
            _ => panic!("{path} is no file"),
        }
    }

    /// A file gets another time of change.
    pub fn touch(&self, path: &str) {
        match &self.state().files[path.as_bytes()] {
            File::Regular(content) => locked(content).mtime += 1,
            _ => panic!("{path} is no file"),
        }
    }

    /// The first packet.
    pub fn version(&self) -> Vec<u8> {
        let names = self.state().extensions.names().collect::<Vec<_>>();
        let pair = |(name, revision): (&'static str, &'static str)| {
            (Bytes::from_static(name.as_bytes()), Bytes::from_static(revision.as_bytes()))
        };
        Version { version: 3, extensions: names.into_iter().map(pair).collect() }.encode().to_vec()
    }

    /// A process for a connection.
    pub fn begin(&self) -> Handles {
        let mut state = self.state();
        state.started += 1;
        let process = 100 + state.started;
        state.processes.iter_mut().for_each(|all| assert!(all.insert(process)));
        Handles { process, ..Handles::default() }
    }

    /// The process ends.
    pub fn end(&self, handles: &Handles) {
        if let Some(all) = &mut self.state().processes {
            all.remove(&handles.process);
        }
    }

    /// Does a request.
    pub fn serve(&self, handles: &mut Handles, request: &Request<'_>) -> Reply {
        let mut state = self.state();
        state.requests += 1;
        *state.counts.entry(name(request)).or_default() += 1;
        if request.extension().is_some_and(|extension| !state.extensions.contains(extension)) {
            return Reply::status(StatusCode::OpUnsupported);
        }
        match state.show(handles, request).unwrap_or_else(|| state.answer(handles, request)) {
            Ok(reply) => reply,
            Err(code) => Reply::status(code),
        }
    }
}

/// The name of a request, for counting.
pub fn name(request: &Request<'_>) -> &'static str {
    match request {
        Request::Open { .. } => "open",
        Request::Close { .. } => "close",
        Request::Read { .. } => "read",
        Request::Write { .. } => "write",
        Request::LStat { .. } => "lstat",
        Request::Stat { .. } => "stat",
        Request::FStat { .. } => "fstat",
        Request::OpenDir { .. } => "opendir",
        Request::ReadDir { .. } => "readdir",
        _ => "other",
    }
}

fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) | None => b"/",
        Some(slash) => &path[..slash],
    }
}

type Answer = Result<Reply, StatusCode>;

fn names(name: Bytes) -> Reply {
    Reply::Names(vec![Named { name, line: Bytes::new(), attrs: Attrs::NONE }])
}

const DONE: Answer = Ok(Reply::Status(Status { code: StatusCode::Ok, message: Bytes::new() }));

fn read(handles: &Handles, handle: &[u8], offset: u64, len: u32, forgetful: bool) -> Answer {
    let (content, _) = handles.file(handle)?;
    let content = locked(&content);
    let length = match handles.open.get(handle) {
        Some(Open::File { length, .. }) if forgetful => content.len().min(*length),
        _ => content.len(),
    };
    let start = (offset as usize).min(length);
    let end = (start + len as usize).min(length);
    match start == end {
        true => Err(StatusCode::Eof),
        false => Ok(Reply::Data(Bytes::copy_from_slice(&content[start..end]))),
    }
}

impl State {
    fn attrs(&self, path: &[u8]) -> Result<Attrs, StatusCode> {
        let (mode, size, mtime) = match self.files.get(path).ok_or(StatusCode::NoSuchFile)? {
            File::Dir => (0o040_755, 4096, 2),
            File::Regular(content) => {
                let content = locked(content);
                (0o100_644, content.len(), content.mtime)
            }
            File::Link(target) => (0o120_777, target.len(), 2),
        };
        Ok(Attrs {
            size: Some(size as u64),
            owner: Some(Owner { uid: 1000, gid: 1000 }),
            permissions: Some(mode),
            times: Some(Times { atime: 1, mtime }),
        })
    }

    /// What is asked of `/proc`.
    fn show(&self, handles: &mut Handles, request: &Request<'_>) -> Option<Answer> {
        let (Request::ReadLink { path } | Request::LStat { path } | Request::Open { path, .. }) = *request
        else {
            return None;
        };
        let path = str::from_utf8(path).ok()?.strip_prefix("/proc/")?;
        let Some(processes) = &self.processes else { return Some(Err(StatusCode::NoSuchFile)) };
        let link = |target: String| Ok(names(target.into()));
        Some(match path {
            "self" => link(handles.process.to_string()),
            "self/ns/pid" => link("pid:[4026531836]".into()),
            "sys/kernel/random/boot_id" => {
                let bytes = format!("boot {}\n", self.boots).into_bytes();
                let content = Arc::new(Mutex::new(Body { bytes, mtime: 2 }));
                let length = locked(&content).len();
                Ok(handles.add(Open::File { content, append: false, path: b"boot".to_vec(), length }))
            }
            number if number.parse().is_ok_and(|number| processes.contains(&number)) => {
                self.attrs(b"/").map(Reply::Attrs)
            }
            _ => Err(StatusCode::NoSuchFile),
        })
    }

    /// Where a path leads when links with absolute targets are followed.
    fn followed(&self, path: &[u8]) -> Vec<u8> {
        let mut path = path.to_vec();
        for _ in 0..40 {
            let slashes = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
            let mut ends = slashes.map(|(at, _)| at).chain([path.len()]);
            let link = ends.find_map(|end| match self.files.get(&path[..end]) {
                Some(File::Link(to)) => Some([to, &path[end..]].concat()),
                _ => None,
            });
            let Some(target) = link else { break };
            path = target;
        }
        path
    }

    fn must_be_free(&self, path: &[u8]) -> Result<(), StatusCode> {
        match self.files.get(parent(path)) {
            Some(File::Dir) if !self.files.contains_key(path) => Ok(()),
            Some(File::Dir) => Err(StatusCode::Failure),
            _ => Err(StatusCode::NoSuchFile),
        }
    }

    fn has_children(&self, path: &[u8]) -> bool {
        let below = [path, b"/"].concat();
        self.files.range(below.clone()..).next().is_some_and(|(name, _)| name.starts_with(&below))
    }

    fn answer(&mut self, handles: &mut Handles, request: &Request<'_>) -> Answer {
        match *request {
            Request::LStat { path } => self.attrs(path).map(Reply::Attrs),
            Request::Stat { path } => {
                let path = if path == b"." { &b"/home"[..] } else { path };
                self.attrs(&self.followed(path)).map(Reply::Attrs)
            }
            Request::FStat { handle } => handles.attrs(handle).map(Reply::Attrs),
            Request::RealPath { path } | Request::ExpandPath { path } => {
                let path = if path == b"." { &b"/home"[..] } else { path };
                self.attrs(path)?;
                Ok(names(Bytes::copy_from_slice(path)))
            }
            Request::Limits => {
                let limits = Limits { packet: 1 << 18, read: 261_120, write: 261_120, handles: 100 };
                Ok(Reply::Extended(limits.encode()))
            }
            Request::StatVfs { .. } => {
                let bavail = if self.full { 0 } else { 50 };
                let space = StatVfs { frsize: 4096, blocks: 100, bavail, namemax: 255, ..StatVfs::default() };
                Ok(Reply::Extended(space.encode()))
            }
            Request::Open { path, flags, .. } => self.open(handles, &self.followed(path), flags),
            Request::OpenDir { path } => self.open_dir(handles, &self.followed(path)),
            Request::Close { handle } => {
                handles.open.remove(handle).map(|_| ()).ok_or(StatusCode::Failure)?;
                DONE
            }
            Request::ReadDir { handle } => self.read_dir(handles, handle),
            Request::Read { handle, offset, len } => {
                self.read_to = self.read_to.max(offset + u64::from(len));
                read(handles, handle, offset, len, self.forgetful)
            }
            Request::Write { handle, offset, data } => {
                if self.full {
                    return Err(StatusCode::Failure);
                }
                let (content, append) = handles.file(handle)?;
                let mut content = locked(&content);
                let start = if append { content.len() } else { offset as usize };
                let end = content.len().max(start + data.len());
                content.resize(end, 0);
                content[start..start + data.len()].copy_from_slice(data);
                content.mtime += 1;
                DONE
            }
            Request::SetStat { path, attrs } | Request::LSetStat { path, attrs } => {
                let path = &self.followed(path);
                if let Some(File::Regular(content)) = self.files.get(path) {
                    locked(content).set(&attrs);
                }
                self.attrs(path)?;
                DONE
            }
            Request::FSetStat { handle, attrs } => {
                locked(&handles.file(handle)?.0).set(&attrs);
                DONE
            }
            Request::CopyData { from, offset, len, to, to_offset } => {
                handles.copy((from, offset), (to, to_offset), len as usize)
            }
            Request::FSync { handle } => handles.file(handle).and(DONE),
            _ => self.change_names(request),
        }
    }

    fn change_names(&mut self, request: &Request<'_>) -> Answer {
        match *request {
            Request::MkDir { path, .. } => {
                self.must_be_free(path)?;
                self.files.insert(path.to_vec(), File::Dir);
            }
            Request::SymLink { target, path } => {
                self.must_be_free(path)?;
                self.files.insert(path.to_vec(), File::Link(target.to_vec()));
            }
            Request::HardLink { from, to } => {
                self.must_be_free(to)?;
                let file = self.files.get(from).cloned().ok_or(StatusCode::NoSuchFile)?;
                self.files.insert(to.to_vec(), file);
            }
            Request::ReadLink { path } => match self.files.get(path) {
                Some(File::Link(target)) => return Ok(names(Bytes::copy_from_slice(target))),
                _ => return Err(StatusCode::NoSuchFile),
            },
            Request::Remove { path } => match self.files.get(path) {
                Some(File::Dir) => return Err(StatusCode::Failure),
                Some(_) => drop(self.files.remove(path)),
                None => return Err(StatusCode::NoSuchFile),
            },
            Request::RmDir { path } => {
                let is_dir = self.files.get(path).is_some_and(File::is_dir);
                if !is_dir || self.has_children(path) {
                    return Err(StatusCode::Failure);
                }
                self.files.remove(path);
            }
            Request::Rename { from, to } => {
                self.must_be_free(to)?;
                self.rename(from, to)?;
            }
            Request::PosixRename { from, to } => self.rename(from, to)?,
            _ => return Err(StatusCode::OpUnsupported),
        }
        DONE
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), StatusCode> {
        let file = self.files.remove(from).ok_or(StatusCode::NoSuchFile)?;
        self.files.insert(to.to_vec(), file);
        let below = [from, b"/"].concat();
        let moved: Vec<_> = self
            .files
            .range(below.clone()..)
            .map(|(path, _)| path.clone())
            .take_while(|path| path.starts_with(&below))
            .collect();
        for path in moved {
            if let Some(file) = self.files.remove(&path) {
                self.files.insert([to, b"/", &path[below.len()..]].concat(), file);
            }
        }
        Ok(())
    }

    fn open(&mut self, handles: &mut Handles, path: &[u8], flags: OpenFlags) -> Answer {
        let content = match self.files.get(path) {
            Some(_) if flags.contains(OpenFlags::EXCL) => return Err(StatusCode::Failure),
            Some(File::Regular(content)) => Arc::clone(content),
            Some(_) => return Err(StatusCode::Failure),
            None if flags.contains(OpenFlags::CREAT) => {
                self.must_be_free(path)?;
                let content = Content::default();
                self.files.insert(path.to_vec(), File::Regular(Arc::clone(&content)));
                content
            }
            None => return Err(StatusCode::NoSuchFile),
        };
        if flags.contains(OpenFlags::TRUNC) {
            locked(&content).set(&Attrs { size: Some(0), ..Attrs::NONE });
        }
        let (append, length) = (flags.contains(OpenFlags::APPEND), locked(&content).len());
        Ok(handles.add(Open::File { content, append, path: path.to_vec(), length }))
    }

    fn open_dir(&mut self, handles: &mut Handles, path: &[u8]) -> Answer {
        if !self.files.get(path).is_some_and(File::is_dir) {
            return Err(StatusCode::NoSuchFile);
        }
        let below = if path == b"/" { b"/".to_vec() } else { [path, b"/"].concat() };
        let mut names = Vec::new();
        for dots in [&b"."[..], b".."] {
            names.push((dots.to_vec(), path.to_vec()));
        }
        for name in self
            .files
            .range(below.clone()..)
            .map(|(name, _)| name)
            .take_while(|name| name.starts_with(&below))
        {
            let rest = &name[below.len()..];
            if !rest.is_empty() && !rest.contains(&b'/') {
                names.push((rest.to_vec(), name.clone()));
            }
        }
        let named = |(name, path): (Vec<u8>, Vec<u8>)| {
            let attrs = if self.bare { Attrs::NONE } else { self.attrs(&path).unwrap_or(Attrs::NONE) };
            // As long as what OpenSSH sends.
            Named { name: name.into(), line: Bytes::from(vec![b'-'; 60]), attrs }
        };
        let names = names.into_iter().map(named).collect();
        Ok(handles.add(Open::Dir { names, at: 0 }))
    }

    fn read_dir(&self, handles: &mut Handles, handle: &[u8]) -> Answer {
        let Some(Open::Dir { names, at }) = handles.open.get_mut(handle) else {
            return Err(StatusCode::Failure);
        };
        let end = (*at + self.piece).min(names.len());
        let piece = names[*at..end].to_vec();
        *at = end;
        if piece.is_empty() { Err(StatusCode::Eof) } else { Ok(Reply::Names(piece)) }
    }
}

impl Handles {
    fn file(&self, handle: &[u8]) -> Result<(Content, bool), StatusCode> {
        match self.open.get(handle) {
            Some(Open::File { content, append, .. }) => Ok((Arc::clone(content), *append)),
            _ => Err(StatusCode::NoSuchFile),
        }
    }

    fn attrs(&self, handle: &[u8]) -> Result<Attrs, StatusCode> {
        let content = self.file(handle)?.0;
        let content = locked(&content);
        let (permissions, times) = (Some(0o100_644), Some(Times { atime: 1, mtime: content.mtime }));
        Ok(Attrs { size: Some(content.len() as u64), permissions, times, ..Attrs::NONE })
    }

    /// Copies between open files, as OpenSSH's server does: not between those that have one name.
    fn copy(&self, (from, offset): (&[u8], u64), (to, to_offset): (&[u8], u64), len: usize) -> Answer {
        if self.path(from) == self.path(to) {
            return Err(StatusCode::Failure);
        }
        let from = locked(&self.file(from)?.0)[offset as usize..][..len].to_vec();
        let to = self.file(to)?.0;
        let (mut to, start) = (locked(&to), to_offset as usize);
        let end = to.len().max(start + len);
        to.resize(end, 0);
        to[start..start + len].copy_from_slice(&from);
        to.mtime += 1;
        DONE
    }

    fn path(&self, handle: &[u8]) -> Option<&[u8]> {
        match self.open.get(handle) {
            Some(Open::File { path, .. }) => Some(path),
            _ => None,
        }
    }

    fn add(&mut self, open: Open) -> Reply {
        // As OpenSSH's server does: the smallest number that nothing has.
        let free = |number: &u32| !self.open.contains_key(&number.to_be_bytes()[..]);
        let handle = (1..).find(free).unwrap_or_default().to_be_bytes().to_vec();
        self.open.insert(handle.clone(), open);
        Reply::Handle(handle.into())
    }
}
