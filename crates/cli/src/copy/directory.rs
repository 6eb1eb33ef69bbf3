// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory copies go into.

use super::attrs;
use super::shared::Shared;
use outrigger_client::Inode;
use std::sync::Arc;

/// A directory copies go into, held by the walker while it is in it and by each file on its way into it.
pub(super) struct Directory {
    pub(super) inode: Inode,
    /// Nothing but what we put there is in it: it was made just now.
    pub(super) fresh: bool,
    /// New files in it get access control lists of its own.
    pub(super) default_acl: bool,
    finish: Option<Finish>,
    above: Option<Arc<Directory>>,
}

/// What is to be done once nothing more goes into a directory.
pub(super) struct Finish {
    pub(super) source: Arc<Inode>,
    /// The mode it was meant to get before the umask, if it is new.
    pub(super) made: Option<u32>,
    pub(super) to: Vec<u8>,
}

impl Directory {
    /// A directory nothing has to be done about in the end.
    pub(super) fn existing(inode: Inode, shared: &Shared) -> Arc<Self> {
        let default_acl = has_default_acl(&inode, shared);
        Arc::new(Directory { inode, fresh: false, default_acl, finish: None, above: None })
    }

    /// A directory that gets its attributes once its content is complete.
    pub(super) fn copied(
        inode: Inode,
        finish: Finish,
        above: Option<Arc<Directory>>,
        shared: &Shared,
    ) -> Arc<Self> {
        let default_acl = has_default_acl(&inode, shared);
        Arc::new(Directory { inode, fresh: finish.made.is_some(), default_acl, finish: Some(finish), above })
    }

    /// Releases a reference to a directory. The last release finishes it, and releases its parent.
    pub(super) fn release(this: Arc<Self>, shared: &Shared) {
        let mut next = Some(this);
        while let Some(Directory { mut inode, finish, above, default_acl, .. }) =
            next.and_then(Arc::into_inner)
        {
            if let Some(Finish { source, made, to }) = finish
                && !shared.cancel.is_raised()
            {
                if default_acl && shared.options.preserve.mode && made.is_some() {
                    attrs::drop_inherited_acl(shared, &source, &inode, &to);
                }
                let copied = attrs::Copied { inode: &mut inode, file: None };
                attrs::preserve(shared, &source, copied, made, &to);
            }
            next = above;
        }
    }
}

fn has_default_acl(inode: &Inode, shared: &Shared) -> bool {
    shared.options.preserve.mode
        && inode
            .xattrs()
            .is_ok_and(|names| names.iter().any(|name| name.as_bytes() == b"system.posix_acl_default"))
}
