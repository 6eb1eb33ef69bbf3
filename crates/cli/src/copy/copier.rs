// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks the source, decides about each file, and makes everything but regular files.

use super::attrs;
use super::conflict::{Conflict, Decision, announcement};
use super::directory::{Directory, Finish};
use super::file::{FileCopy, new_mode};
use super::options::{Deref, Options};
use super::pool::Pool;
use super::shared::Shared;
use super::target::{Spot, shown, shown_below, spot, wants_directory};
use crate::context::{Context, Place};
use crate::progress::Progress;
use crate::say::quoted;
use outrigger_client::{Entries, Follow, Inode, TreeId};
use outrigger_core::{Errno, Error, FileKind, Name, Node, Target};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread;

/// Files of a directory that are copied in the order of their inode numbers, which is near the order in which most
/// trees store them.
const BATCH: usize = 1024;
/// Files larger than this, in bytes, are copied one at a time: reading ahead already keeps two processors busy.
const LARGE: u64 = 64 << 20;

/// Copies one operand after the other.
pub struct Copier<'c> {
    context: &'c Context,
    shared: Arc<Shared>,
    pool: Pool,
    /// The copy of each file with several names, and the file itself so that its node stays its own.
    links: HashMap<(TreeId, Node), (Inode, Inode)>,
    /// Directories and files made for operands: neither sources nor to be overwritten by other operands.
    made: Vec<Inode>,
    /// Operands so far, and where they went.
    seen: HashSet<(Vec<u8>, Vec<u8>)>,
    /// The operand contains its own copy: going on would only copy copies.
    into_itself: bool,
    /// Parent directories made for an operand, outermost first.
    parents: Vec<Arc<Directory>>,
}

/// A file to be copied.
struct Item {
    source: Inode,
    /// The path of the source in its tree, for following symbolic links.
    path: Vec<u8>,
    dir: Arc<Directory>,
    name: Name,
    from: Vec<u8>,
    to: Vec<u8>,
    /// Set when it is an operand.
    operand: Option<Place>,
}

/// A source directory, and how messages name it and its copy.
struct Pair {
    source: Inode,
    path: Vec<u8>,
    from: Vec<u8>,
    to: Vec<u8>,
}

