// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every command gets: the trees it names, cancellation, and one way to report errors.

use crate::drivers::{DriverOptions, Sides};
use crate::location::{Base, Location, Spelling, TreeName};
use crate::messages::Report;
use crate::status::{Failure, Status};
use crate::tree_options::TreeOptions;
use crate::trees::Trees;
use outrigger_client::{Client, Follow, Inode};
use outrigger_core::{Cancel, Name, Result};
use outrigger_host::take_umask;
use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;

/// The surroundings of one command.
pub struct Context {
    /// The command's name, for messages.
    pub command: &'static str,
    /// Whether output is one JSON object a line.
    pub json: bool,
    /// Raised by Ctrl-C.
    pub cancel: Cancel,
    /// The umask this program was started with: permission bits new files must not get.
    pub umask: u32,
    /// The trees it opens.
    pub trees: Trees,
    /// Which options were accepted, where there are trees of several drivers.
    sides: RefCell<Option<Rc<Sides>>>,
    report: Rc<Report>,
    /// The exit status, if it is not that of the report.
    exit: Cell<Option<u8>>,
}

/// A place in a tree.
#[derive(Clone)]
pub struct Place {
    /// The tree.
    pub client: Client,
    /// The path in it.
    pub path: Vec<u8>,
    /// How the user wrote it.
    pub shown: OsString,
    /// Whether it is a file of this machine.
    pub is_here: bool,
    /// How long the operand is that it begins with, and what stands between that and a name: [`Location::joint`].
    joint: (usize, &'static str),
    /// How names below it are written.
    spelling: Spelling,
}

impl Place {
    /// Finds the file.
    ///
    /// # Errors
    /// As [`Client::walk`].
    pub fn find(&self, follow: Follow) -> Result<Inode> {
        self.client.walk(&self.path, follow)
    }

    /// Finds the directory the file is or would be in, and its name there.
    ///
    /// # Errors
    /// As [`Client::walk_parent`].
    pub fn parent(&self) -> Result<(Inode, Name)> {
        self.client.walk_parent(&self.path)
    }

    /// The place called `name` below this one.
    pub fn child(&self, name: &[u8]) -> Self {
        let mut child = self.clone();
        child.lengthen(name);
        child
    }

    /// The place at `path` of the tree, which the user would write as `shown`.
    pub fn at(&self, path: Vec<u8>, shown: OsString) -> Self {
        Place { path, shown, joint: (0, "/"), ..self.clone() }
    }

    /// Makes it lead to what is called `name` in it.
    pub fn lengthen(&mut self, name: &[u8]) {
        join(&mut self.path, name);
        let name = &self.spelling.write(name);
        let mut shown = std::mem::take(&mut self.shown).into_vec();
        match self.joint {
            (length, joint) if shown.len() == length && joint != "/" => {
                shown.extend_from_slice(joint.as_bytes());
                shown.extend_from_slice(name);
            }
            _ => join(&mut shown, name),
        }
        self.shown = OsString::from_vec(shown);
    }

    /// Makes it lead to a directory above it again, by the lengths of its two paths.
    pub fn shorten(&mut self, (path, shown): (usize, usize)) {
        self.path.truncate(path);
        let mut bytes = std::mem::take(&mut self.shown).into_vec();
        bytes.truncate(shown);
        self.shown = OsString::from_vec(bytes);
    }

    /// How the user wrote it, with odd bytes replaced.
    pub fn display(&self) -> impl fmt::Display + '_ {
        self.shown.display()
    }
}

/// A host path from the root on; `..` and symbolic links in it are left to the walk.
pub fn absolute(path: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if path.starts_with(b"/") {
        return Ok(path);
    }
    let here = std::env::current_dir()
        .map_err(|error| Failure::serious(format!("cannot find out the working directory: {error}")))?;
    let mut whole = here.into_os_string().into_vec();
    join(&mut whole, &path);
    Ok(whole)
}

fn join(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

impl Context {
    /// The surroundings of `command`.
    pub fn new(
        command: &'static str,
        only_looks: bool,
        json: bool,
        options: TreeOptions,
        cancel: Cancel,
    ) -> Self {
        let report = Rc::new(Report::new(command));
        let trees = Trees::new(only_looks, options, cancel.clone(), Rc::clone(&report));
        let (umask, sides, exit) = (take_umask(), RefCell::default(), Cell::default());
        Context { command, json, cancel, umask, trees, sides, report, exit }
    }

    /// The options for trees the user gave.
    pub fn options(&self) -> &TreeOptions {
        self.trees.options()
    }

    /// Says that an option may be meant for any of the trees it opens from here on.
    pub fn has_sides(&self) {
        *self.sides.borrow_mut() = Some(Rc::default());
    }

    /// All its trees are open.
    ///
    /// # Errors
    /// A sentence about an option that none of them takes.
    pub fn all_options_taken(&self) -> Result<(), Failure> {
        self.sides.borrow().as_ref().map_or(Ok(()), |sides| sides.all_taken())
    }

    /// The place a LOCATION names. Trees are opened once for a command, however often they are named.
    ///
    /// # Errors
    /// A sentence that names the part of the LOCATION which cannot be opened, and why.
    pub fn place(&self, text: &OsStr) -> Result<Place, Failure> {
        if text.is_empty() {
            return Err(Failure::serious("an empty LOCATION names nothing"));
        }
        let location = Location::of(text)?;
        let shown = location.without_password().map_or_else(|| text.to_owned(), OsString::from);
        let (joint, spelling) = ((shown.len(), location.joint(text)), location.spelling(text));
        let (name, path) = location.split();
        let is_here = matches!(&name, TreeName::Whole(Base::Host(_)));
        let path = if is_here { absolute(path)? } else { path };
        let options = DriverOptions::parse(&self.options().opt).for_sides(self.sides.borrow().clone());
        let opened = self.trees.tree(name, &options)?;
        let path = opened.path(&self.trees, path)?;
        Ok(Place { client: opened.client, path, shown, is_here, joint, spelling })
    }

    /// Puts what the command has changed on stable storage, and closes the images it has opened. What fails is reported: only
    /// after this it is known whether the command succeeded.
    pub fn settle(&self) {
        let mut failed = false;
        // Not after an interruption: the result is incomplete anyway, and unmounting writes what was done.
        for (_, tree) in self.trees.opened().iter().filter(|_| !self.cancel.is_raised()) {
            if let Err(error) = tree.client.sync() {
                failed = true;
                let name = &tree.client.abilities().tree;
                self.complain(Status::Minor, format_args!("cannot synchronise '{name}': {error}"));
            }
        }
        match self.trees.changed.close() {
            // Its reason is the same.
            Err(_) if failed => {}
            Err(failure) => self.complain(failure.status, failure),
            Ok(()) => {}
        }
    }

    /// The command ends with this exit status, whatever was reported.
    pub fn end_with(&self, status: u8) {
        self.exit.set(Some(status));
    }

    /// What [`Context::end_with`] has set.
    pub fn ends_with(&self) -> Option<u8> {
        self.exit.get()
    }

    /// Prints an error on standard error, and remembers its status.
    pub fn complain(&self, status: Status, message: impl fmt::Display) {
        self.report.complain(status, message);
    }

    /// Remembers without a word how badly something went wrong.
    pub fn fail(&self, status: Status) {
        self.report.fail(status);
    }

    /// The worst status so far.
    pub fn status(&self) -> Status {
        self.report.status()
    }
}
