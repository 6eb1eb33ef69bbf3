// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs find of a tree under `outrigger run`: system calls of all forms by programs of several kinds, for each mechanism and
//! user; such runs in one another and under other programs that change what a program sees; deaths; and programs that people use.

mod deaths;
mod far;
mod nesting;
mod programs;
#[path = "../support/mod.rs"]
mod support;

use programs::{KINDS, Kind};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use support::{PROGRAM, Place, Said, can_mount, has};
use tempfile::TempDir;

/// A way in which `outrigger run` shows trees to a program.
struct Mechanism {
    name: &'static str,
    /// The options of `run` that choose it.
    options: &'static [&'static str],
    /// Whether there can be another one in it, or a program that changes what others see or traces them.
    nests: bool,
    /// Whether calls are answered, with the help of copies of files.
    answers: bool,
    /// Whether programs go on without the server.
    outlives: bool,
}

const MECHANISMS: &[Mechanism] = &[
    Mechanism {
        name: "namespace",
        options: &["--via", "namespace"],
        nests: true,
        answers: false,
        outlives: true,
    },
    Mechanism {
        name: "seccomp",
        options: &["--via", "seccomp"],
        nests: false,
        answers: true,
        outlives: true,
    },
    Mechanism { name: "ptrace", options: &["--via", "ptrace"], nests: false, answers: true, outlives: false },
];

/// A check that fails, and rightly so.
struct Difference {
    check: &'static str,
    reason: &'static str,
    /// With mechanisms that answer calls only, or with the other one; programs of this kind, or this user.
    answers: Option<bool>,
    kind: Option<Kind>,
    user: Option<u32>,
    /// Or only on some file systems below the tree.
    always: bool,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        check: "owners",
        reason: "a change of the owner is EINVAL in place of EPERM: the user namespace knows one user, so there is no other to name",
        answers: Some(false),
        kind: None,
        user: Some(NOBODY),
        always: true,
    },
    Difference {
        check: "listing-seeks",
        reason: "positions in a directory are those of the file system below, of 64 bits, and telldir(3) has 32 of them; only local file \
                 systems know that a program of 32 bits asks",
        answers: None,
        kind: Some(Kind::Bits32),
        user: None,
        always: false,
    },
    Difference {
        check: "deep-directories",
        reason: "the copies of files have paths, which Linux limits to 4096 bytes",
        answers: Some(true),
        kind: None,
        user: None,
        always: true,
    },
    Difference {
        check: "unnamed-files",
        reason: "a file without a name cannot get one in the tree: EOPNOTSUPP, and programs make one with a name",
        answers: Some(true),
        kind: None,
        user: None,
        always: true,
    },
    Difference {
        check: "unix-sockets",
        reason: "sockets are bound in the directory of copies",
        answers: Some(true),
        kind: None,
        user: None,
        always: true,
    },
];

impl Difference {
    fn concerns(&self, Case { mechanism, kind, user }: &Case) -> bool {
        self.answers.is_none_or(|answers| answers == mechanism.answers)
            && self.kind.is_none_or(|other| other == *kind)
            && self.user.is_none_or(|other| other == *user)
    }
}

/// What is tried together.
struct Case {
    mechanism: &'static Mechanism,
    kind: Kind,
    user: u32,
}

impl Case {
    fn all(user: u32) -> impl Iterator<Item = Case> {
        let of = move |mechanism| KINDS.map(|kind| Case { mechanism, kind, user });
        // Calls of 32-bit programs are not answered.
        let sees_trees = |case: &Case| !case.mechanism.answers || case.kind != Kind::Bits32;
        MECHANISMS.iter().flat_map(of).filter(sees_trees)
    }

    /// The checks failed that are expected to, of those that were made, and no others.
    fn judge(&self, said: &Said) {
        let case = format!("{:?} by {} as {}", self.kind, self.mechanism.name, self.user);
        let failed = failures(said);
        let expected: Vec<_> = DIFFERENCES.iter().filter(|difference| difference.concerns(self)).collect();
        for (name, why) in &failed {
            let known = expected.iter().any(|difference| difference.check == *name);
            assert!(known, "{case}: {name}: {why}\n{}", said.err);
        }
        for Difference { check, reason, .. } in expected.iter().filter(|difference| difference.always) {
            let works = said.out.contains(&format!("ok {check}\n"));
            assert!(!works, "{case}: {check} works. Is it not true: {reason}");
        }
    }
}

/// A user without privileges.
const NOBODY: u32 = 65534;

/// A tree, and a directory outside of it that is on another file system.
pub struct Scene {
    /// Where the tree is.
    pub place: Place,
    outside: TempDir,
}

