// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deaths at one point, with programs that can do what bindfs cannot, or that die between two steps of their own.

use super::{BINDFS, Case, OVERLAY, has_bindfs, start};
use crate::relay::{Point, Relay};
use outrigger_conformance::{Direct, Flags, Subject, range_lock};
use outrigger_core::Errno;
use outrigger_core::ops::{FallocateMode, LockKind, ReadDirPlus, RenameFlags};
use outrigger_driver_libfuse::Options;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

const FORGET: u32 = 2;
const FSYNC: u32 = 20;
const BATCH_FORGET: u32 = 42;
const FALLOCATE: u32 = 43;
const RENAME2: u32 = 45;
const POINTS: [Point; 3] = [Point::BeforeSending, Point::Unanswered, Point::AnswerDropped];

/// The program of `passthrough.c`, compiled once; nothing where that is not possible.
pub fn passthrough() -> Option<Case> {
    static PROGRAM: OnceLock<Result<String, String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replay/passthrough.c");
        let program = format!("{}/passthrough", env!("CARGO_TARGET_TMPDIR"));
        let script = "cc -O1 -Wall -o \"$1\" \"$2\" $(pkg-config --cflags --libs fuse3)";
        let run = Command::new("sh").args(["-ec", script, "sh", &program]).arg(source).output();
        let output = run.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(program),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    });
    match program {
        Ok(program) => {
            Some(Case { program, words: |dir| vec![dir.join("store").display().to_string(), "-f".into()] })
        }
        Err(error) => {
            println!("SKIPPED: a C compiler, pkg-config or libfuse3-dev: {error}");
            None
        }
    }
}

