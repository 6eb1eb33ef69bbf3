// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes, in the order in which they survive: owner, extended attributes, then mode and times.
//!
//! Changing the owner clears set-id bits and capabilities, so it comes first; everything changes the times, so they
//! come last.

use super::shared::{Shared, is_refusal};
use outrigger_client::{File, Inode};
use outrigger_core::attr::SET_ID;
use outrigger_core::ops::XattrFlags;
use outrigger_core::{Attr, Errno, Error, FileKind, Result, SetAttrs, SetTime, XattrName};

/// Set-id bits and the sticky bit: not kept by a file whose owner could not be kept.
const SPECIAL: u32 = 0o7000;

/// Bits withheld from a new file until it has its owner, lest the wrong group reads it.
pub(super) fn withheld(shared: &Shared, kind: FileKind) -> u32 {
    match (shared.options.preserve.ownership, kind) {
        (true, _) => 0o077,
        (false, FileKind::Directory) if shared.options.preserve.mode => 0o022,
        (false, _) => 0,
    }
}

/// Why `source` is not made again when it is a device node of another tree: the author of an archive or image chose it, and for
/// root it would open a device of this machine. Where everything is kept, that is what was asked for.
pub(super) fn refused_device(shared: &Shared, source: &Inode) -> Option<Error> {
    let device = matches!(source.kind(), FileKind::BlockDevice | FileKind::CharDevice);
    let refused =
        device && !shared.options.preserve.ownership && source.client().abilities().driver != "local";
    refused.then(|| Errno::EPERM.because("a device node from another tree is made with -a only"))
}

/// The mode `target` ends with, given the source's; `None` when the one it was made with stays.
fn final_mode(shared: &Shared, source: &Attr, made: Option<u32>, target: &Attr) -> Option<u32> {
    let preserve = &shared.options.preserve;
    let wanted = if preserve.mode {
        source.permissions()
    } else if preserve.default_mode {
        made?;
        let default = if source.is_dir() { 0o777 } else { 0o666 };
        (default & !shared.umask) | (target.permissions() & 0o1000)
    } else {
        // The set-gid bit of a directory comes from its parent.
        (made? & !shared.umask) | (target.permissions() & SET_ID)
    };
    Some(wanted)
}

/// A copy that gets its attributes: through its open file where there is one, which spares finding it again.
pub(super) struct Copied<'a> {
    pub(super) inode: &'a mut Inode,
    pub(super) file: Option<&'a File>,
}

impl Copied<'_> {
    fn attr(&self) -> &Attr {
        self.inode.attr()
    }

    fn set(&mut self, attrs: SetAttrs) -> Result<()> {
        match self.file {
            Some(file) => self.inode.set_through(file, attrs).map(drop),
            None => self.inode.set(attrs).map(drop),
        }
    }
}

/// Gives `target` the attributes of `source` that are to be kept. `made` is the mode a new file was meant to get
/// before the umask; `None` for a file that was there already.
pub(super) fn preserve(
    shared: &Shared,
    source: &Inode,
    mut target: Copied<'_>,
    made: Option<u32>,
    to: &[u8],
) {
    let kind = source.kind();
    let mut mode = final_mode(shared, source.attr(), made, target.attr());
    if shared.options.preserve.ownership && !owner(shared, source.attr(), &mut target, to) {
        mode = mode.map(|mode| mode & !SPECIAL);
    }
    xattrs(shared, source, target.inode, to);
    let mut attrs = SetAttrs::default();
    if kind != FileKind::Symlink {
        attrs.mode = mode.filter(|&mode| mode != target.attr().permissions() || mode & SPECIAL != 0);
    }
    if shared.options.preserve.timestamps {
        attrs.atime = Some(SetTime::To(source.attr().atime));
        attrs.mtime = Some(SetTime::To(source.attr().mtime));
    }
    let (times, mode) = (SetAttrs { mode: None, ..attrs.clone() }, attrs.mode);
    let both = mode.is_some() && times != SetAttrs::default();
    let name = |times| if times { "preserving times for" } else { "preserving permissions for" };
    match target.set(attrs.clone()) {
        // The one may be possible without the other.
        Err(error) if both && is_refusal(&error) => {
            for (part, is_times) in [(SetAttrs { mode, ..SetAttrs::default() }, false), (times, true)] {
                if let Err(error) = target.set(part) {
                    shared.not_kept(name(is_times), to, &error);
                }
            }
        }
        Err(error) => shared.not_kept(name(shared.options.preserve.timestamps), to, &error),
        Ok(()) => {}
    }
}

