// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger write`: standard input to a file.
//!
//! The file is replaced as a whole: the new content is written to a hidden file in the same directory, put on stable
//! storage, given the attributes of the old file, and moved over it. Until then every reader sees the old content,
//! and an interruption leaves it alone. What cannot be replaced without a trace is written in place, as a shell's `>`
//! does it: files with several names, what a symbolic link leads to, and everything that is no regular file.

use crate::context::{Context, Place};
use crate::copy::target::shown;
use crate::creating;
use crate::interrupt;
use crate::run::Run;
use crate::say::quoted;
use crate::status::{Failure, Status};
use crate::temporary;
use bytes::Bytes;
use clap::Args;
use outrigger_client::{File, Follow, Inode};
use outrigger_core::ops::{OpenFlags, RenameFlags};
use outrigger_core::{Errno, Error, FileKind, Name, OpCode, SetAttrs};
use std::ffi::OsString;
use std::io::{self, Read};

/// Bytes read at once.
const BLOCK: usize = 1 << 20;

/// Arguments of `write`.
#[derive(Debug, Args)]
pub struct Write {
    /// Add to the end of the file instead of replacing it.
    #[arg(short, long)]
    append: bool,
    /// Overwrite the existing file in place; otherwise a new file is renamed over it. Files with hard links and what symbolic links
    /// lead to are always overwritten in place.
    #[arg(long, conflicts_with = "append")]
    in_place: bool,
    /// Do not wait until everything is on stable storage.
    #[arg(long)]
    no_sync: bool,
    /// The file.
    #[arg(value_name = "LOCATION")]
    file: OsString,
}

impl Run for Write {
    const NAME: &'static str = "write";
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let place = context.place(&self.file)?;
        let written = match self.replaceable(context, &place) {
            Ok(Some((dir, name, old))) => self.replace(context, &dir, &name, old.as_ref()),
            Ok(None) => self.write_in_place(context, &place),
            Err(error) => Err(error),
        };
        match written {
            // The exit status shows the interruption.
            Err(error) if error.errno == Errno::EINTR && context.cancel.is_raised() => Ok(()),
            written => written
                .map_err(|error| Failure::new(format!("cannot write {}: {error}", quoted(shown(&place))))),
        }
    }
}

impl Write {
    /// The directory, the name and the file that has it, when that is to be replaced as a whole.
    fn replaceable(
        &self,
        context: &Context,
        place: &Place,
    ) -> Result<Option<(Inode, Name, Option<Inode>)>, Error> {
        if self.append || self.in_place || place.path.ends_with(b"/") {
            return Ok(None);
        }
        if !place.client.abilities().ops.has(OpCode::Rename) {
            let name = quoted(shown(place));
            let note = format_args!("{name} is written in place: its tree cannot rename a new file over it");
            context.complain(Status::Success, note);
            return Ok(None);
        }
        let (dir, name) = match place.parent() {
            Err(error) if error.errno == Errno::EINVAL && place.find(Follow::Yes).is_ok() => {
                return Err(Errno::EISDIR.into());
            }
            parent => parent?,
        };
        let old = dir.find(&name)?;
        let ordinary = |old: &Inode| old.kind() == FileKind::Regular && old.attr().nlink <= 1;
        Ok(old.as_ref().is_none_or(ordinary).then_some((dir, name, old)))
    }

    fn write_in_place(&self, context: &Context, place: &Place) -> Result<(), Error> {
        let how = if self.append { OpenFlags::APPEND } else { OpenFlags::TRUNC };
        let (_, file) = creating::open(place, OpenFlags::WRITE_ONLY | how, true, 0o666 & !context.umask)?;
        let start = if self.append { file.attr()?.size } else { 0 };
        self.fill(context, &file, start)?;
        file.close()
    }

    fn replace(&self, context: &Context, dir: &Inode, name: &Name, old: Option<&Inode>) -> Result<(), Error> {
        let temporary = temporary::name_beside(name)?;
        // The content may be secret: no access for others before it has its owner and mode.
        let mode = if old.is_some() { 0o600 } else { 0o666 & !context.umask };
        let (mut inode, file) = dir.create(&temporary, mode, OpenFlags::WRITE_ONLY | OpenFlags::EXCL)?;
        let placed = self.fill(context, &file, 0).and_then(|()| {
            if let Some(old) = old {
                keep(old, &mut inode)?;
            }
            dir.rename(&temporary, dir, name, RenameFlags::empty())?;
            // With its content a file's new name is stored.
            self.sync(&file)?;
            file.close()
        });
        if placed.is_err() {
            discard(dir, temporary);
        }
        placed
    }

    /// Copies standard input to `file` from `at` on.
    fn fill(&self, context: &Context, file: &File, mut at: u64) -> Result<(), Error> {
        let mut input = io::stdin().lock();
        loop {
            if !interrupt::wait_readable(io::stdin())? || context.cancel.is_raised() {
                return Err(Errno::EINTR.into());
            }
            let mut block = vec![0; BLOCK];
            let count = input.read(&mut block)?;
            if count == 0 {
                return self.sync(file);
            }
            file.write_all_at(at, Bytes::from(block).slice(..count))?;
            at += count as u64;
        }
    }

    fn sync(&self, file: &File) -> Result<(), Error> {
        if self.no_sync { Ok(()) } else { file.sync_if_able() }
    }
}

/// Gives the new file the owner, extended attributes and mode of the old one.
fn keep(old: &Inode, new: &mut Inode) -> Result<(), Error> {
    let attr = old.attr();
    if (new.attr().uid, new.attr().gid) != (attr.uid, attr.gid) {
        new.set(SetAttrs { uid: Some(attr.uid), gid: Some(attr.gid), ..SetAttrs::default() })?;
    }
    for name in old.xattrs().unwrap_or_default() {
        let value = old.xattr(&name)?;
        new.set_xattr(&name, value, Default::default())?;
    }
    new.set(SetAttrs { mode: Some(attr.permissions()), ..SetAttrs::default() }).map(drop)
}

/// Removes the incomplete file, also after an interruption.
fn discard(dir: &Inode, name: Name) {
    let unlink = outrigger_core::ops::Unlink { dir: dir.node(), name };
    // There is nothing to be done about a failure; the first error is the one to report.
    drop(dir.client().uninterrupted().call(unlink));
}
