// SPDX-License-Identifier: MIT OR Apache-2.0
//! File names that look like programs, hosts, options or orders to a terminal stay file names.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use support::{Place, Said, has};

/// Names that an attacker may put into a directory for a pattern of the shell to find.
const HOSTILE: [&str; 11] = [
    "fuse:sh x",
    "a:b",
    "127.0.0.9:x",
    "u@h:",
    "sftp:",
    "x::y",
    "::",
    "new\nline",
    "esc\x1b]0;title\x07\x1b[8m",
    "c1\u{9b}8m",
    "mem:",
];

/// Names that are options where no `--` stands in front of them.
const OPTIONS: [&str; 7] = [
    "--opt=command=sh x",
    "--opt=ssh_command=sh x",
    "--opt=ProxyCommand=sh x",
    "-o",
    "-ocommand=sh x",
    "--layer=fault=op=read,error=EIO",
    "--allow-programs",
];

/// Every command that takes names, as it stands in front of a pattern.
const COMMANDS: &[&str] = &[
    "ls",
    "ls -lR",
    "stat",
    "stat -f",
    "tree",
    "find",
    "du -a",
    "df",
    "inspect",
    "readlink -m",
    "cat",
    "diff out",
    "diff",
    "cp -rt out",
    "mv -t out",
    "rm -rf",
    "mkdir",
    "rmdir",
    "ln -t out",
    "ln -st out",
    "touch",
    "touch -r x",
    "chmod u+w",
    "chown 0",
    "truncate -s 0",
    "write",
    "mount",
    "mount m",
    "guard",
    "umount",
    "status",
    "trace",
    "flush",
    "upgrade",
];

