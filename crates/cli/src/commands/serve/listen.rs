// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where servers listen: at a port, or at a socket of this machine.

use super::common::{address, bound};
use super::socket::{Named, named};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listen {
    /// Reads `unix:PATH`, or an address, a port, or both; `port` where only an address is given.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(text: &str, port: u16) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path of a socket is missing, as in unix:/run/user/1000/tree".to_owned()),
            Some(path) => Ok(Listen::Unix(path.into())),
            None => address(text, port).map(Listen::Tcp),
        }
    }

    /// A socket there that does not listen yet, and what removes its name in the end.
    ///
    /// # Errors
    /// Why it cannot be there.
    pub fn socket(&self) -> io::Result<(OwnedFd, Option<Named<'_>>)> {
        match self {
            Listen::Tcp(address) => Ok((bound(*address)?, None)),
            Listen::Unix(path) => Ok((named(path)?, Some(Named(path)))),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
