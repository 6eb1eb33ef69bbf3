// SPDX-License-Identifier: MIT OR Apache-2.0
//! One attempt to do one request with one running program.
//!
//! A request is attempted until a program lives long enough to answer. What earlier attempts may have done is judged by
//! the state of the tree, never by an error alone: programs answer what they like for "exists already".

use crate::decode;
use crate::handles::Open;
use crate::hidden::{Hidden, new_name};
use crate::identity::Occasion;
use crate::life::Life;
use crate::message::{Caller, Fault, Lost, Message};
use crate::names::Likeness;
use crate::nodes::checked;
use crate::shared::Shared;
use crate::stored::Names;
use bytes::Bytes;
use outrigger_core::supervise::Suspect;
use outrigger_core::{Cancel, Errno, Error, FileKind, Handle, Name, Node, lock};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{EntryOut, Opcode};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What is known of a request from earlier attempts.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// The program may have done it.
    pub(crate) sent: bool,
    /// Whether it is what kills: not when something was answered after it was sent.
    pub(crate) suspect: Suspect,
    /// Whether the names were known to lead to something before the first attempt.
    pub(crate) known: Option<bool>,
    /// Whether a write goes to the end, where the door knows that: see [`Cx::appends`](outrigger_core::Cx::appends).
    pub(crate) appends: Option<bool>,
    /// Where an append goes.
    pub(crate) append_at: Option<u64>,
    /// The size before a change that shifts or adds content.
    pub(crate) size_before: Option<u64>,
    /// When the first attempt began, in seconds since 1970.
    pub(crate) began: Option<i64>,
    /// Whether something was known to have the new name before a rename.
    pub(crate) replaces: Option<bool>,
    /// What had the old name before an exchange.
    pub(crate) exchange: Option<Likeness>,
    /// An open file that lives on under another name.
    pub(crate) hidden: Option<Hidden>,
    /// A hidden name, for what is to have none or not yet.
    pub(crate) aside: Option<Name>,
    /// It is done but for the removal of a hidden file that was closed meanwhile.
    pub(crate) is_done: bool,
}

impl Trial {
    /// The program died, or `was_killed` by another process. An error when the request is the reason.
    pub(crate) fn lost(&mut self, lost: &Lost, was_killed: bool) -> Result<(), Error> {
        self.suspect.lost(lost.sent && !lost.innocent && !was_killed);
        if !self.suspect.is_poisonous() {
            return Ok(());
        }
        let times = self.suspect.strikes().max(1);
        let why = &lost.why;
        Err(Errno::EIO.because(format!("the program died {times} times working on this request: {why}")))
    }

    /// Adds to a program's bare `EIO` that an earlier attempt may be the reason: what a program leaves of a change in the
    /// middle of which it died is its own.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if !self.sent || error.errno != Errno::EIO || error.reason.is_some() {
            return error;
        }
        Errno::EIO.because("the program died during this request, and fails when it is repeated")
    }

    /// The hidden name, the same in all attempts.
    pub(crate) fn aside(&mut self) -> Result<Name, Fault> {
        match &self.aside {
            Some(name) => Ok(name.clone()),
            None => Ok(self.aside.insert(new_name()?).clone()),
        }
    }
}

/// An attempt; see the [module](self).
pub(crate) struct Turn<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) life: &'a Life,
    pub(crate) caller: Caller,
    pub(crate) cancel: &'a Cancel,
    pub(crate) trial: &'a mut Trial,
}

impl<'a> Turn<'a> {
    /// Asks the program something that changes nothing.
    pub(crate) async fn ask(&self, message: Message) -> Result<Bytes, Fault> {
        self.ask_as(self.caller, message).await
    }

    async fn ask_as(&self, caller: Caller, message: Message) -> Result<Bytes, Fault> {
        let opcode = message.opcode;
        if self.lacks(opcode) {
            return Err(Errno::ENOSYS.into());
        }
        if message.len() > self.life.conn.limit() {
            return Err(Errno::EMSGSIZE.because("the request is larger than the connection allows").into());
        }
        let replied = self.life.conn.ask(message, caller, self.cancel).await?;
        match replied.errno {
            0 => Ok(replied.body),
            errno => {
                if errno == Errno::ENOSYS.0 {
                    self.shared.missing.fetch_or(1 << opcode as u32, Relaxed);
                }
                Err(Errno(errno).into())
            }
        }
    }

    /// Asks the program for a change: the request itself, not what prepares it.
    pub(crate) async fn change(&mut self, message: Message) -> Result<Bytes, Fault> {
        let result = self.ask(message).await;
        if let Err(Fault::Lost(lost)) = &result {
            self.trial.sent |= lost.sent;
        }
        result
    }

