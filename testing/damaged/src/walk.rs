// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process and one image: everything in it is looked at, something is changed, and the last line says what came of it.

use crate::trial::Verdict;
use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::RenameFlags;
use outrigger_core::{Errno, FileKind, Stack};
use outrigger_driver_kernel::{Opened, Options, open};
use outrigger_layer_deadline::Deadline;
use outrigger_runtime::Threads;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a request may take, and mounting and unmounting.
const LIMIT: Duration = Duration::from_secs(20);
/// How many files are looked at: a damaged directory may have no end.
const MOST: usize = 3000;
/// How much of a file is read at its start and at its end, in bytes.
const READ: usize = 256 << 10;

/// What is looked through, and what went wrong meanwhile.
struct Walk<'a> {
    direct: &'a Direct,
    asked: u64,
    failed: u64,
    /// A request has timed out: no other one is sent.
    late: bool,
}

/// Opens the image and does it all.
pub fn walk(image: &Path, kind: Option<String>, guard: bool) -> Verdict {
    let options = Options { kind, guard, patience: Some(LIMIT), ..Options::default() };
    let opened = match open(image, &options) {
        Ok(opened) => opened,
        Err(error) if error.errno == Errno::ETIMEDOUT => return Verdict::Late(error.to_string()),
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    let stack = Stack::new(opened.service()).push(Deadline::new(LIMIT, Arc::new(Threads::new())));
    let Ok(stack) = stack else { return Verdict::Wrong("the layer does not fit".into()) };
    let direct = Direct::new(stack.service());
    let mut walk = Walk { direct: &direct, asked: 0, failed: 0, late: false };
    walk.look();
    let (asked, failed) = (walk.asked, walk.failed);
    walk.change();
    let late = walk.late;
    let deaths = match &opened {
        Opened::One(kernel) => kernel.history().filter(|history| history.deaths > 0),
        Opened::Several(_) => None,
    };
    let ended = match &opened {
        Opened::One(kernel) => kernel.unmount(),
        Opened::Several(_) => Ok(()),
    };
    match (late, ended, deaths) {
        (true, ..) => Verdict::Late(format!("a request was not answered within {} s", LIMIT.as_secs())),
        (_, Err(error), _) => Verdict::Died(error.to_string()),
        (.., Some(history)) => Verdict::Died(format!("{} deaths, and served on", history.deaths)),
        _ if failed > 0 => Verdict::Partly(format!("{failed} of {asked} requests failed")),
        _ => Verdict::Read,
    }
}

impl Walk<'_> {
    /// Does it unless an earlier operation timed out; returns the result if it succeeds.
    fn ask<T>(&mut self, what: impl FnOnce(&Direct) -> outrigger_conformance::Result<T>) -> Option<T> {
        if self.late {
            return None;
        }
        self.asked += 1;
        let answer = what(self.direct);
        if let Err(errno) = &answer {
            // What a type does not have is no damage.
            self.failed += u64::from(![Errno::EOPNOTSUPP, Errno::ENOSYS].contains(errno));
            self.late = *errno == Errno::ETIMEDOUT;
        }
        answer.ok()
    }

    fn names(&mut self, dir: &Path) -> Vec<PathBuf> {
        let Some(open) = self.ask(|direct| direct.open(dir, Flags::READ | Flags::DIRECTORY, 0)) else {
            return Vec::new();
        };
        let (mut names, mut cookie) = (Vec::new(), 0);
        while let Some(listing) = self.ask(|direct| direct.read_dir(open, cookie, 4096)) {
            names.extend(listing.entries.iter().map(|entry| dir.join(OsStr::from_bytes(&entry.name))));
            match listing.entries.last() {
                Some(last) if !listing.eof && names.len() < MOST => cookie = last.cookie,
                _ => break,
            }
        }
        self.ask(|direct| direct.close(open));
        names
    }

    /// Looks at everything there is.
    fn look(&mut self) {
        let mut found = self.names(Path::new(""));
        let mut seen = 0;
        while let Some(path) = found.pop()
            && seen < MOST
        {
            seen += 1;
            let Some(attr) = self.ask(|direct| direct.stat(&path)) else { continue };
            self.ask(|direct| direct.list_xattrs(&path));
            match attr.kind() {
                FileKind::Directory => found.extend(self.names(&path)),
                FileKind::Symlink => drop(self.ask(|direct| direct.readlink(&path))),
                FileKind::Regular => self.read(&path, attr.size),
                _ => {}
            }
        }
        self.ask(|direct| direct.statfs(Path::new("")));
    }

    fn read(&mut self, path: &Path, size: u64) {
        let Some(file) = self.ask(|direct| direct.open(path, Flags::READ, 0)) else { return };
        self.ask(|direct| direct.read_at(file, 0, READ));
        let end = size.saturating_sub(READ as u64);
        if end > 0 && i64::try_from(size).is_ok() {
            self.ask(|direct| direct.read_at(file, end, READ));
        }
        self.ask(|direct| direct.close(file));
    }

    /// Changes something of each sort. That it fails is to be expected.
    fn change(&mut self) {
        let [dir, new, moved] = ["new", "new/file", "new/moved"].map(Path::new);
        self.ask(|direct| direct.mkdir(dir, 0o755));
        if let Some(file) = self.ask(|direct| direct.open(new, Flags::NEW, 0o644)) {
            self.ask(|direct| direct.write_at(file, 0, &[7; 100_000]));
            self.ask(|direct| direct.ftruncate(file, 50_000));
            self.ask(|direct| direct.fsync(file, false));
            self.ask(|direct| direct.close(file));
        }
        self.ask(|direct| direct.symlink(b"target", Path::new("new/link")));
        self.ask(|direct| direct.rename(new, moved, RenameFlags::empty()));
        for path in ["dir/file", "many/file 1", "many/file 30"].map(Path::new) {
            if let Some(file) = self.ask(|direct| direct.open(path, Flags::BOTH, 0)) {
                self.ask(|direct| direct.write_at(file, 100, &[8; 40_000]));
                self.ask(|direct| direct.close(file));
            }
            self.ask(|direct| direct.unlink(path));
        }
        self.ask(|direct| direct.rmdir(Path::new("many")));
    }
}
