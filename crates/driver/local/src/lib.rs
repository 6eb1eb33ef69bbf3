// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of the host as a tree, never left.
//!
//! [`Local`] is a [`BlockingDriver`](outrigger_core::BlockingDriver) over the host's own system calls. Calls that a
//! local disk answers at once run on the thread that asks; what waits for stable storage or moves much data does not
//! (see its [`Prompt`](outrigger_core::Prompt)).
//!
//! # Never left
//!
//! A name is one component, looked up relative to the descriptor of its directory; neither `..` nor a path occurs.
//! Symbolic links are passed on verbatim and never followed. Only regular files and directories are opened, so that no pipe
//! waits and no device acts. A node known by path is resolved by openat2(2) beneath the root without any link, and is
//! used only when the inode there is the one it was given to.
//!
//! # Identity
//!
//! | where | nodes are | they survive |
//! |---|---|---|
//! | as root (`CAP_DAC_READ_SEARCH`), on ext4, xfs, btrfs, f2fs, tmpfs | inode number and generation: a file handle in 64 bits | everything, without any memory |
//! | elsewhere, without privileges, or with `handles=off` | slots of a [`NodeTable`] | a restart, if the table does ([`Local::open_with_keep`]) |
//! | on file systems mounted below the directory | slots of the table | as above |
//!
//! With handles, a number that a client made up may name any file of the same file system. Kernels do not make up
//! numbers; a door that takes them from strangers has to authenticate them, or to be given `handles=off`.
//!
//! A name removed by others leaves its node `ESTALE`; for opening it also while a descriptor of it is kept. A name removed through this
//! driver leaves the node alive until it is forgotten: by path always, with handles while its descriptor stays among the
//! [`LocalOptions::descriptors`] last used.
//!
//! # When the process dies
//!
//! [`Local::open_with_keep`] puts what has to outlive the process into a [`Keep`]: the nodes known by path, and the
//! descriptors of open files and directories, of removed files that somebody refers to by path, and of the directory
//! served. A process that takes over has the same nodes and the same handles, listings go on after the cookie they had
//! reached, and a handle that was closed stays closed. At most 65,536 files and directories are open at once then; one
//! more is refused with `ENFILE` before anything is made. It costs a few stores and no system call.
//!
//! What a death at the worst moment leaves: a descriptor without an owner, one a thread at most; and the handle of
//! a request whose reply never arrived, open until the mount ends. With handles, a removed file that is not open is
//! `ESTALE` afterwards.
//!
//! # System calls
//!
//! With handles, and with directories among the descriptors kept:
//!
//! | operation | calls |
//! |---|---|
//! | lookup | name_to_handle_at, statx |
//! | getattr | statx (open_by_handle_at first, when the node's descriptor is not kept) |
//! | open, release | open_by_handle_at, fstat when passthrough is on; close |
//! | create | openat, name_to_handle_at, statx |
//! | mkdir, mknod, symlink, link | the call, name_to_handle_at, statx |
//! | unlink, rmdir, rename over a file | name_to_handle_at, open_by_handle_at, the call |
//! | read, write | pread (or none, when the door splices), pwrite |
//! | readdir; readdirplus | getdents64 for 16 KiB of names; and name_to_handle_at, statx for each |
//!
//! By path, lookup and getattr are one statx; listxattr is listxattrat(2) (before Linux 6.13, llistxattr through
//! `/proc/self/fd`) and statx; open is openat2, statx and openat through `/proc/self/fd`.
//!
//! # Credentials
//!
//! As root, new files are made with the caller's user and group as the thread's own, so that the host decides about
//! set-group-id directories, default ACLs and quotas; four calls more, and none for root. A umask that a request carries is
//! the thread's own for that call, two more: a default access list takes its place. Whether a caller may do what it
//! asks is the door's to decide (FUSE: `default_permissions`). Without privileges everything happens as ourselves, and
//! the host decides. `trusted` attributes exist for root only.
//!
//! # Limits
//!
//! * [`Local::open`] sets the umask of the process to 0: requests carry modes, and the umask where it matters.
//! * Locks are not served. A kernel then keeps those of its own clients, with all rules of POSIX, but programs that work
//!   in the directory beside the door do not see them.
//! * Where handles are used, closing a file asks for nothing: a delayed write error of a network file system mounted below
//!   the directory shows at fsync(2) only.
//! * Two files on different mounts below the directory may show the same inode number; their nodes differ.
//! * With `xdev=off` mounts below the directory are not seen at all: the driver works on a copy of its mount.
//! * ioctl(2) knows the attribute flags of chattr(1) and xfs_io(8) only (`FS_IOC_GETFLAGS`, `FS_IOC_FSGETXATTR` and their
//!   counterparts).
//! * `O_DIRECT` is not passed to the host; change times cannot be set.
//! * A file moved by others keeps its node with handles; by path it is found again when somebody looks.
#![deny(unsafe_code)]

