// SPDX-License-Identifier: MIT OR Apache-2.0
//! A 9P server of our own (diod), by commands and mounted.

mod support;

use outrigger_remote::{Diod, Line};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use support::{Place, can_mount, has, kill_server, within};

/// A server, and a place beside it.
struct Far {
    place: Place,
    server: Diod,
}

impl Far {
    /// `None` where no server can be; says so.
    fn new() -> Option<Self> {
        if let Some(missing) = Diod::missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        fs::create_dir(place.at("diod")).unwrap();
        fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
        let server = Diod::start(&place.at("diod")).unwrap();
        Some(Far { place, server })
    }

    fn location(&self, path: &str) -> String {
        format!("9p://127.0.0.1:{}{}{path}", self.server.port(), self.server.root().display())
    }
}

fn sums(place: &Place, dir: &Path) -> String {
    let command = "cd \"$0\" && find . -type f -exec sha256sum {} + | sort && find . ! -type f -printf '%p %l\\n' | sort";
    place.run_as("sh", &["-c", command, &dir.display().to_string()]).ok()
}

/// A tree with small files, a large one, odd names, a link and an empty directory.
fn tree(place: &Place, name: &str) {
    for number in 0..50_u32 {
        place.file(
            &format!("{name}/d{}/file {number}", number % 5),
            format!("{number}\n").repeat(number as usize),
        );
    }
    let large: Vec<u8> = (0..500_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    place.file(&format!("{name}/-large*"), large);
    fs::create_dir(place.at(name).join("empty")).unwrap();
    symlink("d1/file 1", place.at(name).join("link")).unwrap();
}

#[test]
fn a_program_that_speaks_9p_on_its_standard_input_and_output_is_a_server() {
    let Some(Far { place, .. }) = Far::new() else { return };
    place.file("served/file", "content\n");
    let served = place.at("served");
    let program =
        format!("command=diod -f -n -c /dev/null -L stderr -e '{}' --rfdno 0 --wfdno 1", served.display());
    let location = format!("9p://here{}", served.display());
    let refused = place.run(&["ls", "--opt", &program, &location]).refused(2);
    assert!(refused.contains("--allow-programs"), "{refused}");
    let place = place.trusting();
    assert_eq!(place.run(&["cat", "--opt", &program, &format!("{location}/file")]).ok(), "content\n");
    place.run(&["cp", "--opt", &program, "served/file", &format!("{location}/copy")]).ok();
    assert_eq!(fs::read_to_string(served.join("copy")).unwrap(), "content\n");
    let none = place.run(&["cat", "--opt", "command=/none/such", &format!("{location}/file")]).refused(1);
    assert!(none.contains("/none/such cannot be started"), "{none}");
    for (command, expected) in [
        ("command=sh -c 'echo no licence >&2; exit 3'", "sh: no licence (exit status: 3)"),
        ("command=sh -c 'exit 4'", "sh ended with exit status: 4"),
    ] {
        let refused = place.run(&["cat", "--opt", command, &format!("{location}/file")]).refused(1);
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn trees_are_copied_both_ways_by_commands_and_through_a_mount() {
    let Some(far) = Far::new() else { return };
    let (place, at_server) = (&far.place, far.server.root());
    tree(place, "tree");
    let expected = sums(place, &place.at("tree"));
    place.run(&["cp", "-r", "tree", &far.location("/copy")]).ok();
    assert_eq!(sums(place, &at_server.join("copy")), expected);
    place.run(&["cp", "-r", &far.location("/copy"), "back"]).ok();
    assert_eq!(sums(place, &place.at("back")), expected);
    let listed = place.run(&["ls", "-lR", &far.location("/copy")]).ok();
    assert!(listed.contains("file 49") && listed.contains("link -> d1/file 1"), "{listed}");
    fs::create_dir_all(place.at("m")).unwrap();
    place.run(&["mount", &far.location(""), "m"]).ok();
    assert_eq!(sums(place, &place.at("m/copy")), expected);
    place.run_as("cp", &["-r", "tree", "m/other"]).ok();
    fs::rename(place.at("m/other/d1"), place.at("m/other/moved")).unwrap();
    fs::remove_dir_all(place.at("m/other/d2")).unwrap();
    assert_eq!(fs::metadata(place.at("m/other/-large*")).unwrap().size(), 2_000_000);
    place.run(&["umount", "m"]).ok();
    assert!(at_server.join("other/moved/file 1").exists() && !at_server.join("other/d2").exists());
    assert_eq!(
        fs::read(at_server.join("other/-large*")).unwrap(),
        fs::read(place.at("tree/-large*")).unwrap()
    );
}

/// A listing of 9P2000.L has no attributes: those of a file are three messages.
#[test]
fn names_are_listed_without_a_message_for_each() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    fs::create_dir_all(far.server.root().join("d/e")).unwrap();
    for number in 0..500 {
        fs::write(far.server.root().join(format!("d/file {number}")), "").unwrap();
    }
    let lines = |text: String| text.lines().count();
    // The bytes that are sent to the server; to ask about a file takes 50.
    let sent = |does: &dyn Fn(&str) -> usize| {
        let line = Line::new(far.server.port(), Duration::ZERO).unwrap();
        let location = format!("9p://127.0.0.1:{}{}/d", line.port(), far.server.root().display());
        assert_eq!(does(&location), 501);
        line.carried()[0]
    };
    let names = sent(&|at| lines(place.run(&["ls", at]).ok()));
    let found = sent(&|at| lines(place.run(&["find", at, "-mindepth", "1", "-name", "*e*"]).ok()));
    let long = sent(&|at| lines(place.run(&["ls", "-l", at]).ok()) - 1);
    assert!(names < 5_000 && found < 5_000 && long > 20_000, "{names}, {found} and {long} bytes");
    let in_mount = |program: &str, rest: &[&str]| {
        let words: Vec<&str> = std::iter::once("m").chain(rest.iter().copied()).collect();
        sent(&|at| {
            place.run(&["mount", at, "m"]).ok();
            let shown = lines(place.run_as(program, &words).ok());
            place.run(&["umount", "m"]).ok();
            shown
        })
    };
    let (names, found) = (in_mount("ls", &[]), in_mount("find", &["-mindepth", "1", "-name", "*e*"]));
    assert!(names < 5_000 && found < 5_000, "{names} and {found} bytes");
}

#[test]
fn a_mount_goes_on_when_its_process_is_killed() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    fs::create_dir_all(place.at("m")).unwrap();
    fs::write(far.server.root().join("f"), "content").unwrap();
    place.run(&["mount", &far.location(""), "m"]).ok();
    let file = fs::File::open(place.at("m/f")).unwrap();
    kill_server(place, "KILL");
    assert_eq!(std::io::read_to_string(&file).unwrap(), "content");
    drop(file);
    fs::write(place.at("m/g"), "more").unwrap();
    place.run(&["umount", "m"]).ok();
    assert_eq!(fs::read(far.server.root().join("g")).unwrap(), b"more");
}

#[test]
fn what_the_server_does_not_attach_is_refused_and_named() {
    let Some(far) = Far::new() else { return };
    let (place, port) = (&far.place, far.server.port());
    let said = place.run(&["cat", &format!("9p://127.0.0.1:{port}/nowhere/f")]);
    assert!(said.code != Some(0) && said.err.contains("nowhere"), "{}", said.err);
    let said = place.run(&["--opt", "aname=/nowhere", "ls", &format!("9p://127.0.0.1:{port}/")]);
    assert!(said.code != Some(0) && said.err.contains("attach to '/nowhere'"), "{}", said.err);
    let unnamed = [&["-u", "USER", support::PROGRAM][..], &["--opt", "aname=/nowhere", "ls"]].concat();
    let said = place.run_as("env", &[&unnamed[..], &[&format!("9p://127.0.0.1:{port}/")]].concat());
    assert!(said.err.contains("does not let the user 0 attach to"), "{}", said.err);
    let said = place.run(&["--opt", "aname=/x", "ls", "9p://127.0.0.1:1/"]);
    assert!(
        said.code != Some(0) && !said.err.contains("attach") && said.err.contains("refused"),
        "{}",
        said.err
    );
    for dialect in ["9p2000", "9p2000.u"] {
        let said = place.run(&["--opt", &format!("dialect={dialect}"), "ls", &far.location("")]);
        assert!(
            said.code != Some(0) && said.err.contains("the server speaks 9P2000.L and not that"),
            "{}",
            said.err
        );
    }
}

/// Close-to-open consistency: of a file that is opened no old part is read beside a new one.
#[test]
fn a_file_that_is_opened_has_what_another_client_has_stored() {
    let Some(far) = Far::new() else { return };
    let (place, stored) = (&far.place, far.server.root().join("f"));
    fs::write(&stored, vec![b'o'; 3_000_000]).unwrap();
    place.run(&["mount", &far.location(""), "m"]).ok();
    let mut first = [0; 4096];
    fs::File::open(place.at("m/f")).unwrap().read_exact(&mut first).unwrap();
    assert_eq!(first, [b'o'; 4096]);
    fs::File::options().write(true).open(&stored).unwrap().write_all(&vec![b'n'; 3_000_000]).unwrap();
    place.run_as("cp", &["m/f", "copy"]).ok();
    assert!(fs::read(place.at("copy")).unwrap().iter().all(|&byte| byte == b'n'));
    place.unmount("m");
}

#[test]
fn a_removed_file_that_is_open_in_a_mount_lives_on_until_it_is_closed() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    place.run(&["mount", &far.location(""), "m"]).ok();
    let mut file = fs::File::options().read(true).write(true).create_new(true).open(place.at("m/f")).unwrap();
    file.write_all(b"content").unwrap();
    fs::remove_file(place.at("m/f")).unwrap();
    assert_eq!(fs::read_dir(place.at("m")).unwrap().count(), 0);
    file.set_permissions(PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 7);
    file.set_len(4).unwrap();
    file.sync_all().unwrap();
    let (mut content, told) = ([0; 4], file.metadata().unwrap());
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!((&content, told.len(), told.nlink(), told.mode() & 0o777), (b"cont", 4, 0, 0o640));
    drop(file);
    let tmp = format!("TMPDIR={}", place.at("m").display());
    let said = place.run_as("env", &[&tmp, "bash", "-c", "cat <<< 'here string'"]).ok();
    assert_eq!(said, "here string\n");
    // Linux tells a FUSE mount of the last close after close(2).
    within("nothing is left behind", || fs::read_dir(far.server.root()).unwrap().count() == 0);
    place.unmount("m");
}

