// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs in one another, and beside other programs that change what a program sees or look at what it does.

use crate::support::{PROGRAM, has};
use crate::{Kind, MECHANISMS, Mechanism, NOBODY, Scene, failures, program_for};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

/// Checks that have something of each kind, and end soon.
const SOME: [&str; 12] = [
    "symlinks-out",
    "dot-dot",
    "getcwd",
    "at-dir",
    "openat2",
    "border",
    "shared-maps",
    "vfork",
    "clone3",
    "threads-apart",
    "scripts",
    "passed-descriptors",
];

fn nesting() -> impl Iterator<Item = &'static Mechanism> {
    MECHANISMS.iter().filter(|mechanism| mechanism.nests)
}

/// The program with these checks, for trees at `/data`.
fn checks(scene: &Scene, at: &str, names: &[&str]) -> Option<Vec<String>> {
    let program = Kind::Dynamic.program()?.display().to_string();
    let words = [&[&*program, at, scene.outside()], names].concat();
    Some(words.into_iter().map(str::to_owned).collect())
}

/// Runs words that consist of a prefix and the checks.
fn no_fault(scene: &Scene, before: &[&str], checks: &[String]) {
    let words: Vec<&str> = before.iter().copied().chain(checks.iter().map(String::as_str)).collect();
    let said = scene.place.run_as(words[0], &words[1..]);
    assert_eq!(failures(&said), [], "{words:?}: {}", said.err);
}

#[test]
fn a_run_in_a_run_has_its_own_tree_in_that_of_the_other() {
    for mechanism in nesting() {
        let Some(scene) = Scene::new() else { return };
        let Some(checks) = checks(&scene, "/more", &[]) else { return };
        let run = |map| [&[PROGRAM, "run", "--no-hosts", "--map", map], mechanism.options, &["--"]].concat();
        no_fault(&scene, &[run("/data=tree"), run("/more=/data/sub")].concat(), &checks);
    }
}

#[test]
fn a_run_works_under_programs_that_look_at_it_or_change_what_it_sees() {
    for mechanism in nesting() {
        let run =
            [&[PROGRAM, "run", "--no-hosts", "--map", "/data=tree"], mechanism.options, &["--"]].concat();
        let outer: [&[&str]; 4] = [
            &["unshare", "--mount", "--map-root-user", "--"],
            &["bwrap", "--dev-bind", "/", "/", "--"],
            &["strace", "-f", "-o", "trace", "-e", "trace=openat,execve", "--"],
            &["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--"],
        ];
        for outer in outer.into_iter().filter(|outer| has(outer[0])) {
            let Some(scene) = Scene::new() else { return };
            let Some(checks) = checks(&scene, "/data", &SOME) else { return };
            // Of a user whom a new user namespace does not know, and who lets everyone write.
            chown(scene.place.at("tree"), Some(NOBODY), Some(NOBODY)).unwrap();
            fs::set_permissions(scene.place.at("tree"), PermissionsExt::from_mode(0o777)).unwrap();
            no_fault(&scene, &[outer, &run].concat(), &checks);
        }
    }
}

/// What makes another view of the files, or looks at a program.
const INNER: [&[&str]; 5] = [
    &["bwrap", "--dev-bind", "/", "/", "--"],
    &["bwrap", "--unshare-user", "--dev-bind", "/", "/", "--"],
    &["strace", "-f", "-o", "/data/trace", "-e", "trace=openat,execve", "--"],
    &["unshare", "--mount", "--map-root-user", "--"],
    &["chroot", "/"],
];

#[test]
fn programs_that_look_at_others_or_change_what_they_see_work_under_a_run() {
    for (mechanism, inner) in nesting().flat_map(|mechanism| INNER.map(|inner| (mechanism, inner))) {
        let Some(scene) = Scene::new() else { return };
        let Some(checks) = checks(&scene, "/data", &SOME) else { return };
        let run =
            [&[PROGRAM, "run", "--no-hosts", "--map", "/data=tree"], mechanism.options, &["--"]].concat();
        if has(inner[0]) {
            no_fault(&scene, &[&run, inner].concat(), &checks);
        }
    }
}

