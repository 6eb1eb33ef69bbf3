// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server with one directory and one file `f`, which does what a test says besides.

use bytes::Bytes;
use outrigger_proto_nfs3::mount::{self, DirPath, ExportEntry, Mounted};
use outrigger_proto_nfs3::nfs::{Call, Reply};
use outrigger_proto_nfs3::results::{
    AccessOk, AttrsFailed, Committed, Created, EntriesPlus, FsInfo, LookedUp, ReadOk, WccOk, WriteOk,
};
use outrigger_proto_nfs3::types::{
    Attrs, Content, Device, FileHandle, FileType, Mode, Properties, Stable, Status, Time, Wcc,
};
use outrigger_proto_nfs3::xdr::record::Records;
use outrigger_proto_nfs3::xdr::rpc::{self, AcceptStatus, Body, Message, Messages};
use outrigger_proto_nfs3::xdr::{Array, Decoder, List, Xdr};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What becomes of a call.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Does {
    /// What a server does.
    Usual,
    /// This is the answer, and nothing is done.
    Answer(Reply),
    /// It is done, and the connection ends before the answer.
    Lose,
    /// These bytes are the answer.
    Bytes(Vec<u8>),
    /// Nothing is said.
    Silence,
    /// There is no such procedure.
    Unavailable,
}

/// What the server has.
#[derive(Default)]
pub struct State {
    /// What of `f` is on stable storage.
    pub stored: Vec<u8>,
    /// All of it.
    pub content: Vec<u8>,
    /// Its life.
    pub life: u64,
    /// What it was asked: the number of the call, and the call.
    pub asked: Vec<(u32, Call)>,
    pub connections: usize,
    /// What it exports beside what it always does.
    pub exports: Vec<String>,
    /// It exports `/`, and does not tell.
    pub is_untold: bool,
    /// How often it was asked for that.
    pub lists: usize,
}

impl State {
    /// It restarts: what is not stored is lost.
    pub fn restart(&mut self) {
        self.content = self.stored.clone();
        self.life += 1;
    }

    /// How often something was asked.
    pub fn count(&self, is: impl Fn(&Call) -> bool) -> usize {
        self.asked.iter().filter(|(_, call)| is(call)).count()
    }
}

type Script = dyn Fn(&mut State, &Call) -> Does + Send + Sync;

#[derive(Clone)]
pub struct Server {
    pub port: u16,
    state: Arc<Mutex<State>>,
}

pub fn handle(name: &str) -> FileHandle {
    FileHandle::new(name.as_bytes()).unwrap()
}

pub fn attrs(kind: FileType, size: u64) -> Attrs {
    let time = Time { seconds: 1, nanos: 0 };
    Attrs {
        kind,
        mode: Mode(0o755),
        nlink: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        rdev: Device { major: 0, minor: 0 },
        fsid: 1,
        fileid: 1 + u64::from(kind == FileType::Regular),
        atime: time,
        mtime: time,
        ctime: time,
    }
}

impl Server {
    /// Serves until the test ends.
    pub fn start(script: impl Fn(&mut State, &Call) -> Does + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (server, script) = (Server { port, state: Arc::default() }, Arc::new(script));
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (server, script) = (serving.clone(), Arc::clone(&script));
                // Clients end connections as they like.
                thread::spawn(move || server.converse(stream, &*script));
            }
        });
        server
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn converse(&self, mut stream: TcpStream, script: &Script) -> Option<()> {
        self.state().connections += 1;
        let mut records = Records::new(1 << 24);
        loop {
            while let Some(message) = records.next().ok()? {
                let answer = self.answer(message, script)?;
                stream.write_all(&answer).ok()?;
            }
            let mut buffer = [0; 1 << 16];
            let count = stream.read(&mut buffer).ok().filter(|&count| count > 0)?;
            records.space().extend_from_slice(&buffer[..count]);
        }
    }

    /// The answer to a message; `None` to end the connection.
    fn answer(&self, message: Bytes, script: &Script) -> Option<Vec<u8>> {
        let mut input = Decoder::new(message);
        let Message { xid, body: Body::Call(header) } = Message::decode(&mut input).ok()? else {
            return None;
        };
        if header.program == mount::PROGRAM {
            let reply = match mount::Call::decode(header.procedure, &mut input).ok()? {
                mount::Call::Mnt(path) if self.state().is_untold && **path != *b"/" => {
                    mount::Reply::Mnt(Err(mount::Status::NOTDIR))
                }
                mount::Call::Export(()) if self.state().is_untold => {
                    let refused = rpc::accepted(AcceptStatus::ProcedureUnavailable);
                    return Some(rpc::reply(xid, refused).finish().into_bytes().to_vec());
                }
                mount::Call::Mnt(_) => {
                    mount::Reply::Mnt(Ok(Mounted { handle: handle("root"), flavors: Array::default() }))
                }
                mount::Call::Export(()) => {
                    let mut state = self.state();
                    state.lists += 1;
                    let paths = ["/a/one", "/a/two", "/b"].into_iter().map(str::to_owned);
                    let entry = |path: String| ExportEntry {
                        path: DirPath::new(path.into_bytes()).unwrap(),
                        groups: List::default(),
                    };
                    mount::Reply::Export(List(
                        paths.chain(state.exports.iter().cloned()).map(entry).collect(),
                    ))
                }
                other => panic!("{other}"),
            };
            return Some(rpc::success_message(xid, &reply).finish().into_bytes().to_vec());
        }
        let call = Call::decode(header.procedure, &mut input).unwrap();
        let mut state = self.state();
        state.asked.push((xid, call.clone()));
        let reply = match script(&mut state, &call) {
            Does::Usual => usual(&mut state, call),
            Does::Answer(reply) => reply,
            Does::Lose => {
                usual(&mut state, call);
                return None;
            }
            Does::Bytes(bytes) => return Some(bytes),
            Does::Silence => return Some(Vec::new()),
            Does::Unavailable => {
                let refused = rpc::accepted(AcceptStatus::ProcedureUnavailable);
                return Some(rpc::reply(xid, refused).finish().into_bytes().to_vec());
            }
        };
        Some(rpc::success_message(xid, &reply).finish().into_bytes().to_vec())
    }
}

