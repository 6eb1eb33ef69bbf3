// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of 9P servers, over TCP or a socket of this machine: 9P2000.L as diod, QEMU and others have it, 9P2000.u, and 9P2000 of Plan 9.
//!
//! [`NineP`] is an asynchronous [`Driver`](outrigger_core::Driver) on `outrigger-proto-ninep`, a codec of ours, the multiplexer, and
//! the toolkit for drivers of servers.
//!
//! | file | what it does |
//! |---|---|
//! | `wire.rs` | a connection: tags, fids, calls, walks |
//! | `dialect/` | what is asked in each dialect, and how it is agreed: `linux.rs`, `plain.rs`; `stat.rs`, `people.rs` and `errors.rs` say what 9P2000 means |
//! | `link.rs` | where a server is; connecting, also again; what it calls its trees |
//! | `inner.rs` | finding files, attributes |
//! | `near.rs` | where walks begin |
//! | `late.rs` | replies about names that were changed since |
//! | `names.rs` | making, moving and removing names |
//! | `hidden.rs` | files that are removed while they are open |
//! | `files.rs` | opening, reading, writing, attributes |
//! | `xattrs.rs` | extended attributes |
//! | `opened.rs` | open files, and opening them again |
//! | `locks.rs`, `lock_state.rs` | locks, here and at the server |
//! | `dirs.rs` | listings |
//! | `convert.rs` | attributes, errors |
//!
//! # What is asked
//!
//! Each request walks to its file (`Twalk`, 16 names at a time), from the nearest directory that was found a moment ago or from the root, and gives the
//! fid back (`Tclunk`) without waiting for the answer.
//! `Tgetattr`, or `Tstat`, goes out with the walk. A server that begins with it before the walk is done, as diod does, answers with an error, or with the
//! attributes of another file, which its `qid` tells; it is asked behind the walk from then on. So a lookup takes one round trip, or two, and
//! so do the attributes of up to 256 names of a directory, since a listing of 9P2000.L has none (`Treaddir`): who needs names and kinds alone is
//! told of that ([`Abilities::plus_asks_each`](outrigger_core::Abilities::plus_asks_each)). Listings of the other dialects have them: these are used for a second, as long as nothing is changed here. Open files keep fids of their own.
//!
//! As root, where users have numbers, each request is made as the user who asks, by an attach of that user; otherwise as the user of this process, or with
//! `uid=N` as that one. The superuser has a connection apart: on one by which the superuser has attached, diod lets every user do everything.
//! Each open is decided by the server, also of a file whose content is cached.
//!
//! # Dialects
//!
//! 9P2000.L is asked for first, then 9P2000.u, then 9P2000, or with `dialect=` only one of them. The first that the server agrees to is spoken
//! as long as the tree is there, also on later connections. What a dialect does not have is not among the operations of the tree, so that what
//! is above simulates or refuses it:
//!
//! | | 9P2000.L | 9P2000.u | 9P2000 |
//! |---|---|---|---|
//! | symbolic links, hard links, devices, pipes | yes | yes | no: the server follows symbolic links, if it has any |
//! | set-id bits and sticky bit | yes | yes | `EPERM` |
//! | users and groups | numbers | numbers | names: `uname` is the user here, others those of this system's user database, a number, or nobody |
//! | changing the owner | yes | yes | `EPERM`; the group by its name |
//! | requests are made as | each user, as root | each user, as root | one user |
//! | times | nanoseconds | seconds, from 1970 to 2106: `cp -a` and others lose the fraction without a word | the same; the time of access is the server's |
//! | numbers of links, times of the last change of attributes | yes | 1; that of the content | as 9P2000.u |
//! | renaming between directories | yes | `EXDEV` | `EXDEV` |
//! | extended attributes, locks at the server, size of the file system | yes | no | no |
//!
//! * The dialects besides 9P2000.L rename within a directory by `Twstat`. Servers on Unix replace the file of the new name. Where the server
//!   refuses that with an error that means `EEXIST`, as those of Plan 9, that file is renamed to `.outrigger-replaced-` and a number and removed when the new one has its
//!   name: for a moment nothing has it, and an error says where it is if it stays.
//! * `Tcreate` looks for the name first, since some servers empty a file that is there.
//! * The mode of something new is what the server makes of it: Plan 9 takes away what the directory does not have.
//! * A file that the server only appends to (`DMAPPEND`) is opened for writing with `O_APPEND` only, past caches, and written in order; what
//!   may have been written by a lost connection is not written again.
//! * `fsync` changes nothing by `Twstat`, which stores a file. A server that refuses that has no such thing.
//! * There is no login (`Tauth`).
//! * In 9P2000 a symbolic link to a directory looks like that directory, where the server follows it (u9fs): `rm -r` removes what is there.
//!
//! # Names of trees
//!
//! A server that attaches to the empty name has one tree, and paths are paths in it. Otherwise a path begins with the name of a tree:
//! the shortest beginning that the server attaches to. Directories above that can be passed but not listed, since the protocol
//! does not tell what trees there are: a server that answers `ENOENT` has nothing by that name nor below it, and one that answers
//! `EACCES` does not let this user in. Others, such as diod, answer `EPERM` in either case. `aname=NAME` names the tree, and paths are paths in it.
//! As root a port below 1024 is used, which is what `outrigger serve 9p` takes without `--insecure`.
//!
//! # When the connection is lost
//!
//! Requests that change nothing, and writes, are made again on the next connection. Open files are opened again by their paths, if these
//! lead to the same file: the same `qid.path`, which a server may have given to another file since, and a size and a time of change as they were
//! last seen, or as changes of this client have made them (see `known` of the toolkit). Otherwise all that is done by them is `ESTALE`.
//! A change whose reply was lost is not made again: it fails with `EIO`, and may have been made. A request that its caller gives up is
//! taken back (`Tflush`). A server that is silent for `timeout=` costs that much, once for an operation.
//!
//! # New files, and files that are closed
//!
//! What a server opens in place of a new file is written to only if it is a regular file without content, of one name, and the one that the
//! server tells attributes of; otherwise there was a file, which is opened by its name or is `EEXIST` with `O_EXCL`, or it is `EIO`. A file that was open for
//! writing is closed at the server (`Tclunk`) before its release is answered, which has the error that the server answers. In a mount close(2)
//! comes before that: it does not have the error, and with `write=behind` it is a loss.
//!
//! # Files that lose their names
//!
//! A file that is open here when its last name is removed or given to another file is renamed to `.outrigger-removed-` and a number, and
//! removed when it is closed:
//! diod looks for attributes of an open file under the name that it had. One that another client removes has its content, no attributes,
//! and cannot be opened again.
//!
//! # Locks
//!
//! Locks of fcntl(2) and flock(2) hold among the clients of the server. It has one table of them, so a lock of the one kind is in the way of
//! the other kind at another client (not on this machine). It answers at once: what waits here asks again, after 20 ms at first and every second at
//! last, until a signal ends that; who waits longest need not be first, and a circle of waiting clients is not noticed (`EDEADLK`). diod locks whole
//! files, whatever range it is asked for; QEMU grants everything. Where a server or its dialect has no such request, and with `locks=local`, locks hold among
//! the programs of one mount; `locks=server` makes that `ENOLCK`.
//!
//! Through a mount, what an open file has locked by itself (`F_OFD_SETLK`) ends later than with close(2), at the latest when no program has the file open:
//! the kernel says nothing of it before. What a process has locked ends at once.
//!
//! A server gives back the locks of a connection that is lost. Another one is made at once, within `timeout=`, and they are taken again,
//! in any case before anything is done by the open file, which must not have been changed meanwhile. Where another client has got one of them, all that is done by files that were open then is
//! `ESTALE`, and their locks are gone; opening them anew helps. A process that takes over takes locks again in the same way.
//!
//! # What the protocol cannot do
//!
//! * Servers may take an empty extended attribute for none: diod and QEMU do, `outrigger serve 9p` does not. It is looked at afterwards, and
//!   where it is gone, `EINVAL` says so; it then has the value again that it had.
//! * No exchange of names; `RENAME_NOREPLACE` looks first. No holes and no preallocation.
//! * Appending asks for the size first: of two clients that append at once one may write over the other.
//! * Nothing is encrypted, and the server believes the numbers of users: there is no login.
#![forbid(unsafe_code)]

