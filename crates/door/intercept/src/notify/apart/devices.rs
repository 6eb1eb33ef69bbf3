// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to open files that may change them (ioctl(2)), and sockets with a path.

use super::{Overlay, Spot, answers::kind};
use crate::notify::names::{above, as_path, is_below, is_gone, last};
use crate::notify::process::Process;
use crate::notify::redirect::slot;
use crate::notify::say;
use crate::notify::server::{Reply, Server};
use crate::notify::source::Call;
use outrigger_core::{Errno, FileKind, Result};
use rustix::fs::{AtFlags, CWD, FileType, statat, symlink, unlinkat};
use rustix::io::Errno as Os;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest path in the address of a socket, with its NUL.
const PATH_MAX: usize = size_of::<libc::sockaddr_un>() - offset_of!(libc::sockaddr_un, sun_path);

/// Requests that only look at a file: its flags and version, where it is on the disk, and how it is quoted and encrypted.
const LOOKS: [u32; 6] = [
    libc::FS_IOC_GETFLAGS as u32,
    libc::FS_IOC32_GETFLAGS as u32,
    libc::FS_IOC_GETVERSION as u32,
    // FS_IOC_FIEMAP, FS_IOC_FSGETXATTR, and the name of a file system (FS_IOC_GETFSLABEL).
    0xc020_660b,
    0x801c_581f,
    0x8100_9431,
];

/// Requests to share content. A file that gets some is open for writing, and so in the overlay.
const CLONES: [u32; 2] = [libc::FICLONE as u32, libc::FICLONERANGE as u32];

impl Server {
    /// The answer to a request to an open file.
    pub(in crate::notify) fn control(&self, process: Process, file: i32, request: u32) -> Result<Reply> {
        let overlay = self.names.overlay().ok_or(Errno::EIO)?;
        let link = format!("/proc/{}/fd/{file}", process.thread);
        let found = statat(CWD, link, AtFlags::empty()).map_err(io::Error::from)?;
        let is_file = matches!(kind(&found), FileType::RegularFile | FileType::Directory);
        let path = process.file(file)?;
        let is_apart = overlay.shown(&path).is_some() || is_gone(&path) && found.st_nlink == 0;
        let only_looks = LOOKS.contains(&request) || CLONES.contains(&request);
        if !is_file || is_apart || only_looks || overlay.is_of_system(&path) {
            return Ok(Reply::Pass);
        }
        self.told_of_requests.call_once(|| {
            say(format_args!(
                "'{}': a request that may change it (ioctl {request:#x}) is refused, as others of such kinds are: files that were changed in the overlay take them",
                String::from_utf8_lossy(&path)
            ));
        });
        Err(Errno::EOPNOTSUPP.into())
    }

    /// Binds a socket to a path: its file is one of the overlay.
    pub(super) fn bind_apart(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        (overlay, spot): (&Overlay, &Spot),
    ) -> Result<Reply> {
        let found = overlay.found(spot)?;
        if found.inode.is_some() {
            return Err(Errno(libc::EADDRINUSE).into());
        }
        let (parent, name) = found.place()?;
        // So the tree decides whether it may be made, and what is hidden by it. The program makes it then, with the socket.
        parent.mknod(&name, FileKind::Socket.bits() | 0o777 & !process.umask()?, 0)?;
        let real = overlay.real(&spot.path);
        unlinkat(CWD, &real[..], AtFlags::empty()).map_err(io::Error::from)?;
        self.with_address(call, as_path(&real))
    }

    /// Has the program bind or connect a socket to another path.
    pub(super) fn with_address(self: &Arc<Self>, call: &Call, path: &Path) -> Result<Reply> {
        let path = self.short(path)?;
        let family = (libc::AF_UNIX as u16).to_ne_bytes();
        let bytes = [&family[..], path.as_os_str().as_bytes(), b"\0"].concat();
        let thread = call.pid.cast_signed();
        if self.source.comes_again() {
            let mut redirected = outrigger_core::lock(&self.redirected);
            redirected.insert(thread, path.as_os_str().as_bytes().to_vec());
        }
        let arguments = vec![(1, slot(thread)), (2, bytes.len() as u64)];
        let what = path.to_string_lossy().into_owned();
        self.redirect(call, &what, bytes, arguments).inspect_err(|_| {
            outrigger_core::lock(&self.redirected).remove(&thread);
        })
    }

    /// A path for the address of a socket: a long one by a link to its directory.
    fn short(&self, path: &Path) -> Result<PathBuf> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() < PATH_MAX {
            return Ok(path.to_owned());
        }
        let dir = as_path(above(bytes));
        let found = statat(CWD, dir, AtFlags::empty()).map_err(io::Error::from)?;
        let private = self.mirror.dir().parent().ok_or(Errno::EIO)?;
        let link = private.join(format!("d{}-{}", found.st_dev, found.st_ino));
        match symlink(dir, &link) {
            Ok(()) | Err(Os::EXIST) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let short = link.join(as_path(last(bytes)));
        let fits = short.as_os_str().len() < PATH_MAX;
        if fits { Ok(short) } else { Err(Errno::ENAMETOOLONG.into()) }
    }
}

impl Overlay {
    /// Whether the path of an open file is one of the system's.
    fn is_of_system(&self, path: &[u8]) -> bool {
        super::SYSTEM.iter().any(|top| is_below(path, top))
    }
}
