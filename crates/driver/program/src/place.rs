// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every process of a program finds as the first one did, also when another process of this driver starts it: its working
//! directory.

use outrigger_core::survive::{Layout, Stored};
use outrigger_core::{Errno, Keep, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// What is noted of a program.
const LAYOUT: Layout = Layout::of("program");

outrigger_core::fields! {
    /// What the first process of this driver notes for those to come.
    struct Noted {
        /// The descriptor of the working directory, plus one.
        directory: u64,
        /// 1 once the tree is served.
        served: u64,
    }
}

/// The working directory of the program.
#[derive(Debug)]
pub(crate) struct Place(OwnedFd);

impl Place {
    /// That of this process; with `keep`, that of the first one that served the same tree.
    ///
    /// # Errors
    /// Those of opening it, and of [`Keep`].
    pub(crate) fn new(keep: Option<&dyn Keep>) -> Result<Self> {
        let Some(keep) = keep else { return Ok(Place(current()?)) };
        let area = LAYOUT.attach(keep, Noted::WORDS)?.area;
        let noted = area.view::<Noted<'_>>().directory();
        let directory = match noted.get().checked_sub(1) {
            Some(number) => keep.adopt(number as RawFd)?,
            None => {
                let directory = current()?;
                keep.hold(directory.as_fd())?;
                directory
            }
        };
        noted.set(directory.as_raw_fd() as u64 + 1);
        Ok(Place(directory))
    }

    /// A path that leads there, for this process and those it starts until they execute another program.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

fn current() -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, ".", flags, Mode::empty()).map_err(|errno| Errno(errno.raw_os_error()))?)
}

/// Notes that a tree is served, for the process that takes over.
///
/// # Errors
/// `EIO` in that process, if node numbers do not outlive a process of the program: they would mean other files.
pub(crate) fn is_taken_over(keep: &dyn Keep, persistent: bool) -> Result<()> {
    let area = LAYOUT.attach(keep, Noted::WORDS)?.area;
    let served = area.view::<Noted<'_>>().served();
    if served.get() != 0 && !persistent {
        return Err(Errno::EIO.because("the program's node numbers do not outlive it"));
    }
    served.set(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;

    #[test]
    fn the_next_process_finds_the_directory_and_serves_no_numbers_that_mean_other_files() {
        let keep = HeapKeep::default();
        let first = Place::new(Some(&keep)).expect("the directory");
        let here = std::fs::read_link(first.path()).expect("a path");
        is_taken_over(&keep, false).expect("the first process may serve");
        drop(first);
        let second = Place::new(Some(&keep)).expect("the same directory");
        assert_eq!(std::fs::read_link(second.path()).expect("a path"), here);
        assert_eq!(is_taken_over(&keep, false).map_err(|error| error.errno), Err(Errno::EIO));
        is_taken_over(&keep, true).expect("its numbers still mean the same files");
    }
}
