// SPDX-License-Identifier: MIT OR Apache-2.0
//! How connections are made.

use crate::Options;
use crate::connection::{Opened, Reader, Writer};
use crate::machine::aside;
use crate::places::Target;
use crate::programs::Programs;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Result, Runtime};
use outrigger_toolkit_remote::{Stream, Tls, connect_tcp, within};
use rustix::fs::OFlags;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::UnixStream;

/// Connects to what a file stands for.
///
/// # Errors
/// Why there is no connection, with what was tried; `ETIMEDOUT` when it takes too long.
pub(crate) async fn dial(
    target: Target,
    flags: OpenFlags,
    options: &Options,
    (programs, runtime): (&Programs, &Arc<dyn Runtime>),
) -> Result<Opened> {
    match target {
        Target::Tcp { host, port, tls: None } => {
            Ok(both(Box::new(connect_tcp(&host, port, options.timeout).await?)))
        }
        Target::Tcp { host, port, tls: Some(trust) } => {
            let stream = connect_tcp(&host, port, options.timeout).await?;
            let (name, ca) = (host.clone(), trust.ca.or_else(|| options.ca.clone()));
            // The certificates are read anew each time: they may have been renewed.
            let tls = aside(&**runtime, move || Tls::new(&name, ca.as_deref())).await?;
            Ok(both(tls.wrap(Box::new(stream), options.timeout).await?))
        }
        Target::Exec { words, dir } => {
            let (process, output, input) =
                programs.start((words, dir), (flags.reads(), flags.writes()), runtime).await?;
            let reader = output.map(|output| Box::new(output) as Reader);
            let writer = input.map(|input| Box::new(input) as Writer);
            Ok(Opened::Streams { reader, writer, process: Some(Box::new(process)) })
        }
        Target::Machine(place) if place.sockets => {
            let shown = place.shown();
            let socket = aside(&**runtime, move || place.socket()).await?;
            // The socket itself, whatever its name leads to by now.
            let path = PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd()));
            let what = format!("connecting to {shown}");
            Ok(both(Box::new(within(options.timeout, what, UnixStream::connect(path)).await?)))
        }
        Target::Machine(place) => {
            let flags = OFlags::from_bits_retain(flags.bits());
            Ok(Opened::File(aside(&**runtime, move || place.file(flags)).await?))
        }
    }
}

/// A stream for both directions.
fn both(stream: Box<dyn Stream>) -> Opened {
    let (reader, writer) = tokio::io::split(stream);
    Opened::Streams { reader: Some(Box::new(reader)), writer: Some(Box::new(writer)), process: None }
}

impl Opened {
    /// What a program that opened the file with these flags may use. A connection is read in any case.
    pub(crate) fn fit(mut self, flags: OpenFlags) -> Self {
        if let (Opened::Streams { writer, process: None, .. }, false) = (&mut self, flags.writes()) {
            // The other end is not told: it may take the end of what it receives for the end of the connection.
            *writer = None;
        }
        self
    }
}
