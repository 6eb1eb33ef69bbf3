// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that lie, break off, flood or do not listen.

use crate::support::{Client, Running, at, options, serve, serve_at, tree, user};
use bytes::Bytes;
use outrigger_core::ops::Read;
use outrigger_core::{Abilities, Answer, Cx, Errno, Inline, Notify, Request, Service};
use outrigger_door_nfs::{Callers, Options, Squash};
use outrigger_driver_mem::Mem;
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::nfs::{CreateArgs, CreateHow, ReadArgs, WriteArgs};
use outrigger_proto_nfs3::types::{FileHandle, SetAttrs, Stable, Status};
use outrigger_proto_nfs3::xdr::rpc::{self, AcceptStatus, AuthStatus, Denied};
use outrigger_runtime::Threads;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

fn mem() -> Arc<dyn Service> {
    let runtime = Arc::new(Threads::new());
    Arc::new(Inline::new(Mem::new(outrigger_driver_mem::Options::default(), runtime.clone()), runtime))
}

fn start() -> (Running, Client, FileHandle) {
    let running = serve(vec![tree("/", mem())], options());
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    (running, client, root)
}

#[test]
fn a_connection_with_something_else_ends_and_others_go_on() {
    let (running, mut client, root) = start();
    let reply = rpc::reply(7, rpc::accepted(AcceptStatus::Success)).finish().into_bytes();
    for message in [
        &b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"[..],
        &[0xff; 64],
        &[0x80, 0, 0, 4, 0, 0, 0, 1],
        &[0x7f, 0xff, 0xff, 0xff],
        &reply,
    ] {
        let mut other = Client::new(running.address);
        other.send(message);
        assert!(other.receive().is_none(), "{message:?}");
    }
    assert!(client.call::<nfs::GetAttr>(&root).is_ok());
}

#[test]
fn a_call_that_is_cut_anywhere_is_answered_or_ends_its_connection() {
    let (running, mut client, root) = start();
    let how = CreateHow::Guarded(SetAttrs::NONE);
    let whole = rpc::call::<nfs::Create>(9, &user(0, 0), &CreateArgs { at: at(root, "file"), how });
    let whole = whole.finish().into_bytes();
    for len in 0..whole.len() - 4 {
        let mut other = TcpStream::connect(running.address).unwrap();
        let mut message = (0x8000_0000 | len as u32).to_be_bytes().to_vec();
        message.extend(&whole[4..4 + len]);
        other.write_all(&message).unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // A reset says the same.
        let _ = other.read_to_end(&mut answer);
    }
    assert_eq!(client.look_up(root, "file"), Err(Status::NOENT), "nothing was made of a part");
}

#[test]
fn programs_versions_procedures_and_arguments_that_there_are_none_of() {
    let (_running, mut client, _) = start();
    let ask = |client: &mut Client, program: u32, version: u32, procedure: u32| {
        let numbers = [77, 0, 2, program, version, procedure, 0, 0, 0, 0, 5];
        let mut message = (0x8000_0000_u32 | (numbers.len() as u32 * 4)).to_be_bytes().to_vec();
        message.extend(numbers.iter().flat_map(|number: &u32| number.to_be_bytes()));
        client.send(&message);
        let reply = client.receive().unwrap();
        u32::from_be_bytes(reply[20..24].try_into().unwrap())
    };
    assert_eq!(ask(&mut client, 100_227, 3, 0), 1, "no such program");
    assert_eq!(ask(&mut client, 100_003, 4, 0), 2, "no such version");
    assert_eq!(ask(&mut client, 100_003, 3, 22), 3, "no such procedure");
    assert_eq!(ask(&mut client, 100_003, 3, 1), 4, "arguments that are cut");
}

#[test]
fn a_handle_that_was_not_given_out_is_none() {
    let (_running, mut client, root) = start();
    let file = client.create(root, "file");
    for place in [0, 1, 8, 12, 20, 21, 52] {
        let mut forged = file.to_vec();
        forged[place] ^= 1;
        let forged = FileHandle::new(&forged).unwrap();
        assert_eq!(client.call::<nfs::GetAttr>(&forged), Err(Status::BADHANDLE), "byte {place}");
    }
    for other in [&[][..], &[1; 64], b"/etc/passwd"] {
        assert_eq!(client.call::<nfs::GetAttr>(&FileHandle::new(other).unwrap()), Err(Status::BADHANDLE));
    }
}

