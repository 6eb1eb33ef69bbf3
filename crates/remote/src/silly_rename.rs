// SPDX-License-Identifier: MIT OR Apache-2.0
//! Silly rename: a file that is removed while it is open is renamed, and removed when it is closed, since servers find a file
//! by its name only.

use crate::notes::Notes;
use crate::open_files::OpenFiles;
use outrigger_core::{Error, Keep, Name, Node, NodeTable, Result, lock};
use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// What the names of removed files begin with.
pub const SILLY_PREFIX: &str = ".outrigger-removed-";

/// How many files can be noted that lost their names while they are open.
const NOTES: usize = 1 << 10;

/// A name beginning with `prefix` that no other file has.
///
/// # Errors
/// `ENAMETOOLONG` for a prefix that leaves no room.
pub fn unique_name(prefix: &str) -> Result<Name> {
    Name::try_from(&*format!("{prefix}{:016x}", fastrand::u64(..)))
}

outrigger_core::record! {
    /// A file that was renamed, or was about to be: where it is, and the number in its name there.
    #[derive(Clone, Copy)]
    struct Note { node: Node, dir: Node, number: u64 }
}

/// Silly names that files have or are about to get, noted for the process that takes over.
pub struct SillyNames {
    notes: Option<Notes<u64, Note>>,
    /// Of former processes, until it is found out what became of them.
    left: Mutex<Vec<Note>>,
}

/// A silly name that a former process has left at the server.
struct LeftName {
    dir: Node,
    name: Name,
    /// The removed file, if the name is known to be the only one that it has.
    node: Option<Node>,
}

fn silly_name(number: u64) -> Result<Name> {
    Name::try_from(&*format!("{SILLY_PREFIX}{number:016x}"))
}

