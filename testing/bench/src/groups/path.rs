// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a request costs in a server between read(2) and write(2), without the kernel's FUSE: requests come through a socket, many
//! at once so that no thread sleeps in between, and what is counted is the time this process has on CPUs.

use super::Bench;
use crate::compare::{Sampler, in_turns};
use crate::table::{Row, Table, Unit};
use anyhow::{Context, Result, ensure};
use outrigger_core::{HeapKeep, Inline, Runtime, Service, Stack};
use outrigger_door_fuse::{Connection, Options, Session};
use outrigger_driver_null::Null;
use outrigger_layer_journal::Journal;
use outrigger_proto_fuse::{
    AttrOut, EntryOut, GetattrIn, InHeader, InitFlags, MAJOR, MINOR, Opcode, OutHeader, ReadIn,
    encode_request,
};
use outrigger_runtime::Threads;
use rustix::io::{read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

const BARE: &str = "bare loop";
const DOOR: &str = "door, null";
const JOURNALLED: &str = "door, journal, null";

/// Requests that are sent before their replies are taken.
const AT_ONCE: usize = 32;
/// Batches of one sample.
const BATCHES: u32 = 500;
const PAGE: u32 = 4096;

/// Measures the group.
///
/// # Errors
/// When a session cannot be started or answers with an error.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let getattr = GetattrIn::default().encode();
    let page = ReadIn { size: PAGE, ..ReadIn::default() }.encode();
    let rows = [
        (Opcode::Getattr, 2, &getattr[..], AttrOut::SIZE),
        (Opcode::Read, 2, &page[..], PAGE as usize),
        (Opcode::Lookup, 1, &b"file\0"[..], EntryOut::SIZE),
    ];
    let rows: Result<Vec<Row>> = rows.into_iter().map(|kind| row(bench, kind)).collect();
    Ok(vec![Table {
        name: "path",
        title: "CPU time of one request through a socket".to_owned(),
        rows: rows?,
    }])
}

fn row(bench: &Bench, (opcode, nodeid, body, answered): (Opcode, u64, &[u8], usize)) -> Result<Row> {
    let header = InHeader { unique: 4, nodeid, pid: 1, ..InHeader::default() };
    let message = encode_request(header, opcode, &[body]);
    let answered = OutHeader::SIZE + answered;
    let runtime = Arc::new(Threads::new());
    let (door, _door) = served(null(&runtime), &runtime)?;
    let journal = Journal::attach(&HeapKeep::default(), Arc::clone(&runtime) as _, None)?;
    let stack = Stack::new(null(&runtime)).push(journal)?.service();
    let (journalled, _journalled) = served(stack, &runtime)?;
    let sockets = [(BARE, bare_loop(answered)?), (DOOR, door), (JOURNALLED, journalled)];
    let subjects = sockets.iter().map(|(name, socket)| {
        let sample = || sample(socket, &message, answered).map(Some);
        (*name, Box::new(sample) as Sampler<'_>)
    });
    in_turns(opcode.name(), Unit::Microseconds, bench.effort.rounds, subjects.collect())
}

fn null(runtime: &Arc<Threads>) -> Arc<dyn Service> {
    Arc::new(Inline::new(Null::new(u64::from(PAGE)), Arc::clone(runtime) as _))
}

fn sockets() -> Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A session, and the socket of its kernel.
fn served(service: Arc<dyn Service>, runtime: &Arc<Threads>) -> Result<(OwnedFd, Session)> {
    let (kernel, server) = sockets()?;
    let runtime = Arc::clone(runtime) as Arc<dyn Runtime>;
    let session = Session::serve(Connection::from(server), service, runtime, Options::default())?;
    let words = [MAJOR, MINOR, 0, InitFlags::ASYNC_READ.bits() as u32];
    let init: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    let header = InHeader { unique: 2, ..InHeader::default() };
    write(&kernel, &encode_request(header, Opcode::Init, &[&init]))?;
    read(&kernel, &mut [0; 256][..])?;
    Ok((kernel, session))
}

/// The socket of a thread that answers each message with `answered` bytes, which is the least a server can do.
fn bare_loop(answered: usize) -> Result<OwnedFd> {
    let (kernel, server) = sockets()?;
    thread::Builder::new().name("bare".into()).spawn(move || {
        let (mut buffer, mut reply) = (vec![0; 1 << 20], vec![0; answered]);
        reply[..OutHeader::SIZE].copy_from_slice(&OutHeader::ok(4, answered - OutHeader::SIZE).encode());
        while read(&server, &mut buffer[..]).is_ok_and(|len| len != 0) && write(&server, &reply).is_ok() {}
    })?;
    Ok(kernel)
}

/// Microseconds of CPU time for each request.
fn sample(socket: &OwnedFd, message: &[u8], answered: usize) -> Result<f64> {
    let mut buffer = vec![0; answered];
    let before = cpu_time();
    for _ in 0..BATCHES {
        for _ in 0..AT_ONCE {
            write(socket, message)?;
        }
        for _ in 0..AT_ONCE {
            let len = read(socket, &mut buffer[..])?;
            let (header, _) = OutHeader::decode(&buffer[..len]).context("a reply without a header")?;
            ensure!(header.error == 0 && header.len as usize == answered, "an unexpected reply: {header:?}");
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 requests")]
    Ok((cpu_time() - before) / (f64::from(BATCHES) * AT_ONCE as f64))
}

fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "seconds and nanoseconds of one run")]
    let micros = time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3;
    micros
}
