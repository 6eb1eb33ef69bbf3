// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files that others have replaced before the program died, and those that only look so.

use super::{BINDFS, Case, MERGERFS, OVERLAY, SSHFS, start};
use crate::relay::Relay;
use crate::replay::passthrough;
use outrigger_conformance::{Direct, Fd, Flags, Subject};
use outrigger_core::ops::RenameFlags;
use outrigger_core::{Errno, SetTime, Time};
use outrigger_driver_libfuse::Options;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

const DB: &str = "db";
const OLD: &[u8] = b"Old old old old";
const READ_WRITE: Flags = Flags::READ.union(Flags::WRITE);

/// A file that others put in the place of an open one.
struct Foreign {
    content: &'static [u8],
    /// Seconds since the last change of the open one.
    later: i64,
    /// The path is looked at, through the program, before it dies.
    seen: bool,
    /// The next program is asked for the path before the handle is used.
    found: bool,
}

const FOREIGN: Foreign = Foreign { content: b"NEW", later: -100_000, seen: false, found: false };

/// A program, its tree, and an open file in it.
struct Scene {
    fs: Direct,
    relay: std::sync::Arc<Relay>,
    dir: tempfile::TempDir,
    fd: Fd,
}

impl Scene {
    /// The file is `OLD`, and that is in the store. Nothing where the program is not there.
    fn new(case: &Case) -> Option<Scene> {
        if let Err(error) = std::process::Command::new(case.program).arg("--version").output() {
            println!("SKIPPED: {}: {error}", case.program);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (fs, relay) = start(case, dir.path(), Options::default(), |_| ());
        for name in [DB, "another"] {
            let made = fs.open(Path::new(name), Flags::NEW, 0o644).unwrap();
            fs.close(made).unwrap();
            // Not by us: what a program has reported stored and is not there counts as lost.
            fs::write(dir.path().join("store").join(name), OLD).unwrap();
        }
        let fd = fs.open(Path::new(DB), READ_WRITE, 0).unwrap();
        fs.write_at(fd, 0, b"O").unwrap();
        fs.fsync(fd, false).unwrap();
        fs.open(Path::new("another"), READ_WRITE, 0).unwrap();
        Some(Scene { fs, relay, dir, fd })
    }

    fn store(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("store").join(name)
    }

    /// Kills the program, and waits for the next one without naming the file.
    fn kill(&self) {
        let before = self.relay.programs();
        self.relay.kill_now();
        while self.relay.programs() == before {
            assert_eq!(self.fs.stat(Path::new("nothing")).err(), Some(Errno::ENOENT));
        }
    }

    /// Another program renames a file over it.
    fn replace(&self, foreign: &Foreign) {
        let changed = fs::metadata(self.store(DB)).unwrap().modified().unwrap();
        fs::write(self.store("db.new"), foreign.content).unwrap();
        let by = Duration::from_secs(foreign.later.unsigned_abs());
        let time = if foreign.later < 0 { changed - by } else { changed + by };
        File::options().write(true).open(self.store("db.new")).unwrap().set_modified(time).unwrap();
        fs::rename(self.store("db.new"), self.store(DB)).unwrap();
    }
}

fn what_replaced_an_open_file_stays_as_it_is(case: &Case, foreign: &Foreign) {
    let Some(scene) = Scene::new(case) else { return };
    let Scene { fs, fd, .. } = &scene;
    scene.replace(foreign);
    if foreign.seen {
        assert_eq!(fs.stat(Path::new(DB)).unwrap().size, foreign.content.len() as u64);
    }
    scene.kill();
    if foreign.found {
        fs.stat(Path::new(DB)).unwrap();
    }
    assert_eq!(fs.write_at(*fd, 4, b"second"), Err(Errno::ESTALE));
    assert_eq!(fs.read_at(*fd, 0, 9), Err(Errno::ESTALE));
    assert_eq!(fs.fsync(*fd, false), Err(Errno::ESTALE));
    assert_eq!(fs.ftruncate(*fd, 1), Err(Errno::ESTALE));
    assert_eq!(fs.fstat(*fd).err(), Some(Errno::ESTALE));
    assert_eq!(fs::read(scene.store(DB)).unwrap(), foreign.content);
    let new = fs.open(Path::new(DB), READ_WRITE, 0).unwrap();
    assert_eq!(fs.read_at(new, 0, 99).unwrap(), foreign.content);
    scene.kill();
    assert_eq!(fs.write_at(new, 0, b"n"), Ok(1));
    assert_eq!(fs.write_at(*fd, 4, b"third"), Err(Errno::ESTALE));
    assert_eq!(fs.close(*fd), Ok(()));
    assert_eq!(fs.close(new), Ok(()));
    assert_eq!(fs::read(scene.store(DB)).unwrap(), [b"n", &foreign.content[1..]].concat());
}

#[test]
fn a_foreign_file_is_known_by_its_number() {
    for foreign in [
        FOREIGN,
        Foreign { seen: true, ..FOREIGN },
        Foreign { found: true, ..FOREIGN },
        Foreign { content: b"NEW NEW NEW NEW", later: 0, ..FOREIGN },
        Foreign { content: b"NEW NEW NEW NEW", later: 0, seen: true, ..FOREIGN },
        Foreign { content: b"NEW NEW NEW NEW and more", later: 9, ..FOREIGN },
    ] {
        what_replaced_an_open_file_stays_as_it_is(&BINDFS, &foreign);
    }
}

/// What a program has reported stored and a later one does not show counts as lost, but not when others removed it.
#[test]
fn a_shorter_foreign_file_is_no_loss() {
    let Some(scene) = Scene::new(&BINDFS) else { return };
    let Scene { fs, fd, .. } = &scene;
    fs.write_at(*fd, 0, OLD).unwrap();
    fs.fsync(*fd, false).unwrap();
    scene.replace(&FOREIGN);
    scene.kill();
    let seen = fs.stat(Path::new(DB)).map(|attr| attr.size);
    assert_eq!(seen, Ok(FOREIGN.content.len() as u64));
    assert_eq!(fs.write_at(*fd, 4, b"second"), Err(Errno::ESTALE));
}

/// sshfs tells the numbers of its nodes.
#[test]
fn a_foreign_file_is_known_by_size_and_time() {
    for foreign in [
        FOREIGN,
        Foreign { seen: true, ..FOREIGN },
        Foreign { found: true, ..FOREIGN },
        Foreign { later: 9, ..FOREIGN },
        Foreign { content: b"NEW NEW NEW NEW", ..FOREIGN },
        Foreign { content: b"NEW NEW NEW NEW and more", later: 9, ..FOREIGN },
    ] {
        what_replaced_an_open_file_stays_as_it_is(&SSHFS, &foreign);
    }
}

/// What happens, and how.
type Change = (&'static str, fn(&Scene));
const SET_BACK: &str = "set back in time";

/// What may happen to an open file that stays the same one.
const CHANGES: &[Change] = &[
    ("nothing", |_| ()),
    ("written in place", |scene| assert_eq!(scene.fs.write_at(scene.fd, 4, b"O"), Ok(1))),
    ("written behind its end", |scene| assert_eq!(scene.fs.write_at(scene.fd, 99, b"end"), Ok(3))),
    ("written and synchronised", |scene| {
        scene.fs.write_at(scene.fd, 99, b"end").unwrap();
        scene.fs.fsync(scene.fd, false).unwrap();
    }),
    ("cut", |scene| scene.fs.ftruncate(scene.fd, 3).unwrap()),
    ("cut by its path, and written", |scene| {
        scene.fs.truncate(Path::new(DB), 0).unwrap();
        scene.fs.write_at(scene.fd, 0, b"new").unwrap();
    }),
    ("emptied by another open", |scene| {
        let other = scene.fs.open(Path::new(DB), Flags::WRITE | Flags::TRUNC, 0).unwrap();
        scene.fs.close(other).unwrap();
    }),
    (SET_BACK, |scene| {
        let time = Some(SetTime::To(Time::new(1000, 0)));
        scene.fs.utimens(Path::new(DB), time, time).unwrap();
    }),
    ("renamed", |scene| {
        scene.fs.rename(Path::new(DB), Path::new("elsewhere"), RenameFlags::empty()).unwrap();
    }),
    ("removed", |scene| scene.fs.unlink(Path::new(DB)).unwrap()),
    ("replaced by us", |scene| {
        let new = scene.fs.open(Path::new("new"), Flags::NEW, 0o644).unwrap();
        scene.fs.close(new).unwrap();
        scene.fs.rename(Path::new("new"), Path::new(DB), RenameFlags::empty()).unwrap();
        assert_eq!(scene.fs.stat(Path::new(DB)).unwrap().size, 0);
    }),
    ("linked, and written by its other name", |scene| {
        // bindfs takes the names for two files.
        if scene.fs.link(Path::new(DB), Path::new("other")).is_ok() {
            let other = scene.fs.open(Path::new("other"), READ_WRITE, 0).unwrap();
            scene.fs.write_at(other, 99, b"end").unwrap();
            scene.fs.close(other).unwrap();
        }
    }),
];

fn an_open_file_that_is_the_same_goes_on(case: &Case, changes: &[Change]) {
    for (what, change) in changes {
        let Some(scene) = Scene::new(case) else { return };
        change(&scene);
        for life in 0..2 {
            scene.kill();
            assert_eq!(scene.fs.write_at(scene.fd, 1, b"mine"), Ok(4), "{what}, {life}");
            assert_eq!(scene.fs.read_at(scene.fd, 1, 4).unwrap(), b"mine", "{what}, {life}");
        }
        assert_eq!(scene.fs.fsync(scene.fd, false), Ok(()), "{what}");
        assert_eq!(scene.fs.close(scene.fd), Ok(()), "{what}");
    }
}

#[test]
fn our_own_changes_make_no_file_foreign() {
    for case in [&BINDFS, &SSHFS, &MERGERFS, &OVERLAY] {
        an_open_file_that_is_the_same_goes_on(case, CHANGES);
    }
}

#[test]
fn what_others_change_in_place_is_the_same_file() {
    let changes: &[Change] = &[
        ("longer", |scene| fs::write(scene.store(DB), [OLD, b"and more"].concat()).unwrap()),
        ("shorter and older", |scene| {
            fs::write(scene.store(DB), "").unwrap();
            let file = File::options().write(true).open(scene.store(DB)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }),
    ];
    an_open_file_that_is_the_same_goes_on(&BINDFS, changes);
}

/// Numbers that are made up by each program, below a root with a number that is not.
#[test]
fn numbers_that_mean_nothing_make_no_file_foreign() {
    let Some(case) = passthrough() else { return };
    let renumbering = Case {
        words: |dir| {
            fs::create_dir(dir.join("store/.renumber")).unwrap();
            vec![dir.join("store").display().to_string(), "-f".into()]
        },
        ..case
    };
    // It sets no times.
    let changes: Vec<_> = CHANGES.iter().copied().filter(|(what, _)| *what != SET_BACK).collect();
    an_open_file_that_is_the_same_goes_on(&renumbering, &changes);
}

/// fuse-overlayfs copies a file of the layer below when it is first written to.
#[test]
fn a_file_that_the_program_copies_up_is_the_same() {
    let layers = Case {
        words: |dir| {
            let words = (OVERLAY.words)(dir);
            fs::write(dir.join("lower/below"), OLD).unwrap();
            words
        },
        ..OVERLAY
    };
    let Some(scene) = Scene::new(&layers) else { return };
    let fs = &scene.fs;
    let reader = fs.open(Path::new("below"), Flags::READ, 0).unwrap();
    let writer = fs.open(Path::new("below"), READ_WRITE, 0).unwrap();
    for life in 0..3 {
        assert_eq!(fs.write_at(writer, 0, b"O"), Ok(1), "{life}");
        assert_eq!(fs.read_at(reader, 0, 99), Ok(OLD.to_vec()), "{life}");
        assert_eq!(fs.stat(Path::new("below")).unwrap().size, OLD.len() as u64);
        scene.kill();
    }
}
