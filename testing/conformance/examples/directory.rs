// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that serves a directory of the host: a driver in a process of its own, with nothing but the core and a driver.

use bytes::Bytes;
use outrigger_core::wire::{Body, Frame, MAGIC};
use outrigger_core::{Cx, Errno, Identity, Inline, OpSet, Result, Service, Wire};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_program::{Answer, Offer};
use outrigger_runtime::Threads;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

fn receive(socket: &mut UnixStream) -> Result<Frame> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut frame)?;
    Ok(Frame::decode(frame.into())?)
}

fn send(socket: &mut UnixStream, frame: Frame) -> Result<()> {
    Ok(socket.write_all(&frame.encode()?)?)
}

/// What the program says about itself.
fn answer(service: Result<&dyn Service, Errno>) -> Answer {
    let abilities = service.map(Service::abilities);
    let ops = abilities.as_ref().map_or(OpSet::NONE, |abilities| abilities.ops);
    Answer {
        refusal: service.err().map(|errno| errno.because("the directory cannot be opened")),
        tree: Bytes::from_static(b"a directory"),
        persistent: abilities.is_ok_and(|abilities| abilities.identity == Identity::Persistent),
        read_only: false,
        max_io: 1 << 20,
        operations: ops.iter().map(|op| (op as u16, op.layout())).collect(),
    }
}

fn main() -> Result<()> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let threads = Arc::new(Threads::new());
    socket.write_all(&[&MAGIC[..], &[0, 0]].concat())?;
    socket.read_exact(&mut [0; 6])?;
    let Body::Control(mut offer) = receive(&mut socket)?.body else { return Err(Errno::EPROTO.into()) };
    let offer = Offer::get(&mut offer)?;
    let path = Path::new(std::str::from_utf8(&offer.location).unwrap_or_default());
    let opened = Local::open(path, LocalOptions { passthrough: false, ..LocalOptions::default() });
    let service = opened.map(|local| Inline::new(local, threads.clone())).map_err(|error| error.errno);
    let mut body = Vec::new();
    answer(service.as_ref().map(|service| service as &dyn Service).map_err(|errno| *errno)).put(&mut body);
    send(&mut socket, Frame { id: Frame::UNANSWERED, body: Body::Control(body.into()) })?;
    let Ok(service) = service else { return Ok(()) };
    loop {
        // The parent process has ended.
        let Ok(Frame { id, body }) = receive(&mut socket) else { return Ok(()) };
        if let Body::Request { cred, request, .. } = body {
            let cx = Cx::new(id, cred, "program");
            let reply = threads.handle().block_on(async { service.call(&cx, request).await });
            send(&mut socket, Frame { id, body: Body::Reply(reply) })?;
        }
    }
}
