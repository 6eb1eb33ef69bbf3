// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server, and a client that asks it one call after the other.

use bytes::Bytes;
use outrigger_core::Service;
use outrigger_door_nfs::{Callers, KEY_LEN, Options, Server, Squash, Tree};
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::nfs::{CreateArgs, CreateHow, MkDirArgs, ReadArgs, WriteArgs};
use outrigger_proto_nfs3::types::{Content, DirName, FileHandle, Name, SetAttrs, Stable, Status};
use outrigger_proto_nfs3::xdr::record::Records;
use outrigger_proto_nfs3::xdr::rpc::{self, AcceptStatus, Auth, AuthSys, Body, Message};
use outrigger_proto_nfs3::xdr::{Decoder, Procedure, Xdr};
use outrigger_proto_nfs3::{mount, results};
use outrigger_runtime::Threads;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How long a reply may take.
const DEADLINE: Duration = Duration::from_secs(60);

pub struct Running {
    pub address: SocketAddr,
    pub runtime: Arc<Threads>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        // Its port is free once it has ended.
        let _ = self.runtime.handle().block_on(&mut self.task);
    }
}

pub fn options() -> Options {
    let callers = Callers { any_port: true, squash: Squash::None, ..Callers::default() };
    Options { callers, key: [7; KEY_LEN], held: 1000 }
}

pub fn serve(trees: Vec<Tree>, options: Options) -> Running {
    serve_at("127.0.0.1:0".parse().unwrap(), trees, options)
}

pub fn serve_at(address: SocketAddr, trees: Vec<Tree>, options: Options) -> Running {
    let runtime = Arc::new(Threads::new());
    let server = runtime.handle().block_on(Server::bind(address, trees, options)).unwrap();
    run(runtime, Arc::new(server))
}

pub fn run(runtime: Arc<Threads>, server: Arc<Server>) -> Running {
    let address = server.address().unwrap();
    let task = runtime.handle().spawn(async move { server.run().await });
    Running { address, runtime, task }
}

pub fn tree(name: &str, service: Arc<dyn Service>) -> Tree {
    let (name, identity) = (name.to_owned(), b"tree".to_vec());
    Tree { name, identity, service, is_lasting: true, callers: None, paths: None }
}

pub struct Client {
    stream: TcpStream,
    records: Records,
    pub auth: Auth,
    pub xid: u32,
}

/// What is answered in place of results.
pub type Refused = rpc::Reply;

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Client { stream, records: Records::new(1 << 24), auth: user(0, 0), xid: 1 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next message; `None` when the server has closed the connection.
    pub fn receive(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.records.next().unwrap() {
                return Some(message);
            }
            let mut buffer = [0; 1 << 16];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.records.space().extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn try_call<P: Procedure>(&mut self, args: &P::Args) -> Result<P::Results, Refused> {
        self.xid += 1;
        self.again::<P>(args)
    }

    /// Sends a call with the number of the last one.
    pub fn again<P: Procedure>(&mut self, args: &P::Args) -> Result<P::Results, Refused> {
        self.send(&rpc::call::<P>(self.xid, &self.auth, args).finish().into_bytes());
        let mut input = Decoder::new(self.receive().expect("the connection was closed"));
        let Message { xid, body } = Message::decode(&mut input).unwrap();
        assert_eq!(xid, self.xid);
        match body {
            Body::Reply(rpc::Reply::Accepted(rpc::Accepted { status: AcceptStatus::Success, .. })) => {
                let results = P::Results::decode(&mut input).unwrap();
                assert_eq!(input.remaining(), 0);
                Ok(results)
            }
            Body::Reply(refused) => Err(refused),
            Body::Call(_) => panic!("a call came from the server"),
        }
    }

    pub fn call<P: Procedure>(&mut self, args: &P::Args) -> P::Results {
        self.try_call::<P>(args).unwrap_or_else(|refused| panic!("{refused}"))
    }

    pub fn mount(&mut self, path: &str) -> Result<FileHandle, mount::Status> {
        let path = mount::DirPath::new(path.to_owned()).unwrap();
        self.call::<mount::procedure::Mnt>(&path).map(|mounted| mounted.handle)
    }

    pub fn create(&mut self, dir: FileHandle, file: &str) -> FileHandle {
        let how = CreateHow::Guarded(SetAttrs::NONE);
        let created = self.call::<nfs::Create>(&CreateArgs { at: at(dir, file), how });
        created.unwrap().object.unwrap()
    }

    pub fn make_dir(&mut self, dir: FileHandle, new: &str) -> FileHandle {
        let made = self.call::<nfs::MkDir>(&MkDirArgs { at: at(dir, new), attrs: SetAttrs::NONE });
        made.unwrap().object.unwrap()
    }

    pub fn write(&mut self, file: FileHandle, offset: u64, data: &[u8], stable: Stable) -> results::WriteOk {
        let content = Content::new(Bytes::copy_from_slice(data)).unwrap();
        let args = WriteArgs { file, offset, count: data.len() as u32, stable, data: content };
        self.call::<nfs::Write>(&args).unwrap()
    }

    pub fn read(&mut self, file: FileHandle, offset: u64, count: u32) -> Result<results::ReadOk, Status> {
        self.call::<nfs::Read>(&ReadArgs { file, offset, count }).map_err(|failed| failed.status)
    }

    pub fn look_up(&mut self, dir: FileHandle, wanted: &str) -> Result<FileHandle, Status> {
        let found = self.call::<nfs::Lookup>(&at(dir, wanted));
        found.map(|found| found.object).map_err(|failed| failed.status)
    }
}

pub fn user(uid: u32, gid: u32) -> Auth {
    let machine = outrigger_proto_nfs3::xdr::Text::new("test".to_owned()).unwrap();
    let gids = outrigger_proto_nfs3::xdr::Array::new(vec![gid]).unwrap();
    Auth::from(&AuthSys { stamp: 0, machine, uid, gid, gids })
}

pub fn at(dir: FileHandle, name: &str) -> DirName {
    DirName { dir, name: Name::new(name.to_owned()).unwrap() }
}