fn number_in(name: &Name) -> Option<u64> {
    let digits = name.strip_prefix(SILLY_PREFIX.as_bytes())?;
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

impl SillyNames {
    /// None but those that former processes noted in `keep`.
    ///
    /// # Errors
    /// Those of [`Notes::open`].
    pub fn open(keep: Option<&dyn Keep>) -> Result<Self> {
        let open = |keep| Notes::open(keep, "silly-names", NOTES, |note: &Note| note.number);
        let notes = keep.map(open).transpose()?;
        let left = notes.iter().flat_map(Notes::all).collect();
        Ok(SillyNames { notes, left: Mutex::new(left) })
    }

    /// Has `give` give a file in `dir` a name that no other file has. It is noted before, if `node` is given and there is room.
    ///
    /// # Errors
    /// Those of `give`: no file has got the name.
    pub async fn give<E: From<Error>>(
        &self,
        dir: Node,
        node: Option<Node>,
        give: impl AsyncFnOnce(&Name) -> Result<(), E>,
    ) -> Result<Name, E> {
        let aside = self.begin(dir, node)?;
        match give(&aside).await {
            Ok(()) => Ok(aside),
            Err(error) => {
                self.end(&aside);
                Err(error)
            }
        }
    }

    /// A name that no other file has, for a file that is about to be renamed in `dir`. It is noted if `node` is given and
    /// there is room.
    ///
    /// # Errors
    /// None: it is short enough.
    pub fn begin(&self, dir: Node, node: Option<Node>) -> Result<Name> {
        let number = fastrand::u64(..);
        if let (Some(notes), Some(node)) = (&self.notes, node) {
            let _ = notes.put(number, &Note { node, dir, number });
        }
        silly_name(number)
    }

    /// The file with this name has moved to the same one in `dir`.
    pub fn moved(&self, name: &Name, dir: Node) {
        if let (Some(notes), Some(number)) = (&self.notes, number_in(name)) {
            notes.change(&number, |note| note.dir = dir);
        }
    }

    /// No file has this name any more, or got it.
    pub fn end(&self, name: &Name) {
        if let (Some(notes), Some(number)) = (&self.notes, number_in(name)) {
            notes.remove(&number);
        }
    }

    /// Files to which former processes gave silly names, as far as `table` shows that.
    pub fn given(&self, table: &NodeTable) -> Vec<Node> {
        let is_given = |note: &&Note| {
            silly_name(note.number).is_ok_and(|name| table.get(note.dir, &name) == Some(note.node))
        };
        lock(&self.left).iter().filter(is_given).map(|note| note.node).collect()
    }

    /// Finds out what became of the files that former processes renamed, or were about to: `is_there` asks the server for a name.
    /// `table` then has each by the name it has.
    async fn settle<F: Future<Output = Result<bool>>>(
        &self,
        table: &NodeTable,
        is_there: impl Fn(Node, Name) -> F,
        is_open: impl Fn(Node) -> bool,
    ) -> Vec<LeftName> {
        let notes = std::mem::take(&mut *lock(&self.left));
        let mut left = Vec::new();
        for Note { node, dir, number } in notes {
            let Ok(name) = silly_name(number) else { continue };
            let known = table.get(dir, &name);
            let outcome = match known {
                Some(known) => Ok(known == node),
                None => is_there(dir, name.clone()).await,
            };
            // It had one name, and has that still as far as is known here, or the silly one.
            let names = table.names(node).unwrap_or_default();
            let node = match (outcome, &names[..]) {
                (Ok(true), [(place, former)]) if *place == dir => {
                    if known.is_none() && table.renamed((dir, former), (dir, &name)).is_err() {
                        continue;
                    }
                    Some(node)
                }
                // What is open is removed when it is closed.
                (Ok(true), _) => is_open(node).then_some(node),
                (Ok(false), _) => {
                    self.end(&name);
                    continue;
                }
                (Err(error), _) => {
                    tracing::warn!(%error, "a removed file may be left behind");
                    continue;
                }
            };
            left.push(LeftName { dir, name, node });
        }
        left
    }
}

/// What silly renames ask of a server.
pub trait SillyServer: Send + Sync {
    /// Why it has not renamed a file.
    type Fault: From<Error> + Send;

    /// Renames a file to a name that no other one has.
    fn rename(
        &self,
        from: (Node, &Name),
        to: (Node, &Name),
    ) -> impl Future<Output = Result<(), Self::Fault>> + Send;

    /// Removes a file. Whether it is gone: otherwise it is being removed, and the server ends the note of its name.
    fn remove(&self, dir: Node, name: &Name) -> impl Future<Output = Result<bool>> + Send;

    /// Whether there is a file of this name.
    fn is_there(&self, dir: Node, name: &Name) -> impl Future<Output = Result<bool>> + Send;
}

/// Silly renames in a tree: what becomes of its open files when they lose their last names.
pub struct SillyRename<'a, F, N, S> {
    /// The names, noted.
    pub names: &'a SillyNames,
    /// Where files are.
    pub table: &'a NodeTable,
    /// Which are open.
    pub open: &'a OpenFiles<F, N>,
    /// Who renames and removes.
    pub server: S,
}