/// The server decides, also where all content is cached: its access lists are not the kernel's.
#[test]
fn a_user_whom_an_access_list_of_the_server_denies_neither_reads_nor_writes() {
    let Some(far) = Far::new() else { return };
    if !has("setfacl") || !has("setpriv") {
        assert!(std::env::var_os("CI").is_none(), "setfacl and setpriv must be here");
        eprintln!("SKIPPED: there is no setfacl, or no setpriv");
        return;
    }
    let (place, stored) = (&far.place, far.server.root().join("f"));
    fs::set_permissions(far.server.root(), PermissionsExt::from_mode(0o777)).unwrap();
    fs::write(&stored, "secret").unwrap();
    fs::set_permissions(&stored, PermissionsExt::from_mode(0o666)).unwrap();
    place.run_as("setfacl", &["-m", "u:1:---", &stored.display().to_string()]).ok();
    place.run(&["mount", "-o", "allow_other", &far.location(""), "m"]).ok();
    assert_eq!(fs::read(place.at("m/f")).unwrap(), b"secret");
    let as_user = |uid: &str, command: &str| {
        let (reuid, regid) = (format!("--reuid={uid}"), format!("--regid={uid}"));
        place.run_as("setpriv", &[&reuid, &regid, "--clear-groups", "sh", "-c", command]).code
    };
    for command in ["cat m/f", "echo HACK > m/f", "echo HACK >> m/f"] {
        assert_ne!(as_user("1", command), Some(0), "{command}");
    }
    assert_eq!(fs::read(&stored).unwrap(), b"secret");
    assert_eq!(as_user("2", "cat m/f && echo other > m/f"), Some(0));
    assert_eq!(fs::read(&stored).unwrap(), b"other\n");
    // The mode is cached.
    fs::set_permissions(&stored, PermissionsExt::from_mode(0o600)).unwrap();
    assert_ne!(as_user("2", "echo HACK > m/f"), Some(0));
    assert_eq!(fs::read(&stored).unwrap(), b"other\n");
    place.unmount("m");
}