/// A source directory in progress.
struct Frame {
    source: Arc<Inode>,
    path: Vec<u8>,
    dir: Arc<Directory>,
    entries: Entries,
    batch: Vec<(Name, Inode)>,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl<'c> Copier<'c> {
    /// A copier that reports through `context`.
    pub fn new(context: &'c Context, options: Options, progress: Progress) -> Self {
        let shared = Arc::new(Shared::new(options, progress, context.cancel.clone(), context.umask));
        Copier {
            context,
            pool: Pool::new(Arc::clone(&shared)),
            shared,
            links: HashMap::new(),
            made: Vec::new(),
            seen: HashSet::new(),
            into_itself: false,
            parents: Vec::new(),
        }
    }

    /// Copies `source` to `target`; whether everything arrived. Files may still be on their way: see
    /// [`Copier::wait`].
    pub fn copy(&mut self, source: &Place, target: &Place) -> bool {
        let before = self.shared.failures();
        let follow = if self.shared.options.deref == Deref::Never { Follow::No } else { Follow::Yes };
        match source.find(follow) {
            Ok(inode) => self.operand(inode, source, target),
            Err(error) => self.shared.cannot("cannot stat", shown(source), &error),
        }
        self.flush();
        before == self.shared.failures()
    }

    /// Waits until every file has arrived; whether nothing failed since the copier was made.
    pub fn wait(&mut self) -> bool {
        self.pool.wait();
        while let Some(dir) = self.parents.pop() {
            Directory::release(dir, &self.shared);
        }
        self.flush();
        self.shared.progress.finish();
        self.shared.failures() == 0
    }

    /// Makes the directory `target` as a copy of `source` without its content, unless it exists; whether it is there.
    pub fn make_parent(&mut self, source: &Place, target: &Place) -> bool {
        let made = source.find(Follow::Yes).and_then(|inode| self.try_make_parent(source, inode, target));
        if let Err(error) = &made {
            self.shared.cannot("cannot make directory", shown(target), error);
        }
        self.flush();
        made.is_ok()
    }

    fn try_make_parent(&mut self, from: &Place, source: Inode, target: &Place) -> Result<(), Error> {
        let (dir, name) = target.parent()?;
        if dir.find(&name)?.is_some() {
            return Ok(());
        }
        let mode = source.attr().permissions() & 0o1777;
        let inode = dir.mkdir(&name, (mode & !self.shared.umask) | 0o700)?;
        if self.shared.options.verbose && !self.shared.options.json {
            // Without quotes, as GNU cp has it.
            let name = |place: &Place| place.display().to_string();
            self.shared.say(format!("{} -> {}", name(from), name(target)));
        }
        let finish = Finish { source: Arc::new(source), made: Some(mode), to: shown(target).to_vec() };
        self.parents.push(Directory::copied(inode, finish, None, &self.shared));
        Ok(())
    }

    /// Adds the size of what will be copied to the progress bar, on a thread of its own.
    pub fn expect(&self, sources: Vec<Place>) {
        if self.shared.progress.is_shown() {
            let shared = Arc::clone(&self.shared);
            // Without the thread the bar only lacks its end.
            drop(thread::Builder::new().name("scan".into()).spawn(move || scan(&shared, sources)));
        }
    }

    fn operand(&mut self, source: Inode, place: &Place, target: &Place) {
        let from = shown(place).to_vec();
        let to = shown(target).to_vec();
        if source.is_dir() && !self.shared.options.recursive {
            let name = quoted(&from);
            return self.shared.complain(format_args!("-r not specified; omitting directory {name}"));
        }
        if !self.remember(&source, from.clone(), to.clone()) {
            return;
        }
        match spot(target) {
            Ok(Spot::Itself(inode)) => self.merge_operand(source, place.path.clone(), inode, from, to),
            Ok(Spot::Named(dir, name)) => {
                let dir = Directory::existing(dir, &self.shared);
                let path = place.path.clone();
                self.run(Item { source, path, dir, name, from, to, operand: Some(target.clone()) });
            }
            Err(error) => {
                let what = match (source.kind(), error.errno) {
                    (FileKind::Directory, _) => "cannot create directory",
                    (_, Errno::ENOTDIR) => "cannot stat",
                    (FileKind::Symlink, _) => "cannot create symbolic link",
                    _ => "cannot create regular file",
                };
                self.shared.cannot(what, &to, &error);
            }
        }
    }

    /// Whether this operand is new for this target.
    fn remember(&mut self, source: &Inode, from: Vec<u8>, to: Vec<u8>) -> bool {
        let message = quoted(&from);
        let new = self.seen.insert((from, to));
        if !new {
            let kind = if source.is_dir() { "directory" } else { "file" };
            self.shared.remark(format!("warning: source {kind} {message} specified more than once"));
        }
        new
    }

    fn merge_operand(&mut self, source: Inode, path: Vec<u8>, target: Inode, from: Vec<u8>, to: Vec<u8>) {
        if !source.is_dir() {
            let name = quoted(&to);
            return self
                .shared
                .complain(format_args!("cannot overwrite directory {name} with non-directory"));
        }
        if source.is_same(&target) {
            let (from, to) = (quoted(&from), quoted(&to));
            return self.shared.complain(format_args!("{from} and {to} are the same file"));
        }
        let item = Pair { source, path, from, to };
        if let Some(frame) = self.enter(item, target, None, None) {
            self.walk(frame);
        }
    }

    /// Copies one operand with everything below it.
    fn run(&mut self, item: Item) {
        let is_operand = item.operand.is_some();
        let (dir, name) = (Arc::clone(&item.dir), item.name.clone());
        let frame = self.item(item);
        if is_operand && let Ok(Some(inode)) = dir.inode.find(&name) {
            self.made.push(inode);
        }
        Directory::release(dir, &self.shared);
        if let Some(frame) = frame {
            self.walk(frame);
        }
    }

    fn walk(&mut self, first: Frame) {
        let mut frames = vec![first];
        self.into_itself = false;
        while let Some(frame) = frames.last_mut() {
            self.flush();
            if self.shared.cancel.is_raised() || self.into_itself {
                break;
            }
            match frame.next(&self.shared) {
                Some((name, source)) => {
                    let item = frame.item(name, source);
                    let below = self.item_below(item, &frames);
                    frames.extend(below);
                }
                None => {
                    if let Some(Frame { dir, .. }) = frames.pop() {
                        Directory::release(dir, &self.shared);
                    }
                }
            }
        }
        self.pool.copy_together();
        // After an interruption directories stay without their attributes: they are not complete.
        while let Some(Frame { dir, .. }) = frames.pop() {
            Directory::release(dir, &self.shared);
        }
    }

    /// An item inside a directory: follows it if it should be, and refuses cycles.
    fn item_below(&mut self, mut item: Item, above: &[Frame]) -> Option<Frame> {
        if self.shared.options.deref == Deref::Always && item.source.kind() == FileKind::Symlink {
            match item.source.client().walk(&item.path, Follow::Yes) {
                Ok(inode) => item.source = inode,
                Err(error) => {
                    self.shared.cannot("cannot stat", &item.from, &error);
                    return self.give_up(item);
                }
            }
        }
        if self.shared.omits(&item.source, &item.from) {
            return self.give_up(item);
        }
        if item.source.is_dir() {
            if above.iter().any(|frame| item.source.repeats(&frame.source)) {
                self.shared.complain_of_loop(&item.from);
                return self.give_up(item);
            }
            if self.made.iter().any(|made| made.is_same(&item.source)) {
                let (from, to) = (quoted(&above[0].from), quoted(&above[0].to));
                self.shared.complain(format_args!("cannot copy a directory, {from}, into itself, {to}"));
                self.into_itself = true;
                return self.give_up(item);
            }
        }
        self.item(item)
    }

    fn give_up(&self, item: Item) -> Option<Frame> {
        Directory::release(item.dir, &self.shared);
        None
    }

    /// Copies one file, or begins with a directory.
    fn item(&mut self, item: Item) -> Option<Frame> {
        let existing = match self.look(&item) {
            Ok(existing) => existing,
            Err(error) => {
                self.shared.cannot("cannot stat", &item.to, &error);
                return self.give_up(item);
            }
        };
        let decision = match existing {
            None => Decision::Make,
            Some((existing, followed)) => self.decide(&item, existing, followed),
        };
        let existing = match decision {
            Decision::Skip => return self.give_up(item),
            Decision::Merge(target) => {
                let Item { source, path, dir, from, to, .. } = item;
                return self.enter(Pair { source, path, from, to }, target, None, Some(dir));
            }
            Decision::Make => None,
            Decision::Into(inode) => Some(inode),
        };
        if self.shared.options.verbose {
            self.shared.say(announcement(&self.shared, &item.source, &item.from, &item.to));
        }
        self.make(item, existing)
    }

    /// What has the name already, and where that leads if it is a symbolic link the user means to be followed.
    fn look(&self, item: &Item) -> Result<Option<(Inode, Option<Inode>)>, Error> {
        if item.dir.fresh {
            return Ok(None);
        }
        let Some(existing) = item.dir.inode.find(&item.name)? else { return Ok(None) };
        let options = &self.shared.options;
        let follows = item.source.kind() == FileKind::Regular
            && !options.moving
            && !options.remove_destination
            && !options.hard_link
            && !options.symbolic_link;
        match &item.operand {
            Some(place) if follows && existing.kind() == FileKind::Symlink => match place.find(Follow::Yes) {
                Ok(target) => Ok(Some((existing, Some(target)))),
                Err(error) if error.errno == Errno::ENOENT => Ok(Some((existing, None))),
                Err(error) => Err(error),
            },
            _ => Ok(Some((existing, None))),
        }
    }

    fn decide(&self, item: &Item, existing: Inode, followed: Option<Inode>) -> Decision {
        if item.operand.is_some()
            && !item.source.is_dir()
            && self.made.iter().any(|made| made.is_same(&existing))
        {
            let (from, to) = (quoted(&item.from), quoted(&item.to));
            self.shared.complain(format_args!("will not overwrite just-created {to} with {from}"));
            return Decision::Skip;
        }
        let is_link = item.operand.is_some() && item.source.kind() == FileKind::Symlink;
        let leads_to = if is_link { item.source.client().walk(&item.path, Follow::Yes).ok() } else { None };
        let conflict = Conflict {
            shared: &self.shared,
            source: &item.source,
            leads_to: leads_to.as_ref(),
            dir: &item.dir.inode,
            name: &item.name,
            named: item.operand.is_some(),
            from: &item.from,
            to: &item.to,
        };
        conflict.decide(existing, followed)
    }

    /// Makes the copy under a name that is free, or writes into an existing file.
    fn make(&mut self, item: Item, existing: Option<Inode>) -> Option<Frame> {
        let options = &self.shared.options;
        let (hard, symbolic) = (options.hard_link, options.symbolic_link);
        if item.source.is_dir() {
            return self.make_directory(item);
        }
        if let Some((_, copy)) = self.links.get(&key(&item.source)).filter(|_| self.keeps_links(&item.source))
        {
            let dir = &item.dir.inode;
            let free = if existing.is_some() { dir.unlink(&item.name) } else { Ok(()) };
            let linked = free.and_then(|()| dir.link(copy, &item.name).map(drop));
            self.report(linked, "cannot create hard link", &item);
            return self.give_up(item);
        }
        if hard {
            self.make_hard(&item);
            return self.give_up(item);
        }
        if symbolic {
            self.make_symbolic(&item);
            return self.give_up(item);
        }
        match item.source.kind() {
            FileKind::Symlink => self.copy_symlink(item),
            FileKind::Regular => self.copy_regular(item, existing),
            _ if options.recursive => self.copy_special(item),
            _ => self.copy_regular(item, existing),
        }
        None
    }

    fn keeps_links(&self, source: &Inode) -> bool {
        self.shared.options.preserve.links && source.attr().nlink > 1
    }

    fn report(&self, result: Result<(), Error>, what: &str, item: &Item) {
        if let Err(error) = result {
            self.shared.cannot(what, &item.to, &error);
        }
    }

    fn make_directory(&mut self, item: Item) -> Option<Frame> {
        let mode = item.source.attr().permissions() & 0o1777;
        let withheld = attrs::withheld(&self.shared, FileKind::Directory);
        // Whatever mode it is to have in the end: until then we have to write into it.
        let first = (mode & !withheld & !self.shared.umask) | 0o700;
        match item.dir.inode.mkdir(&item.name, first) {
            Ok(inode) => {
                let Item { source, path, dir, from, to, .. } = item;
                self.enter(Pair { source, path, from, to }, inode, Some(mode), Some(dir))
            }
            Err(error) => {
                self.shared.cannot("cannot create directory", &item.to, &error);
                self.give_up(item)
            }
        }
    }

    /// Begins with the content of a directory.
    fn enter(
        &mut self,
        Pair { source, path, from, to }: Pair,
        target: Inode,
        made: Option<u32>,
        above: Option<Arc<Directory>>,
    ) -> Option<Frame> {
        let source = Arc::new(source);
        let finish = Finish { source: Arc::clone(&source), made, to: to.clone() };
        let dir = Directory::copied(target, finish, above, &self.shared);
        match source.entries() {
            Ok(entries) => Some(Frame { source, path, dir, entries, batch: Vec::new(), from, to }),
            Err(error) => {
                self.shared.cannot("cannot access", &from, &error);
                Directory::release(dir, &self.shared);
                None
            }
        }
    }

    fn make_hard(&self, item: &Item) {
        let made = if item.source.client().tree() == item.dir.inode.client().tree() {
            item.dir.inode.link(&item.source, &item.name).map(drop)
        } else {
            Err(Errno::EXDEV.into())
        };
        if let Err(error) = made {
            let (to, from) = (quoted(&item.to), quoted(&item.from));
            self.shared.complain(format_args!("cannot create hard link {to} to {from}: {error}"));
        }
    }

    fn make_symbolic(&self, item: &Item) {
        let relative = !item.from.starts_with(b"/");
        if relative && item.to.contains(&b'/') {
            let name = String::from_utf8_lossy(&item.to);
            return self.shared.complain(format_args!(
                "{name}: can make relative symbolic links only in current directory"
            ));
        }
        let made = Target::new(item.from.clone()).and_then(|to| item.dir.inode.symlink(&item.name, to));
        if let Err(error) = made {
            let (to, from) = (quoted(&item.to), quoted(&item.from));
            self.shared.complain(format_args!("cannot create symbolic link {to} to {from}: {error}"));
        }
    }

    fn copy_symlink(&mut self, item: Item) {
        let target = match item.source.readlink() {
            Ok(target) => target,
            Err(error) => {
                self.shared.cannot("cannot read symbolic link", &item.from, &error);
                self.give_up(item);
                return;
            }
        };
        match item.dir.inode.symlink(&item.name, target) {
            Ok(inode) => self.finish_special(item, inode, None),
            Err(error) => {
                self.shared.cannot("cannot create symbolic link", &item.to, &error);
                self.give_up(item);
            }
        }
    }

    fn copy_special(&mut self, item: Item) {
        let attr = item.source.attr();
        if let Some(refused) = attrs::refused_device(&self.shared, &item.source) {
            self.shared.cannot("cannot create special file", &item.to, &refused);
            self.give_up(item);
            return;
        }
        let made = new_mode(&self.shared.options.preserve, attr);
        let mode = made & !self.shared.umask & !attrs::withheld(&self.shared, attr.kind());
        match item.dir.inode.mknod(&item.name, attr.kind().bits() | mode, attr.rdev) {
            Ok(inode) => self.finish_special(item, inode, Some(made)),
            Err(error) => {
                let what = match attr.kind() {
                    FileKind::Fifo => "cannot create fifo",
                    _ => "cannot create special file",
                };
                self.shared.cannot(what, &item.to, &error);
                self.give_up(item);
            }
        }
    }

    /// Gives a new symbolic link or special file its attributes.
    fn finish_special(&mut self, item: Item, mut inode: Inode, made: Option<u32>) {
        let copied = attrs::Copied { inode: &mut inode, file: None };
        attrs::preserve(&self.shared, &item.source, copied, made, &item.to);
        self.shared.progress.file();
        let Item { source, dir, .. } = item;
        if self.keeps_links(&source) {
            self.links.insert(key(&source), (source, inode));
        }
        Directory::release(dir, &self.shared);
    }

    fn copy_regular(&mut self, item: Item, existing: Option<Inode>) {
        let keeps_links = self.keeps_links(&item.source);
        let Item { source, dir, name, from, to, operand, .. } = item;
        if operand.as_ref().is_some_and(wants_directory) && existing.is_none() {
            self.shared.cannot("cannot create regular file", &to, &Errno::ENOTDIR.into());
            return Directory::release(dir, &self.shared);
        }
        let alone = operand.is_some() || source.attr().size > LARGE;
        let file = FileCopy { source, dir, name, existing, from, to };
        if keeps_links {
            if let Some((source, copy)) = file.run(&self.shared) {
                self.links.insert(key(&source), (source, copy));
            }
        } else if alone {
            drop(file.run(&self.shared));
        } else {
            self.pool.copy(file);
        }
    }

    /// Shows the messages of the threads.
    fn flush(&self) {
        for (status, message) in self.shared.take_messages() {
            self.shared.progress.aside(|| self.context.complain(status, message));
        }
    }
}

fn key(inode: &Inode) -> (TreeId, Node) {
    (inode.client().tree(), inode.node())
}

impl Frame {
    /// The next file of this directory.
    fn next(&mut self, shared: &Shared) -> Option<(Name, Inode)> {
        if self.batch.is_empty() {
            self.batch = self
                .entries
                .by_ref()
                .take(BATCH)
                .filter_map(|entry| entry.map_err(|unreadable| shared.missed(&self.from, &unreadable)).ok())
                .collect();
            // The last is taken first.
            self.batch.sort_unstable_by_key(|(_, inode)| std::cmp::Reverse(inode.attr().ino));
        }
        self.batch.pop()
    }

    fn item(&self, name: Name, source: Inode) -> Item {
        Item {
            source,
            path: shown_below(&self.path, &name),
            dir: Arc::clone(&self.dir),
            from: shown_below(&self.from, &name),
            to: shown_below(&self.to, &name),
            name,
            operand: None,
        }
    }
}

/// Adds up the sizes of everything below `sources`. What cannot be read is not expected either.
fn scan(shared: &Shared, sources: Vec<Place>) {
    let follow = if shared.options.deref == Deref::Never { Follow::No } else { Follow::Yes };
    for source in sources {
        let mut pending: Vec<Inode> = source.find(follow).into_iter().collect();
        while let Some(inode) = pending.pop() {
            if shared.cancel.is_raised() {
                return;
            }
            match inode.kind() {
                FileKind::Regular => shared.progress.expect(inode.attr().size),
                FileKind::Directory if shared.options.recursive => {
                    let entries = inode.entries().into_iter().flatten();
                    pending.extend(entries.filter_map(|entry| entry.ok().map(|(_, inode)| inode)));
                }
                _ => {}
            }
        }
    }
}
