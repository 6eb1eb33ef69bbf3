// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger readlink`: targets of symbolic links and canonical paths, as GNU readlink prints them.
//!
//! Canonical paths start at the root of the tree the file is in.

use crate::context::{Context, Place};
use crate::format::quote::before_colon;
use crate::messages::{record, why};
use crate::output::Output;
use crate::run::Run;
use crate::say::usage;
use crate::status::{Exits, Failure, Status};
use clap::Args;
use outrigger_client::Follow;
use outrigger_core::{Errno, FileKind, Result as TreeResult};
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Arguments of `readlink`.
#[derive(Debug, Args)]
pub struct Readlink {
    /// Print the canonical path; all but the last component must exist.
    #[arg(short = 'f', long, overrides_with_all = ["canonicalize_existing", "canonicalize_missing"])]
    canonicalize: bool,
    /// Print the canonical path; all components must exist.
    #[arg(short = 'e', long, overrides_with_all = ["canonicalize", "canonicalize_missing"])]
    canonicalize_existing: bool,
    /// Print the canonical path; nothing needs to exist.
    #[arg(short = 'm', long, overrides_with_all = ["canonicalize", "canonicalize_existing"])]
    canonicalize_missing: bool,
    /// Leave out the newline at the end.
    #[arg(short, long)]
    no_newline: bool,
    /// Say nothing about errors; this is the default.
    #[arg(
        short = 'q',
        visible_short_alias = 's',
        long,
        visible_alias = "silent",
        overrides_with = "verbose"
    )]
    quiet: bool,
    /// Say what went wrong.
    #[arg(short, long, overrides_with = "quiet")]
    verbose: bool,
    /// End each line with NUL.
    #[arg(short, long)]
    zero: bool,
    /// The symbolic links.
    #[arg(value_name = "LOCATION")]
    places: Vec<OsString>,
}

/// Which components of a path must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MustExist {
    All,
    AllButLast,
    None,
}

/// The most symbolic links one path leads through, as in Linux.
const LINKS_MAX: usize = 40;

impl Run for Readlink {
    const NAME: &'static str = "readlink";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        if self.places.is_empty() {
            return Err(usage(Self::NAME, "missing operand"));
        }
        let mut output = Output::new(context);
        if self.no_newline && self.places.len() > 1 {
            output.complain(Status::Success, "ignoring --no-newline with multiple arguments");
        }
        for text in &self.places {
            output.proceed()?;
            let found = context.place(text).and_then(|place| {
                let name = || before_colon(text.as_bytes());
                self.resolve(&place).map_err(|error| Failure::new(format!("{}: {}", name(), why(&error))))
            });
            match found {
                Ok(path) => output.lines(&self.line(context, text, path))?,
                Err(failure) if self.verbose || failure.status > Status::Minor => {
                    output.complain(Status::Minor, failure);
                }
                Err(failure) => context.fail(failure.status),
            }
        }
        output.flush()
    }
}

impl Readlink {
    fn resolve(&self, place: &Place) -> TreeResult<Vec<u8>> {
        match self.must_exist() {
            Some(must_exist) => canonical(place, must_exist),
            None => Ok(place.find(Follow::No)?.readlink()?.to_vec()),
        }
    }

    fn must_exist(&self) -> Option<MustExist> {
        if self.canonicalize {
            Some(MustExist::AllButLast)
        } else if self.canonicalize_existing {
            Some(MustExist::All)
        } else if self.canonicalize_missing {
            Some(MustExist::None)
        } else {
            None
        }
    }

    fn line(&self, context: &Context, text: &OsString, mut path: Vec<u8>) -> Vec<u8> {
        if context.json {
            let (from, to) = (text.to_string_lossy(), String::from_utf8_lossy(&path));
            return record(&json!({ "path": from, "target": to })).into_bytes();
        } else if self.no_newline && self.places.len() == 1 {
            return path;
        }
        path.push(if self.zero { 0 } else { b'\n' });
        path
    }
}

/// The path of the file without symbolic links, `.` and `..`.
fn canonical(place: &Place, must_exist: MustExist) -> TreeResult<Vec<u8>> {
    let mut done = place.at(Vec::new(), place.shown.clone());
    let mut lengths = Vec::new();
    let mut pending = components(&place.path);
    let mut links = 0;
    let mut missing = false;
    while let Some(component) = pending.pop() {
        match &component[..] {
            b"." => continue,
            b".." => {
                done.path.truncate(lengths.pop().unwrap_or(0));
                continue;
            }
            _ => {}
        }
        lengths.push(done.path.len());
        done.path.push(b'/');
        done.path.extend_from_slice(&component);
        if missing {
            continue;
        }
        match done.find(Follow::No) {
            Ok(inode) if inode.kind() == FileKind::Symlink => {
                links += 1;
                if links > LINKS_MAX && must_exist == MustExist::None {
                    missing = true;
                    continue;
                }
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP.into());
                }
                let target = inode.readlink()?;
                done.path.truncate(lengths.pop().unwrap_or(0));
                if target.starts_with(b"/") {
                    done.path.clear();
                    lengths.clear();
                }
                pending.extend(components(&target));
            }
            Ok(inode) if !inode.is_dir() && !pending.is_empty() && must_exist != MustExist::None => {
                return Err(Errno::ENOTDIR.into());
            }
            Ok(_) => {}
            Err(_) if must_exist == MustExist::None => missing = true,
            Err(error) if error.errno == Errno::ENOENT && must_exist == MustExist::AllButLast => {
                if !pending.is_empty() {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    let found = done.path;
    check_slash(place, &found, must_exist)?;
    Ok(if found.is_empty() { b"/".to_vec() } else { found })
}

/// A trailing slash asks for a directory.
fn check_slash(place: &Place, found: &[u8], must_exist: MustExist) -> TreeResult<()> {
    if must_exist == MustExist::None || !place.path.ends_with(b"/") {
        return Ok(());
    }
    match place.at(found.to_vec(), place.shown.clone()).find(Follow::No) {
        Ok(inode) if !inode.is_dir() => Err(Errno::ENOTDIR.into()),
        _ => Ok(()),
    }
}

/// The components of a path, last first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    parts.rev().map(<[u8]>::to_vec).collect()
}