/// Keeps owner and group as far as that is permitted; whether both are kept.
fn owner(shared: &Shared, source: &Attr, target: &mut Copied<'_>, to: &[u8]) -> bool {
    let now = target.attr();
    if (now.uid, now.gid) == (source.uid, source.gid) {
        return true;
    }
    let both = SetAttrs { uid: Some(source.uid), gid: Some(source.gid), ..SetAttrs::default() };
    match target.set(both) {
        Ok(()) => true,
        Err(error) if matches!(error.errno, Errno::EPERM | Errno::EINVAL | Errno::EOPNOTSUPP) => {
            // Only root gives files away; a group one is a member of may still be kept.
            let group = SetAttrs { gid: Some(source.gid), ..SetAttrs::default() };
            drop(target.set(group));
            if is_root() {
                shared.not_kept("failed to preserve ownership for", to, &error);
            }
            false
        }
        Err(error) => {
            shared.not_kept("failed to preserve ownership for", to, &error);
            false
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Which preserve option an attribute belongs to: lists are permissions.
pub fn is_acl(name: &XattrName) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// Attributes in which XFS shows what has another name, too, as xattr.conf(5) of libattr has them.
const NOT_COPIED: [&[u8]; 2] = [b"trusted.SGI_", b"xfsroot."];

fn xattrs(shared: &Shared, source: &Inode, target: &Inode, to: &[u8]) {
    let preserve = &shared.options.preserve;
    if !preserve.mode && !preserve.xattr {
        return;
    }
    let names = match source.xattrs() {
        Ok(names) => names,
        Err(error) if error.errno == Errno::EOPNOTSUPP => return,
        Err(error) if preserve.require_xattr => return shared.cannot("listing attributes of", to, &error),
        Err(_) => return,
    };
    for name in names {
        if NOT_COPIED.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let wanted = if is_acl(&name) { preserve.mode } else { preserve.xattr };
        if !wanted {
            continue;
        }
        match copy_xattr(source, target, &name) {
            Ok(()) => {}
            Err(error) if is_acl(&name) => shared.cannot("preserving permissions for", to, &error),
            Err(error) if preserve.require_xattr || is_lost(&name, &error) => {
                shared.cannot(&format!("setting attribute '{name}' for"), to, &error);
            }
            Err(_) => {}
        }
    }
}

/// Whether an attribute that a user has given a file is lost by a tree that has such attributes, but not this one. GNU's `cp -a` says
/// nothing of that.
fn is_lost(name: &XattrName, error: &Error) -> bool {
    name.starts_with(b"user.") && error.errno != Errno::EOPNOTSUPP
}

fn copy_xattr(source: &Inode, target: &Inode, name: &XattrName) -> Result<()> {
    match source.xattr(name) {
        Ok(value) => target.set_xattr(name, value, XattrFlags::empty()),
        // It was removed after it was listed.
        Err(error) if error.errno == Errno::ENODATA => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes away the access control lists a file got from its directory, so that its mode alone decides.
pub(super) fn drop_inherited_acl(shared: &Shared, source: &Inode, target: &Inode, to: &[u8]) {
    let Ok(own) = source.xattrs() else { return };
    let Ok(names) = target.xattrs() else { return };
    for name in names.iter().filter(|name| is_acl(name) && !own.contains(name)) {
        if let Err(error) = target.remove_xattr(name)
            && error.errno != Errno::ENODATA
        {
            shared.cannot("preserving permissions for", to, &error);
        }
    }
}
