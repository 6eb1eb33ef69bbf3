// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trees of one command: what they are opened with, and those that are open.

use super::{Changed, Opened, Origin, open};
use crate::drivers::DriverOptions;
use crate::location::{Base, Location, TreeName};
use crate::messages::Report;
use crate::status::Failure;
use crate::tree_options::TreeOptions;
use outrigger_client::Settings;
use outrigger_core::registry::{AtEnd, Site, Usage};
use outrigger_core::{Cancel, Credentials, Keep, Runtime};
use outrigger_runtime::Threads;
use std::cell::{Cell, Ref, RefCell};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The trees of one command.
pub struct Trees {
    /// Clock, timers and threads.
    pub runtime: Arc<Threads>,
    /// Raised by Ctrl-C.
    pub cancel: Cancel,
    /// The trees in files that it may change.
    pub changed: Changed,
    /// What their drivers want to be done when the command has ended.
    pub at_end: AtEnd,
    /// Where it says what went wrong.
    pub report: Rc<Report>,
    options: TreeOptions,
    /// Where the LOCATIONs begin that the command may change; all when nothing is said.
    written: RefCell<Option<Vec<Base>>>,
    opened: RefCell<Vec<(TreeName, Opened)>>,
    /// The file of this machine that the mount is of.
    origin: RefCell<Option<Origin>>,
    /// Whether they are for a mount.
    mounts: Cell<bool>,
    /// Whether they are one of many trees that are seen by their names.
    of_many: Cell<bool>,
    /// Whether what is mounted is only shown.
    read_only: Cell<bool>,
    /// Whether what is opened was seen by a former process that left what it knew.
    known: Cell<bool>,
    /// Whether what is known of a tree in a file of another tree ends with this process.
    ends: Cell<bool>,
    /// For how long at least a server that dies is started again.
    hold: Cell<Duration>,
}

impl Trees {
    /// None is open; those that are opened are changed unless the command `only_looks`.
    pub fn new(only_looks: bool, options: TreeOptions, cancel: Cancel, report: Rc<Report>) -> Self {
        Trees {
            runtime: Arc::new(Threads::new()),
            cancel,
            changed: Changed::default(),
            at_end: AtEnd::default(),
            report,
            hold: Cell::new(options.timeout.unwrap_or_default()),
            options,
            written: RefCell::new(only_looks.then(Vec::new)),
            opened: RefCell::default(),
            origin: RefCell::default(),
            mounts: Cell::new(false),
            of_many: Cell::new(false),
            read_only: Cell::new(false),
            known: Cell::new(false),
            ends: Cell::new(false),
        }
    }

    /// The options the user gave.
    pub fn options(&self) -> &TreeOptions {
        &self.options
    }

