// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where content comes from disk, and when it goes there.

use super::block::LEN;
use crate::file::{Content, Fetch, File};
use crate::inner::Inner;
use crate::open::OpenFile;
use bytes::Bytes;
use outrigger_core::ops::GetAttr;
use outrigger_core::{Cx, FileKind, Node, lock};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What has come of a file and is to be kept on disk.
#[derive(Default)]
pub(crate) struct Unsaved {
    /// Numbers of blocks of which something has come.
    pub(crate) blocks: BTreeSet<u64>,
    /// A task writes them to disk.
    busy: bool,
}

impl Unsaved {
    /// These bytes have come.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        self.blocks.extend(start / LEN..end.div_ceil(LEN));
    }
}

/// A file of more bytes is opened below though all of it may be on disk.
const OPENED_MAX: u64 = 1 << 30;

impl Inner {
    /// Whether all content of a file is on disk, as far as its attributes are fresh: it can be read without the tree below.
    pub(crate) async fn is_on_disk(&self, node: Node) -> bool {
        let Some(disk) = &self.disk else { return false };
        let now = self.now();
        let file = {
            let mut table = lock(&self.table);
            match table.attrs(node, now) {
                Some(attrs) if attrs.attr.kind() == FileKind::Regular => table.file(node, now),
                _ => return false,
            }
        };
        let version =
            lock(&file.content).lasting().filter(|version| (1..=OPENED_MAX).contains(&version.size));
        let Some(version) = version else { return false };
        let numbers = 0..version.size.div_ceil(LEN);
        disk.has(numbers.map(|number| disk.block(version, number)).collect()).await
    }

    /// What a fetch is to bring, if all of it is on disk; what is there beside it is kept in memory as well.
    pub(crate) async fn read_from_disk(&self, file: &File, fetch: &Fetch) -> Option<Bytes> {
        let disk = self.disk.as_ref()?;
        let version = {
            let content = lock(&file.content);
            content.lasting().filter(|version| content.is_current(fetch) && fetch.end() <= version.size)?
        };
        let numbers = fetch.offset / LEN..fetch.end().div_ceil(LEN);
        let start = numbers.start * LEN;
        let blocks = numbers.map(|number| disk.block(version, number)).collect();
        let bytes = disk.read(blocks).await?;
        let mut content = lock(&file.content);
        if !content.is_current(fetch) {
            return None;
        }
        content.any = true;
        lock(&self.pool).insert(content.id, start, bytes.clone());
        let from = (fetch.offset - start) as usize;
        Some(bytes.slice(from..from + fetch.len as usize))
    }

    /// Has what came of a file kept on disk, once the tree below has confirmed its version.
    pub(crate) async fn save_to_disk(self: &Arc<Self>, cx: &Cx, open: &OpenFile) {
        let (Some(disk), content) = (&self.disk, &open.file.content) else { return };
        let take = |content: &mut Content| {
            let blocks = std::mem::take(&mut content.unsaved.blocks);
            let version = content.lasting().filter(|_| !blocks.is_empty());
            content.unsaved.busy = version.is_some();
            version.map(|version| (blocks, version, content.id, content.changes))
        };
        let mut taken = {
            let mut content = lock(content);
            if content.unsaved.busy {
                return;
            }
            take(&mut content)
        };
        while let Some((blocks, version, id, changes)) = taken {
            self.getattr_below(cx, GetAttr { node: open.node, handle: open.real() }).await;
            let mut content = lock(content);
            let current = (content.lasting(), content.id, content.changes) == (Some(version), id, changes);
            for number in blocks.into_iter().filter(|_| current) {
                let block = disk.block(version, number);
                let (start, end) = (number * LEN, number * LEN + block.len());
                let mut pool = lock(&self.pool);
                if pool.covers(id, start, end) {
                    disk.keep(block, pool.get(id, start, end).into_iter().map(|(_, bytes)| bytes).collect());
                }
            }
            taken = take(&mut content);
        }
    }
}
