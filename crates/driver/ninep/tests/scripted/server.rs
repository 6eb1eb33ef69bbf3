// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server of one directory with the file `f`, and directories `d` in `d` without an end, which follows a script in place of answering some requests.

use bytes::{Bytes, BytesMut};
use outrigger_proto_ninep::*;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub const CONTENT: &[u8] = b"hello";
pub const FILE: Qid = Qid { kind: QidKind::empty(), version: 0, path: 2 };
const ROOT: Qid = Qid { kind: QidKind::DIRECTORY, version: 0, path: 1 };

/// What the server does with a request.
pub enum Does {
    /// Answers it.
    Usual,
    /// Answers something else.
    Reply(Box<Reply>),
    /// Sends these bytes, in which the tag of the request is put.
    Bytes(Vec<u8>),
    /// Sends these bytes as they are.
    Raw(Vec<u8>),
    /// Nothing.
    Silence,
    /// Does it, and hangs up.
    Cut,
    /// Answers it; files have so many names.
    Links(u64),
    /// Does it, and keeps the answer back.
    Hold,
    /// Answers this, and then what was kept back.
    Release(Box<Reply>),
}

impl Does {
    /// Answers this.
    pub fn reply(reply: Reply) -> Does {
        Does::Reply(Box::new(reply))
    }
}

/// A server that runs until its process ends.
pub struct Server {
    pub port: u16,
    pub mkdirs: Arc<AtomicUsize>,
    pub connections: Arc<AtomicUsize>,
}

impl Server {
    /// One of 9P2000.L.
    pub fn start(does: impl Fn(&Request) -> Does + Send + Sync + 'static) -> Server {
        Server::speaking(Dialect::Linux, does)
    }

    /// One that speaks this dialect, whatever it is asked for.
    pub fn speaking(dialect: Dialect, does: impl Fn(&Request) -> Does + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mkdirs, connections, does) = (Arc::default(), Arc::<AtomicUsize>::default(), Arc::new(does));
        let server = Server { port, mkdirs: Arc::clone(&mkdirs), connections: Arc::clone(&connections) };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                connections.fetch_add(1, Ordering::SeqCst);
                let (does, mkdirs) = (Arc::clone(&does), Arc::clone(&mkdirs));
                thread::spawn(move || serve(stream, dialect, &*does, &mkdirs));
            }
        });
        server
    }
}

/// Passes on what comes to a socket to a server at a port.
pub fn listen_at(path: &std::path::Path, port: u16) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut from, mut to) = (far, near);
            thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
}

/// Until either side hangs up.
fn serve(
    mut stream: TcpStream,
    dialect: Dialect,
    does: &dyn Fn(&Request) -> Does,
    mkdirs: &AtomicUsize,
) -> Option<()> {
    let (fids, mut held) = (Mutex::new(HashMap::new()), Vec::new());
    loop {
        let mut whole = vec![0; 4];
        stream.read_exact(&mut whole).ok()?;
        let len = u32::from_le_bytes([whole[0], whole[1], whole[2], whole[3]]) as usize;
        whole.resize(len, 0);
        stream.read_exact(&mut whole[4..]).ok()?;
        let (tag, request) = Request::decode(&whole.into(), dialect).unwrap();
        let done = does(&request);
        let sent = match done {
            Does::Silence => continue,
            Does::Reply(reply) => reply.encode(tag, dialect).to_vec(),
            Does::Raw(bytes) => bytes,
            Does::Bytes(mut bytes) => {
                set_tag(&mut bytes, tag);
                bytes
            }
            Does::Release(reply) => [reply.encode(tag, dialect).to_vec(), std::mem::take(&mut held)].concat(),
            Does::Usual | Does::Links(_) | Does::Cut | Does::Hold => {
                let mut reply = usual(&mut fids.lock().unwrap(), request, dialect, mkdirs);
                if let (Does::Links(nlink), Reply::Rgetattr(told)) = (&done, &mut reply) {
                    told.attrs.nlink = *nlink;
                }
                if matches!(done, Does::Cut) {
                    return None;
                }
                let sent = reply.encode(tag, dialect).to_vec();
                if matches!(done, Does::Hold) {
                    held.extend(sent);
                    continue;
                }
                sent
            }
        };
        stream.write_all(&sent).ok()?;
    }
}

/// The attributes of a file.
pub fn attrs(qid: Qid) -> Attrs {
    let mode = if qid.kind == QidKind::DIRECTORY { 0o040_755 } else { 0o100_644 };
    Attrs { valid: AttrMask::BASIC, qid, mode, nlink: 1, size: CONTENT.len() as u64, ..Attrs::default() }
}

/// The attributes of a file, as the other dialects have them.
pub fn stat(qid: Qid) -> Stat {
    let (mode, name) = if qid.kind == QidKind::DIRECTORY { (1 << 31 | 0o755, "d") } else { (0o644, "f") };
    let (name, length) = (Text::new(name).unwrap(), CONTENT.len() as u64);
    Stat { qid, mode, name, length, extension: Some(Text::default()), n_uid: Some(7), ..Stat::default() }
}

