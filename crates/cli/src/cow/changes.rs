// SPDX-License-Identifier: MIT OR Apache-2.0
//! What differs between the overlay and the real files.
//!
//! Both trees are walked by name, in the format that the layer `union` documents. What is the same on both sides is no
//! change: so a commit that was interrupted can be repeated.

use super::alike::Pair;
use super::notes::Noted;
use super::opened::Opened;
use super::origin::{Origin, load};
use super::overlay::{Overlay, failed, origins_of, upper_of};
use crate::format::quote::{Quoting, Style};
use crate::format::record::kind_word;
use crate::status::Failure;
use outrigger_core::FileKind;
use outrigger_core::whiteout::{OPAQUE, hidden_by, is_reserved, whiteout};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// How paths are written in lines.
static QUOTING: LazyLock<Quoting> = LazyLock::new(|| Quoting::new(Style::CMaybe));

/// What became of a real file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    /// There was none.
    Added,
    /// It is another one of the same kind.
    Modified,
    /// It is of another kind.
    Replaced,
    /// There is none any more.
    Removed,
}

/// One change.
#[derive(Debug)]
pub struct Change {
    /// What happened.
    pub became: Became,
    /// The real file.
    pub path: PathBuf,
    /// The file in the overlay, unless it was removed.
    pub upper: Option<(PathBuf, Metadata)>,
    /// The real file as it is, if there is one.
    pub real: Option<Metadata>,
    /// In what a modified file differs.
    pub what: Vec<&'static str>,
}

/// All of them. Directories stand before what was added in them, and behind what was removed in them.
#[derive(Default)]
pub struct Changes {
    /// The changes.
    pub list: Vec<Change>,
    /// Real files that are as a file with several names in the overlay, by its device and inode number.
    pub(super) linked: HashMap<(u64, u64), PathBuf>,
    /// What is known of hidden files.
    pub(super) origins: HashMap<PathBuf, Origin>,
    /// Directories of this user's that had to be opened.
    pub(super) opened: Opened,
    /// Temporary files of a commit that was interrupted, or that runs.
    unfinished: HashSet<PathBuf>,
}

impl Became {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Became::Added => "added",
            Became::Modified => "modified",
            Became::Replaced => "replaced",
            Became::Removed => "removed",
        }
    }
}

impl Change {
    /// The line that tells it, without its end. A path with a control character or a double quote in it is a string of C.
    pub fn line(&self) -> Vec<u8> {
        let mut line = format!("{:<8} ", self.became.name()).into_bytes();
        let (is, was) = self.kinds();
        let mut path = self.path.as_os_str().as_bytes().to_vec();
        if ![Became::Modified, Became::Replaced].contains(&self.became) && is.or(was) == Some("directory") {
            path.push(b'/');
        }
        // A name must not make lines, also for a program that reads them.
        line.extend_from_slice(&QUOTING.quote(&path));
        match self.became {
            Became::Modified => line.extend(format!(" ({})", self.what.join(", ")).bytes()),
            Became::Replaced => {
                line.extend(format!(" ({} by {})", was.unwrap_or("?"), is.unwrap_or("?")).bytes())
            }
            Became::Added | Became::Removed => {}
        }
        line
    }

    /// The same as an object.
    pub fn json(&self) -> Value {
        let (is, was) = self.kinds();
        let bytes = self.path.as_os_str().as_bytes();
        let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let path_hex = self.path.to_str().is_none().then(hex);
        let path = self.path.to_string_lossy();
        json!({ "path": path, "path_hex": path_hex, "change": self.became.name(), "kind": is, "was": was, "what": self.what })
    }

    fn kinds(&self) -> (Option<&'static str>, Option<&'static str>) {
        let word = |found: &Metadata| FileKind::of_mode(found.mode()).map(kind_word);
        (self.upper.as_ref().and_then(|(_, found)| word(found)), self.real.as_ref().and_then(word))
    }
}

impl Changes {
    /// Those of the overlay in a directory.
    ///
    /// # Errors
    /// A sentence about what cannot be read.
    pub fn of(dir: &Path) -> Result<Self, Failure> {
        Overlay::check_own(dir)?;
        let unread = |error| failed("cannot read the overlay", dir, error);
        let dir = &dir.canonicalize().map_err(unread)?;
        let origins = load(&origins_of(dir)).map_err(unread)?;
        let unfinished = Noted::load(dir).map_err(unread)?.unfinished();
        let opened = Opened::of(dir);
        let mut changes = Changes { origins, unfinished, opened, ..Changes::default() };
        let (upper, root) = (upper_of(dir), Path::new("/"));
        // Without one, nothing was changed, or all changes are applied.
        if let (Some(mine), Some(real)) = (found(&upper)?, found(root)?) {
            changes.pair(root, (&upper, mine), real, true)?;
        }
        Ok(changes)
    }