    /// Whether an earlier attempt may have done it.
    pub(crate) fn again(&self) -> bool {
        self.trial.sent
    }

    /// Whether the program has said that it does not know the operation.
    pub(crate) fn lacks(&self, opcode: Opcode) -> bool {
        self.shared.missing.load(Relaxed) & 1 << opcode as u32 != 0
    }

    /// Asks each program once for the inode number of the root, and whether numbers are the same as before.
    pub(crate) async fn know_root(&self) -> Result<(), Fault> {
        if self.life.knows_root.load(Relaxed) {
            return Ok(());
        }
        let get = Message::new(Opcode::Getattr, decode::ROOT).with(&fuse::GetattrIn::default().encode());
        match self.ask_as(Caller::default(), get).await.and_then(|body| decode::attr_out(&body)) {
            Ok((attr, _, _)) => self.shared.nodes.root_is(attr.ino, self.life.epoch),
            // The request was given up: the next one asks again.
            Err(fault) if fault.errno() == Some(Errno::EINTR) => return Ok(()),
            // A root without attributes has no number either.
            Err(Fault::Failed(_)) => {}
            Err(lost) => return Err(lost),
        }
        for node in self.shared.nodes.witnesses() {
            if let Err(Fault::Lost(lost)) = self.theirs(node).await {
                return Err(lost.into());
            }
            if self.shared.nodes.renumbered() {
                break;
            }
        }
        self.life.knows_root.store(true, Relaxed);
        Ok(())
    }

    /// The program's number of `node`, which is looked up again by path when the program is new.
    pub(crate) async fn theirs(&self, node: Node) -> Result<u64, Fault> {
        let nodes = &self.shared.nodes;
        if let Some(id) = nodes.theirs(node, self.life.epoch) {
            return Ok(id);
        }
        // From the node up to what is known.
        let mut unknown = Vec::new();
        let mut at = node;
        let mut id = loop {
            let names = nodes.names(at)?;
            let dir = names[0].0;
            unknown.push((at, names));
            if let Some(id) = nodes.theirs(dir, self.life.epoch) {
                break id;
            }
            at = dir;
        };
        while let Some((node, names)) = unknown.pop() {
            id = self.find_again(node, id, &names).await?;
        }
        Ok(id)
    }

    /// Looks up all names of `node`; the program's number of the first one's directory is `dir`.
    async fn find_again(&self, node: Node, dir: u64, names: &[(Node, Name)]) -> Result<u64, Fault> {
        let nodes = &self.shared.nodes;
        let (first, others) = names.split_first().ok_or(Errno::ESTALE)?;
        let mut found = self.lookup(dir, &first.1).await;
        if is_enoent(&found)
            && let Some((dir, name)) = nodes.elsewhere(first)
        {
            let dir = Box::pin(self.theirs(dir)).await?;
            found = self.lookup(dir, &name).await;
        }
        if is_enoent(&found) {
            if let Ok(path) = nodes.path(node) {
                nodes.stored.seen(&path, None, self.life.epoch);
                nodes.stored.check(&path)?;
            }
            return Err(Errno::ESTALE.because("the file is gone since the program was started again").into());
        }
        let (entry, kind) = found?;
        if let Ok(path) = nodes.path(node) {
            nodes.expect_nothing_of_others(&path, &entry);
        }
        if let Err(error) = nodes.found_again(node, &entry, kind) {
            self.life.conn.send_only(forget(entry.nodeid, 1));
            return Err(error.into());
        }
        for (dir, name) in others {
            // A program may know a file by its names only: it has to learn them all.
            let Some(dir) = nodes.theirs(*dir, self.life.epoch) else { continue };
            if let Ok((other, kind)) = self.lookup(dir, name).await {
                let same = other.nodeid == entry.nodeid && nodes.found_again(node, &other, kind).is_ok();
                if !same {
                    self.life.conn.send_only(forget(other.nodeid, 1));
                }
            }
        }
        Ok(entry.nodeid)
    }

    /// What `name` leads to; the program counts a reference.
    pub(crate) async fn lookup(&self, dir: u64, name: &Name) -> Result<(EntryOut, FileKind), Fault> {
        let body = self.ask(Message::new(Opcode::Lookup, dir).name(name)).await?;
        self.entry(&body, false).map(|(entry, kind, _)| (entry, kind))
    }

    /// Looks whether the program finds what earlier ones have reported stored, until it is to be replaced.
    pub(crate) async fn look_for_stored(&self) -> Result<(), Fault> {
        let Shared { nodes, lives, .. } = self.shared;
        for path in nodes.stored.of_earlier(self.life.epoch) {
            if lives.now().is_none_or(|life| life.epoch != self.life.epoch) {
                break;
            }
            if let Some(size) = self.size_at(&path).await? {
                nodes.stored.seen(&path, size, self.life.epoch);
            }
        }
        Ok(())
    }