/// A place where running `x` or ssh leaves a mark.
fn hostile() -> Place {
    let place = Place::new();
    for (name, mark) in [("w/x", "PROGRAM"), ("bin/ssh", "SSH")] {
        let mark = place.at(mark);
        let program = place.file(name, format!("#!/bin/sh\n: >'{}'\n", mark.display()));
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    refill(&place, true);
    place
}

fn refill(place: &Place, options: bool) {
    fs::create_dir_all(place.at("w/out")).unwrap();
    fs::create_dir_all(place.at("w/m")).unwrap();
    for name in HOSTILE.iter().chain(OPTIONS.iter().filter(|_| options)) {
        fs::write(place.at("w").join(name), "text\n").unwrap();
    }
}

/// Runs `outrigger COMMAND *` in the directory of hostile names, on a terminal if wanted.
fn run(place: &Place, words: &str, terminal: bool) -> Said {
    let path = format!("{}:{}", place.at("bin").display(), std::env::var("PATH").unwrap());
    let words = format!("cd w && PATH='{path}' exec timeout -k 1 20 {} {words}", support::PROGRAM);
    match terminal {
        true => place.run_as("script", &["-qec", &words, "/dev/null"]),
        false => place.run_as("sh", &["-c", &words]),
    }
}

fn unharmed(place: &Place, what: &str, said: &Said) {
    assert!(!place.at("PROGRAM").exists(), "{what}: a program was started: {said:?}");
    assert!(!place.at("SSH").exists(), "{what}: ssh was started: {said:?}");
    assert!(
        !said.err.contains("panicked") && !matches!(said.code, None | Some(101 | 124)),
        "{what}: {said:?}"
    );
}

#[test]
fn no_command_runs_what_a_file_is_called() {
    let place = hostile();
    for command in COMMANDS {
        for dash in ["*", "-- *", "./*", "-- 'fuse:sh x'", "-- 'fuse:sh y' 'a b:c' -h:x"] {
            refill(&place, true);
            let words = format!("{command} {dash}");
            unharmed(&place, &words, &run(&place, &words, false));
        }
        // Without names that are options, each name gets as far as it can.
        OPTIONS.iter().for_each(|name| fs::remove_file(place.at("w").join(name)).unwrap_or_default());
        for name in HOSTILE {
            refill(&place, false);
            let words = format!("{command} '{name}' '{name}::/'");
            unharmed(&place, &words, &run(&place, &words, false));
        }
    }
}

#[test]
fn a_name_that_does_not_exist_starts_no_program_and_says_what_does() {
    let place = hostile();
    let refused = run(&place, "ls 'fuse:sh  x::/'", false);
    assert!(refused.err.contains("outrigger --allow-programs ls ..."), "{refused:?}");
    unharmed(&place, "fuse:", &refused);
    for option in [
        "command=sh x",
        "ssh_command=sh x",
        "F=x",
        "sftp_server=sh x",
        "ProxyCommand=sh x",
        "proxycommand=sh x",
        "HostName=x",
        "StrictHostKeyChecking=accept-new",
    ] {
        for words in [
            format!("ls '--opt={option}' host:"),
            format!("ls host: --opt 'port=1,{option}'"),
            format!("mount host: m -o '{option}'"),
        ] {
            let refused = run(&place, &words, false);
            assert!(
                refused.err.contains("put --allow-programs in front of the command"),
                "{words}: {refused:?}"
            );
            let also = refused.err.contains("put -o in front of the LOCATION");
            assert_eq!(also, words.starts_with("mount"), "{words}: {refused:?}");
            unharmed(&place, &words, &refused);
        }
    }
    let behind = run(&place, "ls --allow-programs 'fuse:sh x::/'", false);
    assert!(behind.code != Some(0) && behind.err.contains("outrigger --allow-programs ls ..."), "{behind:?}");
    fs::write(place.at("w/disk.img"), "").unwrap();
    for words in ["ls disk.img:/p2", "cp disk.img:p2 .", "mount disk.img: m"] {
        let one_colon = run(&place, words, false);
        assert!(one_colon.err.contains("'disk.img::"), "{words}: {one_colon:?}");
        unharmed(&place, words, &one_colon);
    }
    fs::remove_file(place.at("w/fuse:sh x")).unwrap();
    run(&place, "--allow-programs ls 'fuse:sh x::/'", false);
    assert!(place.at("PROGRAM").exists(), "in front of the command it is allowed");
    run(&place, "ls host:", false);
    assert!(place.at("SSH").exists(), "a host is asked when no file has its name");
}

#[test]
fn a_file_whose_name_holds_two_colons_is_opened_as_it_is() {
    let place = Place::new();
    place.file("x::y", "text");
    place.file("src/f", "in the archive");
    fs::rename(place.tar("a.tar.gz", "src"), place.at("a::b.tar.gz")).unwrap();
    assert_eq!(place.run(&["cat", "x::y"]).ok(), "text");
    assert_eq!(place.run(&["cat", "a::b.tar.gz::/f"]).ok(), "in the archive");
    place.run(&["cp", "x::y", "copy"]).ok();
    place.run(&["mv", "x::y", "src"]).ok();
    assert_eq!(fs::read_to_string(place.at("src/x::y")).unwrap(), "text");
}

#[test]
fn no_name_reaches_a_terminal_raw() {
    if !has("script") {
        return;
    }
    let place = hostile();
    OPTIONS.iter().for_each(|name| fs::remove_file(place.at("w").join(name)).unwrap());
    let looking = COMMANDS.iter().filter(|command| !matches!(**command, "guard" | "write"));
    for command in looking.chain(&["ls -U1", "find -printf '%p\\n'", "du", "df -a", "diff -s out"]) {
        refill(&place, false);
        for operands in
            ["-- *", "-- 'esc\x1b]0;title\x07\x1b[8m' 'no\x1b[8m'", "-- 'no\x1b[8m::/' 'no\x1b[8m:x'"]
        {
            let words = match command.split_once(" -printf") {
                Some((find, printf)) => {
                    format!("{find} {} -printf{printf}", operands.trim_start_matches("-- "))
                }
                None if *command == "find" => format!("{command} {}", operands.trim_start_matches("-- ")),
                None => format!("{command} {operands}"),
            };
            let said = run(&place, &words, true);
            // The colours of names are ours.
            let out = said.out.replace("\x1b[0m", "").replace("\x1b[K", "");
            assert!(!out.contains(['\x07', '\u{9b}']) && !out.contains("\x1b]"), "{words}: {said:?}");
            assert!(!out.contains("\x1b[8m"), "{words}: {said:?}");
        }
    }
}

#[test]
fn a_name_makes_no_line_of_its_own_on_a_terminal() {
    if !has("script") {
        return;
    }
    let place = Place::new();
    place.file("w/one/a\n4096\t/etc", "1");
    place.file("w/two/b", "");
    for words in ["du -a one", "diff -r one two", "find one", "diff -u one/a*/etc two/b"] {
        let said = run(&place, words, true);
        assert!(!said.out.contains("\n4096\t/etc") && said.out.contains("a?4096?"), "{words}: {said:?}");
    }
}

#[test]
fn nothing_panics_when_standard_error_or_output_is_full() {
    let place = Place::new();
    place.file("f", "");
    for words in [
        "cat nothing",
        "mount nothing m",
        "mkdir f",
        "umount f",
        "--bad",
        "ls --bad",
        "chmod -v 600 f",
        "mkdir -v d",
    ] {
        for full in ["2>/dev/full", "2>&-", ">/dev/full", ">/dev/full 2>&1", ">&- 2>&-"] {
            let said = place.run_as("sh", &["-c", &format!("{} {words} {full}", support::PROGRAM)]);
            assert!(said.code.is_some_and(|code| code < 100), "{words} {full}: {said:?}");
        }
    }
    let said = place.run_as("sh", &["-c", &format!("{} mkdir -v e >/dev/full", support::PROGRAM)]);
    assert!(said.code == Some(1) && said.err.contains("write error: No space left on device"), "{said:?}");
}

#[test]
fn the_timeout_of_every_command_is_that_of_a_mount_too() {
    if !support::can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "text");
    let layer = "fault=op=read,delay=60s";
    place.run(&["--timeout", "0.2", "mount", "src", "m", "--layer", layer]).ok();
    let said = place.run_as("cat", &["m/f"]);
    assert!(said.err.contains("timed out"), "{said:?}");
    place.run(&["umount", "m"]).ok();
}
