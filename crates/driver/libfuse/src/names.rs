// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names in directories, and how a change of them is judged that the program may have made before it died.
//!
//! No reply says what it did: only the tree shows that. Something that has the new name was made by us unless we knew of it
//! before, or it is older than the request; a name that is gone was removed by us if we knew it.

use crate::decode;
use crate::files::opened;
use crate::handles::lasting;
use crate::hidden::{Hidden, is_hidden_name};
use crate::identity::Identity;
use crate::message::{Fault, Message};
use crate::turn::{Turn, forget};
use bytes::Bytes;
use outrigger_core::ops::{
    Create, Link, MkDir, MkNod, OpenFlags, Rename, RenameFlags, RmDir, SymLink, TmpFile, Unlink,
};
use outrigger_core::reply::{Created, Entry};
use outrigger_core::{Attr, Errno, Error, FileKind, Name, Node, NodeTable};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{EntryOut, InitFlags, Opcode};

/// By how much the clocks of the program's store and ours may differ, in seconds.
const CLOCKS_DIFFER: i64 = 60;

/// An answer, good or bad; an error when there is none.
fn unless_lost<T>(result: Result<T, Fault>) -> Result<Result<T, Error>, Fault> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Failed(error)) => Ok(Err(error)),
        Err(lost) => Err(lost),
    }
}

/// What a rename leaves as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Likeness {
    /// Nothing when the program has no inode numbers but its node's, which change when it is started again.
    ino: Option<u64>,
    mode: u32,
    size: u64,
    mtime: (u64, u32),
}

impl Likeness {
    fn of(out: &EntryOut) -> Self {
        let attr = &out.attr;
        let ino = (attr.ino != out.nodeid).then_some(attr.ino);
        Likeness { ino, mode: attr.mode, size: attr.size, mtime: (attr.mtime, attr.mtimensec) }
    }
}

