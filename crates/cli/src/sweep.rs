// SPDX-License-Identifier: MIT OR Apache-2.0
//! Visiting everything below a directory, for `chmod -R` and `chown -R`. No symbolic link is followed.

use crate::copy::target::shown_below;
use outrigger_client::{Entries, Inode, Unreadable};
use outrigger_core::{Cancel, Error};

/// What happens to the files that are met.
pub trait Visitor {
    /// A file, or a directory before its content.
    fn before(&mut self, inode: &mut Inode, shown: &[u8]);

    /// A directory after its content.
    fn after(&mut self, inode: &mut Inode, shown: &[u8]);

    /// A file that a directory names cannot be examined.
    fn inaccessible(&mut self, shown: &[u8], error: &Error);

    /// A directory cannot be read.
    fn unreadable(&mut self, shown: &[u8], error: &Error);
}

/// A directory in progress.
struct Frame {
    inode: Inode,
    entries: Option<Entries>,
    shown: Vec<u8>,
}

impl Frame {
    fn enter(mut inode: Inode, shown: Vec<u8>, visitor: &mut dyn Visitor) -> Self {
        visitor.before(&mut inode, &shown);
        let entries = inode.entries().map_err(|error| visitor.unreadable(&shown, &error)).ok();
        Frame { inode, entries, shown }
    }
}

/// Visits `inode` and, if it is a directory, everything below it, until `cancel` is raised.
pub fn sweep(mut inode: Inode, shown: Vec<u8>, cancel: &Cancel, visitor: &mut dyn Visitor) {
    if !inode.is_dir() {
        return visitor.before(&mut inode, &shown);
    }
    let mut frames = vec![Frame::enter(inode, shown, visitor)];
    while let Some(frame) = frames.last_mut() {
        if cancel.is_raised() {
            return;
        }
        match frame.entries.as_mut().and_then(Iterator::next) {
            Some(Ok((name, mut inode))) => {
                let shown = shown_below(&frame.shown, &name);
                if inode.is_dir() {
                    frames.push(Frame::enter(inode, shown, visitor));
                } else {
                    visitor.before(&mut inode, &shown);
                }
            }
            Some(Err(Unreadable { name: Some(name), error })) => {
                visitor.inaccessible(&shown_below(&frame.shown, &name), &error);
            }
            Some(Err(Unreadable { name: None, error })) => visitor.unreadable(&frame.shown, &error),
            None => {
                if let Some(mut frame) = frames.pop() {
                    visitor.after(&mut frame.inode, &frame.shown);
                }
            }
        }
    }
}