#[test]
fn a_file_whose_empty_attribute_the_server_does_not_keep_is_not_moved_in_silence() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    place.file("f", "content");
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(place.at("f"), "user.empty", b"", none).unwrap();
    for (command, to) in [(&["cp", "-a"][..], "/copied"), (&["mv"], "/moved")] {
        let said = place.run(&[command, &["f", &far.location(to)]].concat()).refused(1);
        assert!(said.contains("user.empty"), "{said}");
    }
    assert_eq!(fs::read(place.at("f")).unwrap(), b"content", "it stays");
}

#[test]
fn two_mounts_see_each_others_locks_unless_they_are_to_hold_on_this_machine() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    fs::write(far.server.root().join("f"), "content").unwrap();
    for (name, options) in [("m1", &[][..]), ("m2", &[]), ("m3", &["-o", "locks=local"])] {
        fs::create_dir_all(place.at(name)).unwrap();
        place.run(&[&["mount"], options, &[&far.location(""), name]].concat()).ok();
    }
    // The second one is tried while the first one is held; of itself flock(1) says so by the status 7.
    let both = |one: &str, other: &str, how: &str| {
        place.run_as("flock", &["-n", one, "flock", "-n", "-E", "7", how, other, "true"]).code
    };
    assert_eq!(both("m1/f", "m2/f", "-x"), Some(7));
    assert_eq!(both("m1/f", "m1/f", "-s"), Some(7), "of one mount, too");
    assert_eq!(both("m1/f", "m3/f", "-x"), Some(0), "that one does not ask the server");
    assert_eq!(both("m2/f", "m1/f", "-x"), Some(7), "nothing is left of the first lock");
    assert_eq!(place.run_as("flock", &["-n", "m1/f", "true"]).code, Some(0));
    ["m1", "m2", "m3"].into_iter().for_each(|name| _ = place.run(&["umount", name]).ok());
}
