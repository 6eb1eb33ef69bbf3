// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the processes of a mount take, to see whether it grows with deaths.

use crate::processes;
use anyhow::Result;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// What takes how much.
pub type Sizes = BTreeMap<Kind, u64>;

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Open files of a process.
    Descriptors(&'static str),
    /// Kilobytes of memory of a process.
    Resident(&'static str),
    /// Kilobytes of a memory file: the journal, the state of the guard, what drivers keep.
    MemoryFile(String),
    /// Descendants of the first process, zombies included.
    Processes,
}

/// Kilobytes of a journal of which everything was used: two times 8192 entries of 256 bytes, and a little more.
const JOURNAL: u64 = 4096 + 64;
/// Kilobytes of the log of answered writes when as much was waiting to be written as may: it keeps what it has ever taken.
const CACHE_LOG: u64 = 42 * 1024 + 64;

impl Kind {
    /// As people call it.
    pub fn title(&self) -> String {
        match self {
            Kind::Descriptors(process) => format!("descriptors of the {process}"),
            Kind::Resident(process) => format!("resident memory of the {process}, KiB"),
            Kind::MemoryFile(name) => format!("memory file `{name}`, KiB"),
            Kind::Processes => "processes".to_owned(),
        }
    }

    /// The most that is no growth, from what it was when warm: what is cached, fragmented or opened in other orders differs
    /// from death to death, but not more after thousands of them.
    pub fn bound(&self, warm: u64) -> u64 {
        match self {
            Kind::Descriptors(_) => warm + 4,
            Kind::Resident(_) => warm + warm / 4 + 1024,
            // What former processes left is in a ring, whose places are taken one after the other.
            Kind::MemoryFile(name) if name == "outrigger-journal" => JOURNAL,
            Kind::MemoryFile(name) if name == "outrigger-cache-log" => CACHE_LOG,
            Kind::MemoryFile(_) => warm + warm / 4 + 256,
            Kind::Processes => warm,
        }
    }
}

/// Of processes, by what they are called.
pub fn of(processes: &[(&'static str, i32)]) -> Result<Sizes> {
    let (mut sizes, mut seen) = (Sizes::new(), HashSet::new());
    for &(name, pid) in processes {
        sizes.insert(Kind::Resident(name), processes::resident(pid)?);
        let mut descriptors = 0;
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            descriptors += 1;
            let path = entry?.path();
            // One that was closed meanwhile takes nothing.
            let (Ok(target), Ok(file)) = (fs::read_link(&path), fs::metadata(&path)) else { continue };
            let target = target.display().to_string();
            let Some(file_name) = target.strip_prefix("/memfd:") else { continue };
            if seen.insert(file.ino()) {
                let kind = Kind::MemoryFile(file_name.trim_end_matches(" (deleted)").to_owned());
                *sizes.entry(kind).or_default() += file.blocks() / 2;
            }
        }
        sizes.insert(Kind::Descriptors(name), descriptors);
    }
    Ok(sizes)
}
