// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that has several calls on their way at once, and looks at no more of a reply than whether the call was carried out.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use outrigger_proto_nfs3::xdr::record::Records;
use outrigger_proto_nfs3::xdr::rpc::{self, AcceptStatus, Accepted, Auth, AuthSys, Body, Message, Reply};
use outrigger_proto_nfs3::xdr::{Decoder, Procedure, Xdr};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a reply may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// More than the longest reply.
const RECORD_MAX: usize = 4 << 20;

/// A connection to a server.
pub struct Client {
    stream: TcpStream,
    records: Records,
    buffer: Vec<u8>,
}

/// The superuser.
pub fn credential() -> Auth {
    Auth::from(&AuthSys { stamp: 0, machine: Default::default(), uid: 0, gid: 0, gids: Default::default() })
}

impl Client {
    /// Connects to a server.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("no server at {address}"))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, records: Records::new(RECORD_MAX), buffer: vec![0; 1 << 20] })
    }

    /// Makes one call, and waits for its results.
    pub fn call<P: Procedure>(&mut self, args: &P::Args) -> Result<P::Results> {
        let record = rpc::call::<P>(1, &credential(), args).finish();
        self.stream.write_all(&record.into_bytes())?;
        let (_, mut results) = opened(self.message()?)?;
        P::Results::decode(&mut results).context("a reply that is none of this call")
    }

    /// Makes so many calls, with their numbers from 0 on, `window` of them at once: as soon as the reply to call `n` is there, call
    /// `n + window` is sent. Gives the seconds that all take.
    pub fn drive(&mut self, window: u32, calls: u32, call: impl Fn(u32) -> Bytes) -> Result<f64> {
        let start = Instant::now();
        let mut out: Vec<u8> = (0..window.min(calls)).flat_map(&call).collect();
        let mut open = window.min(calls);
        while open > 0 {
            if !out.is_empty() {
                self.stream.write_all(&out)?;
                out.clear();
            }
            let mut next = Some(self.message()?);
            while let Some(message) = next {
                let (xid, mut results) = opened(message)?;
                let status = u32::decode(&mut results)?;
                ensure!(status == 0, "call {xid} fails with {status}");
                open -= 1;
                if xid + window < calls {
                    out.extend_from_slice(&call(xid + window));
                    open += 1;
                }
                next = self.records.next()?;
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// The next message.
    fn message(&mut self) -> Result<Bytes> {
        loop {
            if let Some(message) = self.records.next()? {
                return Ok(message);
            }
            let count = self.stream.read(&mut self.buffer)?;
            ensure!(count > 0, "the server has closed the connection");
            self.records.space().extend_from_slice(&self.buffer[..count]);
        }
    }
}

/// The number of the call that a reply belongs to, and its results.
fn opened(message: Bytes) -> Result<(u32, Decoder)> {
    let mut input = Decoder::new(message);
    match Message::decode(&mut input)? {
        Message {
            xid,
            body: Body::Reply(Reply::Accepted(Accepted { status: AcceptStatus::Success, .. })),
        } => Ok((xid, input)),
        Message { body: Body::Reply(refused), .. } => bail!("refused: {refused}"),
        Message { body: Body::Call(_), .. } => bail!("a call came from the server"),
    }
}
