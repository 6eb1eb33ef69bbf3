// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections from ports that only the superuser has, and who the programs of this machine are: by both, some servers tell whom
//! they trust.

use crate::transport::{connect_tcp, within};
use outrigger_core::{Errno, Result};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream, lookup_host};

/// Ports that clients take; those below are usual ones of servers.
const RESERVED: RangeInclusive<u16> = 665..=1023;
/// How many of them are tried for an address.
const ATTEMPTS: u16 = 32;

/// Connects to a port of a host, from one below 1024 if this process may and some are free. The one in `last` is tried first, if
/// there is any, and what was taken is put there.
///
/// # Errors
/// Why there is no connection.
pub async fn connect_reserved(host: &str, port: u16, limit: Duration, last: &AtomicU16) -> Result<TcpStream> {
    let reserved = within(limit, format!("connecting to {host} port {port}"), async {
        for address in lookup_host((host, port)).await? {
            // Nobody may listen at one of them, as at that of IPv6 where the name is `localhost`.
            if let Ok(Some(stream)) = from_reserved(address, last).await {
                return Ok::<_, io::Error>(Some(stream));
            }
        }
        Ok(None)
    });
    match reserved.await {
        Ok(Some(stream)) => {
            stream.set_nodelay(true)?;
            Ok(stream)
        }
        Err(error) if error.errno == Errno::ETIMEDOUT => Err(error),
        // The usual way tries all addresses and tells the reason.
        Ok(None) | Err(_) => connect_tcp(host, port, limit).await,
    }
}

/// `None` where this process may not have such a port, or all that are tried are in use.
async fn from_reserved(address: SocketAddr, last: &AtomicU16) -> io::Result<Option<TcpStream>> {
    let count = RESERVED.end() - RESERVED.start() + 1;
    let first = fastrand::u16(0..count);
    let others = (0..ATTEMPTS).map(|number| RESERVED.start() + (first + number) % count);
    for own in Some(last.load(Ordering::Relaxed)).filter(|&last| last != 0).into_iter().chain(others) {
        let (socket, any) = match address {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, own).into()),
            SocketAddr::V6(_) => (TcpSocket::new_v6()?, (Ipv6Addr::UNSPECIFIED, own).into()),
        };
        socket.set_reuseaddr(true)?;
        let connected = match socket.bind(any) {
            Ok(()) => socket.connect(address).await,
            Err(error) => Err(error),
        };
        match connected {
            Ok(stream) => {
                last.store(own, Ordering::Relaxed);
                return Ok(Some(stream));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The supplementary groups of a process of this machine, if it is still one of that user: FUSE does not tell them.
pub fn groups_of(uid: u32, pid: u32) -> Option<Vec<u32>> {
    let status = (pid > 0).then(|| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())??;
    let numbers = |key| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    // The file-system user is the last of four.
    if numbers("Uid:")?.last() == Some(&uid) { numbers("Groups:") } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_a_process_of_the_user() {
        let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
        let own: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(rustix::process::Gid::as_raw).collect();
        assert_eq!(groups_of(uid, pid), Some(own));
        assert_eq!((groups_of(uid.wrapping_add(1), pid), groups_of(uid, 0)), (None, None));
    }
}
