// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to do about a file that has the name already.

use super::options::{Deref, Existing};
use super::shared::Shared;
use super::target::arrow;
use crate::format::record::transfer;
use crate::messages::record;
use crate::say::{agrees, quoted};
use outrigger_client::Inode;
use outrigger_core::{FileKind, Name};

/// What has the name a copy should get.
pub(super) struct Conflict<'a> {
    pub(super) shared: &'a Shared,
    pub(super) source: &'a Inode,
    /// Where the source leads, if it is a symbolic link and an operand.
    pub(super) leads_to: Option<&'a Inode>,
    /// The directory and the name.
    pub(super) dir: &'a Inode,
    pub(super) name: &'a Name,
    /// The user named the destination, so that a symbolic link there is meant to be followed.
    pub(super) named: bool,
    pub(super) from: &'a [u8],
    pub(super) to: &'a [u8],
}

/// What is done about it.
pub(super) enum Decision {
    /// Nothing is copied; what had to be said has been said.
    Skip,
    /// The name is free now.
    Make,
    /// The content of this file is replaced.
    Into(Inode),
    /// The two directories are merged.
    Merge(Inode),
}

impl Conflict<'_> {
    /// Decides about `existing`; `followed` is where it leads when it is a symbolic link the user named.
    pub(super) fn decide(&self, existing: Inode, followed: Option<Inode>) -> Decision {
        if self.is_same(&existing, followed.as_ref()) {
            if !self.shared.options.hard_link {
                let (from, to) = (quoted(self.from), quoted(self.to));
                self.shared.complain(format_args!("{from} and {to} are the same file"));
            }
            return Decision::Skip;
        }
        let there = followed.as_ref().unwrap_or(&existing);
        if !self.source.is_dir() && self.stays(there) {
            return Decision::Skip;
        }
        match (self.source.is_dir(), there.is_dir()) {
            (true, true) => return Decision::Merge(followed.unwrap_or(existing)),
            (true, false) => {
                let (from, to) = (quoted(self.from), quoted(self.to));
                self.shared
                    .complain(format_args!("cannot overwrite non-directory {to} with directory {from}"));
                return Decision::Skip;
            }
            (false, true) => {
                self.shared.complain(format_args!(
                    "cannot overwrite directory {} with non-directory",
                    quoted(self.to)
                ));
                return Decision::Skip;
            }
            (false, false) => {}
        }
        if self.shared.options.existing == Existing::Ask {
            let question = format!("overwrite {}", quoted(self.to));
            if !self.shared.progress.aside(|| agrees(self.shared.options.command, &question)) {
                return Decision::Skip;
            }
        }
        self.replace(existing, followed)
    }

    fn is_same(&self, existing: &Inode, followed: Option<&Inode>) -> bool {
        let options = &self.shared.options;
        let there = followed.unwrap_or(existing);
        // A removed name does not take the file with it while it has others.
        let survives = options.remove_destination && existing.attr().nlink > 1;
        // A symbolic link must not take the place of the file it leads to.
        let leads_there = self.leads_to.is_some_and(|target| target.is_same(there));
        (self.source.is_same(there) && !survives) || leads_there
    }

    /// Whether the options leave `there` alone.
    fn stays(&self, there: &Inode) -> bool {
        let options = &self.shared.options;
        options.existing == Existing::Keep
            || (options.update && there.attr().mtime >= self.source.attr().mtime)
    }

    fn replace(&self, existing: Inode, followed: Option<Inode>) -> Decision {
        let options = &self.shared.options;
        let linked = options.preserve.links && existing.attr().nlink > 1;
        let special = options.deref == Deref::Never && self.source.kind() != FileKind::Regular;
        let links = (options.hard_link || options.symbolic_link) && options.force;
        if options.remove_destination || links || (!options.attributes_only && (linked || special)) {
            return self.remove(&existing);
        }
        if options.hard_link || options.symbolic_link || self.source.kind() != FileKind::Regular {
            // Creating it will fail with an error.
            return Decision::Make;
        }
        match (existing.kind(), followed) {
            (_, Some(target)) => Decision::Into(target),
            (FileKind::Symlink, None) if options.force => self.remove(&existing),
            (FileKind::Symlink, None) => {
                let kind = if self.named { "dangling symlink" } else { "symbolic link" };
                self.shared.complain(format_args!("not writing through {kind} {}", quoted(self.to)));
                Decision::Skip
            }
            (_, None) => Decision::Into(existing),
        }
    }

    fn remove(&self, existing: &Inode) -> Decision {
        if self.source.may_be_same(existing) {
            let (from, to) = (quoted(self.from), quoted(self.to));
            self.shared.complain(format_args!("{from} and {to} may be the same file: {to} is not removed"));
            return Decision::Skip;
        }
        match self.dir.unlink(self.name) {
            Ok(()) => {
                if self.shared.options.verbose && !self.shared.options.json && !self.shared.options.moving {
                    self.shared.say(format!("removed {}", quoted(self.to)));
                }
                Decision::Make
            }
            Err(error) => {
                self.shared.cannot("cannot remove", self.to, &error);
                Decision::Skip
            }
        }
    }
}

/// `'from' -> 'to'`, or the same as JSON.
pub(super) fn announcement(shared: &Shared, source: &Inode, from: &[u8], to: &[u8]) -> String {
    let options = &shared.options;
    if options.json {
        return record(&transfer(source.attr(), from, to)).trim_end().to_owned();
    }
    match (options.moving, source.is_dir()) {
        (true, true) => format!("created directory {}", quoted(to)),
        (true, false) => format!("copied {}", arrow(from, to)),
        (false, _) => arrow(from, to),
    }
}