    /// Where a driver stands that opens a tree on `runtime`; with `keep`, the tree outlives this process.
    pub fn site<'a>(&'a self, runtime: &'a Arc<dyn Runtime>, keep: Option<&'a Arc<dyn Keep>>) -> Site<'a> {
        let (serves_others, timeout, hold) = (self.mounts.get(), self.options.timeout, self.hold.get());
        let may_start_programs = self.options.allow_programs;
        let (cancel, at_end) = (Some(&self.cancel), Some(&self.at_end));
        let is_known = self.known.get();
        Site {
            keep,
            serves_others,
            timeout,
            hold,
            cancel,
            may_start_programs,
            at_end,
            is_known,
            ..Site::new(runtime)
        }
    }

    /// Whether a former process has left what it knew of the tree that is opened.
    pub(super) fn is_known(&self) -> bool {
        self.known.get()
    }

    /// Opens a tree of which a former process may have left what it knew.
    pub(super) fn opening<T>(&self, is_known: bool, open: impl FnOnce() -> T) -> T {
        let before = self.known.replace(is_known);
        let opened = open();
        self.known.set(before);
        opened
    }

    /// How clients of the command ask.
    pub fn settings(&self) -> Settings {
        Settings {
            cred: Credentials::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            timeout: self.options.timeout,
            cancel: self.cancel.clone(),
            ..Settings::default()
        }
    }

    /// Says which of the LOCATIONs of the command it changes, before any is opened. Images that only others are in are opened for
    /// reading, and stay as they are.
    pub fn only_writes(&self, changed: &[OsString]) {
        let base = |text: &OsString| Some(Location::of(text).ok()?.base);
        *self.written.borrow_mut() = Some(changed.iter().filter_map(base).collect());
    }

    /// Whether the command may change the tree in this file of the host.
    pub(super) fn may_write(&self, file: &Path) -> bool {
        self.may_change(|base| matches!(base, Base::Host(path) if path == file))
    }

    /// Whether this is a command that may change the tree of the scheme.
    pub(super) fn changes(&self, name: &str) -> bool {
        !self.mounts.get()
            && self.may_change(|base| matches!(base, Base::Url { scheme, .. } if scheme == name))
    }

    fn may_change(&self, is_there: impl Fn(&Base) -> bool) -> bool {
        self.written.borrow().as_ref().is_none_or(|written| written.iter().any(is_there))
    }

    /// Servers of what is opened from here on are started again for so long at least when they die.
    pub fn hold_for(&self, hold: Duration) {
        self.hold.set(hold);
    }

    /// What is opened from here on is for a mount.
    pub(super) fn are_for_a_mount(&self) {
        self.mounts.set(true);
    }

    /// What is opened from here on is one of many trees that are seen by their names: it has use also where its root has no list.
    pub fn are_one_of_many(&self) {
        self.of_many.set(true);
    }

    /// Whether that is so.
    pub(super) fn is_one_of_many(&self) -> bool {
        self.of_many.get()
    }

    /// Whether programs can change what is mounted from here on.
    pub fn are_read_only(&self, read_only: bool) {
        self.read_only.set(read_only);
    }

    /// What is known of a tree that is opened in a file of another one ends with this process.
    pub(super) fn end_with_process(&self) {
        self.ends.set(true);
    }

    /// Whether another process could not go on with what is mounted.
    pub fn do_end(&self) -> bool {
        self.ends.get()
    }

    /// What a mount is used for.
    pub(super) fn usage(&self) -> Usage {
        if self.read_only.get() { Usage::Shows } else { Usage::Changes }
    }

    /// What the command does with the tree of this name.
    pub(super) fn usage_of(&self, name: &TreeName) -> Usage {
        let its = match name {
            TreeName::Whole(base) => base,
            TreeName::Inside(location) => &location.base,
        };
        if self.may_change(|base| base == its) { Usage::Changes } else { Usage::Looks }
    }

    /// Whether they are for a mount, which shows what there is.
    pub(super) fn is_for_a_mount(&self) -> bool {
        self.mounts.get()
    }

    /// Takes note of the file that a LOCATION begins with, if there is one: from now on its name means it, whatever has that name.
    pub(super) fn stays(&self, (location, origin): (Location, Option<Origin>)) -> Location {
        *self.origin.borrow_mut() = origin;
        location
    }

    /// Where a file of this machine is opened.
    pub(super) fn reach(&self, path: &Path) -> PathBuf {
        let origin = self.origin.borrow();
        origin.as_ref().and_then(|origin| origin.reach(path)).unwrap_or_else(|| path.to_owned())
    }

    /// The tree with this name. Trees are opened once for a command, however often they are named.
    ///
    /// # Errors
    /// A sentence that names the part of the LOCATION which cannot be opened, and why.
    pub fn tree(&self, name: TreeName, options: &DriverOptions) -> Result<Opened, Failure> {
        if let Some(opened) = self.known(&name) {
            return Ok(opened);
        }
        let opened = open(self, &name, options)?;
        self.opened.borrow_mut().push((name, opened.clone()));
        Ok(opened)
    }

    fn known(&self, name: &TreeName) -> Option<Opened> {
        self.opened.borrow().iter().find(|(known, _)| known == name).map(|(_, opened)| opened.clone())
    }

    /// Whether the tree with this name is open.
    pub(super) fn is_open(&self, name: &TreeName) -> bool {
        self.known(name).is_some()
    }

    /// Those that are open.
    pub fn opened(&self) -> Ref<'_, [(TreeName, Opened)]> {
        Ref::map(self.opened.borrow(), Vec::as_slice)
    }
}