    /// What has become of a real file since the program, which knows nothing of that, changed it in the overlay.
    pub fn conflict(&self, change: &Change) -> Option<&'static str> {
        match (self.origins.get(&change.path), &change.real) {
            (Some(origin), Some(real)) if origin.is_still(real) => None,
            (Some(_), Some(_)) => Some("was changed since the program changed it in the overlay"),
            (Some(_), None) => Some("was removed since the program changed it in the overlay"),
            (None, None) => None,
            // A directory that was made on both sides, or is removed: what is in it counts for itself.
            (None, Some(real)) => match change.became {
                Became::Removed | Became::Modified if real.is_dir() => None,
                Became::Removed => Some(
                    "is new in a directory that the program removed in the overlay; --force removes it, too",
                ),
                _ => Some("was made by the program in the overlay, and by another one outside of it"),
            },
        }
    }

    /// Everything in two directories, of which the upper one shows what is in the real one if `merged`.
    fn directory(&mut self, path: &Path, upper: &Path, merged: bool) -> Result<(), Failure> {
        let above = self.names(upper)?;
        let merged = merged && !above.contains(OsStr::new(OPAQUE));
        let hidden = |name: &OsStr| above.contains(OsStr::from_bytes(&whiteout(name.as_bytes())));
        let mut all: BTreeSet<OsString> = above.iter().filter_map(|name| shown_name(name)).collect();
        if !merged {
            all.extend(self.names(path)?);
        }
        for name in all {
            let (path, own) = (path.join(&name), upper.join(&name));
            match (found(&own)?, found(&path)?) {
                (None, Some(_)) if self.unfinished.contains(&path) => {}
                (None, Some(real)) => self.removed(path, real)?,
                (Some(mine), None) => self.added(&path, (&own, mine))?,
                (Some(mine), Some(real)) => {
                    self.pair(&path, (&own, mine), real, merged && !hidden(&name))?;
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// A name that both sides have.
    fn pair(
        &mut self,
        path: &Path,
        (own, mine): (&Path, Metadata),
        real: Metadata,
        merged: bool,
    ) -> Result<(), Failure> {
        let is_dir = mine.is_dir();
        if mine.file_type() != real.file_type() {
            if real.is_dir() {
                self.removed_in(path)?;
            }
            self.put(Became::Replaced, path, Some((own, mine)), Some(real), Vec::new());
            return if is_dir { self.added_in(path, own) } else { Ok(()) };
        }
        // Their extended attributes are compared, too.
        if is_dir {
            self.open(own)?;
            self.open(path)?;
        }
        let pair = Pair { upper: (own, &mine), real: (path, &real), origin: self.origins.get(path) };
        let what = pair.differences().map_err(|error| failed("cannot compare", path, error))?;
        if !what.is_empty() {
            self.put(Became::Modified, path, Some((own, mine)), Some(real), what);
        } else if !is_dir && mine.nlink() > 1 {
            self.linked.insert((mine.dev(), mine.ino()), path.to_owned());
        }
        if is_dir { self.directory(path, own, merged) } else { Ok(()) }
    }

    fn added(&mut self, path: &Path, (own, mine): (&Path, Metadata)) -> Result<(), Failure> {
        let is_dir = mine.is_dir();
        self.put(Became::Added, path, Some((own, mine)), None, Vec::new());
        if is_dir { self.added_in(path, own) } else { Ok(()) }
    }

    fn added_in(&mut self, path: &Path, own: &Path) -> Result<(), Failure> {
        for name in self.names(own)?.iter().filter(|name| !is_reserved(name.as_bytes())) {
            let own = own.join(name);
            if let Some(mine) = found(&own)? {
                self.added(&path.join(name), (&own, mine))?;
            }
        }
        Ok(())
    }

    fn removed(&mut self, path: PathBuf, real: Metadata) -> Result<(), Failure> {
        if real.is_dir() {
            self.removed_in(&path)?;
        }
        self.put(Became::Removed, &path, None, Some(real), Vec::new());
        Ok(())
    }

    fn removed_in(&mut self, path: &Path) -> Result<(), Failure> {
        for name in self.names(path)? {
            let path = path.join(name);
            if let Some(real) = found(&path)? {
                self.removed(path, real)?;
            }
        }
        Ok(())
    }

    /// What is in a directory.
    fn names(&mut self, dir: &Path) -> Result<BTreeSet<OsString>, Failure> {
        self.open(dir)?;
        let names =
            fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
        names.map_err(|error| failed("cannot read", dir, error))
    }

    /// Lets this user look into a directory of theirs.
    fn open(&mut self, dir: &Path) -> Result<(), Failure> {
        self.opened.open(dir, 0o500).map_err(|error| failed("cannot look into", dir, error))
    }

    fn put(
        &mut self,
        became: Became,
        path: &Path,
        upper: Option<(&Path, Metadata)>,
        real: Option<Metadata>,
        what: Vec<&'static str>,
    ) {
        let upper = upper.map(|(own, mine)| (own.to_owned(), mine));
        self.list.push(Change { became, path: path.to_owned(), upper, real, what });
    }
}

/// The name that programs see, of one in the overlay: a whiteout is what it hides.
fn shown_name(name: &OsStr) -> Option<OsString> {
    match hidden_by(name.as_bytes()) {
        None => Some(name.to_owned()),
        // The others say something about the directory itself.
        Some(hidden) => (!is_reserved(hidden)).then(|| OsString::from_vec(hidden.to_vec())),
    }
}

fn found(path: &Path) -> Result<Option<Metadata>, Failure> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(failed("cannot read", path, error)),
    }
}
