// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another host for tests and benchmarks, which is this one: an SSH server, FTP, HTTP and NFS servers of our own.
//!
//! [`Sshd`] listens on a port of the loopback device, with keys and a configuration of its own, and ends with its sessions
//! when it is dropped; [`Ftpd`] starts FTP servers, [`Httpd`] HTTP and WebDAV servers, [`Nfsd`] NFS servers, [`Diod`] a 9P server that
//! others wrote, [`NinepServer`] our own. [`Authority`] makes certificates, [`Line`] adds latency. Limits: only the user who runs it can log in.
#![forbid(unsafe_code)]

mod authority;
mod diod;
mod ftpd;
mod httpd;
mod line;
mod nfsd;
mod ninepd;
pub mod processes;
pub mod programs;
mod sshd;

pub use authority::{Authority, own_certificate};
pub use diod::Diod;
pub use ftpd::{FtpServer, Ftpd};
pub use httpd::{HttpServer, Httpd};
pub use line::Line;
pub use nfsd::{NfsServer, Nfsd};
pub use ninepd::NinepServer;
pub use sshd::{HOST, Sshd};