    /// The size of what is at `path`, if there is something; nothing when the program does not know.
    async fn size_at(&self, path: &Names) -> Result<Option<Option<u64>>, Fault> {
        let (mut at, mut size) = (decode::ROOT, None);
        let mut passed = Vec::new();
        for name in path {
            match self.lookup(at, name).await {
                Ok((entry, _)) => {
                    if passed.len() + 1 == path.len() {
                        self.shared.nodes.expect_nothing_of_others(path, &entry);
                    }
                    (at, size) = (entry.nodeid, Some(Some(entry.attr.size)));
                    passed.push((at, 1));
                }
                Err(Fault::Failed(error)) => {
                    size = matches!(error.errno, Errno::ENOENT | Errno::ENOTDIR).then_some(None);
                    break;
                }
                Err(lost) => return Err(lost),
            }
        }
        passed.iter().for_each(|&(node, count)| self.life.conn.send_only(forget(node, count)));
        Ok(size)
    }

    /// An entry, its kind, and what follows it.
    pub(crate) fn entry<'b>(
        &self,
        body: &'b [u8],
        made: bool,
    ) -> Result<(EntryOut, FileKind, &'b [u8]), Fault> {
        let (entry, rest) = if made { decode::made(body)? } else { decode::found(body)? };
        match checked(&entry) {
            Ok((_, kind)) => Ok((entry, kind, rest)),
            Err(fault) => {
                self.life.conn.send_only(forget(entry.nodeid, 1));
                Err(fault)
            }
        }
    }

    /// Whether `name` leads to something: its entry, without a reference.
    pub(crate) async fn look(&self, dir: Node, name: &Name) -> Result<Option<(EntryOut, FileKind)>, Fault> {
        let dir = self.theirs(dir).await?;
        match self.lookup(dir, name).await {
            Ok((entry, kind)) => {
                self.life.conn.send_only(forget(entry.nodeid, 1));
                Ok(Some((entry, kind)))
            }
            Err(fault) if fault.errno() == Some(Errno::ENOENT) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Has the program look up `name`, unless it knows what that leads to: a kernel removes and moves only what it holds a
    /// reference to, and programs rely on that (fuse-overlayfs ends what it has given no reference to while it still uses it).
    /// The reference must be held until the change is answered.
    pub(crate) async fn hold(&self, dir: Node, name: &Name) -> Result<Option<Held<'a>>, Fault> {
        let (nodes, epoch) = (&self.shared.nodes, self.life.epoch);
        if nodes.get(dir, name).is_some_and(|node| nodes.theirs(node, epoch).is_some()) {
            return Ok(None);
        }
        match self.lookup(self.theirs(dir).await?, name).await {
            Ok((entry, _)) => Ok(Some(Held { life: self.life, node: entry.nodeid })),
            // The program says so itself when it is asked for the change.
            Err(Fault::Failed(_)) => Ok(None),
            Err(lost) => Err(lost),
        }
    }

    /// Whether `name` led to something before the first attempt.
    pub(crate) async fn was_there(&mut self, dir: Node, name: &Name) -> Result<bool, Fault> {
        if let Some(known) = self.trial.known {
            return Ok(known);
        }
        let known = match self.shared.nodes.last_seen(dir, name) {
            Some(known) => known,
            None => self.look(dir, name).await?.is_some(),
        };
        self.trial.known = Some(known);
        Ok(known)
    }

    /// The open file of `handle`.
    pub(crate) fn open(&self, handle: Handle) -> Result<Arc<Open>, Fault> {
        Ok(self.shared.handles.get(handle)?)
    }

    /// The program's handle of an open file or directory, which is opened again when the program is new.
    pub(crate) async fn their_handle(&self, open: &Open) -> Result<(u64, u64), Fault> {
        let node = self.theirs(open.node).await?;
        let (epoch, handle) = *lock(&open.theirs);
        if epoch == self.life.epoch {
            return Ok((node, handle));
        }
        self.check_version(open)?;
        let directory = self.shared.nodes.kind(open.node).is_none_or(|kind| kind == FileKind::Directory);
        let handle = self.open_again(open, node, directory).await?;
        if !directory && let Err(fault) = self.check_opened(open, node, handle).await {
            self.release(node, handle, open, directory);
            return Err(fault);
        }
        {
            let mut theirs = lock(&open.theirs);
            if theirs.0 == self.life.epoch {
                // Another request was faster.
                let known = theirs.1;
                drop(theirs);
                self.release(node, handle, open, directory);
                return Ok((node, known));
            }
            *theirs = (self.life.epoch, handle);
        }
        lock(&open.listing).restart();
        self.lock_again(open, node, handle).await?;
        Ok((node, handle))
    }

    /// `ESTALE` when the path of an open file leads to another one by now.
    fn check_version(&self, open: &Open) -> Result<(), Fault> {
        if open.version == self.shared.nodes.version(open.node) {
            return Ok(());
        }
        Err(Errno::ESTALE.because("the file was replaced by another program").into())
    }

    /// The same for what was just opened: the path may have been found again long before.
    async fn check_opened(&self, open: &Open, node: u64, fh: u64) -> Result<(), Fault> {
        let args = fuse::GetattrIn { getattr_flags: fuse::GETATTR_FH, fh };
        let answer = self.ask(Message::new(Opcode::Getattr, node).with(&args.encode())).await;
        match answer.and_then(|body| decode::attr_out(&body)) {
            Ok((attr, _, _)) => self.observe(open.node, &attr, Some(open), Occasion::NextLife),
            // What was known by the path has to do.
            Err(Fault::Failed(_)) => {}
            Err(lost) => return Err(lost),
        }
        self.check_version(open)
    }

    async fn open_again(&self, open: &Open, node: u64, directory: bool) -> Result<u64, Fault> {
        let opcode = if directory { Opcode::Opendir } else { Opcode::Open };
        let args = fuse::OpenIn { flags: open.flags.bits(), open_flags: 0 };
        let message = || Message::new(opcode, node).with(&args.encode());
        let body = match self.ask_as(open.caller, message()).await {
            // A file may be open for writing while it is made read-only.
            Err(fault) if matches!(fault.errno(), Some(Errno::EACCES | Errno::EPERM)) && !directory => {
                self.open_forbidden(open.caller, node, message()).await?
            }
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => return Ok(0),
            body => body?,
        };
        Ok(fuse::OpenOut::decode(&body)?.0.fh)
    }

    /// Opens a file whose permissions changed after its first opening, by lending it those it needs.
    async fn open_forbidden(&self, caller: Caller, node: u64, open: Message) -> Result<Bytes, Fault> {
        let get = Message::new(Opcode::Getattr, node).with(&fuse::GetattrIn::default().encode());
        let (attr, _, _) = decode::attr_out(&self.ask(get).await?)?;
        let chmod = |mode| {
            let valid = fuse::SetattrValid::MODE.bits();
            let args = fuse::SetattrIn { valid, mode, ..fuse::SetattrIn::default() };
            Message::new(Opcode::Setattr, node).with(&args.encode())
        };
        self.ask(chmod(attr.mode | 0o600)).await?;
        let opened = self.ask_as(caller, open).await;
        self.ask(chmod(attr.mode)).await?;
        opened
    }

    /// Returns a handle to the program without waiting for its reply to matter.
    fn release(&self, node: u64, handle: u64, open: &Open, directory: bool) {
        let opcode = if directory { Opcode::Releasedir } else { Opcode::Release };
        let args = fuse::ReleaseIn { fh: handle, flags: open.flags.bits(), ..fuse::ReleaseIn::default() };
        self.life.conn.send_only(Message::new(opcode, node).with(&args.encode()));
    }

    /// Takes the locks of an open file again. One that others have got meanwhile is lost, and its file with it.
    async fn lock_again(&self, open: &Open, node: u64, handle: u64) -> Result<(), Fault> {
        let held = lock(&open.locks).clone();
        for held in held {
            let args = crate::locks::encode(handle, held.owner, &held.lock, held.flock);
            match self.ask(Message::new(Opcode::Setlk, node).with(&args.encode())).await {
                Ok(_) => {}
                Err(Fault::Failed(error)) => {
                    let why = format!("a lock was lost when the program was started again: {error}");
                    *lock(&open.failed) = Some(Errno::EIO.because(why));
                }
                Err(lost) => return Err(lost),
            }
        }
        Ok(())
    }
}

/// A reference that the program counts; dropping it returns it.
pub(crate) struct Held<'a> {
    life: &'a Life,
    node: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.life.conn.send_only(forget(self.node, 1));
    }
}

fn is_enoent<T>(result: &Result<T, Fault>) -> bool {
    matches!(result, Err(Fault::Failed(error)) if error.errno == Errno::ENOENT)
}

/// Returns references to the program.
pub(crate) fn forget(node: u64, count: u64) -> Message {
    Message::new(Opcode::Forget, node).with(&fuse::ForgetIn { nlookup: count }.encode())
}
