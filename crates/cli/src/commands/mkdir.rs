// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger mkdir`: directories.

use crate::context::{Context, Place};
use crate::copy::target::{above, base_name, shown};
use crate::messages::announce;
use crate::modes::ModeChange;
use crate::run::Run;
use crate::say::{place, quoted, usage, word};
use crate::status::{Exits, Failure, Status};
use clap::Args;
use outrigger_client::{Follow, Inode};
use outrigger_core::{Errno, Error, Name, SetAttrs};
use std::ffi::OsString;

/// Arguments of `mkdir`.
#[derive(Debug, Args)]
pub struct Mkdir {
    /// Make directories above as needed, and accept one that exists.
    #[arg(short, long)]
    parents: bool,
    /// Permissions as in chmod, not a=rwx less the umask.
    #[arg(short, long, value_name = "MODE")]
    mode: Option<String>,
    /// Name each directory made.
    #[arg(short, long)]
    verbose: bool,
    /// The directories.
    #[arg(value_name = "LOCATION")]
    directories: Vec<OsString>,
}

/// The permissions of new directories.
struct Modes {
    /// While it is made.
    first: u32,
    /// Set afterwards, if asked for: the umask does not apply to it.
    exact: Option<u32>,
    umask: u32,
}

impl Run for Mkdir {
    const NAME: &'static str = "mkdir";
    const EXITS: Exits = Exits::Plain;

    fn run(self, context: &Context) -> Result<(), Failure> {
        if self.directories.is_empty() {
            return Err(usage(Self::NAME, "missing operand"));
        }
        let umask = context.umask;
        let exact = match &self.mode {
            None => None,
            Some(text) => {
                let change = ModeChange::parse(text)
                    .ok_or_else(|| Failure::new(format!("invalid mode {}", word(text))))?;
                Some(change.apply(0o777, true, umask))
            }
        };
        let modes = Modes { first: exact.unwrap_or(0o777 & !umask), exact, umask };
        for directory in &self.directories {
            let Some(place) = place(context, directory) else { continue };
            let made =
                if self.parents { self.make_all(&place, &modes) } else { self.make_one(&place, &modes) };
            if let Err((name, error)) = made {
                let name = word(name);
                context.complain(Status::Minor, format_args!("cannot create directory {name}: {error}"));
            }
        }
        Ok(())
    }
}

impl Mkdir {
    fn make_one(&self, place: &Place, modes: &Modes) -> Result<(), (Vec<u8>, Error)> {
        let failed = |error| (shown(place).to_vec(), error);
        let (dir, name) = match place.parent() {
            Ok(parent) => parent,
            // The root of a tree, `.` and `..` have no name to be made, because they exist.
            Err(error) if error.errno == Errno::EINVAL && place.find(Follow::Yes).is_ok() => {
                return Err(failed(Errno::EEXIST.into()));
            }
            Err(error) => return Err(failed(error)),
        };
        self.make(&dir, &name, modes, shown(place)).map(drop).map_err(failed)
    }

    fn make(&self, dir: &Inode, name: &Name, modes: &Modes, shown: &[u8]) -> Result<Inode, Error> {
        let mut inode = dir.mkdir(name, modes.first)?;
        if let Some(mode) = modes.exact.filter(|&mode| mode != inode.attr().permissions()) {
            inode.set(SetAttrs { mode: Some(mode), ..SetAttrs::default() })?;
        }
        if self.verbose {
            announce(format_args!("outrigger mkdir: created directory {}", quoted(shown)));
        }
        Ok(inode)
    }

    /// Makes the directory and its missing parents, from the top down.
    fn make_all(&self, place: &Place, modes: &Modes) -> Result<(), (Vec<u8>, Error)> {
        let mut missing: Vec<Place> = Vec::new();
        let mut at = place.clone();
        loop {
            match at.find(Follow::Yes) {
                Ok(inode) if inode.is_dir() => break,
                Ok(_) => {
                    let errno = if missing.is_empty() { Errno::EEXIST } else { Errno::ENOTDIR };
                    return Err((shown(&at).to_vec(), errno.into()));
                }
                // The loop continues with the parent, which shows what is wrong.
                Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENOTDIR) => {
                    let next = above(&at);
                    missing.push(at);
                    match next {
                        Some(next) => at = next,
                        None => break,
                    }
                }
                Err(error) => return Err((shown(place).to_vec(), error)),
            }
        }
        while let Some(next) = missing.pop() {
            if matches!(base_name(&next.path), b"." | b"..") {
                continue;
            }
            let last = missing.is_empty();
            // Parents must be searchable for their owner.
            let on_the_way = Modes { first: (0o777 & !modes.umask) | 0o300, exact: None, umask: modes.umask };
            match self.make_one(&next, if last { modes } else { &on_the_way }) {
                // Another process has created it meanwhile.
                Err((_, error)) if error.errno == Errno::EEXIST && is_dir(&next) => {}
                made => made?,
            }
        }
        Ok(())
    }
}

fn is_dir(place: &Place) -> bool {
    place.find(Follow::Yes).is_ok_and(|inode| inode.is_dir())
}
