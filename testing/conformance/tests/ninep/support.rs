// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server, and a client that asks it one thing after the other.

use bytes::Bytes;
use outrigger_core::{Inline, Runtime, Service, Stack};
use outrigger_door_ninep::{Account, Callers, Listener, Server, Squash, Tree, Users};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_simulate::Simulate;
use outrigger_proto_ninep::*;
use outrigger_runtime::Threads;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How long a reply may take.
const DEADLINE: Duration = Duration::from_secs(60);

pub struct Running {
    pub address: SocketAddr,
    runtime: Arc<Threads>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        let _ = self.runtime.handle().block_on(&mut self.task);
    }
}

/// `glenda` is the user 7 in the group 70.
struct Glenda;

impl Users for Glenda {
    fn by_number(&self, uid: u32) -> Option<Account> {
        (uid == 7).then(|| Account { uid: 7, gid: 70, groups: vec![70] })
    }
    fn by_name(&self, name: &[u8]) -> Option<Account> {
        if name == b"glenda" { self.by_number(7) } else { None }
    }
    fn user_name(&self, uid: u32) -> Option<String> {
        (uid == 7).then(|| "glenda".to_owned())
    }
    fn group_name(&self, gid: u32) -> Option<String> {
        (gid == 70).then(|| "bunnies".to_owned())
    }
    fn group_number(&self, name: &[u8]) -> Option<u32> {
        (name == b"bunnies").then_some(70)
    }
}

pub fn mem() -> Arc<dyn Service> {
    let runtime = Arc::new(Threads::new());
    Arc::new(Inline::new(Mem::new(Options::default(), runtime.clone()), runtime))
}

/// The tree with what the command has above it.
pub fn checked(tree: Arc<dyn Service>) -> Arc<dyn Service> {
    let clock = Arc::new(Threads::new()) as Arc<dyn Runtime>;
    let stack = Stack::new(tree).push(Simulate::new()).unwrap();
    stack.push(Permissions::new(clock)).unwrap().service()
}

pub fn callers() -> Callers {
    Callers { any_port: true, squash: Squash::None, ..Callers::default() }
}

pub fn serve(trees: Vec<(&str, Arc<dyn Service>)>, callers: &Callers) -> Running {
    let runtime = Arc::new(Threads::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let tree = |(name, service): (&str, _)| Tree { name: name.to_owned(), service, callers: callers.clone() };
    let trees = trees.into_iter().map(tree).collect();
    let made = async { Server::on(Listener::Tcp(listener), trees, Arc::new(Glenda)) };
    let server = runtime.handle().block_on(made).unwrap();
    let task = runtime.handle().spawn(async move { server.run().await });
    Running { address, runtime, task }
}

pub fn text(bytes: impl AsRef<[u8]>) -> Text {
    Text::new(bytes.as_ref().to_vec()).unwrap()
}

/// A name of so many bytes.
pub fn long(len: usize) -> Text {
    text("x".repeat(len))
}

pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    pub dialect: Dialect,
    pub tag: u16,
}

/// Number of the error that a request was refused with.
pub type Refused = u32;

pub const PERM: Refused = 1;
pub const NOENT: Refused = 2;
pub const BADF: Refused = 9;

pub const ACCES: Refused = 13;
pub const INVAL: Refused = 22;
pub const NAMETOOLONG: Refused = 36;
pub const OPNOTSUPP: Refused = 95;