/// Does something with a program that may die, in a directory whose `store` is what the program shows.
fn with(
    case: &Case,
    options: Options,
    change: impl FnOnce(&mut Relay),
    work: impl FnOnce(&Direct, &Relay, &Path),
) {
    let dir = tempfile::tempdir().unwrap();
    let (fs, relay) = start(case, dir.path(), options, change);
    work(&fs, &relay, &dir.path().join("store"));
    fs.close_all();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn locks_are_taken_again() {
    let Some(case) = passthrough() else { return };
    with(
        &case,
        Options::default(),
        |_| (),
        |fs, relay, _| {
            let one = fs.open(Path::new("f"), Flags::NEW, 0o644).unwrap();
            let other = fs.open(Path::new("f"), Flags::READ | Flags::WRITE, 0).unwrap();
            let range = range_lock(LockKind::Write, 10, 19);
            fs.lock(one, range, false).unwrap();
            fs.flock(one, LockKind::Write, false).unwrap();
            for _ in 0..2 {
                let found = fs.test_lock(other, range_lock(LockKind::Read, 0, u64::MAX)).unwrap().unwrap();
                assert_eq!((found.kind, found.start, found.end), (LockKind::Write, 10, 19));
                assert_eq!(fs.lock(other, range, false), Err(Errno::EAGAIN));
                assert_eq!(fs.flock(other, LockKind::Read, false), Err(Errno::EAGAIN));
                relay.kill_now();
            }
            fs.close(one).unwrap();
            fs.lock(other, range, false).unwrap();
            fs.flock(other, LockKind::Write, false).unwrap();
            assert!(relay.programs() > 1);
        },
    );
}

#[test]
fn an_exchange_is_done_once() {
    let Some(case) = passthrough() else { return };
    for point in POINTS {
        with(
            &case,
            Options::default(),
            |relay| relay.kill_first = Some((RENAME2, point)),
            |fs, relay, store| {
                fs::write(store.join("a"), "content of a").unwrap();
                fs::write(store.join("b"), "content of b").unwrap();
                assert_eq!(
                    fs.rename(Path::new("a"), Path::new("b"), RenameFlags::EXCHANGE),
                    Ok(()),
                    "{point:?}"
                );
                assert_eq!(fs::read_to_string(store.join("a")).unwrap(), "content of b", "{point:?}");
                assert_eq!(fs.stat(Path::new("b")).unwrap().size, 12);
                assert_eq!(relay.programs(), 2);
            },
        );
    }
}

#[test]
fn a_range_is_removed_once() {
    let Some(case) = passthrough() else { return };
    for point in POINTS {
        with(
            &case,
            Options::default(),
            |relay| relay.kill_first = Some((FALLOCATE, point)),
            |fs, relay, store| {
                let blocks: Vec<u8> = (0..4).flat_map(|block| vec![block; 4096]).collect();
                fs::write(store.join("f"), &blocks).unwrap();
                let file = fs.open(Path::new("f"), Flags::READ | Flags::WRITE, 0).unwrap();
                match fs.fallocate(file, FallocateMode::COLLAPSE_RANGE, 4096, 4096) {
                    Err(Errno::EOPNOTSUPP) => {
                        return println!("SKIPPED: the host's file system removes no ranges");
                    }
                    done => assert_eq!(done, Ok(()), "{point:?}"),
                }
                let left = [&blocks[..4096], &blocks[8192..]].concat();
                assert!(fs::read(store.join("f")).unwrap() == left, "{point:?}");
                // One that was faster than its death has answered; this request meets its successor.
                assert_eq!(fs.stat(Path::new("f")).unwrap().size, 3 * 4096);
                assert_eq!(relay.programs(), 2);
            },
        );
    }
}

#[test]
fn too_many_kept_writes_are_flushed() {
    if !has_bindfs() {
        return;
    }
    let options = Options { kept_writes: 64 << 10, ..Options::default() };
    with(
        &BINDFS,
        options,
        |_| (),
        |fs, relay, store| {
            let file = fs.open(Path::new("f"), Flags::NEW, 0o644).unwrap();
            let piece = |at: u64| vec![at as u8; 20 << 10];
            for at in 0..10 {
                assert_eq!(fs.write_at(file, at * (20 << 10), &piece(at)), Ok(20 << 10));
            }
            // The fourth write is one too many, and again each fourth. bindfs knows no FLUSH.
            assert_eq!(relay.count(FSYNC), 2);
            relay.kill_now();
            assert_eq!(fs.read_at(file, 180 << 10, 1), Ok(vec![9]));
            let expected: Vec<u8> = (0..10).flat_map(piece).collect();
            assert!(fs::read(store.join("f")).unwrap() == expected);
        },
    );
}

/// A program counts no reference for the directory itself and its parent: to return one would end another's.
#[test]
fn references_of_dots_in_a_listing_are_not_returned() {
    if let Err(error) = Command::new(OVERLAY.program).arg("--version").output() {
        return println!("SKIPPED: {}: {error}", OVERLAY.program);
    }
    with(
        &OVERLAY,
        Options::default(),
        |_| (),
        |fs, relay, _| {
            fs.mkdir(Path::new("d"), 0o755).unwrap();
            let dir = fs.open(Path::new("d"), Flags::READ | Flags::DIRECTORY, 0).unwrap();
            let (node, handle, _) = fs.opened(dir).unwrap();
            let forgotten = || relay.count(FORGET) + relay.count(BATCH_FORGET);
            let before = forgotten();
            let list = fs.ask(ReadDirPlus { node, handle, cookie: 0, size: 4096 }).unwrap();
            assert!(list.entries.is_empty());
            // Messages arrive in order: what the listing returned was there before this.
            fs.fstat(dir).unwrap();
            assert_eq!(forgotten(), before);
        },
    );
}

/// What removes or replaces an open file renames it aside first. A file closed before that is answered is not left there.
fn closed_while_it_is_hidden(change: impl Fn(&Direct) -> outrigger_conformance::Result<()> + Sync) {
    if !has_bindfs() {
        return;
    }
    with(
        &BINDFS,
        Options::default(),
        |relay| relay.hold = Some(b".fuse_hidden_outrigger_"),
        |fs, relay, store| {
            fs::write(store.join("other"), "other").unwrap();
            let file = fs.open(Path::new("open"), Flags::NEW, 0o644).unwrap();
            thread::scope(|scope| {
                let changing = scope.spawn(|| change(fs));
                relay.wait_until_held();
                fs.close(file).unwrap();
                relay.let_go();
                assert_eq!(changing.join().unwrap(), Ok(()));
            });
            assert!(names(store).iter().all(|name| name == "open" || name == "other"), "{:?}", names(store));
        },
    );
}

#[test]
fn a_removed_file_closed_meanwhile_leaves_nothing() {
    closed_while_it_is_hidden(|fs| fs.unlink(Path::new("open")));
}

#[test]
fn a_replaced_file_closed_meanwhile_leaves_nothing() {
    closed_while_it_is_hidden(|fs| fs.rename(Path::new("other"), Path::new("open"), RenameFlags::empty()));
}

#[test]
fn a_file_that_has_grown_without_room_is_written_again() {
    let Some(case) = passthrough() else { return };
    for at in [5, 2, 100] {
        with(
            &case,
            Options::default(),
            |_| (),
            |fs, relay, store| {
                let file = fs.open(Path::new("no room"), Flags::NEW, 0o644).unwrap();
                fs::write(store.join("no room"), "01234").unwrap();
                let earlier = &b"01234"[..5.min(at)];
                assert_eq!(fs.fstat(file).unwrap().size, 5);
                if at < 5 {
                    fs.ftruncate(file, at as u64).unwrap();
                }
                assert_eq!(fs.write_at(file, at as u64, b"abc"), Ok(3), "at {at}");
                let hole = vec![0; at - earlier.len()];
                assert_eq!(
                    fs::read(store.join("no room")).unwrap(),
                    [earlier, &hole, b"abc"].concat(),
                    "at {at}"
                );
                assert_eq!(relay.programs(), 2);
            },
        );
    }
}

#[test]
fn an_unfinished_directory_is_made_anew() {
    let Some(case) = passthrough() else { return };
    with(
        &case,
        Options::default(),
        |_| (),
        |fs, relay, store| {
            assert_eq!(fs.stat(Path::new("unfinished")).err(), Some(Errno::ENOENT));
            fs.mkdir(Path::new("unfinished"), 0o755).unwrap();
            assert_eq!(store.join("unfinished").metadata().unwrap().permissions().mode() & 0o777, 0o755);
            assert_eq!(names(store), [".died", "unfinished"]);
            assert_eq!(relay.programs(), 2);
        },
    );
}

#[test]
fn a_rename_between_two_names_is_finished() {
    let Some(case) = passthrough() else { return };
    with(
        &case,
        Options::default(),
        |_| (),
        |fs, relay, store| {
            fs::write(store.join("one name"), "").unwrap();
            assert_eq!(fs.stat(Path::new("another")).err(), Some(Errno::ENOENT));
            fs.rename(Path::new("one name"), Path::new("another"), RenameFlags::empty()).unwrap();
            assert_eq!(names(store), [".died", "another"]);
            assert_eq!(store.join("another").metadata().unwrap().nlink(), 1);
            assert_eq!(relay.programs(), 2);
        },
    );
}

/// fuse-overlayfs dies of a change of a name that it has given no reference to, as no kernel asks for.
#[test]
fn names_are_looked_up_again_before_they_are_removed_or_moved() {
    if let Err(error) = Command::new(OVERLAY.program).arg("--version").output() {
        return println!("SKIPPED: {}: {error}", OVERLAY.program);
    }
    type Change = fn(&Direct) -> outrigger_conformance::Result<()>;
    let changes: [(&str, Change); 4] = [
        ("unlink", |fs| fs.unlink(Path::new("d/f"))),
        ("rmdir", |fs| fs.rmdir(Path::new("d/e"))),
        ("rename", |fs| fs.rename(Path::new("d/f"), Path::new("d/new"), RenameFlags::empty())),
        ("replace", |fs| fs.rename(Path::new("d/f"), Path::new("d/g"), RenameFlags::empty())),
    ];
    for (what, change) in changes {
        with(
            &OVERLAY,
            Options::default(),
            |_| (),
            |fs, relay, store| {
                fs.mkdir(Path::new("d"), 0o755).unwrap();
                fs.mkdir(Path::new("d/e"), 0o755).unwrap();
                for file in ["d/f", "d/g"] {
                    fs.close(fs.open(Path::new(file), Flags::NEW, 0o644).unwrap()).unwrap();
                }
                relay.kill_now();
                assert_eq!(change(fs), Ok(()), "{what}");
                assert!(fs.stat(Path::new("d")).is_ok());
                assert_eq!(relay.programs(), 2, "{what}: its successor died of it: {:?}", names(store));
            },
        );
    }
}

#[test]
fn a_hidden_file_is_looked_up_again_before_it_is_removed() {
    if let Err(error) = Command::new(OVERLAY.program).arg("--version").output() {
        return println!("SKIPPED: {}: {error}", OVERLAY.program);
    }
    with(
        &OVERLAY,
        Options::default(),
        |_| (),
        |fs, relay, store| {
            let file = fs.open(Path::new("f"), Flags::NEW, 0o644).unwrap();
            relay.kill_now();
            fs.unlink(Path::new("f")).unwrap();
            relay.kill_now();
            fs.close(file).unwrap();
            assert!(fs.stat(Path::new("f")).is_err());
            assert_eq!(relay.programs(), 3);
            assert!(names(store).is_empty(), "{:?}", names(store));
        },
    );
}
