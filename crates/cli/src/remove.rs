// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removing files and directories with everything in them, for `rm` and for `mv` between trees.
//!
//! Every name is removed from the node of its directory, never by a path, and no symbolic link is followed: whoever
//! moves directories about while they are removed cannot lead the removal elsewhere.

use crate::context::Context;
use crate::copy::target::shown_below;
use crate::format::mode::kind_name;
use crate::output::announce;
use crate::say::{agrees, quoted};
use crate::status::Status;
use outrigger_client::{Entries, Inode, Unreadable};
use outrigger_core::{Errno, Error, FileKind, Name};
use std::io::{IsTerminal, stdin};
use std::sync::Arc;

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

/// A directory being emptied.
struct Frame {
    above: Arc<Inode>,
    name: Name,
    inode: Arc<Inode>,
    entries: Entries,
    shown: Vec<u8>,
    /// Something in it stays, so it stays too.
    stays: bool,
}

impl Remover<'_> {
    /// Removes `name` of `dir`, which is `inode`; whether it is gone.
    pub fn remove(&self, dir: Inode, name: Name, inode: Inode, shown: &[u8]) -> bool {
        if !inode.is_dir() {
            return self.remove_file(&dir, &name, &inode, shown);
        }
        let mut frames = Vec::new();
        let dir = Arc::new(dir);
        let mut gone = match self.enter(&dir, name, inode, shown.to_vec()) {
            Entered::Into(frame) => {
                frames.push(frame);
                false
            }
            Entered::Done(gone) => gone,
        };
        while let Some(frame) = frames.last_mut() {
            if self.context.cancel.is_raised() {
                return false;
            }
            match frame.entries.next() {
                Some(Ok((name, inode))) => {
                    let shown = shown_below(&frame.shown, &name);
                    if inode.is_dir() {
                        match self.enter(&frame.inode, name, inode, shown) {
                            Entered::Into(below) => frames.push(below),
                            Entered::Done(gone) => frame.stays |= !gone,
                        }
                    } else {
                        frame.stays |= !self.remove_file(&frame.inode, &name, &inode, &shown);
                    }
                }
                Some(Err(Unreadable { name, error })) => {
                    let shown =
                        name.map_or_else(|| frame.shown.clone(), |name| shown_below(&frame.shown, &name));
                    self.cannot(&shown, &error);
                    frame.stays = true;
                }
                None => {
                    let Some(frame) = frames.pop() else { break };
                    gone = self.leave(&frame);
                    if let Some(above) = frames.last_mut() {
                        above.stays |= !gone;
                    }
                }
            }
        }
        gone
    }

    fn cannot(&self, shown: &[u8], error: &Error) {
        if !(error.errno == Errno::EINTR && self.context.cancel.is_raised()) {
            self.context.complain(Status::Minor, format_args!("cannot remove {}: {error}", quoted(shown)));
        }
    }

    fn agrees(&self, inode: &Inode, shown: &[u8], verb: &str) -> bool {
        let protected = match self.ask {
            Ask::Never => return true,
            Ask::Always => !may_write(inode),
            Ask::WriteProtected if inode.kind() == FileKind::Symlink || !stdin().is_terminal() => {
                return true;
            }
            Ask::WriteProtected if may_write(inode) => return true,
            Ask::WriteProtected => true,
        };
        let protected = if protected && inode.kind() != FileKind::Symlink { "write-protected " } else { "" };
        let kind = kind_name(inode.attr().mode, inode.attr().size);
        agrees(self.context.command, &format!("{verb} {protected}{kind} {}", quoted(shown)))
    }

    fn remove_file(&self, dir: &Inode, name: &Name, inode: &Inode, shown: &[u8]) -> bool {
        if !self.agrees(inode, shown, "remove") {
            return false;
        }
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
            // Somebody else removed it since it was listed: it is gone, and that is what was asked for.
            Err(error) if error.errno == Errno::ENOENT => true,
            Err(error) => {
                self.cannot(shown, &error);
                false
            }
        }
    }

    fn enter(&self, above: &Arc<Inode>, name: Name, inode: Inode, shown: Vec<u8>) -> Entered {
        if !self.recursive {
            if !self.dir {
                self.cannot(&shown, &Errno::EISDIR.into());
                return Entered::Done(false);
            }
            let gone = self.agrees(&inode, &shown, "remove")
                && self.done(above.rmdir(&name), "removed directory", &shown);
            return Entered::Done(gone);
        }
        if self.ask != Ask::Never && !is_empty(&inode) && !self.agrees(&inode, &shown, "descend into") {
            return Entered::Done(false);
        }
        match inode.entries() {
            Ok(entries) => Entered::Into(Box::new(Frame {
                above: Arc::clone(above),
                name,
                inode: Arc::new(inode),
                entries,
                shown,
                stays: false,
            })),
            // An empty directory may be removed without being read.
            Err(error) => match above.rmdir(&name) {
                Ok(()) => Entered::Done(self.done(Ok(()), "removed directory", &shown)),
                Err(_) => {
                    self.cannot(&shown, &error);
                    Entered::Done(false)
                }
            },
        }
    }

    fn leave(&self, frame: &Frame) -> bool {
        if frame.stays || !self.agrees(&frame.inode, &frame.shown, "remove") {
            return false;
        }
        self.done(frame.above.rmdir(&frame.name), "removed directory", &frame.shown)
    }
}

enum Entered {
    /// There may be something in it.
    Into(Box<Frame>),
    /// It has been dealt with; whether it is gone.
    Done(bool),
}

fn is_empty(dir: &Inode) -> bool {
    dir.entries().is_ok_and(|mut entries| entries.next().is_none())
}

/// Whether this process may write to the file, as far as its mode tells.
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