impl Client {
    /// Connects and says nothing.
    pub fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Client { stream, buffer: Vec::new(), dialect: Dialect::Linux, tag: 1 }
    }

    /// Connects, and agrees on a dialect.
    pub fn speaking(address: SocketAddr, dialect: Dialect) -> Self {
        let mut client = Client::silent(address);
        let agreed = client.version(1 << 20, dialect.name());
        assert_eq!((agreed.msize, &agreed.version[..]), (1 << 20, dialect.name().as_bytes()));
        client.dialect = dialect;
        client
    }

    /// The root of the tree is the fid 0, for the superuser.
    pub fn new(address: SocketAddr) -> Self {
        let mut client = Client::speaking(address, Dialect::Linux);
        client.attach(0, "", Some(0)).unwrap();
        client
    }

    pub fn version(&mut self, msize: u32, version: &str) -> Rversion {
        let message = Request::from(Tversion { msize, version: text(version) }).encode(NO_TAG, self.dialect);
        self.send(&message);
        match self.receive().expect("the connection was closed") {
            (NO_TAG, Reply::Rversion(agreed)) => agreed,
            other => panic!("{other:?}"),
        }
    }

    pub fn attach(&mut self, fid: u32, aname: &str, uid: Option<u32>) -> Result<Rattach, Refused> {
        let aname = text(aname);
        self.call(Tattach { fid, afid: NO_FID, uname: text("glenda"), aname, n_uname: uid })
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Whether as much went out as there was room for at once.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let sent = self.stream.write(bytes).is_ok_and(|count| count == bytes.len());
        self.stream.set_nonblocking(false).unwrap();
        sent
    }

    /// Sends a request, and does not wait for its reply.
    pub fn begin(&mut self, tag: u16, request: impl Into<Request>) {
        let message = request.into().encode(tag, self.dialect);
        self.send(&message);
    }

    /// The next message; `None` when the server has closed the connection.
    pub fn receive(&mut self) -> Option<(u16, Reply)> {
        loop {
            if let Some(len) =
                frame_len(&self.buffer, 1 << 21).unwrap().filter(|&len| len <= self.buffer.len())
            {
                let message: Vec<u8> = self.buffer.drain(..len).collect();
                return Some(Reply::decode(&Bytes::from(message), self.dialect).unwrap());
            }
            let mut piece = [0; 1 << 16];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn call<C: Call>(&mut self, call: C) -> Result<C::Reply, Refused> {
        self.tag = self.tag.wrapping_add(1) % 60_000;
        self.begin(self.tag, call);
        let (tag, reply) = self.receive().expect("the connection was closed");
        assert_eq!(tag, self.tag);
        C::reply(reply).map_err(|other| match *other {
            Reply::Rlerror(Rlerror { ecode }) => ecode,
            Reply::Rerror(Rerror { ename, errno }) => errno.unwrap_or_else(|| {
                assert!(!ename.is_empty());
                0
            }),
            other => panic!("{other:?}"),
        })
    }

    pub fn walk(&mut self, fid: u32, newfid: u32, names: &[&str]) -> Result<usize, Refused> {
        let names = List::new(names.iter().map(text).collect()).unwrap();
        self.call(Twalk { fid, newfid, names }).map(|walked| walked.qids.len())
    }

    /// Makes `fid` stand for a new file in the directory `dir`, open for reading and writing.
    pub fn create(&mut self, dir: u32, fid: u32, name: &str) -> Result<Qid, Refused> {
        self.walk(dir, fid, &[])?;
        let create = Tlcreate { fid, name: text(name), flags: 0o102, mode: 0o644, gid: 0 };
        self.call(create).map(|created| created.qid)
    }

    pub fn mkdir(&mut self, dfid: u32, name: Text) -> Result<Qid, Refused> {
        self.call(Tmkdir { dfid, name, mode: 0o755, gid: 0 }).map(|made| made.qid)
    }

    pub fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> Result<u32, Refused> {
        self.call(Twrite { fid, offset, data: Bytes::copy_from_slice(data) }).map(|written| written.count)
    }

    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Bytes, Refused> {
        self.call(Tread { fid, offset, count }).map(|read| read.data)
    }

    pub fn clunk(&mut self, fid: u32) -> Result<(), Refused> {
        self.call(Tclunk { fid }).map(drop)
    }

    /// The names in an open directory, as far as one message has them.
    pub fn names(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<Entry>, Refused> {
        self.call(Treaddir { fid, offset, count }).map(|listed| entries(listed.data).unwrap())
    }
}
