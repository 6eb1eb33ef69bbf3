// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the processes of a mount, and those it starts, get of the process that started it: nothing they do not need.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use support::{PROGRAM, Place, can_mount, can_serve, has};

/// Starts the program with a file open for writing as descriptors 9 and 100, and variables of a service manager.
fn run_with_secret(place: &Place, arguments: &str) -> support::Said {
    place.file("secret", "secret");
    let bind = "exec 9<>secret 100<>secret; export WATCHDOG_USEC=9 LISTEN_FDS=9";
    place.run_as("bash", &["-c", &format!("{bind}; exec {PROGRAM} {arguments}")])
}

/// The processes that hold a file open, with their names.
fn holders(file: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        // A process may end while it is looked at.
        if open.filter_map(|number| fs::read_link(number.path()).ok()).any(|target| target == file) {
            found.push(fs::read_to_string(process.path().join("comm")).unwrap_or_default());
        }
    }
    found
}

/// The descriptors of a process, beyond the standard streams, that a program it starts would get.
fn inheritable(process: u32) -> Vec<String> {
    const CLOEXEC: u32 = 0o2000000;
    let directory = format!("/proc/{process}/fdinfo");
    let numbers =
        fs::read_dir(&directory).unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let leaks = |number: &String| {
        let info = fs::read_to_string(format!("{directory}/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
        flags.is_some_and(|flags| u32::from_str_radix(flags, 8).unwrap() & CLOEXEC == 0)
    };
    numbers.filter(|number| number.parse::<u32>().unwrap() > 2).filter(leaks).collect()
}

#[test]
fn no_process_of_a_mount_holds_what_its_starter_had_open() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("tree/file", "x");
    run_with_secret(&place, "mount tree m").ok();
    assert_eq!(holders(&place.at("secret")), [""; 0]);
    place.run(&["upgrade", "m"]).ok();
    assert_eq!(fs::read(place.at("m/file")).unwrap(), b"x");
    assert_eq!(inheritable(place.server()), [""; 0], "what the program after an upgrade would pass on");
}

#[test]
fn the_kernel_code_of_an_image_holds_what_it_was_given_only() {
    if !can_serve() || !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    fs::File::create(place.at("image")).unwrap().set_len(16 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    run_with_secret(&place, "mount image m").ok();
    assert_eq!(holders(&place.at("secret")), [""; 0]);
    let environment = fs::read(format!("/proc/{}/environ", support::kernel_code(&place))).unwrap();
    assert_eq!(environment, b"", "it needs no variable");
}

#[test]
fn a_command_gets_standard_streams_and_the_users_variables() {
    let place = Place::new();
    let script = place.file("connect", "#!/bin/sh\n(cd /proc/$$/fd && echo [0-9]*) >seen\nenv >>seen\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    run_with_secret(&place, &format!("--allow-programs ls --opt command={} host:/", script.display()));
    let seen = fs::read_to_string(place.at("seen")).expect("the command was started");
    let descriptors: Vec<&str> = seen.lines().next().unwrap().split(' ').collect();
    assert!(!descriptors.contains(&"9") && !descriptors.contains(&"100"), "{seen}");
    assert!(!seen.contains("WATCHDOG_USEC") && !seen.contains("LISTEN_FDS"), "{seen}");
    assert!(seen.contains("PATH="), "{seen}");
}

/// A program of this name in the directory `bin`, which notes its descriptors in `seen` and fails.
fn pretender(place: &Place, name: &str) {
    let script =
        place.file(&format!("bin/{name}"), "#!/bin/sh\n(cd /proc/$$/fd && echo [0-9]*) >>seen\nexit 1\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a command where the programs in `bin` come first, and gives what these have noted.
fn noted(place: &Place, program: &str, arguments: &str) -> Vec<String> {
    place.file("secret", "secret");
    fs::set_permissions(place.at("secret"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(place.at("m"), fs::Permissions::from_mode(0o777)).unwrap();
    let script =
        format!("exec 9<>secret 100<>secret; export PATH=$PWD/bin:$PATH; exec {program} {arguments}");
    place.run_as("bash", &["-c", &script]);
    let seen = fs::read_to_string(place.at("seen")).expect("it was started");
    seen.lines().flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn ssh_gets_standard_streams() {
    let place = Place::new();
    pretender(&place, "ssh");
    let seen = noted(&place, PROGRAM, "ls host:/");
    assert!(!seen.contains(&"9".to_owned()) && !seen.contains(&"100".to_owned()), "{seen:?}");
}

#[test]
fn fusermount3_gets_standard_streams_and_its_socket() {
    if !can_mount() || !has("setpriv") {
        return;
    }
    let place = Place::new();
    let stranger = "setpriv --reuid 1879048191 --regid 1879048191 --clear-groups --";
    // The other user may not be let into where it was built.
    fs::copy(PROGRAM, place.at("program")).unwrap();
    pretender(&place, "fusermount3");
    fs::set_permissions(place.at("bin"), fs::Permissions::from_mode(0o755)).unwrap();
    let seen = noted(&place, &format!("env HOME=$PWD XDG_RUNTIME_DIR= {stranger} ./program"), "mount mem: m");
    assert!(!seen.contains(&"9".to_owned()) && !seen.contains(&"100".to_owned()), "{seen:?}");
}

#[test]
fn a_guarded_program_and_what_guards_it_get_standard_streams() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    run_with_secret(&place, &format!("guard -- {PROGRAM} mount --foreground --no-guard mem: m")).ok();
    assert!(place.is_mounted());
    assert_eq!(holders(&place.at("secret")), [""; 0]);
}
