// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open directories.

use crate::decode;
use crate::files::opened;
use crate::handles::Open;
use crate::hidden::is_hidden_name;
use crate::listing::Listed;
use crate::message::{Fault, Message};
use crate::nodes::checked;
use crate::ops::tolerate;
use crate::turn::{Turn, forget};
use bytes::Bytes;
use outrigger_core::ops::{FSyncDir, OpenDir, OpenFlags, ReadDir, ReadDirPlus};
use outrigger_core::reply::{Dirent, DirentPlus, Dirents, DirentsPlus, Entry, Opened, Ttl};
use outrigger_core::{Attr, Errno, FileKind, Generation, Handle, Name, Node, lock};
use outrigger_proto_fuse as fuse;
use outrigger_proto_fuse::{EntryOut, InitFlags, Opcode};

/// What an entry of a listing takes beside its name, with and without attributes.
const HEAD: usize = 24;
const HEAD_PLUS: usize = 152;
/// The least and most the program is asked to list at once, in bytes.
const LEAST: u32 = 4096;
const MOST: u32 = 128 << 10;

impl Turn<'_> {
    pub(crate) async fn open_dir(&mut self, op: &OpenDir) -> Result<Opened, Fault> {
        let node = self.theirs(op.node).await?;
        let flags = OpenFlags::from_bits_retain(libc::O_DIRECTORY as u32);
        let args = fuse::OpenIn { flags: flags.bits(), open_flags: 0 };
        let out = match self.ask(Message::new(Opcode::Opendir, node).with(&args.encode())).await {
            // The program needs no opening (`NO_OPENDIR_SUPPORT`).
            Err(fault) if fault.errno() == Some(Errno::ENOSYS) => fuse::OpenOut::default(),
            body => fuse::OpenOut::decode(&body?)?.0,
        };
        let open = self.opened(op.node, flags, out.fh);
        Ok(opened(&open, decode::how(out.open_flags)))
    }

    pub(crate) async fn release_dir(&mut self, handle: Handle) -> Result<(), Fault> {
        let Ok(open) = self.open(handle) else { return Ok(()) };
        let (epoch, fh) = *lock(&open.theirs);
        if epoch == self.life.epoch {
            let node = self.theirs(open.node).await?;
            let args = fuse::ReleaseIn { fh, flags: open.flags.bits(), ..fuse::ReleaseIn::default() };
            let released = self.ask(Message::new(Opcode::Releasedir, node).with(&args.encode())).await;
            if let Err(Fault::Lost(lost)) = released {
                return Err(lost.into());
            }
        }
        if self.shared.handles.remove(handle) {
            self.shared.nodes.closed(open.node);
        }
        Ok(())
    }

    pub(crate) async fn fsyncdir(&mut self, op: &FSyncDir) -> Result<(), Fault> {
        let open = self.open(op.handle)?;
        let (node, fh) = self.their_handle(&open).await?;
        let fsync_flags = if op.data_only { fuse::FSYNC_FDATASYNC } else { 0 };
        let args = fuse::FsyncIn { fh, fsync_flags };
        tolerate(self.ask(Message::new(Opcode::Fsyncdir, node).with(&args.encode())).await)
    }

    pub(crate) async fn read_dir(&mut self, op: &ReadDir) -> Result<Dirents, Fault> {
        let open = self.open(op.handle)?;
        let _one = open.one_listing.enter().await;
        if op.cookie == 0 {
            lock(&open.listing).rewind();
        }
        while self.needs_more(&open, op.cookie) {
            let opcode = self.lists_names_by();
            let (body, from) = match self.list(&open, opcode, op.size).await {
                Err(fault) if fault.errno() == Some(Errno::ENOSYS) && self.lists_names_by() != opcode => {
                    continue;
                }
                listed => listed?,
            };
            match opcode {
                Opcode::Readdirplus => self.take_names_of_entries(&open, &body)?,
                _ => self.take_names(&open, &body)?,
            }
            moved(&open, from)?;
        }
        let mut left = op.size as usize;
        let listing = lock(&open.listing);
        let mut entries = Vec::new();
        for (cookie, listed) in listing.after(op.cookie) {
            left = left.saturating_sub(HEAD + listed.name.len());
            if left == 0 && !entries.is_empty() {
                break;
            }
            let Listed { name, ino, kind } = listed.clone();
            let ino = self.shared.nodes.listed_ino(op.node, &name, ino);
            entries.push(Dirent { ino, cookie, kind, name });
        }
        let last = entries.last().map_or(op.cookie, |entry| entry.cookie);
        let eof = listing.eof && last as usize >= listing.delivered.len();
        Ok(Dirents { entries, eof })
    }

    pub(crate) async fn read_dir_plus(&mut self, op: &ReadDirPlus) -> Result<DirentsPlus, Fault> {
        if !self.life.has(InitFlags::DO_READDIRPLUS) || self.lacks(Opcode::Readdirplus) {
            let plain = ReadDir { node: op.node, handle: op.handle, cookie: op.cookie, size: op.size };
            return self.read_dir(&plain).await.map(without_attributes);
        }
        let open = self.open(op.handle)?;
        let one = open.one_listing.enter().await;
        if op.cookie == 0 {
            lock(&open.listing).rewind();
        }
        let mut entries = Vec::new();
        let mut left = op.size as usize;
        for (cookie, listed) in lock(&open.listing).after(op.cookie) {
            left = left.saturating_sub(HEAD_PLUS + listed.name.len());
            if left == 0 && !entries.is_empty() {
                break;
            }
            entries.push(name_only(cookie, listed));
        }
        while entries.is_empty() && !lock(&open.listing).eof {
            match self.list(&open, Opcode::Readdirplus, op.size).await {
                Ok((body, from)) => {
                    self.take_entries(&open, &body, &mut entries)?;
                    moved(&open, from)?;
                }
                Err(fault) if fault.errno() == Some(Errno::ENOSYS) => {
                    drop(one);
                    return Box::pin(self.read_dir_plus(op)).await;
                }
                Err(fault) => return Err(fault),
            }
        }
        let listing = lock(&open.listing);
        let last = entries.last().map_or(op.cookie, |entry| entry.cookie);
        let eof = listing.eof && last as usize >= listing.delivered.len();
        drop(listing);
        Ok(DirentsPlus { entries, eof })
    }

    /// How the program lists names alone. One that has not agreed to READDIRPLUS_AUTO need not know READDIR.
    fn lists_names_by(&self) -> Opcode {
        let plus = self.life.has(InitFlags::DO_READDIRPLUS) && !self.lacks(Opcode::Readdirplus);
        let plain = self.life.has(InitFlags::READDIRPLUS_AUTO) && !self.lacks(Opcode::Readdir);
        if plus && !plain { Opcode::Readdirplus } else { Opcode::Readdir }
    }

    fn needs_more(&self, open: &Open, cookie: u64) -> bool {
        let listing = lock(&open.listing);
        !listing.eof && listing.delivered.len() as u64 <= cookie
    }

    /// Asks the program for the next piece of the listing, and from where that was.
    async fn list(&self, open: &Open, opcode: Opcode, size: u32) -> Result<(Bytes, u64), Fault> {
        let (node, fh) = self.their_handle(open).await?;
        let offset = lock(&open.listing).offset;
        let size = size.clamp(LEAST, MOST.min(self.life.max_io));
        let args = fuse::ReadIn { fh, offset, size, flags: open.flags.bits(), ..fuse::ReadIn::default() };
        let body = self.ask(Message::new(opcode, node).with(&args.encode())).await?;
        if body.len() > size as usize {
            return Err(decode::wrong("a longer listing than was asked for").into());
        }
        if body.is_empty() {
            lock(&open.listing).eof = true;
        }
        Ok((body, offset))
    }

    fn take_names(&self, open: &Open, body: &Bytes) -> Result<(), Fault> {
        for (at, dirent) in fuse::Dirents::new(body).enumerate() {
            let Some(dirent) = unless_cut_off(at, dirent)? else { break };
            if let Some(listed) = self.listed(open.node, &dirent)? {
                lock(&open.listing).add(listed);
            }
            lock(&open.listing).offset = dirent.off;
        }
        Ok(())
    }

    fn take_names_of_entries(&self, open: &Open, body: &Bytes) -> Result<(), Fault> {
        for (at, pair) in fuse::DirentsPlus::new(body).enumerate() {
            let Some((dirent, out)) = unless_cut_off(at, pair)? else { break };
            self.return_entry(&dirent, &out);
            if let Some(listed) = self.listed(open.node, &dirent)? {
                lock(&open.listing).add(listed);
            }
            lock(&open.listing).offset = dirent.off;
        }
        Ok(())
    }

    /// Returns the reference that an entry of a listing counts.
    fn return_entry(&self, dirent: &fuse::Dirent<'_>, out: &EntryOut) {
        // The directory itself and its parent are listed without being looked up.
        if out.nodeid > decode::ROOT && !matches!(dirent.name, b"." | b"..") {
            self.life.conn.send_only(forget(out.nodeid, 1));
        }
    }

    fn take_entries(&self, open: &Open, body: &Bytes, entries: &mut Vec<DirentPlus>) -> Result<(), Fault> {
        for (at, pair) in fuse::DirentsPlus::new(body).enumerate() {
            let Some((dirent, out)) = unless_cut_off(at, pair)? else { break };
            let listed = self.listed(open.node, &dirent)?;
            lock(&open.listing).offset = dirent.off;
            let cookie = listed.clone().and_then(|listed| lock(&open.listing).add(listed));
            match (listed, cookie) {
                (Some(listed), Some(cookie)) => {
                    entries.push(self.entry_plus(open.node, cookie, listed, &out))
                }
                _ => self.return_entry(&dirent, &out),
            }
        }
        Ok(())
    }

    fn entry_plus(&self, dir: Node, cookie: u64, listed: Listed, out: &EntryOut) -> DirentPlus {
        if out.nodeid == 0 || out.nodeid == decode::ROOT {
            return name_only(cookie, &listed);
        }
        let found = checked(out)
            .and_then(|(attr, kind)| Ok((self.shared.nodes.found(dir, &listed.name, out, kind)?, attr)));
        match found {
            Ok((node, attr)) => {
                let entry = self.shown(node, attr, out);
                DirentPlus { cookie, name: listed.name, entry }
            }
            Err(_) => {
                self.life.conn.send_only(forget(out.nodeid, 1));
                name_only(cookie, &listed)
            }
        }
    }

    /// A name of a listing as the door gets it; `None` for what it must not see.
    fn listed(&self, dir: Node, dirent: &fuse::Dirent<'_>) -> Result<Option<Listed>, Fault> {
        let Some(name) = decode::listed(dirent.name)? else { return Ok(None) };
        if is_hidden_name(&name) && self.is_hidden(dir, &name) {
            return Ok(None);
        }
        let kind = FileKind::of_mode(dirent.kind << 12);
        Ok(Some(Listed { name, ino: dirent.ino, kind }))
    }

    fn is_hidden(&self, dir: Node, name: &Name) -> bool {
        self.shared.nodes.get(dir, name).is_some_and(|node| self.shared.nodes.use_of(node).1)
    }
}

