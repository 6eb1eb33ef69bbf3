// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of an automount: a map that is read again when its file changes.

use super::hosted::{Opener, Opening, Refused, check, trees};
use super::map::{Leads, Map, Top};
use crate::status::Failure;
use crate::tree_options::TreeOptions;
use crate::trees::Reread;
use outrigger_core::{Name, lock};
use outrigger_layer_demux::{Found, Names};
use rustix::fs::OFlags;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The most bytes of a map.
const MAP_MAX: u64 = 16 << 20;

/// See the [module](self).
pub struct MapNames {
    file: Option<PathBuf>,
    opening: Arc<Opening>,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    map: Arc<Map>,
    stamp: Option<Stamp>,
    /// Why the map is an older one than that of the file.
    wrong: Option<String>,
}

/// What changes when a file is written or exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Ok(Stamp { file: (metadata.dev(), metadata.ino()), size: metadata.size(), changed })
    }
}

impl MapNames {
    /// Those in `file`, or hosts by their schemes where there is none. Trees are opened with `options`.
    ///
    /// # Errors
    /// A sentence with the file, and the line where one is wrong.
    pub fn new(file: Option<PathBuf>, options: TreeOptions) -> Result<Self, Failure> {
        let (map, stamp) = match &file {
            Some(path) => {
                // Before it is read: what changes meanwhile is seen later.
                let stamp = Stamp::of(path).ok();
                (read(path, &options).map_err(Failure::serious)?, stamp)
            }
            None => (Map::of_hosts(), None),
        };
        let loaded = Mutex::new(Loaded { map: Arc::new(map), stamp, wrong: None });
        Ok(MapNames { file, opening: Opening::new(options, ("automount", false), Refused::new()), loaded })
    }

    /// Those of a map that stays as it is, for this command, which says why a tree cannot be opened. Trees that do not take their options,
    /// or whose options need `--allow-programs`, are not opened.
    pub fn fixed(map: Map, options: TreeOptions, command: &'static str) -> Self {
        let trees = trees(options.clone(), command);
        let mut refused = Refused::new();
        for (origin, leads) in map.leads().filter(|(_, leads)| !leads.options.is_empty()) {
            let allowed = options.allow(command, std::slice::from_ref(&leads.options), "");
            if let Err(failure) = allowed.and_then(|()| check(&trees, &leads)) {
                let before = if origin.is_empty() { String::new() } else { format!("{origin}: ") };
                let why = format!("{before}the tree '{}': {failure}", leads.location.display());
                refused.insert((leads.location, leads.options), why);
            }
        }
        let loaded = Mutex::new(Loaded { map: Arc::new(map), stamp: None, wrong: None });
        MapNames { file: None, opening: Opening::new(options, (command, true), refused), loaded }
    }

    /// The map as it is now; while there is something wrong with the file, as it was.
    fn map(&self) -> Arc<Map> {
        let mut loaded = lock(&self.loaded);
        let Some(path) = &self.file else { return Arc::clone(&loaded.map) };
        let stamp = Stamp::of(path).ok();
        if stamp.is_some() && stamp == loaded.stamp {
            return Arc::clone(&loaded.map);
        }
        match read(path, &self.opening.options) {
            Ok(map) => (loaded.map, loaded.stamp, loaded.wrong) = (Arc::new(map), stamp, None),
            Err(wrong) => {
                if loaded.wrong.as_ref() != Some(&wrong) {
                    tracing::warn!("{wrong}; the map stays as it was");
                }
                (loaded.stamp, loaded.wrong) = (stamp, Some(wrong));
            }
        }
        Arc::clone(&loaded.map)
    }

    fn tree(&self, leads: Leads) -> Found {
        Found::Tree(Arc::new(Opener::new(leads, Arc::clone(&self.opening))))
    }
}

/// The bytes of a map. What is no file, such as a pipe, could be waited for without end while programs wait for a name.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a map is a regular file"));
    }
    let mut text = Vec::new();
    file.take(MAP_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAP_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a map has 16 MiB at most"));
    }
    Ok(text)
}

