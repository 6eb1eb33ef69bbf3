// SPDX-License-Identifier: MIT OR Apache-2.0
//! Certificates, keys, and who is at the other end of a TLS connection: what doors and drivers share.
//!
//! | file | what it does |
//! |---|---|
//! | `files.rs` | certificates and keys in PEM files, and whether these were changed |
//! | `server.rs` | connections of clients that show a certificate |
//! | `names.rs` | whom a certificate names |
//!
//! Servers are known to clients by `Tls` of the toolkit for drivers of servers.
#![forbid(unsafe_code)]

mod files;
mod names;
mod server;

pub use files::{certificates, own};
pub use server::{Acceptor, Client, Terms};
pub use tokio_rustls::server::TlsStream;

use rustix::io::Result;
use rustix::net::sockopt;
use std::os::fd::AsFd;
use std::time::Duration;

/// After so long without a sign of the other side it is asked for one, and again after as long.
const ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// So many signs may be missing.
const ALIVE_COUNT: u32 = 3;

/// Has the system end a TCP connection whose other side gives no sign of life for a minute, as ssh does.
///
/// # Errors
/// When it is no TCP connection.
pub fn keep_alive(socket: impl AsFd) -> Result<()> {
    sockopt::set_tcp_keepidle(&socket, ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(&socket, ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, ALIVE_COUNT)?;
    sockopt::set_socket_keepalive(&socket, true)
}