impl<F: Clone, N: Default, S: SillyServer> SillyRename<'_, F, N, S> {
    /// Whether a name is one that only this client knows.
    pub fn has(&self, dir: Node, name: &Name) -> bool {
        let is_removed = || self.table.get(dir, name).is_some_and(|node| self.open.is_removed(node));
        name.starts_with(SILLY_PREFIX.as_bytes()) && is_removed()
    }

    /// The file called `name`, if it is open and has not lost its last name yet.
    pub fn loses(&self, dir: Node, name: &Name) -> Option<Node> {
        let node = self.table.get(dir, name)?;
        (self.open.is_open(node) && !self.open.is_removed(node)).then_some(node)
    }

    /// Renames an open file that is about to lose its last name.
    ///
    /// # Errors
    /// Those of the server.
    pub async fn hide(&self, (dir, name): (Node, &Name), node: Node) -> Result<(), S::Fault> {
        let rename = async |aside: &Name| self.server.rename((dir, name), (dir, aside)).await;
        let aside = self.names.give(dir, Some(node), rename).await?;
        Ok(self.hidden((dir, name), &aside, node).await?)
    }

    /// A file is at its silly name now.
    ///
    /// # Errors
    /// Those of removing it: it may have been closed meanwhile.
    pub async fn hidden(&self, (dir, name): (Node, &Name), aside: &Name, node: Node) -> Result<()> {
        self.table.renamed((dir, name), (dir, aside))?;
        self.table_has((dir, aside), node)?;
        if self.open.mark_removed(node) { Ok(()) } else { self.remove(node).await }
    }

    /// Has the table know the silly name of a file also where a lookup has found the former name gone, or both names there.
    fn table_has(&self, (dir, aside): (Node, &Name), node: Node) -> Result<()> {
        if self.table.get(dir, aside) != Some(node) {
            self.table.linked(node, dir, aside)?;
            self.table.forget(node, 1);
        }
        Ok(())
    }

    /// Gives a hidden file the name back that another file was to get and did not, unless there is one of that name.
    pub async fn put_back(&self, (dir, name): (Node, &Name), node: Node) {
        let names = self.table.names(node).unwrap_or_default();
        let is_silly = |(place, name): &(Node, Name)| *place == dir && number_in(name).is_some();
        let Some((_, aside)) = names.into_iter().find(is_silly) else { return };
        // What is not known to be free may be what was renamed.
        let is_free = matches!(self.server.is_there(dir, name).await, Ok(false));
        if !is_free || self.server.rename((dir, &aside), (dir, name)).await.is_err() {
            tracing::warn!(name = %name.escape_ascii(), "an open file could not be given its name back");
            return;
        }
        self.open.mark_named(node);
        self.names.end(&aside);
        // Only a table without room fails: the name is looked up again.
        let _ = self.table.renamed((dir, &aside), (dir, name));
    }

    /// Removes a file that lost its last name and is not open any more.
    ///
    /// # Errors
    /// Those of the server; the next process tries once more.
    pub async fn remove(&self, node: Node) -> Result<()> {
        let mut outcome = Ok(());
        for (dir, name) in self.table.names(node).unwrap_or_default() {
            if number_in(&name).is_none() {
                // It had this name once: another client may have given it to another file.
                self.table.removed(dir, &name);
            } else if let Err(error) = self.remove_name(dir, &name).await {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// Removes what has a silly name.
    ///
    /// # Errors
    /// Those of the server; the next process tries once more.
    pub async fn remove_name(&self, dir: Node, aside: &Name) -> Result<()> {
        let removed = self.server.remove(dir, aside).await;
        self.table.removed(dir, aside);
        if removed? {
            self.names.end(aside);
        }
        Ok(())
    }

    /// Moves files that have lost their names from `dir`, which is to be removed, to the directory above it; whether there were any.
    pub async fn clear(&self, dir: Node, above: Node) -> bool {
        let mut any = false;
        for node in self.open.removed() {
            let names = self.table.names(node).unwrap_or_default();
            let Some((_, aside)) = names.into_iter().find(|(place, _)| *place == dir) else { continue };
            if self.server.rename((dir, &aside), (above, &aside)).await.is_ok() {
                self.names.moved(&aside, above);
                any |= self.table.renamed((dir, &aside), (above, &aside)).is_ok();
            }
        }
        any
    }

    /// Goes on with files that former processes renamed, or were about to.
    pub async fn settle(&self) {
        let is_there = async |dir, name: Name| self.server.is_there(dir, &name).await;
        let is_open = |node| self.open.is_open(node);
        for LeftName { dir, name, node } in self.names.settle(self.table, is_there, is_open).await {
            let has_name = |&node: &Node| self.table_has((dir, &name), node).is_ok();
            if node.filter(has_name).is_some_and(|node| self.open.mark_removed(node)) {
                continue;
            }
            if let Err(error) = self.remove_name(dir, &name).await {
                tracing::warn!(%error, "a removed file is left behind");
            }
        }
    }
}

/// Names at the server that are this client's own, and are not shown.
#[derive(Debug, Default)]
pub struct HiddenNames {
    names: Mutex<HashSet<(Node, Name)>>,
    shown: Notify,
}

/// Hides a name until it is dropped.
#[derive(Debug)]
pub struct Hiding {
    all: Arc<HiddenNames>,
    place: (Node, Name),
}

impl HiddenNames {
    /// Hides `name` in `dir`.
    pub fn hide(self: &Arc<Self>, dir: Node, name: &Name) -> Hiding {
        let place = (dir, name.clone());
        self.lock().insert(place.clone());
        Hiding { all: Arc::clone(self), place }
    }

    /// Whether `name` in `dir` is hidden.
    pub fn has(&self, dir: Node, name: &Name) -> bool {
        self.lock().contains(&(dir, name.clone()))
    }

    /// Waits until none is hidden in `dir`.
    pub async fn none_in(&self, dir: Node) {
        loop {
            let shown = self.shown.notified();
            if !self.lock().iter().any(|(place, _)| *place == dir) {
                return;
            }
            shown.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(Node, Name)>> {
        lock(&self.names)
    }
}

impl Drop for Hiding {
    fn drop(&mut self) {
        self.all.lock().remove(&self.place);
        self.all.shown.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::OpenFlags;
    use outrigger_core::{Errno, Handle, HeapKeep};

    /// The names that a server has.
    #[derive(Default)]
    struct Server(Mutex<HashSet<(Node, Name)>>);

    impl SillyServer for &Server {
        type Fault = Error;

        async fn rename(&self, from: (Node, &Name), to: (Node, &Name)) -> Result<()> {
            let mut names = lock(&self.0);
            if !names.remove(&(from.0, from.1.clone())) {
                return Err(Errno::ENOENT.into());
            }
            names.insert((to.0, to.1.clone()));
            Ok(())
        }

        async fn remove(&self, dir: Node, name: &Name) -> Result<bool> {
            lock(&self.0).remove(&(dir, name.clone())).then_some(true).ok_or_else(|| Errno::ENOENT.into())
        }

        async fn is_there(&self, dir: Node, name: &Name) -> Result<bool> {
            Ok(lock(&self.0).contains(&(dir, name.clone())))
        }
    }

    /// A server with one file, in its root, which a client has found.
    struct Lone {
        keep: HeapKeep,
        server: Server,
        table: NodeTable,
        name: Name,
        file: Node,
    }

    impl Lone {
        fn new(name: &str) -> Self {
            let (keep, server, table) =
                (HeapKeep::default(), Server::default(), NodeTable::in_memory(1 << 20).unwrap());
            let name = Name::try_from(name).unwrap();
            let file = table.found(Node::ROOT, &name, None).unwrap();
            lock(&server.0).insert((Node::ROOT, name.clone()));
            Lone { keep, server, table, name, file }
        }
    }

    /// What a test does with a process that has these at hand.
    async fn with(keep: &HeapKeep, server: &Server, table: &NodeTable, test: impl AsyncFnOnce(&Silly<'_>)) {
        let (names, open) =
            (SillyNames::open(Some(keep)).unwrap(), OpenFiles::open(Some(keep), |_, _, _| ()).unwrap());
        names.given(table).into_iter().for_each(|node| _ = open.mark_removed(node));
        test(&SillyRename { names: &names, table, open: &open, server }).await;
    }

    type Silly<'a> = SillyRename<'a, (), (), &'a Server>;

    fn open(silly: &Silly<'_>, node: Node) -> Handle {
        silly.open.add(node, OpenFlags::empty(), (false, [0; 4]), |_, ()| ()).unwrap()
    }

    #[tokio::test]
    async fn a_removed_file_goes_with_its_last_handle_also_when_another_process_has_that() {
        let (keep, server, table) =
            (HeapKeep::default(), Server::default(), NodeTable::in_memory(1 << 20).unwrap());
        let [d, f] = ["d", "f"].map(|name| Name::try_from(name).unwrap());
        let dir = table.found(Node::ROOT, &d, None).unwrap();
        let file = table.found(dir, &f, None).unwrap();
        lock(&server.0).insert((dir, f.clone()));
        with(&keep, &server, &table, async |silly| {
            assert_eq!(silly.loses(dir, &f), None, "it is not open");
            open(silly, file);
            assert_eq!(silly.loses(dir, &f), Some(file));
            silly.hide((dir, &f), file).await.unwrap();
            let aside = table.names(file).unwrap()[0].1.clone();
            assert!(silly.has(dir, &aside) && silly.loses(dir, &aside).is_none());
            assert!(silly.clear(dir, Node::ROOT).await && !silly.clear(dir, Node::ROOT).await);
            assert!(lock(&server.0).contains(&(Node::ROOT, aside)));
        })
        .await;
        with(&keep, &server, &table, async |silly| {
            silly.settle().await;
            assert_eq!((silly.open.removed(), lock(&server.0).len()), (vec![file], 1));
        })
        .await;
        with(&keep, &server, &table, async |silly| {
            let handle = silly.open.add(file, OpenFlags::empty(), (true, [0; 4]), |_, ()| ()).unwrap();
            silly.open.close(handle).unwrap();
            silly.remove(file).await.unwrap();
            assert!(lock(&server.0).is_empty() && table.names(file).unwrap().is_empty());
        })
        .await;
        with(&keep, &server, &table, async |silly| assert!(lock(&silly.names.left).is_empty())).await;
    }

    #[tokio::test]
    async fn a_name_that_others_have_given_to_another_file_is_not_removed_with_the_one_that_had_it() {
        let Lone { keep, server, table, name: log, file } = Lone::new("log");
        let rotated = Name::try_from("log.1").unwrap();
        // Another client renames the file and makes a new one, and only the new name is looked up.
        table.linked(file, Node::ROOT, &rotated).unwrap();
        lock(&server.0).insert((Node::ROOT, rotated.clone()));
        with(&keep, &server, &table, async |silly| {
            let handle = open(silly, file);
            silly.hide((Node::ROOT, &rotated), file).await.unwrap();
            silly.open.close(handle).unwrap();
            silly.remove(file).await.unwrap();
        })
        .await;
        assert_eq!(*lock(&server.0), HashSet::from([(Node::ROOT, log)]));
    }

    #[tokio::test]
    async fn a_file_whose_former_name_was_found_gone_is_removed_all_the_same() {
        let Lone { keep, server, table, name: f, file } = Lone::new("f");
        with(&keep, &server, &table, async |silly| {
            let handle = open(silly, file);
            let rename = async |aside: &Name| {
                // A lookup comes between the rename and its reply.
                table.removed(Node::ROOT, &f);
                silly.server.rename((Node::ROOT, &f), (Node::ROOT, aside)).await
            };
            let aside = silly.names.give(Node::ROOT, Some(file), rename).await.unwrap();
            silly.hidden((Node::ROOT, &f), &aside, file).await.unwrap();
            assert!(silly.has(Node::ROOT, &aside));
            silly.open.close(handle).unwrap();
            silly.remove(file).await.unwrap();
        })
        .await;
        assert!(lock(&server.0).is_empty());
    }

    #[tokio::test]
    async fn a_hidden_file_gets_its_name_back_unless_another_file_has_it() {
        let Lone { keep, server, table, name: f, file } = Lone::new("f");
        with(&keep, &server, &table, async |silly| {
            open(silly, file);
            silly.hide((Node::ROOT, &f), file).await.unwrap();
            lock(&server.0).insert((Node::ROOT, f.clone()));
            silly.put_back((Node::ROOT, &f), file).await;
            assert!(silly.open.is_removed(file) && lock(&server.0).len() == 2);
            lock(&server.0).remove(&(Node::ROOT, f.clone()));
            silly.put_back((Node::ROOT, &f), file).await;
            assert!(!silly.open.is_removed(file));
            assert_eq!(table.names(file).unwrap(), [(Node::ROOT, f.clone())]);
        })
        .await;
        assert_eq!(*lock(&server.0), HashSet::from([(Node::ROOT, f)]));
    }

    /// It dies between the rename and the close, and another process has nothing open.
    #[tokio::test]
    async fn a_silly_name_that_nobody_has_open_is_removed_by_the_next_process() {
        let Lone { keep, server, table, name: f, file } = Lone::new("f");
        with(&keep, &server, &table, async |silly| {
            let rename =
                async |aside: &Name| silly.server.rename((Node::ROOT, &f), (Node::ROOT, aside)).await;
            silly.names.give(Node::ROOT, Some(file), rename).await.unwrap();
            let refused = silly.names.give(Node::ROOT, Some(file), rename).await;
            assert_eq!(refused, Err(Errno::ENOENT.into()), "and is not noted");
        })
        .await;
        with(&keep, &server, &table, async |silly| {
            assert_eq!(lock(&silly.names.left).len(), 1);
            silly.settle().await;
            assert!(lock(&server.0).is_empty());
        })
        .await;
    }
}