mod convert;
mod dialect;
mod dirs;
mod files;
mod hidden;
mod inner;
mod late;
mod link;
mod lock_state;
mod locks;
mod names;
mod near;
mod opened;
mod ops;
mod options;
mod wire;
mod xattrs;

pub use options::{OPTIONS, Options, Where};

use crate::inner::Inner;
use crate::link::Place;
use crate::options::is_dangerous;
use outrigger_core::registry::{DriverInfo, Follows, Given, Lasts, Scheme, Site};
use outrigger_core::{Error, Keep, Result, Runtime, Serve, Service};
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "9p",
    opens: "trees of 9P servers (9P2000.L, 9P2000.u, 9P2000)",
    location: "9p://[USER@]HOST[:PORT]/PATH, 9p:unix:SOCKET/PATH",
    writable: true,
    options: &[&OPTIONS],
    is_dangerous,
    cached: true,
    schemes: &[Scheme { name: "9p", follows: Follows::Authority, lasts: Lasts::Stored, open }],
    ..DriverInfo::NONE
};

fn open(at: &str, given: &dyn Given, site: &Site<'_>) -> Result<Arc<dyn Service>, Error> {
    let mut options = Options::default();
    options.timeout = site.limit(options.timeout);
    given.apply(&mut |key, value| options.set(key, value))?;
    let at = at.strip_suffix("//").unwrap_or(at);
    let (runtime, keep) = (Arc::clone(site.runtime), site.keep.cloned());
    Place::parse(at)?;
    let opened = site.wait_for(NineP::connect(at.to_owned(), options, runtime, keep))?;
    Ok(Arc::new(Serve(opened)))
}

/// A tree of a 9P server.
#[derive(Clone)]
pub struct NineP(Arc<Inner>);

impl NineP {
    /// Serves what the server at `[USER@]HOST[:PORT]`, or at `unix:` and the path of a socket with `%2F` for its slashes, has. Tasks
    /// run on `runtime`. With `keep`, the tree outlives this process.
    ///
    /// # Errors
    /// Why the server is not reached, or does not let this user in; `EPROTO` where it does not speak 9P, or not the dialect that is wanted; `EUCLEAN` when `keep` has
    /// something else.
    pub async fn connect(
        at: String,
        options: Options,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        let place = Place::parse(&at)?;
        Inner::connect(place, options, runtime, keep).await.map(NineP)
    }
}