fn read(path: &Path, options: &TreeOptions) -> Result<Map, String> {
    let shown = path.display();
    let text = content(path).map_err(|error| format!("{shown}: {}", outrigger_core::Error::from(error)))?;
    let trees = trees(options.clone(), "automount");
    let permits = |leads: &Leads| {
        if leads.options.is_empty() {
            return Ok(());
        }
        let allowed = options.allow("automount", std::slice::from_ref(&leads.options), "");
        allowed.and_then(|()| check(&trees, leads)).map_err(|failure| failure.to_string())
    };
    Map::parse(&text, permits).map_err(|(line, wrong)| format!("{shown}:{line}: {wrong}"))
}

impl Reread for MapNames {
    fn reread(&self) {
        lock(&self.loaded).stamp = None;
        self.map();
    }

    fn wrong(&self) -> Option<String> {
        lock(&self.loaded).wrong.clone()
    }
}

impl Names for MapNames {
    fn find(&self, dir: &[Name], name: &Name) -> Option<Found> {
        let map = self.map();
        match dir {
            [] => Some(match map.top(name)? {
                Top::Hosts => Found::Directory,
                Top::Tree(leads) => self.tree(leads),
            }),
            [scheme] => Some(self.tree(map.host(scheme, name)?)),
            _ => None,
        }
    }

    fn list(&self, dir: &[Name]) -> Vec<Name> {
        if !dir.is_empty() {
            return Vec::new();
        }
        self.map().tops().filter_map(|name| Name::new(name.to_vec()).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &MapNames) -> Vec<String> {
        names.list(&[]).iter().map(Name::to_string).collect()
    }

    #[test]
    fn a_map_is_read_again_when_its_file_changes_and_stays_while_that_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        fs::write(&path, "one /one\n").unwrap();
        let map = MapNames::new(Some(path.clone()), TreeOptions::default()).unwrap();
        assert_eq!(names(&map), ["one"]);
        fs::write(&path, "one /one\ntwo /two\n").unwrap();
        assert_eq!(names(&map), ["one", "two"]);
        fs::write(&path, "one /one\ntwo\n").unwrap();
        assert_eq!(names(&map), ["one", "two"]);
        let wrong = map.wrong().unwrap();
        assert!(wrong.starts_with(&format!("{}:2: ", path.display())), "{wrong}");
        fs::remove_file(&path).unwrap();
        assert_eq!(names(&map), ["one", "two"]);
        assert!(map.wrong().unwrap().contains("No such file"));
        fs::write(&path, "three /three\n").unwrap();
        assert_eq!((names(&map), map.wrong()), (vec!["three".to_owned()], None));
    }

    #[test]
    fn a_map_that_cannot_be_read_at_first_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let refused =
            |path: &Path| MapNames::new(Some(path.to_owned()), TreeOptions::default()).err().unwrap();
        assert!(refused(&path).to_string().contains("No such file"));
        fs::write(&path, "\n\na h:/ ssh_command=evil\n").unwrap();
        let said = refused(&path).to_string();
        assert!(said.contains("map:3: ") && said.contains("--allow-programs"), "{said}");
        for (line, option) in [
            ("a sftp://h/x ro,prot=22", "prot"),
            ("a h:x ro,prot=22", "prot"),
            ("* nfs://&/x nonsense", "nonsense"),
            ("+ftp nonsense=1", "nonsense"),
            ("+hosts nonsense", "nonsense"),
            ("a sftp://h/x read_ahead=soon", "read_ahead"),
        ] {
            fs::write(&path, format!("# a comment\n{line}\n")).unwrap();
            let said = refused(&path).to_string();
            assert!(said.contains("map:2: ") && said.contains(option), "{line}: {said}");
        }
        fs::write(&path, "a sftp://h/x ro,port=22,IdentityFile=/k\n+hosts port=22\nb h:x read_ahead=1m\n")
            .unwrap();
        assert_eq!(
            MapNames::new(Some(path), TreeOptions::default()).err().map(|error| error.to_string()),
            None
        );
    }
}
