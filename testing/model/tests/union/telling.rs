// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the layer tells of what it hides, and whose its copies seem to be.

use super::{at, mem, tree};
use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::RenameFlags;
use outrigger_core::{Attr, Name, Result, Stack};
use outrigger_layer_union::{Hides, Options, Union};
use outrigger_runtime::Threads;
use std::sync::{Arc, Mutex};

/// What an upper tree has hidden, in the order of it.
#[derive(Clone, Default)]
struct Hidden(Arc<Mutex<Vec<String>>>);

impl Hidden {
    fn add(&self, how: &str, path: &[Name], attr: &Attr) -> Result<()> {
        let path: String = path.iter().map(|name| format!("/{}", String::from_utf8_lossy(name))).collect();
        let size = if attr.is_dir() { 0 } else { attr.size };
        self.0.lock().unwrap().push(format!("{how} {path} {size}"));
        Ok(())
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Hides for Hidden {
    fn copies(&self, path: &[Name], from: &Attr) -> Result<()> {
        self.add("copy", path, from)
    }

    fn hides(&self, path: &[Name], lower: &Attr) -> Result<()> {
        self.add("hide", path, lower)
    }
}

/// A tree in which a directory and a file belong to somebody else, under an upper one whose copies belong to the superuser.
fn telling(hidden: &Hidden) -> (Direct, Direct) {
    let threads = Arc::new(Threads::new());
    let (upper, lower) = (mem(&threads), mem(&threads));
    let below = Direct::new(Arc::clone(&lower));
    below.mkdir(at("/d"), 0o750).unwrap();
    for (path, content) in [("/d/f", "12345"), ("/d/g", "123"), ("/h", "1")] {
        tree::write(&below, path, content.as_bytes());
    }
    below.chown(at("/d"), Some(7), Some(8)).unwrap();
    below.chown(at("/d/f"), Some(7), Some(8)).unwrap();
    let root = Attr { mode: 0o040_555, uid: 9, gid: 9, ..Attr::default() };
    let layer = Union::new(Arc::clone(&upper), Options { own_copies: true }, threads, None).unwrap();
    let layer = layer.telling(Box::new(hidden.clone()), &root);
    let both = Stack::new(lower).push(layer).unwrap().service();
    (Direct::new(both), Direct::new(upper))
}

#[test]
fn what_is_hidden_is_told_before() {
    let hidden = Hidden::default();
    let (both, _) = telling(&hidden);
    tree::write(&both, "/d/f", b"x");
    assert_eq!(hidden.take(), ["copy /d 0", "copy /d/f 5"]);
    both.unlink(at("/d/g")).unwrap();
    both.rename(at("/d/f"), at("/h"), RenameFlags::empty()).unwrap();
    assert_eq!(hidden.take(), ["hide /d/g 3", "hide /h 1", "hide /d/f 5"]);
    both.rmdir(at("/d")).unwrap();
    both.mkdir(at("/d"), 0o700).unwrap();
    tree::write(&both, "/d/new", b"x");
    assert_eq!(hidden.take(), ["hide /d 0"], "nothing of the lower tree is hidden by what is new");
}

#[test]
fn a_copy_of_ones_own_shows_whose_the_file_was() {
    let (both, upper) = telling(&Hidden::default());
    let file = both.open(at("/d/f"), Flags::WRITE, 0).unwrap();
    let owner = |tree: &Direct, path: &str| {
        let attr = tree.stat(at(path)).unwrap();
        (attr.uid, attr.gid, attr.mode & 0o7777)
    };
    assert_eq!((owner(&both, "/"), owner(&both, "/d")), ((9, 9, 0o555), (7, 8, 0o750)));
    let open = both.fstat(file).unwrap();
    assert_eq!((open.uid, open.gid), (7, 8));
    assert_eq!((owner(&upper, "/d/f").0, owner(&upper, "/d").0), (0, 0));
    tree::write(&both, "/d/new", b"x");
    assert_eq!(owner(&both, "/d/new").0, 0);
}