#[test]
fn handles_outlive_the_server_where_the_tree_and_the_key_do() {
    let dir = tempfile::tempdir().unwrap();
    let local = || -> Arc<dyn Service> {
        use outrigger_driver_local::{Local, LocalOptions};
        let local = Local::open(dir.path(), LocalOptions::default()).unwrap();
        Arc::new(Inline::new(local, Arc::new(Threads::new())))
    };
    let running = serve(vec![tree("/", local())], options());
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    let dir = client.make_dir(root, "dir");
    let file = client.create(dir, "file");
    client.write(file, 0, b"content", Stable::FileSync);
    let address = running.address;
    drop((client, running));
    for (key, expected) in [(7, Ok(&b"content"[..])), (8, Err(Status::BADHANDLE))] {
        let _running = serve_at(address, vec![tree("/", local())], Options { key: [key; 32], ..options() });
        let mut client = Client::new(address);
        let read = client.read(file, 0, 100);
        assert_eq!(read.as_ref().map(|read| &read.data[..]).map_err(|status| *status), expected);
    }
}

#[test]
fn handles_of_a_tree_in_memory_are_stale_in_the_next_server() {
    let temporary = || vec![outrigger_door_nfs::Tree { is_lasting: false, ..tree("/", mem()) }];
    let running = serve(temporary(), options());
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    let file = client.create(root, "file");
    let address = running.address;
    drop((client, running));
    let _running = serve_at(address, temporary(), options());
    let mut client = Client::new(address);
    let root = client.mount("/").unwrap();
    client.create(root, "another");
    assert_eq!(client.call::<nfs::GetAttr>(&file), Err(Status::STALE));
}

#[test]
fn the_superuser_of_a_client_is_nobody_here() {
    let callers = Callers { squash: Squash::Root, ..options().callers };
    let running = serve(vec![tree("/", mem())], Options { callers, ..options() });
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    let file = client.create(root, "file");
    assert_eq!(client.call::<nfs::GetAttr>(&file).unwrap().uid, 65534);
}

#[test]
fn a_client_at_a_port_of_anyone_gets_no_handle() {
    let callers = Callers { any_port: false, ..options().callers };
    let running = serve(vec![tree("/", mem())], Options { callers, ..options() });
    let mut client = Client::new(running.address);
    assert!(client.mount("/").is_err());
    let refused = client.try_call::<nfs::GetAttr>(&FileHandle::new(&[0; 53]).unwrap()).unwrap_err();
    assert_eq!(refused, rpc::Reply::Denied(Denied::AuthError(AuthStatus::TOO_WEAK)));
    client.call::<nfs::Null>(&());
}