impl Scene {
    /// With the directory `tree` in the place.
    pub fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        place.file("tree/sub/file", "content\n");
        let outside = tempfile::tempdir_in("/dev/shm").unwrap();
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        assert_ne!(device(&place.at("tree")), device(outside.path()), "a border that is no border");
        Some(Scene { place, outside })
    }

    /// The directory outside.
    pub fn outside(&self) -> &str {
        self.outside.path().to_str().unwrap()
    }

    /// Gives everything to the user without privileges; answers this program where that user finds it.
    fn give_away(&self) -> PathBuf {
        fs::set_permissions(self.place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
        for dir in [self.place.at("tree"), self.outside.path().to_owned()] {
            // The group stays another one than that of the user.
            chown(dir, Some(NOBODY), None).unwrap();
        }
        let program = self.place.at("program");
        fs::hard_link(PROGRAM, &program).or_else(|_| fs::copy(PROGRAM, &program).map(drop)).unwrap();
        program
    }

    /// Runs a program as the user without privileges, who may use FUSE.
    pub fn run_as_nobody(&self, words: &[&str]) -> Said {
        let setup = "mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse; \
            exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all \"$@\"";
        self.place.run_as("unshare", &[&["-m", "sh", "-c", setup, "sh"], words].concat())
    }
}

/// The checks that failed, with what they said.
fn failures(said: &Said) -> Vec<(&str, &str)> {
    let lines: Vec<&str> = said.out.lines().collect();
    let failed: Vec<_> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("FAILED "))
        .map(|line| line.split_once(' ').unwrap())
        .collect();
    let passed = lines.iter().filter(|line| line.starts_with("ok ")).count();
    assert!(passed + failed.len() == lines.len() && passed > failed.len(), "{said:?}");
    assert_eq!(said.code, Some(i32::from(!failed.is_empty())), "{said:?}");
    failed
}

/// The program where every user finds it.
fn program_for(scene: &Scene, program: &Path) -> PathBuf {
    let own = scene.place.at("calls");
    fs::copy(program, &own).unwrap();
    own
}

/// The checks themselves are right, as a directory without Outrigger shows.
#[test]
fn programs_of_all_kinds_find_no_fault_with_a_local_directory() {
    for (kind, user) in KINDS.map(|kind| (kind, 0)).into_iter().chain([(Kind::Dynamic, NOBODY)]) {
        let (Some(scene), Some(program)) = (Scene::new(), kind.program()) else { continue };
        scene.give_away();
        let (program, tree) = (program_for(&scene, &program), scene.place.at("tree"));
        let words = [program.to_str().unwrap(), tree.to_str().unwrap(), scene.outside()];
        let said = match user {
            0 => scene.place.run_as(words[0], &words[1..]),
            _ => scene.run_as_nobody(&words),
        };
        assert_eq!(failures(&said), [], "{kind:?} as {user}: {}", said.err);
    }
}

#[test]
fn programs_of_all_kinds_find_no_fault_with_a_tree() {
    for case in Case::all(0) {
        let (Some(scene), Some(program)) = (Scene::new(), case.kind.program()) else { continue };
        let program = program.to_str().unwrap();
        let run = [&["run", "--no-hosts", "--map", "/data=tree"], case.mechanism.options].concat();
        case.judge(&scene.place.run(&[&run[..], &["--", program, "/data", scene.outside()]].concat()));
    }
}

/// The tree covers a directory, so that `..` and links lead to what is beside it.
#[test]
fn users_without_privileges_find_no_fault_with_a_tree() {
    if !has("setpriv") || !has("unshare") {
        return;
    }
    for case in Case::all(NOBODY) {
        let (Some(scene), Some(program)) = (Scene::new(), case.kind.program()) else { continue };
        let outrigger = scene.give_away();
        fs::create_dir(scene.place.at("covered")).unwrap();
        let (program, covered) = (program_for(&scene, &program), scene.place.at("covered"));
        let map = format!("{}=tree", covered.display());
        let run = [outrigger.to_str().unwrap(), "run", "--no-hosts", "--map", &map];
        let words = ["--", program.to_str().unwrap(), covered.to_str().unwrap(), scene.outside()];
        case.judge(&scene.run_as_nobody(&[&run[..], case.mechanism.options, &words].concat()));
        assert!(fs::read_dir(covered).unwrap().next().is_none(), "what was made went to the tree");
    }
}

/// Its paths are not known to who answers its calls: the local directory that a tree covers must not be taken for the tree.
#[test]
fn a_program_that_may_not_be_read_does_not_find_what_a_tree_covers() {
    if !has("setpriv") || !has("unshare") {
        return;
    }
    for mechanism in MECHANISMS {
        let Some(scene) = Scene::new() else { return };
        let outrigger = scene.give_away();
        scene.place.file("covered/sub/file", "local\n");
        let cat = scene.place.at("unreadable");
        fs::copy("/bin/cat", &cat).unwrap();
        fs::set_permissions(&cat, PermissionsExt::from_mode(0o111)).unwrap();
        let covered = scene.place.at("covered");
        let (map, file) = (format!("{}=tree", covered.display()), covered.join("sub/file"));
        let run = [outrigger.to_str().unwrap(), "run", "--no-hosts", "--map", &map];
        let words = ["--", cat.to_str().unwrap(), file.to_str().unwrap()];
        let said = scene.run_as_nobody(&[&run[..], mechanism.options, &words].concat());
        match mechanism.answers {
            true => assert!(said.code != Some(0) && said.out.is_empty(), "{}: {said:?}", mechanism.name),
            false => assert_eq!(said.ok(), "content\n"),
        }
    }
}
