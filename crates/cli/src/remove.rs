// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removing files and directories with everything in them, for `rm` and for `mv` between trees.
//!
//! Every name is removed from the node of its directory, never by a path, and no symbolic link is followed: a
//! program that renames directories meanwhile cannot redirect the removal.

use crate::context::{Context, Place};
use crate::copy::target::shown;
use crate::descent::{Descent, Step};
use crate::format::mode::kind_name;
use crate::messages::announce;
use crate::say::{agrees, quoted};
use crate::status::Status;
use outrigger_client::Inode;
use outrigger_core::{Errno, Error, FileKind, Name};
use std::io::{IsTerminal, stdin};

/// When the user is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Never.
    Never,
    /// Before what may not be written to, if there is a user to ask.
    WriteProtected,
    /// Before everything.
    Always,
}

/// Removes files.
pub struct Remover<'c> {
    /// Where problems are reported.
    pub context: &'c Context,
    /// When the user is asked.
    pub ask: Ask,
    /// Directories are removed with their content.
    pub recursive: bool,
    /// Empty directories are removed.
    pub dir: bool,
    /// Each file is named on standard output.
    pub verbose: bool,
}

impl Remover<'_> {
    /// Removes `name` of `dir`, which is `inode` and what `place` leads to; whether it is gone.
    pub fn remove(&self, place: &Place, dir: &Inode, name: &Name, inode: Inode) -> bool {
        let descent = Descent::new(place.clone(), false);
        let mut removal =
            Removal { remover: self, operand: (dir, name), descent, stays: Vec::new(), gone: false };
        removal.found(inode);
        while let Some(step) = removal.descent.step() {
            if self.context.cancel.is_raised() {
                return false;
            }
            match step {
                Step::Found(inode) => removal.found(inode),
                Step::Failed(error) | Step::Unreadable(error) => {
                    self.cannot(removal.shown(), &error);
                    removal.is_gone(false);
                }
                Step::Left(inode) => removal.left(&inode),
            }
        }
        removal.gone
    }

    fn cannot(&self, shown: &[u8], error: &Error) {
        if !(error.errno == Errno::EINTR && self.context.cancel.is_raised()) {
            self.context.complain(Status::Minor, format_args!("cannot remove {}: {error}", quoted(shown)));
        }
    }

    fn asks(&self, inode: &Inode) -> bool {
        match self.ask {
            Ask::Never => false,
            Ask::Always => true,
            Ask::WriteProtected => {
                inode.kind() != FileKind::Symlink && stdin().is_terminal() && !may_write(inode)
            }
        }
    }

    fn agrees(&self, inode: &Inode, shown: &[u8], verb: &str) -> bool {
        if !self.asks(inode) {
            return true;
        }
        let protected = inode.kind() != FileKind::Symlink && !may_write(inode);
        let protected = if protected { "write-protected " } else { "" };
        let kind = kind_name(inode.attr().mode, inode.attr().size);
        agrees(self.context.command, &format!("{verb} {protected}{kind} {}", quoted(shown)))
    }

    fn remove_file(&self, dir: &Inode, name: &Name, inode: Inode, shown: &[u8]) -> bool {
        if !self.agrees(&inode, shown, "remove") {
            return false;
        }
        // A tree has to keep a removed file as long as a client refers to it.
        drop(inode);
        self.done(dir.unlink(name), "removed", shown)
    }

    fn done(&self, result: Result<(), Error>, what: &str, shown: &[u8]) -> bool {
        match result {
            Ok(()) => {
                if self.verbose {
                    announce(format_args!("{what} {}", quoted(shown)));
                }
                true
            }
            // Another process removed it after it was listed.
            Err(error) if error.errno == Errno::ENOENT => true,
            Err(error) => {
                self.cannot(shown, &error);
                false
            }
        }
    }

    fn removes_empty(&self, dir: &Inode, name: &Name, inode: &Inode, shown: &[u8]) -> bool {
        if !self.dir {
            self.cannot(shown, &Errno::EISDIR.into());
            return false;
        }
        self.agrees(inode, shown, "remove") && self.done(dir.rmdir(name), "removed directory", shown)
    }
}

/// The removal of one operand.
struct Removal<'r> {
    remover: &'r Remover<'r>,
    operand: (&'r Inode, &'r Name),
    descent: Descent,
    /// Of each directory the walk is in: something in it stays, so it stays too.
    stays: Vec<bool>,
    gone: bool,
}

impl Removal<'_> {
    fn shown(&self) -> &[u8] {
        shown(self.descent.place())
    }

    fn spot(&self) -> (&Inode, &Name) {
        self.descent.spot().unwrap_or(self.operand)
    }

    /// Notes whether the current file of the walk was removed.
    fn is_gone(&mut self, gone: bool) {
        match self.stays.last_mut() {
            Some(stays) => *stays |= !gone,
            None => self.gone = gone,
        }
    }

    fn found(&mut self, inode: Inode) {
        let (remover, (dir, name)) = (self.remover, self.spot());
        if !inode.is_dir() {
            let gone = remover.remove_file(dir, name, inode, self.shown());
            return self.is_gone(gone);
        }
        if !remover.recursive {
            let gone = remover.removes_empty(dir, name, &inode, self.shown());
            return self.is_gone(gone);
        }
        let asks = remover.asks(&inode) && !is_empty(&inode);
        if asks && !remover.agrees(&inode, self.shown(), "descend into") {
            return self.is_gone(false);
        }
        match self.descent.enter(inode) {
            Ok(()) => self.stays.push(false),
            Err(failed) => self.cannot_enter(&failed.0, &failed.1),
        }
    }

    /// An empty directory may be removed without being read.
    fn cannot_enter(&mut self, inode: &Inode, error: &Error) {
        if !self.remover.agrees(inode, self.shown(), "remove") {
            return self.is_gone(false);
        }
        let (dir, name) = self.spot();
        let gone = match dir.rmdir(name) {
            Ok(()) => self.remover.done(Ok(()), "removed directory", self.shown()),
            Err(_) => {
                self.remover.cannot(self.shown(), error);
                false
            }
        };
        self.is_gone(gone);
    }

    fn left(&mut self, inode: &Inode) {
        let stays = self.stays.pop().unwrap_or_default();
        let (dir, name) = self.spot();
        let gone = !stays
            && self.remover.agrees(inode, self.shown(), "remove")
            && self.remover.done(dir.rmdir(name), "removed directory", self.shown());
        self.is_gone(gone);
    }
}

fn is_empty(dir: &Inode) -> bool {
    dir.entries().is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether this process may write to the file, judging by its mode.
fn may_write(inode: &Inode) -> bool {
    let (attr, euid) = (inode.attr(), rustix::process::geteuid());
    let shift = if euid.is_root() {
        return true;
    } else if attr.uid == euid.as_raw() {
        6
    } else if is_member(attr.gid) {
        3
    } else {
        0
    };
    attr.mode >> shift & 2 != 0
}

fn is_member(gid: u32) -> bool {
    rustix::process::getegid().as_raw() == gid
        || rustix::process::getgroups().is_ok_and(|groups| groups.iter().any(|group| group.as_raw() == gid))
}
