// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of this user that trees are shown to: a locked file each, beside the control sockets of mounts.

use super::directory;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What the names of such files end with.
const SUFFIX: &str = "program";
/// The same while they are written.
const UNFINISHED: &str = "new";
/// The longest such file in bytes: a command line may be long.
const MAX: u64 = 4 << 20;

/// A program that trees are shown to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramView {
    /// Its command line.
    pub argv: Vec<String>,
    /// Its process.
    pub process: u32,
    /// The process that serves the trees.
    pub pid: u32,
    /// How it comes to see them, as `--via` names it.
    pub mechanism: String,
    /// `run` or `attach`.
    pub shown_by: String,
    /// Where its changes of local files go, if they are kept apart.
    pub overlay: Option<String>,
    /// Where trees stand.
    pub places: Vec<ProgramPlace>,
    /// Since when, in seconds.
    pub uptime_seconds: u64,
}

/// Where a program finds a tree, or hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramPlace {
    /// The path.
    pub path: String,
    /// The LOCATION, or the beginning of those of hosts.
    pub source: String,
}

/// A program is listed as long as this lives, or its process does.
#[derive(Debug)]
pub struct Listed {
    path: PathBuf,
    _lock: File,
}

impl ProgramView {
    /// Lists it for `outrigger status` from now on.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn list(&self) -> io::Result<Listed> {
        let path = directory()?.join(format!("{}.{SUFFIX}", self.pid));
        let part = path.with_extension(UNFINISHED);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.lock()?;
        file.write_all(&serde_json::to_vec(self)?)?;
        // A file of this name is that of a process that has ended.
        fs::rename(part, &path)?;
        Ok(Listed { path, _lock: file })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // One that is left is removed by the next look.
        let _ = fs::remove_file(&self.path);
    }
}

/// All that are listed, by the processes that serve them. Files of processes that were killed are removed.
///
/// # Errors
/// When there is no directory for them.
pub fn programs() -> io::Result<Vec<ProgramView>> {
    let files = fs::read_dir(directory()?)?.flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == SUFFIX));
    let mut found: Vec<ProgramView> = files.filter_map(|path| view(&path).ok().flatten()).collect();
    found.sort_by_key(|view| view.pid);
    Ok(found)
}

/// What a file says; nothing where its process has ended.
fn view(path: &Path) -> io::Result<Option<ProgramView>> {
    let file = OpenOptions::new().read(true).open(path)?;
    if file.try_lock().is_ok() {
        fs::remove_file(path)?;
        return Ok(None);
    }
    let found = file.metadata()?;
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(&file, MAX), &mut text)?;
    let age = found.modified()?.elapsed().unwrap_or_default();
    Ok(Some(ProgramView { uptime_seconds: age.as_secs(), ..serde_json::from_str(&text)? }))
}
