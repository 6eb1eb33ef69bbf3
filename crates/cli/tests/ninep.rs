// SPDX-License-Identifier: MIT OR Apache-2.0
//! A 9P server of our own (diod), by commands and mounted.

mod support;

use outrigger_remote::Diod;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use support::{Place, can_mount, kill_server};

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
}