/// The end of a reply may cut off its last entry (libfuse 2 answers a piece of its whole list); it comes again.
fn unless_cut_off<T>(at: usize, entry: Result<T, fuse::DecodeError>) -> Result<Option<T>, Fault> {
    match entry {
        Ok(entry) => Ok(Some(entry)),
        Err(_) if at > 0 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Checks that the program went on from `offset`: else it would list for ever.
fn moved(open: &Open, offset: u64) -> Result<(), Fault> {
    let listing = lock(&open.listing);
    if !listing.eof && (listing.offset == 0 || listing.offset == offset) {
        return Err(decode::wrong("a listing that leads nowhere").into());
    }
    Ok(())
}

fn name_only(cookie: u64, listed: &Listed) -> DirentPlus {
    let mode = listed.kind.map_or(0, FileKind::bits);
    let attr = Attr { ino: listed.ino, mode, ..Attr::default() };
    let entry =
        Entry { node: Node(0), generation: Generation(0), attr, entry_ttl: Ttl::NEVER, attr_ttl: Ttl::NEVER };
    DirentPlus { cookie, name: listed.name.clone(), entry }
}

fn without_attributes(list: Dirents) -> DirentsPlus {
    let plus = |entry: Dirent| {
        let Dirent { ino, cookie, kind, name } = entry;
        name_only(cookie, &Listed { name, ino, kind })
    };
    DirentsPlus { entries: list.entries.into_iter().map(plus).collect(), eof: list.eof }
}
