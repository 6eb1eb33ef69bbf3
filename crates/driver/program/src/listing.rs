// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long listings are: one without an end is refused.

use outrigger_core::reply::{Dirents, DirentsPlus};
use outrigger_core::{Errno, Name, Node, Reply, Request, lock};
use std::collections::VecDeque;
use std::sync::Mutex;

/// What a name takes in a listing beside itself, in bytes.
const ENTRY: usize = 40;
/// So many places in listings are known at once; of one that was forgotten the count begins anew.
const PLACES: usize = 1024;

/// A place in the listing of a directory.
struct Reached {
    node: Node,
    cookie: u64,
    /// What all names up to it take.
    bytes: usize,
}

/// How far the listings of the tree have got.
pub(crate) struct Listings {
    max: usize,
    reached: Mutex<VecDeque<Reached>>,
}

impl Listings {
    /// Directories with names of at most `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Listings { max, reached: Mutex::default() }
    }

    /// The reply, or an error in place of a piece of a listing that is too long already.
    pub(crate) fn bounded(&self, request: &Request, reply: Reply) -> Reply {
        let (node, from) = match request {
            Request::ReadDir(op) => (op.node, op.cookie),
            Request::ReadDirPlus(op) => (op.node, op.cookie),
            _ => return reply,
        };
        let size = |name: &Name| name.as_bytes().len() + ENTRY;
        let (piece, last) = match &reply {
            Reply::Dirents(Dirents { entries, eof: false }) => (
                entries.iter().map(|entry| size(&entry.name)).sum(),
                entries.last().map(|entry| entry.cookie),
            ),
            Reply::DirentsPlus(DirentsPlus { entries, eof: false }) => (
                entries.iter().map(|entry| size(&entry.name)).sum(),
                entries.last().map(|entry| entry.cookie),
            ),
            _ => return reply,
        };
        let mut reached = lock(&self.reached);
        let is_it = |place: &&Reached| from != 0 && (place.node, place.cookie) == (node, from);
        let before = reached.iter().rfind(is_it).map_or(0, |place| place.bytes);
        let bytes = usize::saturating_add(before, piece);
        if bytes > self.max {
            let max = self.max;
            // Not EOVERFLOW, after which ls(1) goes on reading.
            return Reply::Error(Errno::EFBIG.because(format!(
                "the program lists ever more names in one directory: max_listing= permits no more than {max} bytes of memory"
            )));
        }
        if reached.len() == PLACES {
            reached.pop_front();
        }
        reached.extend(last.map(|cookie| Reached { node, cookie, bytes }));
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Handle;
    use outrigger_core::ops::ReadDir;
    use outrigger_core::reply::Dirent;

    #[test]
    fn a_listing_without_an_end_is_refused_and_others_are_not() {
        let listings = Listings::new(100 * ENTRY);
        let piece = |node: u64, cookie: u64, eof: bool| {
            let request = ReadDir { node: Node(node), handle: Handle(0), cookie, size: 4096 };
            let entry = |cookie| Dirent {
                ino: cookie,
                cookie,
                kind: None,
                name: Name::new(format!("{cookie:010}")).expect("a name"),
            };
            let entries = (cookie + 1..=cookie + 10).map(entry).collect();
            listings.bounded(&request.into(), Reply::Dirents(Dirents { entries, eof }))
        };
        let is_refused = |reply: &Reply| matches!(reply, Reply::Error(error) if error.errno == Errno::EFBIG);
        for again in 0..20 {
            assert!(!is_refused(&piece(1, 0, false)) && !is_refused(&piece(1, 10, true)), "{again}");
        }
        let pieces = (0..).map(|number| piece(2, 10 * number, false));
        assert_eq!(
            pieces.take_while(|reply| !is_refused(reply)).count(),
            8,
            "of 10 names with 50 bytes each"
        );
        assert!(!is_refused(&piece(2, 0, false)), "from the beginning");
    }
}
