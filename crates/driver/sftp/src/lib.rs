// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of an SSH server as a tree, over version 3 of the SSH file transfer protocol.
//!
//! [`Sftp`] is an asynchronous [`Driver`](outrigger_core::Driver). It talks through a child process, `ssh -s -- HOST sftp`, so
//! that whatever works with ssh works here: its configuration, agents, jump hosts, hardware keys, shared connections.
//! [`Options`] are called as in sshfs(1) and ssh_config(5).
//!
//! # Round trips
//!
//! Requests go out side by side; what needs an answer first waits for it once.
//!
//! | operation | waits for |
//! |---|---|
//! | lookup, getattr, readlink, statfs | one answer |
//! | walk of any length | one answer: all steps are asked at once |
//! | listing a directory | two answers for up to 200 names with all their attributes; more are asked for while they come |
//! | open for reading | none, when the attributes say that the server permits it; else one |
//! | create, where the caller knows that there is no such name ([`OpenFlags::ASYNC_CREATE`]) and a file was made in the directory before | none |
//! | open for writing, create, mkdir, symlink, link, rename, unlink, rmdir | one answer |
//! | attributes by a handle that writes | one answer; they go out after what is being written, without waiting for it |
//! | read, write | one answer, however long; as much is on its way as the connection carries (see `outrigger_mux`) |
//! | close | none |
//! | using an open file again after a lost connection | two more answers: opening it, and looking at it |
//!
//! # Identity
//!
//! The protocol knows paths only. Nodes are places in a [`NodeTable`]; inode numbers are hashes of
//! names (see `InodeTable`), the same in every mount. A file that others rename is another one; a file that others replace by one
//! of the same kind is the same: once that was seen, its open files read the new one, and what is written by a handle that
//! was opened before goes to the old one, as on other file systems. Hard links are one file where they were made through this driver, and as long as it
//! remembers that: some 16,000 files that were renamed or linked are remembered beyond what their users refer to.
//!
//! With `follow_symlinks` a link is the file that it leads to, in listings too; one that leads nowhere is shown as it is.
//!
//! Owners have the numbers of the server. `idmap=user` shows the user who logged in as the user here; with `idmap=file`, files
//! say who is who, and a number that they do not name is `EPERM`, both to look at and to give to (see `idmap`).
//!
//! A file that is open and loses its last name is renamed aside, to `.outrigger-removed-` and a number, and removed when it is
//! closed: so it can be opened again when the connection was lost. This client does not show that name; others see it.
//!
//! # When the connection is lost
//!
//! The next request makes a new one, and files are opened again by their paths as they are needed. What was on its way is done
//! again if that does no harm; otherwise it fails with `EIO`, and a reason that says so.
//!
//! A name may lead to another file by then, and the protocol has no inode numbers. So an open file is used by a new handle only
//! if that shows what is known of the file: its last size and time of change, or what changes of this client since then make of
//! them, whether these were answered or are in doubt (see `known` of the toolkit). Otherwise, and for writing also where nothing is known, all
//! that is done by the open file is `ESTALE` for good; opening it anew gets what is there. Another file of the same size with
//! a later time is taken for ours if this client has changed ours since it last looked.
//!
//! | on its way | done again |
//! |---|---|
//! | what only asks | always |
//! | writes at a place, truncation, attributes | when the process that served the lost connection is gone: it may still be at work on what it had received, and would undo what is written after the repetition (see `origin`) |
//! | a file that is made asynchronously | always: where it is there by then, it is opened, and keeps its content |
//! | mkdir, rename, unlink and the like, appends | never |
//!
//! Whether a process is gone is seen under `/proc` of the server, so only where that is a Linux that shows it: not inside a
//! chroot, not on another machine of the same name. It is waited for at most 5 s.
//!
//! fsync on the next connection speaks for what was written on the lost one only if the machine was not started anew in
//! between; where that is not known it fails with `EIO` once, as after an error of a disk. The same goes for truncations and
//! attributes, and for what was done through handles that were closed since. Where more than 16,384 files were changed and not
//! synchronised, those that were not are taken to be among them.
//!
//! A server that answers nothing for `timeout=SECONDS` (30) costs each waiting request `ETIMEDOUT`; then the connection is
//! given up and made anew.
//!
//! # When this process is killed
//!
//! With a [`Keep`] the next process goes on with nodes, open files and the connection, in the middle of a message if need be
//! (see `line`); it also closes at the server what the dead one had open and is not in use any more. Without, the tree ends with the process.
//!
//! # What the protocol cannot do
//!
//! * Times have whole seconds from 1970 to 2106; others become the nearest. The time of change is that of modification.
//! * The server does not send the number of links: a file shows as many as are known here, one at least; a directory shows one.
//! * No devices, pipes or sockets are made, no extended attributes, locks, holes or preallocation.
//! * Everything happens as the user who logged in. New files belong to that user, whatever user asked here.
//! * With OpenSSH's extensions: atomic rename, hard links, fsync, free space, attributes of symbolic links, copies within the
//!   server, sizes above 32 KiB. Without: rename is not atomic where it replaces, fsync fails with `EINVAL`, the others with
//!   `EOPNOTSUPP` or `EPERM`.
//! * Names are those of the server, whatever their encoding.
#![forbid(unsafe_code)]

