// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate: code that programs get while they run, by which they reach local files without the server (`docs/design/0030-gate.md`).
//!
//! | module | what it holds |
//! |---|---|
//! | `agent.rs` | the code |
//! | `sites.rs` | which instructions lead to it |
//! | `graft.rs` | putting it into a process |

mod agent;
mod graft;
mod sites;

pub(crate) use agent::{ALLOWED, allowed};
pub(crate) use graft::{Grafts, is_odd};

use crate::launch::Prefix;
use outrigger_core::lock;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open, stat};
use rustix::io::{Errno, pwrite};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

/// A file in memory that may be executed (`MFD_EXEC`, Linux 6.3).
const EXECUTABLE: MemfdFlags = MemfdFlags::from_bits_retain(0x10);

/// The memory that all programs with a gate share, and cannot write to.
pub(crate) struct Memory {
    file: OwnedFd,
    /// For programs, to read and to execute.
    lent: OwnedFd,
    /// What stands at the beginning of the facts.
    state: Mutex<u32>,
}

impl Memory {
    /// With what the gate needs to know about these prefixes. `None` where it cannot be used: a tree that covers a directory changes what
    /// is found, and not only what is missing.
    pub(crate) fn new(prefixes: &[Prefix]) -> io::Result<Option<Self>> {
        if prefixes.iter().any(|prefix| prefix.path.symlink_metadata().is_ok()) {
            return Ok(None);
        }
        let Some(facts) = facts(prefixes)? else { return Ok(None) };
        let flags = MemfdFlags::CLOEXEC;
        let file = match memfd_create("outrigger-gate", flags | EXECUTABLE) {
            Err(Errno::INVAL) => memfd_create("outrigger-gate", flags),
            made => made,
        }?;
        let mut bytes = agent::code().to_vec();
        bytes.resize(agent::PAGE as usize, 0);
        bytes.extend(facts);
        bytes.resize(agent::SIZE as usize, 0);
        let written = pwrite(&file, &bytes, 0)?;
        let lent = open(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok((written == bytes.len()).then_some(Memory { file, lent, state: Mutex::new(agent::PLAIN) }))
    }

    /// Says that relative paths may begin in copies of trees, or in /proc or /dev, from now on.
    ///
    /// # Errors
    /// Programs would not know it.
    pub(crate) fn mark_odd(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        if *state == agent::PLAIN {
            pwrite(&self.file, &agent::ODD.to_ne_bytes(), agent::PAGE)?;
            *state = agent::ODD;
        }
        Ok(())
    }

    /// Whether programs know that, or ask about everything.
    pub(crate) fn is_odd(&self) -> bool {
        *lock(&self.state) != agent::PLAIN
    }

    /// Has all programs ask about everything from now on.
    ///
    /// # Errors
    /// They would not know it.
    pub(crate) fn close(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        if *state != agent::CLOSED {
            close(&self.file)?;
            *state = agent::CLOSED;
        }
        Ok(())
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Has all programs that share this memory ask about everything from now on.
///
/// # Errors
/// They do not know it.
pub(crate) fn close(memory: impl AsFd) -> io::Result<()> {
    pwrite(memory, &agent::CLOSED.to_ne_bytes(), agent::PAGE).map(drop).map_err(io::Error::from)
}

/// The second page; `None` if the names do not fit.
fn facts(prefixes: &[Prefix]) -> io::Result<Option<Vec<u8>>> {
    let root = stat("/")?;
    let mut facts = agent::PLAIN.to_ne_bytes().to_vec();
    facts.resize(agent::ROOT, 0);
    facts.extend(root.st_dev.to_ne_bytes());
    facts.extend(root.st_ino.to_ne_bytes());
    debug_assert_eq!(facts.len(), agent::NAMES);
    let tops = prefixes.iter().filter_map(|prefix| top(&prefix.path));
    for name in [&b"proc"[..], b"dev"].into_iter().chain(tops) {
        facts.extend_from_slice(name);
        facts.push(0);
    }
    facts.push(0);
    Ok((facts.len() <= agent::PAGE as usize).then_some(facts))
}

/// The name in the root directory through which a path leads.
fn top(path: &Path) -> Option<&[u8]> {
    path.as_os_str().as_bytes().split(|&byte| byte == b'/').find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