#[test]
fn a_run_works_in_a_run_without_privileges() {
    for mechanism in nesting() {
        let (Some(scene), Some(program)) = (Scene::new(), Kind::Dynamic.program()) else { return };
        let (outrigger, program) = (scene.give_away(), program_for(&scene, &program));
        let run = |map| {
            let words = [outrigger.to_str().unwrap(), "run", "--no-hosts", "--map", map];
            [&words[..], mechanism.options, &["--"]].concat()
        };
        let checks = [&[program.to_str().unwrap(), "/more", scene.outside()][..], &SOME].concat();
        let said = scene.run_as_nobody(&[run("/data=tree"), run("/more=/data"), checks].concat());
        assert_eq!(failures(&said), [], "{}", said.err);
    }
}

#[test]
fn they_work_without_privileges_too() {
    // Only the superuser may call chroot(2).
    let inner = INNER.into_iter().filter(|inner| inner[0] != "chroot" && has(inner[0]));
    for (mechanism, inner) in
        nesting().flat_map(|mechanism| inner.clone().map(move |inner| (mechanism, inner)))
    {
        let (Some(scene), Some(program)) = (Scene::new(), Kind::Dynamic.program()) else { return };
        let outrigger = scene.give_away();
        let program = program_for(&scene, &program);
        let run = [outrigger.to_str().unwrap(), "run", "--no-hosts", "--map", "/data=tree"];
        let checks = [&[program.to_str().unwrap(), "/data", scene.outside()][..], &SOME].concat();
        let said = scene.run_as_nobody(&[&run[..], mechanism.options, &["--"], inner, &checks].concat());
        assert_eq!(failures(&said), [], "{inner:?}: {}", said.err);
    }
}

/// A debugger finds a program of the tree, and stops in it.
#[test]
fn gdb_works_on_both_sides() {
    if !has("gdb") {
        return;
    }
    for mechanism in nesting() {
        let Some(scene) = Scene::new() else { return };
        let Some(program) = Kind::Dynamic.program() else { return };
        fs::copy(program, scene.place.at("tree/program")).unwrap();
        let run = [&["run", "--no-hosts", "--map", "/data=tree"], mechanism.options, &["--"]].concat();
        let gdb =
            ["gdb", "-batch", "-nx", "-ex", "break act", "-ex", "run", "-ex", "backtrace", "-ex", "continue"];
        let debugged = ["--args", "/data/program", "say", "debugged"];
        let inside = scene.place.run(&[&run[..], &gdb, &debugged].concat());
        assert!(inside.out.contains("in main ()") && inside.out.contains("debugged\n"), "{inside:?}");
        let gdb = ["-batch", "-nx", "-ex", "set follow-fork-mode parent", "-ex", "run", "--args", PROGRAM];
        let outside = [&gdb[..], &run, &["cat", "/data/sub/file"]].concat();
        let outside = scene.place.run_as("gdb", &outside);
        assert!(outside.out.contains("content\n") && outside.out.contains("exited normally"), "{outside:?}");
    }
}

/// Such a superuser may do what the user outside may.
#[test]
fn the_superuser_of_a_user_namespace_has_an_overlay() {
    let Some(scene) = Scene::new() else { return };
    chown(scene.place.at("tree"), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(scene.place.at("tree"), PermissionsExt::from_mode(0o777)).unwrap();
    let outer = ["--mount", "--map-root-user", "--", PROGRAM, "run", "--cow=kept", "--"];
    let script = "id -u; echo new >tree/new; cat tree/new; rm -r tree/sub; ls tree";
    let said = scene.place.run_as("unshare", &[&outer[..], &["sh", "-c", script]].concat());
    assert_eq!(said.ok(), "0\nnew\nnew\n");
    assert!(!scene.place.at("tree/new").exists() && scene.place.at("tree/sub").exists());
}