/// An error of a server of this dialect.
pub fn refusal(dialect: Dialect, ecode: u32, ename: &'static str) -> Reply {
    match dialect {
        Dialect::Linux => Rlerror { ecode }.into(),
        Dialect::Unix | Dialect::Plain => {
            Rerror { ename: Text::new(ename).unwrap(), errno: Some(u32::MAX) }.into()
        }
    }
}

fn usual(fids: &mut HashMap<u32, Qid>, request: Request, dialect: Dialect, mkdirs: &AtomicUsize) -> Reply {
    let unknown = || refusal(dialect, 9, "unknown fid");
    match request {
        Request::Tversion(asked) => {
            let version = Text::new(dialect.name()).unwrap();
            Rversion { msize: asked.msize.min(65_536), version }.into()
        }
        Request::Tstat(asked) => fids.get(&asked.fid).map_or_else(unknown, |qid| {
            let stat = stat(*qid);
            Rstat { len: stat.encode(dialect).len() as u16, stat }.into()
        }),
        Request::Topen(asked) => {
            fids.get(&asked.fid).map_or_else(unknown, |qid| Ropen { qid: *qid, iounit: 0 }.into())
        }
        Request::Tcreate(asked) => {
            let is_dir = asked.perm >> 31 == 1;
            mkdirs.fetch_add(usize::from(is_dir), Ordering::SeqCst);
            let qid = if is_dir { ROOT } else { FILE };
            fids.insert(asked.fid, qid);
            Rcreate { qid, iounit: 0 }.into()
        }
        Request::Tread(asked) if fids.get(&asked.fid) == Some(&ROOT) => {
            let data = if asked.offset == 0 { stat(FILE).encode(dialect).freeze() } else { Bytes::new() };
            Rread { data }.into()
        }
        Request::Tremove(asked) => {
            fids.remove(&asked.fid);
            Rremove {}.into()
        }
        Request::Twstat(_) => Rwstat {}.into(),
        Request::Tattach(asked) => {
            fids.insert(asked.fid, ROOT);
            Rattach { qid: ROOT }.into()
        }
        Request::Twalk(asked) => {
            let has_new = dialect == Dialect::Linux || mkdirs.load(Ordering::SeqCst) > 0;
            walk(fids, &asked, (dialect, has_new))
        }
        Request::Tgetattr(asked) => {
            fids.get(&asked.fid).map_or_else(unknown, |qid| Rgetattr { attrs: attrs(*qid) }.into())
        }
        Request::Tlopen(asked) => {
            fids.get(&asked.fid).map_or_else(unknown, |qid| Rlopen { qid: *qid, iounit: 0 }.into())
        }
        Request::Tread(asked) => {
            let from = (asked.offset as usize).min(CONTENT.len());
            let end = (from + asked.count as usize).min(CONTENT.len());
            Rread { data: Bytes::from_static(&CONTENT[from..end]) }.into()
        }
        Request::Twrite(asked) => Rwrite { count: asked.data.len() as u32 }.into(),
        Request::Treaddir(asked) => {
            Rreaddir { data: if asked.offset == 0 { listing(1, b"f") } else { Bytes::new() } }.into()
        }
        Request::Tmkdir(_) => {
            mkdirs.fetch_add(1, Ordering::SeqCst);
            Rmkdir { qid: ROOT }.into()
        }
        Request::Tflush(_) => Rflush {}.into(),
        Request::Tclunk(asked) => {
            fids.remove(&asked.fid);
            Rclunk {}.into()
        }
        _ => refusal(dialect, 95, "operation not supported"),
    }
}

fn walk(fids: &mut HashMap<u32, Qid>, asked: &Twalk, (dialect, has_new): (Dialect, bool)) -> Reply {
    let (from, names) = (fids.get(&asked.fid).copied(), &asked.names);
    let found = match (from, &names[..]) {
        (None, _) => return refusal(dialect, 9, "unknown fid"),
        (Some(qid), []) => (qid, vec![]),
        (Some(ROOT), [name]) if **name == *b"f" => (FILE, vec![FILE]),
        (Some(ROOT), [name]) if **name == *b"new" && has_new => (ROOT, vec![ROOT]),
        (Some(qid), names) if names.iter().all(|name| **name == *b"d") => {
            let below = |depth| Qid { path: qid.path + 10 * depth, ..ROOT };
            let qids: Vec<_> = (1..=names.len() as u64).map(below).collect();
            (below(names.len() as u64), qids)
        }
        _ => return refusal(dialect, 2, "file does not exist"),
    };
    fids.insert(asked.newfid, found.0);
    Rwalk { qids: List::new(found.1).unwrap() }.into()
}

/// A listing with one name.
pub fn listing(offset: u64, name: &[u8]) -> Bytes {
    let mut data = BytesMut::new();
    put_entry(&mut data, &Entry { qid: FILE, offset, kind: 8, name: Text::new(name.to_vec()).unwrap() });
    data.freeze()
}
