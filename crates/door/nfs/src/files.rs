// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of an export that clients have handles of.
//!
//! Clients keep handles for ever and never say that they no longer need one. The references to nodes of the tree are
//! therefore held for the files used last; the others are found again by number or by path. A table of paths that is full
//! forgets files that are not held: their handles are stale, and clients look the names up again.

use crate::handle::{ExportId, FileId};
use crate::server::Paths;
use outrigger_core::node_table::{FileKey, NodeTable};
use outrigger_core::ops::{Forget, Resolve, Walk};
use outrigger_core::reply::Entry;
use outrigger_core::{
    Abilities, Credentials, Cx, Errno, Generation, Identity, Name, Node, OpCode, Result, Service, ask, lock,
};
use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::{Arc, Mutex};

/// Memory of a table of paths that is not kept, in bytes: more than a million files.
const PATHS: usize = 64 << 20;
/// Files that a table of paths forgets at once when it is full.
const FORGOTTEN: u32 = 4096;
/// Names that one request walks along.
const NAMES: usize = 16;

/// Files of one export.
pub(crate) struct Files {
    export: ExportId,
    service: Arc<dyn Service>,
    /// Where the tree does not find files by number.
    paths: Option<NodeTable>,
    /// Whether inode numbers tell files apart.
    has_keys: bool,
    /// What tells apart the numbers of this run from those of others; 0 where they are the same.
    run: u64,
    /// Whether the root is the same in other runs.
    is_lasting: bool,
    /// How many nodes are held at most.
    max: usize,
    held: Mutex<Held>,
    /// Where the table of paths was looked at last for files to forget.
    hand: Mutex<u32>,
}

/// Nodes that references are held of, by the number in handles. When the recent ones are half of what may be held, the older
/// half that was not used meanwhile is given back.
#[derive(Default)]
struct Held {
    recent: HashMap<Node, Reference>,
    older: HashMap<Node, Reference>,
}

/// References to a node.
#[derive(Debug, Clone, Copy)]
struct Reference {
    /// The tree's number.
    node: Node,
    generation: Generation,
    count: u64,
    /// Requests that use it now.
    uses: u32,
}

/// A file that a request uses. Its reference is held until this is dropped.
pub(crate) struct Used<'a> {
    files: &'a Files,
    /// What handles have.
    pub(crate) id: FileId,
    /// The tree's number.
    pub(crate) node: Node,
    generation: Generation,
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.files.held);
        // Another file may have the number meanwhile.
        let same = |reference: &&mut Reference| reference.is(self.node, self.generation);
        if let Some(reference) = held.get(self.id.node).filter(same) {
            reference.uses -= 1;
        }
    }
}

impl Reference {
    fn is(&self, node: Node, generation: Generation) -> bool {
        (self.node, self.generation) == (node, generation)
    }
}

impl Held {
    fn get(&mut self, number: Node) -> Option<&mut Reference> {
        match self.recent.entry(number) {
            hash_map::Entry::Occupied(entry) => Some(entry.into_mut()),
            hash_map::Entry::Vacant(entry) => Some(entry.insert(self.older.remove(&number)?)),
        }
    }

    /// Takes out a reference to `node` that no request uses now.
    fn take(&mut self, number: Node, node: Node) -> Option<Reference> {
        self.get(number).filter(|reference| reference.uses == 0 && reference.node == node)?;
        self.recent.remove(&number)
    }

    /// What is given back so that no more than `max` are held.
    fn trim(&mut self, max: usize) -> Vec<Reference> {
        if self.recent.len() < max / 2 { Vec::new() } else { self.turn() }
    }

    /// What was not used since the last turn is given back.
    fn turn(&mut self) -> Vec<Reference> {
        let older = std::mem::replace(&mut self.older, std::mem::take(&mut self.recent));
        let (used, idle): (HashMap<_, _>, HashMap<_, _>) =
            older.into_iter().partition(|(_, reference)| reference.uses > 0);
        self.recent = used;
        idle.into_values().collect()
    }
}

impl Files {
    /// Those of `service`; `run` is drawn anew by each process, and in handles unless the tree `is_lasting` and finds files by
    /// number. `kept` are the paths that former processes knew.
    ///
    /// # Errors
    /// When there is no memory for the table of paths.
    pub(crate) fn new(
        export: ExportId,
        service: Arc<dyn Service>,
        max: usize,
        (run, is_lasting): (u64, bool),
        kept: Option<Paths>,
    ) -> Result<Self> {
        let Abilities { identity, ops, .. } = service.abilities();
        let has_keys = identity == Identity::Persistent;
        let (paths, run) = match (ops.has(OpCode::Resolve), kept) {
            (true, _) => (None, if is_lasting && has_keys { 0 } else { run }),
            (false, Some(Paths { table, run })) if is_lasting => (Some(table), run),
            (false, _) => (Some(NodeTable::in_memory(PATHS)?), run),
        };
        let (held, hand) = (Mutex::default(), Mutex::default());
        Ok(Files { export, service, paths, has_keys, run, is_lasting, max, held, hand })
    }

