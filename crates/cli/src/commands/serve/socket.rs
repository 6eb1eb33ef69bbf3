// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets of this machine at which servers listen.

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A socket in the file system, removed when the server ends.
pub struct Named<'a>(pub &'a Path);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        // Another server may have it by now.
        if UnixStream::connect(self.0).is_err() {
            let _ = fs::remove_file(self.0);
        }
    }
}

/// A socket with this name that does not listen yet, to which only its user and the superuser can connect. One that a former server has left is
/// replaced.
///
/// # Errors
/// `EADDRINUSE` where a server listens, and where something else has the name.
pub fn named(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let made = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Before it has a name, so that no other user can connect to it at any moment.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &address)?;
        Ok::<_, rustix::io::Errno>(socket)
    };
    match made() {
        Err(rustix::io::Errno::ADDRINUSE) if is_left(path) => {
            fs::remove_file(path)?;
            Ok(made()?)
        }
        made => Ok(made?),
    }
}

/// Whether it is a socket at which no server listens any more.
fn is_left(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::listen;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_socket_without_a_server_is_replaced_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(named(&path).unwrap());
        let again = named(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        listen(&again, 1).unwrap();
        assert_eq!(named(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(again);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert!(named(&path).is_err() && fs::read(&path).unwrap() == b"a file");
    }
}