#[test]
fn a_client_that_takes_no_replies_does_not_hold_up_others() {
    let (running, mut client, root) = start();
    let file = client.create(root, "file");
    client.write(file, 0, &[1; 1 << 20], Stable::Unstable);
    let mut deaf = TcpStream::connect(running.address).unwrap();
    deaf.set_nonblocking(true).unwrap();
    let call = rpc::call::<nfs::Read>(1, &user(0, 0), &ReadArgs { file, offset: 0, count: 1 << 20 });
    let call = call.finish().into_bytes();
    // Until nothing more goes in: the server has stopped reading.
    let mut sent = 0;
    while sent < 1 << 22 {
        match deaf.write(&call) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(client.read(file, 0, 4).unwrap().data[..], [1; 4]);
}

#[test]
fn too_many_connections_are_closed_and_those_that_are_there_go_on() {
    let (running, mut client, root) = start();
    let others: Vec<_> = (0..600).map(|_| TcpStream::connect(running.address).unwrap()).collect();
    let refused = others.iter().rev().take(20).filter(|stream| {
        let mut stream = *stream;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        matches!(stream.read(&mut [0; 1]), Ok(0)) || stream.take_error().is_ok_and(|error| error.is_some())
    });
    assert_eq!(refused.count(), 20);
    assert!(client.call::<nfs::GetAttr>(&root).is_ok());
    drop(others);
}

/// A tree whose file hangs when it is read.
struct Hanging(Arc<dyn Service>, Arc<AtomicBool>);

impl Service for Hanging {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        match request {
            Request::Read(Read { offset: 666, .. }) => {
                let cancel = self.1.clone();
                Answer::later(async move {
                    while !cancel.load(Ordering::Relaxed) {
                        tokio::task::yield_now().await;
                    }
                    outrigger_core::Reply::Error(Errno::EIO.into())
                })
            }
            request => self.0.call(cx, request),
        }
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

/// Claim S20 of the SFS toolkit: a slow file delays no other, also on one connection.
#[test]
fn a_file_that_hangs_delays_no_other_on_the_same_connection() {
    let over = Arc::new(AtomicBool::new(false));
    let running = serve(vec![tree("/", Arc::new(Hanging(mem(), over.clone())))], options());
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    let file = client.create(root, "file");
    for xid in 1000..1020 {
        let args = ReadArgs { file, offset: 666, count: 1 };
        client.send(&rpc::call::<nfs::Read>(xid, &user(0, 0), &args).finish().into_bytes());
    }
    assert!(client.call::<nfs::GetAttr>(&file).is_ok());
    over.store(true, Ordering::Relaxed);
    let late: Vec<Bytes> = (0..20).map(|_| client.receive().unwrap()).collect();
    assert!(late.iter().all(|reply| (1000..1020).contains(&rpc::xid(reply).unwrap())));
}

/// A tree whose file holds the thread that reads it, as that of a disk which does not answer.
struct Holding(Arc<dyn Service>, Arc<Barrier>);

impl Service for Holding {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        if matches!(request, Request::Read(Read { offset: 666, .. })) {
            self.1.wait();
        }
        self.0.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

#[test]
fn files_that_hold_threads_delay_no_other_on_the_same_connection() {
    const HELD: usize = 40;
    let over = Arc::new(Barrier::new(HELD + 1));
    let running = serve(vec![tree("/", Arc::new(Holding(mem(), over.clone())))], options());
    let mut client = Client::new(running.address);
    let root = client.mount("/").unwrap();
    let file = client.create(root, "file");
    for xid in 0..HELD as u32 {
        let args = ReadArgs { file, offset: 666, count: 1 };
        client.send(&rpc::call::<nfs::Read>(1000 + xid, &user(0, 0), &args).finish().into_bytes());
    }
    assert!(client.call::<nfs::GetAttr>(&file).is_ok());
    let mut other = Client::new(running.address);
    assert!(other.call::<nfs::GetAttr>(&file).is_ok());
    over.wait();
    let late: Vec<Bytes> = (0..HELD).map(|_| client.receive().unwrap()).collect();
    assert!(late.iter().all(|reply| rpc::xid(reply).unwrap() >= 1000));
}

#[test]
fn a_handle_of_one_tree_is_none_of_another_that_is_exported_by_the_same_name() {
    let one = serve(vec![tree("/", mem())], options());
    let mut client = Client::new(one.address);
    let root = client.mount("/").unwrap();
    let other = outrigger_door_nfs::Tree { identity: b"another".to_vec(), ..tree("/", mem()) };
    let other = serve(vec![other], options());
    let mut client = Client::new(other.address);
    client.mount("/").unwrap();
    assert_eq!(client.call::<nfs::GetAttr>(&root), Err(Status::STALE));
}

#[test]
fn the_number_that_means_no_user_is_refused() {
    let (_running, mut client, root) = start();
    client.auth = user(u32::MAX, 1);
    let refused = client.try_call::<nfs::GetAttr>(&root).unwrap_err();
    assert_eq!(refused, rpc::Reply::Denied(Denied::AuthError(AuthStatus::BAD_CREDENTIAL)));
}

#[test]
fn strangers_take_no_place_from_clients_at_trusted_ports() {
    let callers = Callers { any_port: false, ..options().callers };
    let running = serve(vec![tree("/", mem())], Options { callers, ..options() });
    let strangers: Vec<_> = (0..40).map(|_| TcpStream::connect(running.address).unwrap()).collect();
    let refused = strangers.iter().rev().take(5).filter(|stream| {
        let mut stream = *stream;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        matches!(stream.read(&mut [0; 1]), Ok(0)) || stream.take_error().is_ok_and(|error| error.is_some())
    });
    assert_eq!(refused.count(), 5);
}

/// A tree whose writes to the front wait until they may happen.
struct Slow(Arc<dyn Service>, Arc<AtomicBool>);

impl Service for Slow {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        match &request {
            Request::Write(write) if write.offset == 0 && !self.1.load(Ordering::Relaxed) => {
                Answer::later(async move {
                    while !self.1.load(Ordering::Relaxed) {
                        tokio::task::yield_now().await;
                    }
                    self.0.call(cx, request).await
                })
            }
            _ => self.0.call(cx, request),
        }
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

/// Else a client that has lost its connection would write the file again, go on, and see the old write come after that.
#[test]
fn a_write_that_is_repeated_while_it_runs_happens_once_and_both_get_its_reply() {
    let go = Arc::new(AtomicBool::new(false));
    let running = serve(vec![tree("/", Arc::new(Slow(mem(), go.clone())))], options());
    let mut first = Client::new(running.address);
    let root = first.mount("/").unwrap();
    let file = first.create(root, "file");
    let data = outrigger_proto_nfs3::types::Content::new(Bytes::from_static(b"old")).unwrap();
    let args = WriteArgs { file, offset: 0, count: 3, stable: Stable::Unstable, data };
    let call = rpc::call::<nfs::Write>(77, &user(0, 0), &args).finish().into_bytes();
    first.send(&call);
    let mut second = Client::new(running.address);
    second.send(&call);
    // Calls that came before are begun before many that follow are answered.
    for _ in 0..50 {
        first.call::<nfs::Null>(&());
        second.call::<nfs::Null>(&());
    }
    go.store(true, Ordering::Relaxed);
    let replies = [first.receive().unwrap(), second.receive().unwrap()];
    assert_eq!(replies[0], replies[1]);
    assert_eq!(second.read(file, 0, 10).unwrap().data[..], *b"old");
}
