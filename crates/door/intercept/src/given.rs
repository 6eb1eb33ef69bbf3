// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program whose root directory is a tree gets from who started it, and could get by it past the tree to the real files: directories
//! that are open, and capabilities for calls that name no path.

use crate::failed;
use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use rustix::io::{DupFlags, FdFlags, dup3, fcntl_getfd};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// acct(2) has the kernel write to a file from then on, and open_by_handle_at(2) finds files by number.
const WITHHELD: [CapabilitySet; 2] = [CapabilitySet::SYS_PACCT, CapabilitySet::DAC_READ_SEARCH];
/// Standard input, output and error.
const STANDARD: std::ops::RangeInclusive<RawFd> = 0..=2;

/// Directories that a program is given open, and files that are open only as names (`O_PATH`).
pub(crate) struct Given(Vec<Open>);

/// One of them.
struct Open {
    file: OwnedFd,
    path: PathBuf,
    flags: OFlags,
}

impl Given {
    /// Those of this process, which has nothing else open that the program gets.
    ///
    /// # Errors
    /// When it is not known what is open.
    pub(crate) fn look() -> io::Result<Self> {
        let names = fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        let numbers = names.iter().filter_map(|name| name.to_str()?.parse().ok());
        Ok(Given(numbers.filter_map(Open::of).collect()))
    }

    /// Opens them by their paths again, under the same numbers. What cannot be is closed, and that is said.
    pub(crate) fn open_again(self) {
        for Open { mut file, path, flags } in self.0 {
            let opened =
                open(&path, flags, Mode::empty()).and_then(|again| dup3(again, &mut file, DupFlags::empty()));
            let number = file.into_raw_fd();
            if let Err(error) = opened {
                close(number);
                let what = format_args!(
                    "descriptor {number}, '{}', is closed: it cannot be opened in the overlay",
                    path.display()
                );
                let _ = writeln!(io::stderr(), "outrigger run: {}", failed(what)(error));
            }
        }
    }
}

impl Open {
    fn of(number: RawFd) -> Option<Self> {
        let link = format!("/proc/self/fd/{number}");
        let (path, found) = (fs::read_link(&link).ok()?, fs::metadata(&link).ok()?);
        // SAFETY: it is open, as stat(2) has just shown, and stays so: this process has one thread.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let is_given = !fcntl_getfd(file).ok()?.contains(FdFlags::CLOEXEC);
        let flags = match (found.is_dir(), fcntl_getfl(file).ok()?.contains(OFlags::PATH)) {
            (true, is_name) => OFlags::DIRECTORY | if is_name { OFlags::PATH } else { OFlags::RDONLY },
            (false, true) => OFlags::PATH | OFlags::NOFOLLOW,
            (false, false) => return None,
        };
        if !is_given || !path.is_absolute() {
            return None;
        }
        // SAFETY: it is for the program, and nothing else here has it.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        Some(Open { file, path, flags: flags | OFlags::CLOEXEC })
    }
}

/// Closes a descriptor. The number of a standard stream must not become that of another file.
fn close(number: RawFd) {
    // SAFETY: it is that of a file which nothing else here has.
    let mut file = unsafe { OwnedFd::from_raw_fd(number) };
    if STANDARD.contains(&number)
        && let Ok(none) = open(Path::new("/dev/null"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        && dup3(none, &mut file, DupFlags::empty()).is_ok()
    {
        let _ = file.into_raw_fd();
    }
}

/// Gives up what leads past the root directory, for this process and all that it starts.
///
/// # Errors
/// A sentence when that is not permitted.
pub(crate) fn give_up_capabilities() -> Result<(), String> {
    let refused = || failed("CAP_SYS_PACCT and CAP_DAC_READ_SEARCH cannot be given up");
    for one in WITHHELD {
        if capability_is_in_bounding_set(one).map_err(refused())? {
            remove_capability_from_bounding_set(one).map_err(refused())?;
        }
    }
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None).map_err(refused())?;
    let without = |set: CapabilitySet| WITHHELD.into_iter().fold(set, |set, one| set - one);
    let sets = CapabilitySets {
        effective: without(effective),
        permitted: without(permitted),
        inheritable: without(inheritable),
    };
    set_capabilities(None, sets).map_err(refused())
}