mod attr;
mod copy;
mod diagnosis;
mod dial;
mod dirs;
mod fault;
mod files;
mod hidden;
mod host;
mod idmap;
mod inner;
mod kept;
mod line;
mod link;
mod listing;
mod look;
mod names;
mod opened;
mod ops;
mod options;
mod origin;
mod pending_create;
mod read;
mod reopen;
mod seen;
mod session;
mod setattr;
mod slots;

pub use dial::{Connected, Dial, Piped};
pub use line::Ends;
pub use options::{ACCEPTED, IdMap, NoMap, OPTIONS, Options};
pub use outrigger_toolkit_remote::Carrier;

use crate::dial::Ssh;
use crate::inner::Inner;
use crate::kept::Kept;
use crate::options::is_dangerous;
use outrigger_core::registry::DriverInfo;
use outrigger_core::{Keep, Result, Runtime};
#[cfg(doc)]
use outrigger_core::{NodeTable, ops::OpenFlags};
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "sftp",
    opens: "directories of SSH servers, with the user's ssh and its configuration",
    location: "HOST:PATH, sftp://USER@HOST:PORT/PATH",
    writable: true,
    options: &[&OPTIONS, &ACCEPTED],
    others: "the options of ssh_config(5), as in IdentityFile=FILE",
    cached: true,
    recalls: true,
    hosts: Some(host::open),
    is_dangerous,
    ..DriverInfo::NONE
};

/// A directory of an SSH server, served as a tree.
#[derive(Clone)]
pub struct Sftp(Arc<Inner>);

impl Sftp {
    /// Connects to `host`, which may be `USER@HOST` or a name from ssh_config(5), and serves its directory `path`: relative to
    /// the home of the user, and that itself when empty; `~` and `~USER` are homes. Tasks and processes run on `runtime`.
    /// With `keep`, the tree outlives this process: another one that does the same goes on with nodes, open files and the
    /// connection.
    ///
    /// # Errors
    /// Why there is no connection, in ssh's own words; `ENOENT`, `ENOTDIR` or `EACCES` for the directory; `EUCLEAN` when
    /// `keep` has something else.
    pub async fn connect(
        host: &str,
        path: &[u8],
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        let ssh = Ssh { host: host.to_owned(), options: options.clone() };
        let kept = keep.map(Kept::open).transpose()?.map(Arc::new);
        Ok(Sftp(Arc::new(Inner::connect(Box::new(ssh), host, path, options, runtime, kept).await?)))
    }

    /// As [`Sftp::connect`] over connections that `dial` makes, to what is called `host`.
    ///
    /// # Errors
    /// As [`Sftp::connect`].
    pub async fn over(
        dial: Box<dyn Dial>,
        host: &str,
        path: &[u8],
        options: Options,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        Ok(Sftp(Arc::new(Inner::connect(dial, host, path, options, runtime, None).await?)))
    }

    /// The absolute path at the server of one that is relative to the home of the user who logged in; `~` and `~USER` are
    /// homes.
    ///
    /// # Errors
    /// `ENOENT` for a user that does not exist there, `EOPNOTSUPP` where the server does not say.
    pub async fn absolute(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.0.absolute(path).await
    }
}
