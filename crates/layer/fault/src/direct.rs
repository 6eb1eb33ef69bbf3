// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files were opened for direct I/O here: only their reads may be cut. Others are read through a page cache, which takes
//! a short read for the end of the file.

use outrigger_core::reply::{Created, OpenHow, Opened};
use outrigger_core::{Backing, Handle, Node, Opening, Reply, Request, lock};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard};

/// The open files, each as long as it is open below.
#[derive(Default)]
pub(crate) struct Direct(Mutex<HashMap<(Node, Handle), Openings>>);

/// The openings of a file that share a handle, as they do where a driver keeps nothing for them.
struct Openings {
    count: u64,
    /// All of them are for direct I/O.
    direct: bool,
}

impl Direct {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Node, Handle), Openings>> {
        lock(&self.0)
    }

    /// Whether cutting what is read by this handle is seen by the program only.
    pub(crate) fn may_cut(&self, node: Node, handle: Handle) -> bool {
        self.lock().get(&(node, handle)).is_some_and(|openings| openings.direct)
    }

    /// Forgets what `request` closes. To be called before it is done: the handle may then be another file's.
    pub(crate) fn close(&self, request: &Request) {
        if let Some(ended) = request.ends()
            && let Entry::Occupied(mut openings) = self.lock().entry(ended)
        {
            openings.get_mut().count -= 1;
            if openings.get().count == 0 {
                openings.remove();
            }
        }
    }

    /// The reply to what opens something so, with what is read and written to be asked for here; with `direct`, as the program asks.
    pub(crate) fn opened(&self, opens: Option<Opening>, mut reply: Reply, direct: bool) -> Reply {
        let (node, opened) = match &mut reply {
            Reply::Opened(opened) => (opens.and_then(Opening::file), opened),
            Reply::Created(Created { entry, opened }) => (Some(entry.node), opened),
            _ => return reply,
        };
        opened.backing = Backing::NONE;
        if direct {
            opened.how -= OpenHow::KEEP_CACHE;
            opened.how |= OpenHow::DIRECT_IO;
        }
        if let Some(node) = node {
            self.note(node, opened);
        }
        reply
    }

    fn note(&self, node: Node, opened: &Opened) {
        let mut files = self.lock();
        let openings = files.entry((node, opened.handle)).or_insert(Openings { count: 0, direct: true });
        openings.count += 1;
        openings.direct &= opened.how.contains(OpenHow::DIRECT_IO);
    }
}