mod attr;
mod caller;
mod dir;
mod fd_cache;
mod file;
mod fileattr;
mod handle;
mod handles;
mod held;
mod node_set;
mod open;
mod ops;
mod options;
mod packing;
mod paths;
mod setattr;
mod tree;
mod xattr;

pub use options::{DRIVER, LocalOptions, OPTIONS};

use crate::caller::Callers;
use crate::handles::Handles;
use crate::held::HeldNodes;
use crate::open::Open;
use crate::tree::Tree;
use outrigger_core::{Keep, Node, NodeTable, Result};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of the host, served as a tree.
#[derive(Debug)]
pub struct Local {
    path: PathBuf,
    options: LocalOptions,
    tree: Tree,
    callers: Callers,
    open: Handles<Open>,
    /// The host keeps access lists here.
    acl: bool,
}

/// Room for the nodes known by path, in words; taken as it fills.
const TABLE_WORDS: usize = 1 << 26;
/// How many files and directories may be open where a keep holds them; and how many removed ones it holds.
const OPEN_MAX: usize = 1 << 16;

impl Local {
    /// Serves the directory at `path`.
    ///
    /// Sets the process's umask to 0, because requests carry the mode of what they create, and the umask.
    ///
    /// # Errors
    /// Why `path` cannot be opened as a directory.
    pub fn open(path: impl AsRef<Path>, options: LocalOptions) -> Result<Self> {
        Local::open_with(path.as_ref(), options, None)
    }

    /// As [`Local::open`], with what has to outlive this process in `keep`: nodes known by path, open files and
    /// directories with their handles, the directory itself. What a former process left there is taken over.
    ///
    /// # Errors
    /// As [`Local::open`]; those of [`NodeTable::attach`](outrigger_core::NodeTable::attach); `EUCLEAN` when a region
    /// holds something else.
    pub fn open_with_keep(
        path: impl AsRef<Path>,
        options: LocalOptions,
        keep: Arc<dyn Keep>,
    ) -> Result<Self> {
        Local::open_with(path.as_ref(), options, Some(keep))
    }

    fn open_with(path: &Path, options: LocalOptions, keep: Option<Arc<dyn Keep>>) -> Result<Self> {
        let table = match &keep {
            Some(keep) => NodeTable::attach(keep.region("local-nodes", TABLE_WORDS)?)?,
            None => NodeTable::in_memory(TABLE_WORDS * 8)?,
        };
        let tree = Tree::open(path, &options, table, HeldNodes::open(keep.clone(), OPEN_MAX)?)?;
        let open = Handles::open(keep, "local-files", OPEN_MAX)?;
        rustix::process::umask(rustix::fs::Mode::empty());
        let acl = options.xattr && xattr::keeps_acl(tree.at(Node::ROOT)?.as_fd());
        Ok(Local { path: path.to_path_buf(), options, tree, callers: Callers::new(), open, acl })
    }
}