    /// The directory that is exported.
    pub(crate) fn root(&self) -> FileId {
        let generation = Generation(if self.is_lasting { 0 } else { self.run });
        FileId { export: self.export, node: Node::ROOT, generation }
    }

    fn id(&self, node: Node, generation: Generation) -> FileId {
        FileId { export: self.export, node, generation: Generation(generation.0 ^ self.run) }
    }

    /// The file that a handle names.
    ///
    /// # Errors
    /// `ESTALE` when there is none any more, or another one in its place.
    pub(crate) async fn find(&self, cx: &Cx, id: FileId) -> Result<Used<'_>> {
        if id.node == Node::ROOT {
            let root = Used { files: self, id, node: Node::ROOT, generation: Generation(0) };
            return if id == self.root() { Ok(root) } else { Err(Errno::ESTALE.into()) };
        }
        if let Some(used) = self.held(id)? {
            return Ok(used);
        }
        // Whoever has a handle could once look it up: what directories above allow to others is not asked again.
        let cx = &Cx { cred: Credentials::ROOT, ..cx.aside() };
        let generation = Generation(id.generation.0 ^ self.run);
        let entry = match &self.paths {
            None => ask(&*self.service, cx, Resolve { node: id.node, generation: Some(generation) }).await?,
            Some(paths) if generation == Generation(0) => self.walk(cx, paths, id.node).await?,
            Some(_) => return Err(Errno::ESTALE.into()),
        };
        let node = entry.node;
        self.keep(cx, id.node, &entry).await;
        self.held(id)?.ok_or_else(|| Errno::ESTALE.because(format!("node {} was given back at once", node.0)))
    }

    /// The file if it is held.
    fn held(&self, id: FileId) -> Result<Option<Used<'_>>> {
        let mut held = lock(&self.held);
        let Some(reference) = held.get(id.node) else { return Ok(None) };
        if self.id(id.node, self.generation(reference)) != id {
            return Err(Errno::ESTALE.into());
        }
        reference.uses += 1;
        Ok(Some(Used { files: self, id, node: reference.node, generation: reference.generation }))
    }

    /// The generation in handles.
    fn generation(&self, reference: &Reference) -> Generation {
        if self.paths.is_some() { Generation(0) } else { reference.generation }
    }

    /// Finds a file along its path, and checks that it is the one that was there.
    async fn walk(&self, cx: &Cx, paths: &NodeTable, number: Node) -> Result<Entry> {
        let names = paths.path(number)?;
        let mut place: Option<Entry> = None;
        for names in names.chunks(NAMES) {
            let dir = place.as_ref().map_or(Node::ROOT, |entry| entry.node);
            let walked = ask(&*self.service, cx, Walk { dir, names: names.to_vec() }).await;
            let mut on_the_way: Vec<Entry> = place.take().into_iter().collect();
            if let Ok(entries) = &walked {
                on_the_way.extend(entries.iter().cloned());
            }
            let whole = walked.as_ref().is_ok_and(|entries| entries.len() == names.len());
            if whole {
                place = on_the_way.pop();
            }
            for entry in on_the_way {
                self.forget(cx, entry.node, 1).await;
            }
            if !whole {
                return Err(walked
                    .err()
                    .filter(|error| error.errno != Errno::ENOENT)
                    .unwrap_or(Errno::ESTALE.into()));
            }
        }
        let entry = place.ok_or(Errno::ESTALE)?;
        if paths.key(number)? != self.key(&entry) {
            self.forget(cx, entry.node, 1).await;
            return Err(Errno::ESTALE.because("another file has its name"));
        }
        Ok(entry)
    }

    /// Takes over the reference of `entry`, to which `name` in `dir` leads, and says what handles of it have.
    pub(crate) async fn found(&self, cx: &Cx, dir: FileId, name: &Name, entry: &Entry) -> Result<FileId> {
        let number = match self.number(dir, name, entry) {
            Ok(number) => number,
            Err(error) => {
                self.give_back(cx, entry).await;
                return Err(error);
            }
        };
        self.keep(cx, number, entry).await;
        let generation = if self.paths.is_some() { Generation(0) } else { entry.generation };
        Ok(self.id(number, generation))
    }

    /// The number in handles of what `name` in `dir` leads to.
    fn number(&self, dir: FileId, name: &Name, entry: &Entry) -> Result<Node> {
        let Some(paths) = &self.paths else { return Ok(entry.node) };
        let known = paths.get(dir.node, name);
        let is_another = |reference: &mut Reference| !reference.is(entry.node, entry.generation);
        if let Some(number) = known.filter(|&number| lock(&self.held).get(number).is_some_and(is_another)) {
            // The tree says that another file has the name now: handles of the former one do not lead to it.
            paths.removed(dir.node, name);
            forget_nameless(paths, number);
        }
        match paths.found(dir.node, name, self.key(entry)) {
            Err(error) if error.errno == Errno::ENFILE => {
                self.make_room(paths);
                paths.found(dir.node, name, self.key(entry))
            }
            found => found,
        }
    }

    /// Forgets files that are not held, of those looked at longest ago, and not the directories of others.
    fn make_room(&self, paths: &NodeTable) {
        let (mut hand, slots, mut forgotten) = (lock(&self.hand), paths.slots(), 0);
        for _ in 0..slots {
            *hand = *hand % slots + 1;
            let node = paths.at_slot(*hand).filter(|node| *node != Node::ROOT);
            let idle = node.filter(|node| lock(&self.held).get(*node).is_none());
            let Some((node, references)) = idle.and_then(|node| Some((node, paths.references(node)?))) else {
                continue;
            };
            paths.forget(node, references.into());
            forgotten += 1;
            if forgotten == FORGOTTEN {
                break;
            }
        }
    }

    /// The file for the entry of a directory that is not below one with a known name, as `..` is.
    pub(crate) async fn parent(&self, cx: &Cx, dir: FileId, entry: &Entry) -> Result<FileId> {
        if entry.node == Node::ROOT {
            self.forget(cx, entry.node, 1).await;
            return Ok(self.root());
        }
        let number = match &self.paths {
            None => entry.node,
            Some(paths) => match paths.names(dir.node).map(|names| names.first().map(|(above, _)| *above)) {
                Ok(Some(above)) => above,
                _ => {
                    self.give_back(cx, entry).await;
                    return Err(Errno::ESTALE.into());
                }
            },
        };
        self.keep(cx, number, entry).await;
        let generation = if self.paths.is_some() { Generation(0) } else { entry.generation };
        Ok(self.id(number, generation))
    }

    /// Holds the reference of `entry` under this number, in place of what was held there.
    async fn keep(&self, cx: &Cx, number: Node, entry: &Entry) {
        let (node, generation) = (entry.node, entry.generation);
        let idle = {
            let mut held = lock(&self.held);
            let replaced = match held.get(number) {
                Some(reference) if reference.is(node, generation) => {
                    reference.count += 1;
                    None
                }
                _ => held.recent.insert(number, Reference { node, generation, count: 1, uses: 0 }),
            };
            let mut idle = held.trim(self.max);
            idle.extend(replaced);
            idle
        };
        for reference in idle {
            self.forget(cx, reference.node, reference.count).await;
        }
    }

    /// Gives back what was not used since the last call but one: a file that others have removed keeps its room while it is held.
    pub(crate) async fn let_go_idle(&self, cx: &Cx) {
        let idle = lock(&self.held).turn();
        for reference in idle {
            self.forget(cx, reference.node, reference.count).await;
        }
    }

    /// Returns the reference of `entry`, of which no handle is given out.
    pub(crate) async fn give_back(&self, cx: &Cx, entry: &Entry) {
        self.forget(cx, entry.node, 1).await;
    }

    async fn forget(&self, cx: &Cx, node: Node, count: u64) {
        // A tree that counts no references answers `ENOSYS`.
        let _ = ask(&*self.service, &cx.aside(), Forget { node, count }).await;
    }

    /// The number in handles of what `name` in `dir` is known to lead to, which is `entry`.
    pub(crate) fn known(&self, dir: FileId, name: &Name, entry: &Entry) -> Option<Node> {
        self.paths.as_ref().map_or(Some(entry.node), |paths| paths.get(dir.node, name))
    }

    /// The file with this number has lost its last name: what is held of it is given back, or it would stay for ever.
    pub(crate) async fn ended(&self, cx: &Cx, number: Node, entry: &Entry) {
        self.paths.iter().for_each(|paths| forget_nameless(paths, number));
        let ended = lock(&self.held).take(number, entry.node);
        if let Some(reference) = ended {
            self.forget(cx, reference.node, reference.count).await;
        }
    }

    /// `name` in `dir` is gone.
    pub(crate) fn removed(&self, dir: FileId, name: &Name) {
        if let Some(paths) = &self.paths {
            paths.removed(dir.node, name);
        }
    }

    /// What `from` led to is at `to`.
    pub(crate) fn renamed(&self, from: (FileId, &Name), to: (FileId, &Name)) {
        if let Some(paths) = &self.paths {
            // Only a table without room fails: handles of the file are stale then.
            let _ = paths.renamed((from.0.node, from.1), (to.0.node, to.1));
        }
    }

    /// What tells a file from another one that has got its name.
    fn key(&self, entry: &Entry) -> Option<FileKey> {
        FileKey::new(entry.attr.ino ^ entry.attr.dev.rotate_left(32)).filter(|_| self.has_keys)
    }
}