fn write(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + data.len());
    content.resize(content.len().max(end), 0);
    content[start..end].copy_from_slice(data);
}

/// What a server does.
pub fn usual(state: &mut State, call: Call) -> Reply {
    let file = attrs(FileType::Regular, state.content.len() as u64);
    let dir = attrs(FileType::Directory, 0);
    let of = |handle: &FileHandle| if **handle == *b"file" { file } else { dir };
    let wcc = Wcc { before: None, after: Some(file) };
    let verifier = state.life.to_be_bytes();
    match call {
        Call::GetAttr(object) => Reply::GetAttr(Ok(of(&object))),
        Call::SetAttr(args) => {
            if let Some(size) = args.attrs.size {
                state.content.resize(size as usize, 0);
                state.stored.clone_from(&state.content);
            }
            Reply::SetAttr(Ok(WccOk { wcc: Wcc::UNKNOWN }))
        }
        Call::Lookup(at) if **at.name == *b"f" => {
            Reply::Lookup(Ok(LookedUp { object: handle("file"), attrs: Some(file), dir_attrs: None }))
        }
        Call::Lookup(_) => Reply::Lookup(Err(AttrsFailed { status: Status::NOENT, attrs: None })),
        Call::Access(args) => Reply::Access(Ok(AccessOk { attrs: None, access: args.access })),
        Call::Read(args) => {
            let start = (args.offset as usize).min(state.content.len());
            let end = (start + args.count as usize).min(state.content.len());
            let data = Content::new(state.content[start..end].to_vec()).unwrap();
            let eof = end == state.content.len();
            Reply::Read(Ok(ReadOk { attrs: None, count: data.len() as u32, eof, data }))
        }
        Call::Write(args) => {
            write(&mut state.content, args.offset, &args.data);
            if args.stable != Stable::Unstable {
                write(&mut state.stored, args.offset, &args.data);
            }
            Reply::Write(Ok(WriteOk { wcc, count: args.count, committed: args.stable, verifier }))
        }
        Call::Commit(_) => {
            state.stored.clone_from(&state.content);
            Reply::Commit(Ok(Committed { wcc, verifier }))
        }
        Call::Create(_) => {
            let (object, attrs) = (Some(handle("file")), Some(file));
            Reply::Create(Ok(Created { object, attrs, dir: Wcc::UNKNOWN }))
        }
        Call::Remove(_) => Reply::Remove(Ok(WccOk { wcc: Wcc::UNKNOWN })),
        Call::FsInfo(_) => Reply::FsInfo(Ok(FsInfo {
            attrs: None,
            read_max: 1 << 16,
            read_preferred: 1 << 16,
            read_multiple: 1,
            write_max: 1 << 16,
            write_preferred: 1 << 16,
            write_multiple: 1,
            read_dir_preferred: 1 << 16,
            file_size_max: u64::MAX,
            time_delta: Time { seconds: 0, nanos: 1 },
            properties: Properties::all(),
        })),
        Call::ReadDirPlus(_) => Reply::ReadDirPlus(Ok(EntriesPlus {
            dir_attrs: None,
            verifier: [0; 8],
            entries: List(Vec::new()),
            eof: true,
        })),
        other => panic!("{other}"),
    }
}