impl Turn<'_> {
    /// An entry as the door gets it.
    pub(crate) fn shown(&self, node: Node, attr: Attr, out: &EntryOut) -> Entry {
        Entry {
            node,
            generation: NodeTable::generation(node),
            attr: self.shared.nodes.show(node, attr),
            entry_ttl: decode::ttl(out.entry_valid, out.entry_valid_nsec),
            attr_ttl: decode::ttl(out.attr_valid, out.attr_valid_nsec),
        }
    }

    /// `name` in `dir` leads to `out`: our entry.
    fn take(&self, dir: Node, name: &Name, out: &EntryOut) -> Result<Entry, Fault> {
        let taken = decode::attr(&out.attr)
            .and_then(|(attr, kind)| Ok((self.shared.nodes.found(dir, name, out, kind)?, attr)));
        match taken {
            Ok((node, attr)) => Ok(self.shown(node, attr, out)),
            Err(error) => {
                self.life.conn.send_only(forget(out.nodeid, 1));
                Err(error.into())
            }
        }
    }

    pub(crate) async fn find(&mut self, dir: Node, name: &Name) -> Result<Entry, Fault> {
        if is_hidden_name(name) {
            return Err(Errno::ENOENT.into());
        }
        let theirs = self.theirs(dir).await?;
        let found = self.ask(Message::new(Opcode::Lookup, theirs).name(name)).await;
        self.check_stored(dir, name, &found)?;
        match found {
            Ok(body) => {
                let (out, _) = decode::found(&body).inspect_err(|fault| {
                    if fault.errno() == Some(Errno::ENOENT) {
                        self.shared.nodes.is_absent(dir, name);
                    }
                })?;
                self.take(dir, name, &out)
            }
            Err(fault) => {
                if fault.errno() == Some(Errno::ENOENT) {
                    self.shared.nodes.is_absent(dir, name);
                }
                Err(fault)
            }
        }
    }

    /// An error when `name` was lost at a death, as what the program `found` shows.
    fn check_stored(&self, dir: Node, name: &Name, found: &Result<Bytes, Fault>) -> Result<(), Fault> {
        let nodes = &self.shared.nodes;
        if nodes.stored.is_empty() {
            return Ok(());
        }
        let is_absent = |fault: &Fault| fault.errno() == Some(Errno::ENOENT);
        let entry = match found {
            Ok(body) => match decode::found(body) {
                Ok((out, _)) => Some(out),
                Err(fault) if is_absent(&fault) => None,
                Err(_) => return Ok(()),
            },
            Err(fault) if is_absent(fault) => None,
            Err(_) => return Ok(()),
        };
        let Some(path) = nodes.path_of(dir, name) else { return Ok(()) };
        entry.iter().for_each(|out| nodes.expect_nothing_of_others(&path, out));
        nodes.stored.seen(&path, entry.map(|out| out.attr.size), self.life.epoch);
        nodes.stored.check(&path).map_err(|error| {
            if let Some(out) = entry {
                self.life.conn.send_only(forget(out.nodeid, 1));
            }
            error.into()
        })
    }

    /// Makes something called `name`, or judges that an earlier attempt has made it.
    async fn make(
        &mut self,
        dir: Node,
        name: &Name,
        message: Message,
        kind: FileKind,
    ) -> Result<Entry, Fault> {
        self.was_there(dir, name).await?;
        self.trial.began.get_or_insert_with(|| self.shared.runtime.wall().secs);
        let again = self.again();
        let failed = match self.change(message).await {
            Ok(body) => {
                let (out, _) = decode::made(&body)?;
                self.shared.nodes.made(dir, name);
                return self.take(dir, name, &out);
            }
            Err(fault) => fault,
        };
        if !again || !matches!(failed, Fault::Failed(_)) {
            return Err(failed);
        }
        let theirs = self.theirs(dir).await?;
        match self.lookup(theirs, name).await {
            Ok((out, found)) if found == kind && self.is_ours(&out) => self.take(dir, name, &out),
            Ok((out, _)) => {
                self.life.conn.send_only(forget(out.nodeid, 1));
                Err(failed)
            }
            Err(Fault::Failed(_)) => Err(failed),
            Err(lost) => Err(lost),
        }
    }

    /// Whether what has the name now was made by an earlier attempt.
    fn is_ours(&self, out: &EntryOut) -> bool {
        let began = self.trial.began.unwrap_or(0);
        self.trial.known == Some(false) && out.attr.ctime.cast_signed() >= began - CLOCKS_DIFFER
    }

    /// The mode to ask for: a program that does not apply the umask itself gets what is left.
    fn mode(&self, mode: u32, umask: u32) -> u32 {
        if self.life.has(InitFlags::DONT_MASK) { mode } else { mode & !umask }
    }

    pub(crate) async fn mknod(&mut self, op: &MkNod) -> Result<Entry, Fault> {
        let theirs = self.theirs(op.dir).await?;
        let args = fuse::MknodIn { mode: self.mode(op.mode, op.umask), rdev: op.rdev, umask: op.umask };
        let message = Message::new(Opcode::Mknod, theirs).with(&args.encode()).name(&op.name);
        let kind = FileKind::of_mode(op.mode).unwrap_or(FileKind::Regular);
        self.make(op.dir, &op.name, message, kind).await
    }

    pub(crate) async fn mkdir(&mut self, op: &MkDir) -> Result<Entry, Fault> {
        let theirs = self.theirs(op.dir).await?;
        let args = fuse::MkdirIn { mode: self.mode(op.mode, op.umask), umask: op.umask };
        let message = Message::new(Opcode::Mkdir, theirs).with(&args.encode()).name(&op.name);
        if self.again() {
            self.remove_unfinished(op).await?;
        }
        self.make(op.dir, &op.name, message, FileKind::Directory).await
    }

    /// A program may die between the steps of making a directory, and not know its own work again (gocryptfs): what an
    /// earlier attempt has made is made anew. If others have put something there, it stays.
    async fn remove_unfinished(&mut self, op: &MkDir) -> Result<(), Fault> {
        match unless_lost(self.look(op.dir, &op.name).await)? {
            Ok(Some((out, FileKind::Directory))) if self.is_ours(&out) => {}
            _ => return Ok(()),
        }
        let theirs = self.theirs(op.dir).await?;
        match unless_lost(self.ask(Message::new(Opcode::Rmdir, theirs).name(&op.name)).await)? {
            Ok(_) | Err(Error { errno: Errno::ENOTEMPTY | Errno::EEXIST, .. }) => Ok(()),
            Err(_) => self.replace_unfinished(op, theirs).await,
        }
    }

    /// Puts a new directory in the place of an empty one that the program cannot even remove.
    async fn replace_unfinished(&mut self, op: &MkDir, newdir: u64) -> Result<(), Fault> {
        let aside = self.trial.aside()?;
        let args = fuse::MkdirIn { mode: self.mode(op.mode, op.umask), umask: op.umask };
        let make = Message::new(Opcode::Mkdir, newdir).with(&args.encode()).name(&aside);
        if let Ok(body) = unless_lost(self.ask(make).await)? {
            self.life.conn.send_only(forget(decode::made(&body)?.0.nodeid, 1));
        }
        let args = fuse::RenameIn { newdir };
        let replace = Message::new(Opcode::Rename, newdir).with(&args.encode()).name(&aside).name(&op.name);
        if unless_lost(self.ask(replace).await)?.is_err() {
            unless_lost(self.ask(Message::new(Opcode::Rmdir, newdir).name(&aside)).await)?.ok();
        }
        Ok(())
    }

    pub(crate) async fn symlink(&mut self, op: &SymLink) -> Result<Entry, Fault> {
        let theirs = self.theirs(op.dir).await?;
        let message = Message::new(Opcode::Symlink, theirs).name(&op.name).name(&op.target);
        self.make(op.dir, &op.name, message, FileKind::Symlink).await
    }

    pub(crate) async fn link(&mut self, op: &Link) -> Result<Entry, Fault> {
        if self.shared.nodes.is_removed(op.node) {
            return Err(Errno::ENOENT.because("the file was removed").into());
        }
        let oldnodeid = self.theirs(op.node).await?;
        let theirs = self.theirs(op.dir).await?;
        let kind = self.shared.nodes.kind(op.node).unwrap_or(FileKind::Regular);
        let args = fuse::LinkIn { oldnodeid };
        let message = Message::new(Opcode::Link, theirs).with(&args.encode()).name(&op.name);
        let aside = self.hidden_name(op.node);
        let entry = self.make(op.dir, &op.name, message, kind).await?;
        for node in [op.node, entry.node] {
            self.shared.nodes.identity(node, Identity::link);
        }
        if aside.is_some() {
            // It has a name now: the hidden one is not needed any more.
            self.trial.hidden = aside;
            self.trial.sent = true;
            self.shared.nodes.unhide(op.node);
            self.remove_hidden().await?;
        }
        Ok(entry)
    }

    /// Removes a name, or judges that an earlier attempt has removed it.
    async fn remove(&mut self, opcode: Opcode, dir: Node, name: &Name) -> Result<(), Fault> {
        let known = self.was_there(dir, name).await?;
        let theirs = self.theirs(dir).await?;
        let _held = self.hold(dir, name).await?;
        let again = self.again();
        match self.change(Message::new(opcode, theirs).name(name)).await {
            Ok(_) => {}
            Err(Fault::Failed(error)) => {
                if !(again && known && self.look(dir, name).await?.is_none()) {
                    return Err(error.into());
                }
            }
            Err(lost) => return Err(lost),
        }
        self.shared.nodes.removed(dir, name);
        Ok(())
    }

    pub(crate) async fn unlink(&mut self, op: &Unlink) -> Result<(), Fault> {
        if self.trial.is_done {
            return self.remove_hidden().await;
        }
        if let Some(node) = self.must_hide(op.dir, &op.name)
            && self.hide(op.dir, &op.name, node).await?
        {
            return self.remove_if_closed(node).await;
        }
        self.remove(Opcode::Unlink, op.dir, &op.name).await
    }

    /// A file that is hidden may have been closed meanwhile, by a request that saw no hidden name yet.
    async fn remove_if_closed(&mut self, node: Node) -> Result<(), Fault> {
        self.trial.is_done = true;
        match self.shared.nodes.use_of(node).0 {
            true => Ok(()),
            false => self.remove_hidden().await,
        }
    }

    pub(crate) async fn rmdir(&mut self, op: &RmDir) -> Result<(), Fault> {
        if self.again()
            && let Some(node) = self.shared.nodes.get(op.dir, &op.name)
        {
            // Some may have been moved out before the program died.
            self.clear_hidden(node, op.dir).await?;
        }
        match self.remove(Opcode::Rmdir, op.dir, &op.name).await {
            Err(fault) if matches!(fault.errno(), Some(Errno::ENOTEMPTY | Errno::EEXIST)) => {
                let node = self.shared.nodes.get(op.dir, &op.name);
                match node {
                    Some(node) if self.clear_hidden(node, op.dir).await? => {
                        self.remove(Opcode::Rmdir, op.dir, &op.name).await
                    }
                    _ => Err(fault),
                }
            }
            result => result,
        }
    }

    pub(crate) async fn rename(&mut self, op: &Rename) -> Result<(), Fault> {
        if self.trial.is_done {
            return self.remove_hidden().await;
        }
        if (op.dir, &op.name) == (op.to_dir, &op.to_name) {
            return self.rename_to_itself(op).await;
        }
        let nodes = &self.shared.nodes;
        let moved = nodes.get(op.dir, &op.name);
        self.refuse_circle(op, moved)?;
        let replaces = !op.flags.intersects(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE);
        if let Some(target) = self.must_hide(op.to_dir, &op.to_name)
            && replaces
            && moved != Some(target)
            && !moved.is_some_and(|node| nodes.kind(node) == Some(FileKind::Directory))
        {
            self.hide(op.to_dir, &op.to_name, target).await?;
        }
        let (from, to) = ((op.dir, op.name.clone()), (op.to_dir, op.to_name.clone()));
        nodes.may_move(from.clone(), to.clone());
        let renamed = self.rename_once(op).await;
        if !matches!(renamed, Err(Fault::Lost(_))) {
            nodes.has_moved(&from, &to);
        }
        match renamed {
            Ok(()) if op.flags.contains(RenameFlags::EXCHANGE) => {
                nodes.exchanged((op.dir, &op.name), (op.to_dir, &op.to_name));
            }
            Ok(()) => nodes.renamed((op.dir, &op.name), (op.to_dir, &op.to_name)),
            Err(Fault::Failed(error)) => {
                self.show_again(op.to_dir, &op.to_name).await?;
                return Err(error.into());
            }
            Err(lost) => return Err(lost),
        }
        match self.trial.hidden {
            Some(Hidden { node, .. }) => self.remove_if_closed(node).await,
            None => Ok(()),
        }
    }

    /// No kernel asks a program for this, and libfuse waits for ever for the name that it has locked itself.
    async fn rename_to_itself(&self, op: &Rename) -> Result<(), Fault> {
        match self.look(op.dir, &op.name).await? {
            None => Err(Errno::ENOENT.into()),
            Some(_) if op.flags.contains(RenameFlags::NOREPLACE) => Err(Errno::EEXIST.into()),
            Some(_) => Ok(()),
        }
    }

    /// Programs rely on the kernel to refuse what would tie a knot; some hang instead.
    fn refuse_circle(&self, op: &Rename, moved: Option<Node>) -> Result<(), Fault> {
        let nodes = &self.shared.nodes;
        let exchange = op.flags.contains(RenameFlags::EXCHANGE);
        if moved.is_some_and(|moved| nodes.is_above(moved, op.to_dir)) {
            return Err(Errno::EINVAL.because("a directory cannot be moved into itself").into());
        }
        let target = nodes.get(op.to_dir, &op.to_name);
        match target.is_some_and(|target| nodes.is_above(target, op.dir)) {
            true if exchange => Err(Errno::EINVAL.because("a directory cannot be moved into itself").into()),
            true => Err(Errno::ENOTEMPTY.into()),
            false => Ok(()),
        }
    }

    async fn rename_once(&mut self, op: &Rename) -> Result<(), Fault> {
        let exchange = op.flags.contains(RenameFlags::EXCHANGE);
        if self.again() && exchange && self.is_exchanged(op).await? {
            return Ok(());
        }
        if exchange && self.trial.exchange.is_none() {
            let found = self.look(op.dir, &op.name).await?;
            self.trial.exchange = found.map(|(out, _)| Likeness::of(&out));
        }
        let known = self.was_there(op.dir, &op.name).await?;
        if self.trial.replaces.is_none() {
            self.trial.replaces = self.shared.nodes.last_seen(op.to_dir, &op.to_name);
        }
        // Judged before it is repeated: a rename that is repeated may first move away what it has moved there.
        if self.again()
            && known
            && !exchange
            && self.look(op.dir, &op.name).await?.is_none()
            && self.look(op.to_dir, &op.to_name).await?.is_some()
        {
            return Ok(());
        }
        let theirs = self.theirs(op.dir).await?;
        let newdir = self.theirs(op.to_dir).await?;
        let _held = (self.hold(op.dir, &op.name).await?, self.hold(op.to_dir, &op.to_name).await?);
        let message = if op.flags.is_empty() {
            Message::new(Opcode::Rename, theirs).with(&fuse::RenameIn { newdir }.encode())
        } else {
            let args = fuse::Rename2In { newdir, flags: op.flags.bits() };
            Message::new(Opcode::Rename2, theirs).with(&args.encode())
        };
        match self.change(message.name(&op.name).name(&op.to_name)).await {
            // As the kernel has it for a program that knows no flags.
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => Err(Errno::EINVAL.into()),
            Ok(_) if self.again() && !exchange => self.remove_second_name(op).await,
            result => result.map(drop),
        }
    }

    /// A program may link the new name and then remove the old one (ntfs-3g), and die in between. To rename one name of a
    /// file to another name of it does nothing, and succeeds (rename(2)).
    async fn remove_second_name(&mut self, op: &Rename) -> Result<(), Fault> {
        if self.trial.replaces != Some(false) {
            return Ok(());
        }
        let Some((old, kind)) = self.look(op.dir, &op.name).await? else { return Ok(()) };
        let Some((new, _)) = self.look(op.to_dir, &op.to_name).await? else { return Ok(()) };
        let same = old.nodeid == new.nodeid || (old.attr.ino == new.attr.ino && old.attr.ino != 0);
        // With fewer links than names the file itself would be removed.
        if !same || kind == FileKind::Directory || new.attr.nlink < 2 {
            return Ok(());
        }
        let theirs = self.theirs(op.dir).await?;
        self.ask(Message::new(Opcode::Unlink, theirs).name(&op.name)).await.map(drop)
    }

    /// Whether what had the old name before has the new one now.
    async fn is_exchanged(&mut self, op: &Rename) -> Result<bool, Fault> {
        let Some(before) = self.trial.exchange else { return Ok(false) };
        let now = self.look(op.to_dir, &op.to_name).await?;
        let old = self.look(op.dir, &op.name).await?;
        let is = |found: &Option<(EntryOut, FileKind)>| {
            found.as_ref().is_some_and(|(out, _)| Likeness::of(out) == before)
        };
        Ok(is(&now) && !is(&old))
    }

    pub(crate) async fn create(&mut self, op: &Create) -> Result<Created, Fault> {
        if op.flags.contains(OpenFlags::EXCL) {
            self.was_there(op.dir, &op.name).await?;
        }
        self.trial.began.get_or_insert_with(|| self.shared.runtime.wall().secs);
        if self.again()
            && let Some(created) = self.created_before(op).await?
        {
            return Ok(created);
        }
        if self.lacks(Opcode::Create) {
            return self.create_in_two_steps(op).await;
        }
        let theirs = self.theirs(op.dir).await?;
        let create = libc::O_CREAT as u32;
        let mut flags = lasting(op.flags).bits() | create;
        flags |= (op.flags & OpenFlags::EXCL).bits();
        if self.life.has(InitFlags::ATOMIC_O_TRUNC) {
            flags |= (op.flags & OpenFlags::TRUNC).bits();
        }
        let mode = FileKind::Regular.bits() | self.mode(op.mode, op.umask);
        let args = fuse::CreateIn { flags, mode, umask: op.umask, open_flags: 0 };
        let message = Message::new(Opcode::Create, theirs).with(&args.encode()).name(&op.name);
        let body = match self.change(message).await {
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => {
                return Box::pin(self.create_in_two_steps(op)).await;
            }
            body => body?,
        };
        let (out, rest) = decode::made(&body)?;
        let (out_open, _) = fuse::OpenOut::decode(rest)?;
        self.shared.nodes.made(op.dir, &op.name);
        let mut entry = self.take(op.dir, &op.name, &out)?;
        let open = self.opened(entry.node, op.flags, out_open.fh);
        if op.flags.contains(OpenFlags::TRUNC) {
            if !self.life.has(InitFlags::ATOMIC_O_TRUNC) {
                self.empty(entry.node, out.nodeid).await?;
            }
            self.was_cut(entry.node, 0);
            entry.attr.size = 0;
        }
        Ok(Created { entry, opened: opened(&open, decode::how(out_open.open_flags)) })
    }

    /// What an earlier attempt has created, opened.
    async fn created_before(&mut self, op: &Create) -> Result<Option<Created>, Fault> {
        let theirs = self.theirs(op.dir).await?;
        let (out, kind) = match self.lookup(theirs, &op.name).await {
            Ok(found) => found,
            Err(fault) if fault.errno() == Some(Errno::ENOENT) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let exclusive = op.flags.contains(OpenFlags::EXCL);
        if kind != FileKind::Regular || (exclusive && !self.is_ours(&out)) {
            self.life.conn.send_only(forget(out.nodeid, 1));
            return Err(Errno::EEXIST.into());
        }
        let entry = self.take(op.dir, &op.name, &out)?;
        self.open_new(entry, op.flags).await.map(Some)
    }

    /// For programs without CREATE (as the kernel does).
    async fn create_in_two_steps(&mut self, op: &Create) -> Result<Created, Fault> {
        let mode = FileKind::Regular.bits() | op.mode;
        let made =
            MkNod { dir: op.dir, name: op.name.clone(), mode, umask: op.umask, rdev: 0, initial: None };
        let entry = self.mknod(&made).await?;
        self.open_new(entry, op.flags).await
    }

    /// Opens a file that was just made; its reference is returned when that fails.
    async fn open_new(&mut self, entry: Entry, flags: OpenFlags) -> Result<Created, Fault> {
        let open = outrigger_core::ops::Open { node: entry.node, flags: flags - OpenFlags::EXCL };
        match self.open_file(&open).await {
            Ok(opened) => Ok(Created { entry, opened }),
            Err(fault) => {
                self.shared.forget(entry.node, 1);
                Err(fault)
            }
        }
    }

    /// A file without a name could not be found again: it gets a hidden one.
    pub(crate) async fn tmpfile(&mut self, op: &TmpFile) -> Result<Created, Fault> {
        let name = self.trial.aside()?;
        let flags = op.flags - OpenFlags::from_bits_retain(libc::O_TMPFILE as u32);
        let create = Create { dir: op.dir, name, mode: op.mode, umask: op.umask, flags, initial: None };
        let mut created = self.create(&create).await?;
        self.shared.nodes.hide(created.entry.node, !op.flags.contains(OpenFlags::EXCL));
        created.entry.attr = self.shared.nodes.show(created.entry.node, created.entry.attr);
        Ok(created)
    }
}