/// Gives back the place in the table of a file without a name: its handles lead nowhere.
fn forget_nameless(paths: &NodeTable, number: Node) {
    if let Some(references) = paths.references(number).filter(|_| paths.links(number) == 0) {
        paths.forget(number, references.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::reply::Ttl;
    use outrigger_core::{Answer, Attr, Notify, OpSet, Request};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A tree that finds no file by number, and counts the references that it gets back.
    #[derive(Default)]
    struct ByName(AtomicU64);

    impl Service for ByName {
        fn call<'a>(&'a self, _: &'a Cx, request: Request) -> Answer<'a> {
            if let Request::Forget(Forget { count, .. }) = request {
                self.0.fetch_add(count, Ordering::Relaxed);
            }
            Answer::error(Errno::ENOSYS)
        }
        fn abilities(&self) -> Abilities {
            Abilities { identity: Identity::Persistent, ..Abilities::new("by-name", "", OpSet::of(&[])) }
        }
        fn attach(&self, _: Arc<dyn Notify>) {}
    }

    fn entry(number: u64) -> Entry {
        let attr = Attr { ino: number, ..Attr::default() };
        let (entry_ttl, attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
        Entry { node: Node(number), generation: Generation(0), attr, entry_ttl, attr_ttl }
    }

    fn name(number: u64) -> Name {
        Name::try_from(&*format!("file {number}")).unwrap()
    }

    #[test]
    fn a_table_of_paths_that_is_full_forgets_files_that_are_not_held() {
        let table = NodeTable::in_memory(1 << 20).unwrap();
        let service: Arc<dyn Service> = Arc::new(ByName::default());
        let kept = Some(Paths { table, run: 1 });
        let files = Files::new(ExportId(1), service, 100, (0, true), kept).unwrap();
        let root = files.root();
        let held = files.number(root, &name(2), &entry(2)).unwrap();
        let reference = Reference { node: Node(2), generation: Generation(0), count: 1, uses: 0 };
        lock(&files.held).recent.insert(held, reference);
        let first = files.number(root, &name(3), &entry(3)).unwrap();
        for number in 4..100_000 {
            files.number(root, &name(number), &entry(number)).unwrap();
        }
        let paths = files.paths.as_ref().unwrap();
        assert!(paths.path(held).is_ok(), "what is held stays");
        assert_eq!(paths.path(first).unwrap_err().errno, Errno::ESTALE);
        assert_ne!(
            files.number(root, &name(3), &entry(3)).unwrap(),
            first,
            "it is found under another number"
        );
    }

    #[test]
    fn removed_files_leave_nothing_in_the_table() {
        let table = NodeTable::in_memory(1 << 20).unwrap();
        let files = Files::new(
            ExportId(1),
            Arc::new(ByName::default()),
            100,
            (0, true),
            Some(Paths { table, run: 1 }),
        );
        let files = files.unwrap();
        let root = files.root();
        for number in 2..1000 {
            let known = files.number(root, &name(1), &entry(number)).unwrap();
            files.removed(root, &name(1));
            files.paths.iter().for_each(|paths| forget_nameless(paths, known));
        }
        assert_eq!(files.paths.as_ref().unwrap().slots(), 2);
    }

    #[tokio::test]
    async fn a_file_that_no_request_uses_is_not_held_for_ever() {
        let tree = Arc::new(ByName::default());
        let kept = Some(Paths { table: NodeTable::in_memory(1 << 20).unwrap(), run: 1 });
        let files = Files::new(ExportId(1), tree.clone(), 100, (0, true), kept).unwrap();
        let cx = Cx::new(0, Credentials::ROOT, "test");
        let [one, other] = [2, 3].map(|number| (name(number), entry(number)));
        let used = files.found(&cx, files.root(), &one.0, &one.1).await.unwrap();
        files.found(&cx, files.root(), &other.0, &other.1).await.unwrap();
        let used = files.find(&cx, used).await.unwrap();
        files.let_go_idle(&cx).await;
        assert_eq!(tree.0.load(Ordering::Relaxed), 0, "both were used since the last time");
        for _ in 0..3 {
            files.let_go_idle(&cx).await;
            assert_eq!(tree.0.load(Ordering::Relaxed), 1, "a request uses the other one");
        }
        drop(used);
        files.let_go_idle(&cx).await;
        files.let_go_idle(&cx).await;
        assert_eq!(tree.0.load(Ordering::Relaxed), 2);
    }
}
