// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver in a repository of its own: a tree with one file that says how often it was read.
#![forbid(unsafe_code)]

use outrigger_core::ops::{GetAttr, Lookup, Read, ReadDir};
use outrigger_core::reply::{Attrs, Data, Dirent, Dirents, Entry, Ttl};
use outrigger_core::{
    Abilities, Attr, BlockingDriver, Cx, Errno, FileKind, Generation, Identity, Name, Node, OpCode, OpSet,
    Prompt, Result,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// The node of the file.
const FILE: Node = Node(2);
/// How long its content is, in bytes.
const SIZE: u64 = 21;

/// The driver.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

fn attr(node: Node) -> Result<Attr> {
    let (kind, permissions, nlink, size) = match node {
        Node::ROOT => (FileKind::Directory, 0o555, 2, 0),
        FILE => (FileKind::Regular, 0o444, 1, SIZE),
        _ => return Err(Errno::ESTALE.into()),
    };
    Ok(Attr { ino: node.0, mode: kind.bits() | permissions, nlink, size, ..Attr::default() })
}

impl BlockingDriver for Counter {
    fn abilities(&self) -> Abilities {
        let ops = OpSet::of(&[OpCode::Lookup, OpCode::GetAttr, OpCode::ReadDir, OpCode::Read]);
        let plain = Abilities::new("counter", "counter:", ops);
        let identity = Identity::Persistent;
        Abilities { identity, read_only: true, stateless_files: true, stateless_dirs: true, ..plain }
    }

    fn lookup(&self, _: &Cx, op: Lookup) -> Result<Entry> {
        match (op.dir, &op.name[..]) {
            (Node::ROOT, b"reads") => Ok(Entry {
                node: FILE,
                generation: Generation(0),
                attr: attr(FILE)?,
                entry_ttl: Ttl::FOREVER,
                attr_ttl: Ttl::FOREVER,
            }),
            (Node::ROOT, _) => Err(Errno::ENOENT.into()),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        Ok(Attrs { attr: attr(op.node)?, ttl: Ttl::FOREVER })
    }

    fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        if op.node != Node::ROOT {
            return Err(Errno::ENOTDIR.into());
        }
        let file =
            Dirent { ino: FILE.0, cookie: 1, kind: Some(FileKind::Regular), name: Name::new("reads")? };
        Ok(Dirents { entries: if op.cookie == 0 { vec![file] } else { Vec::new() }, eof: true })
    }

    fn read(&self, _: &Cx, op: Read) -> Result<Data> {
        let text = format!("{:20}\n", self.0.fetch_add(1, Ordering::Relaxed));
        let rest = text.as_bytes().get(op.offset as usize..).unwrap_or_default();
        Ok(rest[..rest.len().min(op.len as usize)].to_vec().into())
    }
}

impl Prompt for Counter {}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_client::{Client, Follow, Settings};
    use outrigger_conformance::{HostDir, Kind, Target, run};
    use outrigger_core::{Inline, Service, Stack};
    use outrigger_layer_simulate::Simulate;
    use outrigger_runtime::Threads;
    use std::sync::Arc;

    #[test]
    fn a_driver_needs_nothing_but_what_is_published() {
        let runtime = Arc::new(Threads::new());
        let driver: Arc<dyn Service> = Arc::new(Inline::new(Counter::default(), runtime.clone()));
        let stack = Stack::new(driver).push(Simulate::new()).expect("any order is good");
        let client = Client::new(stack.service(), runtime, Settings::default());
        let file =
            client.walk(b"/reads", Follow::Yes).expect("the file").open(Default::default()).expect("open");
        let reads = || file.read_at(0, 100).expect("read");
        assert_eq!((&reads()[18..], &reads()[18..]), (&b" 0\n"[..], &b" 1\n"[..]));
    }

    #[test]
    fn the_suite_runs_on_a_directory_of_the_host() {
        let dir = tempfile::tempdir().expect("a directory");
        let subject = HostDir::new(dir.path(), Kind::Native).expect("it opens");
        let abilities = Abilities::new("native", "a directory", OpSet::all());
        run(&subject, &Target { abilities: &abilities, has_sample: false, exceptions: &[] }).must_hold(100);
    }
}
