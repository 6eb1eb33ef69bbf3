// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of an NFS server as a tree: NFS version 3 over TCP (RFC 1813), with MOUNT and the portmapper.
//!
//! [`Nfs`] is an asynchronous [`Driver`](outrigger_core::Driver) on `outrigger-proto-nfs3`, a codec of ours, the multiplexer, and the
//! toolkit for drivers of servers. Design: `docs/design/0022-nfs-client.md`.
//!
//! | file | what it does |
//! |---|---|
//! | `link.rs` | calls, by `RpcClient` of the toolkit |
//! | `exports.rs` | the MOUNT program, the directories above exports, exports in others |
//! | `inner.rs` | finding files, attributes |
//! | `names.rs` | making, moving and removing names; files that are removed while they are open |
//! | `content.rs` | opening, reading, writing |
//! | `unstable.rs` | writing and COMMIT, for `Uncommitted` of the toolkit |
//! | `dirs.rs` | listings |
//! | `convert.rs` | attributes, errors |
//!
//! # What is asked
//!
//! | operation | asks |
//! |---|---|
//! | listing a directory | READDIRPLUS, which brings attributes and handles: nothing for single files; READDIR where the server has only that |
//! | lookup, getattr, access | LOOKUP, GETATTR, ACCESS |
//! | opening | ACCESS; SETATTR to empty the file |
//! | creating | CREATE: guarded, or exclusive and SETATTR |
//! | reading, writing | READ, WRITE in pieces of what the server likes (FSINFO), side by side |
//! | close, fsync, syncfs | COMMIT, where content is not on stable storage yet |
//!
//! Each request is made as the user who asks, with the user's groups: 16 of them. Content is read and written as the user who
//! opened the file.
//!
//! # When the connection is lost
//!
//! Calls are made again with their numbers on the next connection, `retrans=N` times or, with `hard`, until there is an answer. Content
//! that the server has not put on stable storage is kept until COMMIT, and written again where the server has restarted. Removing,
//! moving and linking are success when the outcome shows that the lost call was carried out; MKDIR, SYMLINK and MKNOD may fail with
//! `EEXIST` then. A server that is silent costs `ETIMEDOUT`.
//!
//! # When this process is killed
//!
//! With a [`Keep`] the next process goes on with nodes, handles and open files on a new connection. Content
//! that the server had acknowledged and not stored is there unless the server has restarted as well: then the next close(2) or fsync(2)
//! fails with `EIO`. Of the groups of a user who has a file open five are known to the next process.
//!
//! # What the protocol cannot do
//!
//! * No locks at the server (NLM is not there): locks hold on this machine. No extended attributes, access lists, holes or
//!   preallocation; no exchange of names; `RENAME_NOREPLACE` looks first.
//! * Appending asks for the size first: of two clients that append at once one may write over the other.
//! * A file that is open and loses its last name is renamed to `.outrigger-removed-` and a number, and removed when it is closed.
//! * Only `AUTH_SYS`: nothing is encrypted, and the server believes the numbers of users.
#![forbid(unsafe_code)]

mod content;
mod convert;
mod dirs;
mod exports;
mod inner;
mod link;
mod names;
mod ops;
mod options;
mod unstable;

pub use options::{OPTIONS, Options};

use crate::inner::Inner;
use outrigger_core::registry::{DriverInfo, Follows, Given, Lasts, Scheme, Site};
use outrigger_core::{Errno, Error, Keep, Result, Runtime, Serve, Service};
use outrigger_toolkit_remote::Authority;
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "nfs",
    opens: "exports of NFS servers (version 3 over TCP)",
    location: "nfs://HOST[:PORT]/EXPORT/PATH; nfs://HOST/ has all exports",
    writable: true,
    options: &[&OPTIONS],
    cached: true,
    schemes: &[Scheme { name: "nfs", follows: Follows::Authority, lasts: Lasts::Stored, open }],
    ..DriverInfo::NONE
};

fn open(at: &str, given: &dyn Given, site: &Site<'_>) -> Result<Arc<dyn Service>, Error> {
    let mut options = Options::default();
    options.timeout = site.limit(options.timeout);
    given.apply(&mut |key, value| options.set(key, value))?;
    let (server, runtime, keep) = (Authority::parse(at)?, Arc::clone(site.runtime), site.keep.cloned());
    if server.user.is_some() {
        return Err(Errno::EINVAL.because(
            "nfs: nobody logs in, so no USER@ stands before the host: requests are made as the user who asks",
        ));
    }
    options.port = options.port.or(server.port);
    let opened = site.wait_for(Nfs::connect(server.host, None, options, runtime, keep))?;
    Ok(Arc::new(Serve(opened)))
}

/// Exports of an NFS server, served as a tree.
#[derive(Clone)]
pub struct Nfs(Arc<Inner>);

impl Nfs {
    /// Serves the directory `path` of `host`, which is an export or below one; without `path` all that the host exports, each at its
    /// path. Tasks run on `runtime`. With `keep`, the tree outlives this process.
    ///
    /// # Errors
    /// Why the server is not reached, or does not let the directory be mounted; `EUCLEAN` when `keep` has something else.
    pub async fn connect(
        host: String,
        path: Option<&[u8]>,
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        Inner::connect(host, path, options, runtime, keep).await.map(Nfs)
    }

    fn shown(&self) -> String {
        let port = self.0.options.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("nfs://{}{port}{}", self.0.rpc.host(), String::from_utf8_lossy(&self.0.base))
    }
}
