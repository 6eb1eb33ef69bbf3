// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every process of a program finds as the first one did, also when another process of this driver starts it: its working
//! directory.

use outrigger_core::{Errno, Keep, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// The region: the number of the held directory, plus one; and whether node numbers outlive a process of the program.
const REGION: &str = "program";
const DIRECTORY: usize = 0;
const IDENTITY: usize = 1;
const WORDS: usize = 2;

/// Values of the word [`IDENTITY`].
const SERVED: u64 = 1;

/// The working directory of the program.
#[derive(Debug)]
pub(crate) struct Place(OwnedFd);

impl Place {
    /// That of this process, or of the former one that served the same tree.
    ///
    /// # Errors
    /// Those of opening it, and of [`Keep`].
    pub(crate) fn new(keep: Option<&dyn Keep>) -> Result<Self> {
        let region = keep.map(|keep| Ok::<_, outrigger_core::Error>((keep, keep.region(REGION, WORDS)?)));
        let region = region.transpose()?;
        let known =
            region.as_ref().map(|(keep, region)| (keep, region.word(DIRECTORY).load(Ordering::Acquire)));
        if let Some((keep, number @ 1..)) = known {
            let directory = keep.adopt((number - 1) as i32)?;
            note(&region, &directory);
            return Ok(Place(directory));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            openat(CWD, ".", flags, Mode::empty()).map_err(|errno| Errno(errno.raw_os_error()))?;
        if let Some((keep, _)) = &region {
            keep.hold(directory.as_fd())?;
        }
        note(&region, &directory);
        Ok(Place(directory))
    }

    /// A path that leads there, for this process and those it starts until they execute another program.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

type Noted<'a> = Option<(&'a dyn Keep, std::sync::Arc<dyn outrigger_core::Region>)>;

fn note(region: &Noted<'_>, directory: &OwnedFd) {
    if let Some((_, region)) = region {
        region.word(DIRECTORY).store(directory.as_raw_fd() as u64 + 1, Ordering::Release);
    }
}

/// Notes that a tree is served, for the process that takes over.
///
/// # Errors
/// `EIO` in that process, if node numbers do not outlive a process of the program: they would mean other files.
pub(crate) fn is_taken_over(keep: &dyn Keep, persistent: bool) -> Result<()> {
    let was_served = keep.region(REGION, WORDS)?.word(IDENTITY).swap(SERVED, Ordering::AcqRel) == SERVED;
    if was_served && !persistent {
        return Err(Errno::EIO.because("the program's node numbers do not outlive it"));
    }
    Ok(())
}
