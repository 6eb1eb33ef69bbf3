// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading everything that is in an encrypted tree.

use super::cannot;
use crate::context::Context;
use crate::format::record::hex_unless_utf8;
use crate::messages::record;
use crate::output::Output;
use crate::status::{Failure, Status};
use crate::trees::Tree;
use outrigger_client::{Client, File, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Error, FileKind, Stack};
use outrigger_layer_crypt::{BLOCK, Crypt, Keys, Strangers};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;

/// Something that is damaged.
#[derive(Serialize)]
struct Damage<'a> {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    damage: &'a str,
}

/// What was found.
#[derive(Default, Serialize)]
struct Summary {
    /// Regular files, one with several names once.
    files: u64,
    bytes: u64,
    /// Paths that are printed: a file counts once, however many of its blocks are damaged.
    damaged: u64,
}

struct Checker<'c> {
    context: &'c Context,
    out: Output<'c>,
    strangers: Strangers,
    summary: Summary,
    /// Files with several names, by their numbers.
    seen: HashSet<u64>,
    /// Paths that were printed.
    printed: HashSet<Vec<u8>>,
}

/// Reads all files of `tree`, and prints what is damaged.
///
/// # Errors
/// When the root cannot be read, or the output not be written.
pub fn run(context: &Context, location: &OsStr, tree: &Tree, keys: Keys) -> Result<(), Failure> {
    let strangers = Strangers::default();
    let stack = Stack::new(Arc::clone(&tree.service)).push(Crypt::noting(keys, strangers.clone()));
    let service = stack.map_err(|error| Failure::serious(error.to_string()))?.service();
    let client = Client::new(service, context.trees.runtime.clone(), context.trees.settings());
    let root = client.root().map_err(|error| cannot(location, &error))?;
    let (out, summary) = (Output::new(context), Summary::default());
    let (seen, printed) = Default::default();
    let mut checker = Checker { context, out, strangers, summary, seen, printed };
    let mut left = vec![(root, Vec::new())];
    while let Some((inode, path)) = left.pop() {
        checker.one(&inode, &path, &mut left)?;
    }
    let Checker { mut out, summary, .. } = checker;
    match context.json {
        true => out.write(record(&summary).as_bytes()),
        false => {
            let Summary { files, bytes, damaged } = summary;
            let ending = if files == 1 { "" } else { "s" };
            out.line(format!("{files} file{ending} with {bytes} bytes, {damaged} damaged"))
        }
    }
}

impl Checker<'_> {
    fn one(&mut self, inode: &Inode, path: &[u8], left: &mut Vec<(Inode, Vec<u8>)>) -> Result<(), Failure> {
        // A tree without attributes refuses to list them.
        for name in inode.xattrs().unwrap_or_default() {
            self.must(path, inode.xattr(&name).map(drop))?;
        }
        match inode.kind() {
            FileKind::Directory => self.directory(inode, path, left)?,
            FileKind::Symlink => self.must(path, inode.readlink().map(drop))?,
            FileKind::Regular => {
                if inode.attr().nlink > 1 && !self.seen.insert(inode.attr().ino) {
                    return Ok(());
                }
                self.summary.files += 1;
                self.file(inode, path)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn directory(
        &mut self,
        inode: &Inode,
        path: &[u8],
        left: &mut Vec<(Inode, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let entries = match inode.entries() {
            Ok(entries) => entries,
            Err(error) => return self.say(path, &error),
        };
        for entry in entries {
            match entry {
                Ok((name, found)) => left.push((found, [path, b"/", &name].concat())),
                Err(unreadable) => match unreadable.name {
                    Some(name) => self.say(&[path, b"/", &name].concat(), &unreadable.error)?,
                    None => {
                        self.say(path, &unreadable.error)?;
                        break;
                    }
                },
            }
        }
        for (_, stored) in self.strangers.take() {
            let below = [path, b"/", &stored].concat();
            self.print(&below, "the name is damaged, or was not made by this tree")?;
        }
        Ok(())
    }

    fn file(&mut self, inode: &Inode, path: &[u8]) -> Result<(), Failure> {
        let file = match inode.open(OpenFlags::empty()) {
            Ok(file) => file,
            Err(error) => return self.say(path, &error),
        };
        let (size, step) = (inode.attr().size, file.max_io().max(BLOCK));
        let mut offset = 0;
        while offset <= size {
            match file.read_at(offset, step) {
                Ok(data) if data.is_empty() => break,
                Ok(data) => {
                    self.summary.bytes += data.len() as u64;
                    offset += data.len() as u64;
                }
                Err(_) => {
                    let end = (offset + step as u64).min(size.next_multiple_of(BLOCK as u64));
                    self.blocks(&file, path, offset, end)?;
                    offset = end.max(offset + 1);
                }
            }
        }
        Ok(())
    }

    /// Reads a range block by block, and names each that cannot be read.
    fn blocks(&mut self, file: &File, path: &[u8], from: u64, to: u64) -> Result<(), Failure> {
        let mut said = String::new();
        for offset in (from..to.max(from + 1)).step_by(BLOCK) {
            match file.read_at(offset, BLOCK) {
                Ok(data) => self.summary.bytes += data.len() as u64,
                Err(error) => {
                    let why = error.to_string();
                    if why != said {
                        self.say(path, &error)?;
                    }
                    said = why;
                }
            }
        }
        Ok(())
    }

    fn must(&mut self, path: &[u8], outcome: Result<(), Error>) -> Result<(), Failure> {
        outcome.or_else(|error| self.say(path, &error))
    }

    /// Says what is wrong. The reason names the file, as far as the tree knows a path: it is not said twice.
    fn say(&mut self, path: &[u8], error: &Error) -> Result<(), Failure> {
        let shown = if path.is_empty() { b"/" } else { path };
        let why = error.reason.as_deref().map_or_else(|| error.to_string(), str::to_owned);
        let prefix = format!("{}: ", shown.escape_ascii());
        self.print(shown, why.strip_prefix(&prefix).unwrap_or(&why))
    }

    fn print(&mut self, path: &[u8], damage: &str) -> Result<(), Failure> {
        self.summary.damaged += u64::from(self.printed.insert(path.to_vec()));
        self.context.fail(Status::Minor);
        if self.context.json {
            let (text, path_hex) = (String::from_utf8_lossy(path).into_owned(), hex_unless_utf8(path));
            return self.out.write(record(&Damage { path: text, path_hex, damage }).as_bytes());
        }
        self.out.line([path, b": ", damage.as_bytes()].concat())
    }
}
