// SPDX-License-Identifier: MIT OR Apache-2.0
//! NFS servers of our own, by commands and mounted.

mod support;

use outrigger_remote::{NfsServer, Nfsd};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use support::{Place, can_mount, kill_server, within};

/// A server, and a place beside it.
struct Far {
    place: Place,
    server: NfsServer,
}

impl Far {
    /// `None` where no server can be; says so.
    fn new(kind: Nfsd) -> Option<Self> {
        if let Some(missing) = kind.missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        fs::create_dir(place.at("nfsd")).unwrap();
        fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
        let server = kind.start(&place.at("nfsd")).unwrap();
        Some(Far { place, server })
    }

    /// `nfs://HOST:PORT` and a path in the export.
    fn location(&self, path: &str) -> String {
        format!("nfs://127.0.0.1:{}{}{path}", self.server.port(), self.server.export())
    }

    /// Runs a command with the port of MOUNT.
    fn run(&self, args: &[&str]) -> support::Said {
        let port = format!("mountport={}", self.server.mount_port());
        self.place.run(&[&["--opt", &port], args].concat())
    }

    fn mount(&self, options: &str) {
        let options = format!("mountport={}{options}", self.server.mount_port());
        self.place.run(&["mount", "-o", &options, &self.location(""), "m"]).ok();
    }
}

const KINDS: [Nfsd; 2] = [Nfsd::Own, Nfsd::Ganesha];

/// A tree with small files, a large one, odd names, a link and an empty directory.
fn tree(place: &Place, name: &str) {
    for number in 0..50_u32 {
        let content = format!("{number}\n").repeat(number as usize);
        place.file(&format!("{name}/d{}/file {number}", number % 5), content);
    }
    let large: Vec<u8> =
        (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    place.file(&format!("{name}/-large*"), large);
    fs::create_dir(place.at(name).join("empty")).unwrap();
    std::os::unix::fs::symlink("d1/file 1", place.at(name).join("link")).unwrap();
}

fn sums(place: &Place, dir: &Path) -> String {
    let command = "cd \"$0\" && find . -type f -exec sha256sum {} + | sort && find . ! -type f -printf '%p %l\\n' | sort";
    place.run_as("sh", &["-c", command, &dir.display().to_string()]).ok()
}

#[test]
fn trees_are_copied_both_ways_by_commands_and_through_a_mount() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        let (place, at_server) = (&far.place, far.server.root());
        tree(place, "tree");
        let expected = sums(place, &place.at("tree"));
        far.run(&["cp", "-r", "tree", &far.location("/")]).ok();
        assert_eq!(sums(place, &at_server.join("tree")), expected, "{kind:?}");
        far.run(&["cp", "-r", &far.location("/tree"), "back"]).ok();
        assert_eq!(sums(place, &place.at("back")), expected, "{kind:?}");
        far.mount("");
        place.run_as("cp", &["-r", "tree", "m/mounted"]).ok();
        assert_eq!(sums(place, &at_server.join("mounted")), expected, "{kind:?}");
        place.run_as("cp", &["-r", "m/tree", "again"]).ok();
        assert_eq!(sums(place, &place.at("again")), expected, "{kind:?}");
        place.run_as("rm", &["-r", "m/mounted"]).ok();
        assert!(!at_server.join("mounted").exists(), "{kind:?}");
    }
}

#[test]
fn exports_are_listed_where_no_path_is_given_and_errors_name_what_was_tried() {
    for kind in KINDS {
        let Some(far) = Far::new(kind) else { continue };
        let host = format!("nfs://127.0.0.1:{}/", far.server.port());
        let first = far.server.export().split('/').nth(1).unwrap().to_owned();
        assert_eq!(far.run(&["ls", &host]).ok(), format!("{first}\n"), "{kind:?}");
        let missing = far.run(&["ls", &format!("{host}nothing")]).refused(2);
        assert!(missing.contains("nothing"), "{missing}");
        let missing = far.run(&["cat", &far.location("/nothing")]).refused(1);
        assert!(missing.contains("No such file"), "{missing}");
        let user = far.run(&["ls", &host.replace("//", "//me@")]).refused(2);
        assert!(user.contains("nobody logs in"), "{user}");
    }
}

#[test]
fn a_mount_survives_the_death_of_its_server_and_of_its_process() {
    for kind in KINDS {
        let Some(mut far) = Far::new(kind) else { continue };
        far.mount("");
        let mut file = File::create(far.place.at("m/f")).unwrap();
        file.write_all(b"before, ").unwrap();
        kill_server(&far.place, "KILL");
        file.write_all(b"after").unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(far.server.root().join("f")).unwrap(), b"before, after", "{kind:?}");
        far.server.stop();
        far.server.start().unwrap();
        file.write_all(b", again").unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(far.server.root().join("f")).unwrap(), b"before, after, again", "{kind:?}");
        fs::remove_file(far.place.at("m/f")).unwrap();
        file.write_all(b" and removed").unwrap();
        assert_eq!(file.metadata().unwrap().size(), 32, "{kind:?}");
        drop(file);
        far.place.unmount("m");
        // umount(8) does not wait for the last close.
        within("nothing is left", || fs::read_dir(far.server.root()).unwrap().count() == 0);
    }
}

/// The server may hold a file for a while that others have removed there.
#[test]
fn what_is_written_to_a_file_that_was_removed_at_the_server_is_stored_or_fails() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    let root = far.server.root();
    let at_server = |name: &str| root.join(name);
    far.mount("");
    for (name, replacement) in [("removed", None), ("replaced", Some("new "))] {
        fs::write(at_server(name), "old ").unwrap();
        assert_eq!(fs::read_to_string(far.place.at("m").join(name)).unwrap(), "old ");
        match replacement {
            None => fs::remove_file(at_server(name)).unwrap(),
            Some(text) => {
                fs::write(at_server("other"), text).unwrap();
                fs::rename(at_server("other"), at_server(name)).unwrap();
            }
        }
        let append = || {
            let path = far.place.at("m").join(name);
            let mut file = File::options().append(true).create(true).open(path)?;
            file.write_all(b"text")?;
            file.sync_all()
        };
        let written = append();
        let stored = fs::read_to_string(at_server(name)).unwrap_or_default();
        match written {
            Ok(()) => assert!(stored.ends_with("text"), "{name}: {stored}"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(116), "{name}: {error}"),
        }
    }
    far.place.unmount("m");
}

/// What is mounted is a directory of an export: links are contained in that, and not in the tree of the server.
#[test]
fn a_link_that_leads_above_the_mounted_directory_is_refused() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    let (place, root) = (&far.place, far.server.root());
    fs::create_dir_all(root.join("dir/sub")).unwrap();
    fs::write(root.join("dir/file"), "inside\n").unwrap();
    place.file("file", "of this machine\n");
    let link =
        |target: &str, at: &str| std::os::unix::fs::symlink(target, root.join("dir").join(at)).unwrap();
    link("../file", "out");
    link("../file", "sub/in");
    link("/export/dir/file", "sub/absolute");
    link("/export/file", "sub/beside");
    let options = format!("mountport={}", far.server.mount_port());
    place.run(&["mount", "-o", &options, &far.location("/dir"), "m"]).ok();
    let read = |path: &str| fs::read_to_string(place.at("m").join(path));
    for name in ["sub/in", "sub/absolute"] {
        assert_eq!(read(name).unwrap(), "inside\n", "{name}");
    }
    for name in ["out", "sub/beside"] {
        assert_eq!(read(name).unwrap_err().raw_os_error(), Some(1), "{name}");
    }
    place.unmount("m");
}

/// A target is of the file, and the way from it depends on which of its names leads there.
#[test]
fn a_link_with_a_name_from_which_it_leads_out_is_refused_by_all_its_names() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    let (place, root) = (&far.place, far.server.root());
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("file"), "inside\n").unwrap();
    place.file("file", "of this machine\n");
    std::os::unix::fs::symlink("../../file", root.join("a/b/up")).unwrap();
    far.mount("");
    let read = |path: &str| fs::read_to_string(place.at("m").join(path));
    assert_eq!(read("a/b/up").unwrap(), "inside\n");
    fs::hard_link(root.join("a/b/up"), root.join("a/alias")).unwrap();
    for _ in 0..2 {
        for name in ["a/alias", "a/b/up"] {
            let refused = read(name).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(1), "{name}");
        }
    }
    place.unmount("m");
}

/// Close-to-open consistency, as of mount.nfs.
#[test]
fn a_file_that_is_opened_has_what_another_client_has_stored() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    let (place, root) = (&far.place, far.server.root());
    far.mount("");
    let names = ["edited", "moved", "appended", "partly", "listed 1", "listed 2", "listed 3", "listed 4"];
    names.iter().for_each(|name| fs::write(root.join(name), "old content\n").unwrap());
    let read = |name: &str| fs::read_to_string(place.at("m").join(name)).unwrap();
    place.run_as("ls", &["-l", "m"]).ok();
    names.iter().for_each(|name| assert_eq!(read(name), "old content\n"));
    for name in names {
        match name {
            "moved" => {
                fs::write(root.join("other"), "new content\n").unwrap();
                fs::rename(root.join("other"), root.join(name)).unwrap();
            }
            _ => fs::write(root.join(name), "new content\n").unwrap(),
        }
    }
    place.run_as("sed", &["-i", "s/content/text/", "m/edited", "m/moved"]).ok();
    File::options().append(true).open(place.at("m/appended")).unwrap().write_all(b"more\n").unwrap();
    // Of the page that this write is in, the rest is read.
    File::options().write(true).open(place.at("m/partly")).unwrap().write_all(b"NEW").unwrap();
    names[4..].iter().for_each(|name| assert_eq!(read(name), "new content\n", "{name}"));
    place.unmount("m");
    let stored = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    assert_eq!([stored("edited"), stored("moved")], ["new text\n", "new text\n"]);
    assert_eq!(stored("appended"), "new content\nmore\n");
    assert_eq!(stored("partly"), "NEW content\n");
}

/// Also where each has written the file itself, and its size stays the same.
#[test]
fn two_clients_that_write_a_file_one_after_the_other_see_each_others_content() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    far.mount("");
    let options = format!("mountport={}", far.server.mount_port());
    fs::create_dir(far.place.at("other")).unwrap();
    far.place.run(&["mount", "-o", &options, &far.location(""), "other"]).ok();
    let at = |mount: &str, name: &str| far.place.at(mount).join(name);
    fs::write(at("m", "count"), "10\n").unwrap();
    for number in 11..30 {
        let mount = if number % 2 == 0 { "m" } else { "other" };
        let text = fs::read_to_string(at(mount, "count")).unwrap();
        assert_eq!(text, format!("{}\n", number - 1), "{mount}");
        fs::write(at(mount, "count"), format!("{number}\n")).unwrap();
    }
    let part = |mount: &str, offset: u64, text: &str| {
        let file = File::options().write(true).open(at(mount, "parts")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), offset).unwrap();
    };
    fs::write(at("m", "parts"), "BBBB").unwrap();
    assert_eq!(fs::read_to_string(at("other", "parts")).unwrap(), "BBBB");
    part("other", 0, "CC");
    part("m", 2, "DD");
    assert_eq!(fs::read_to_string(at("other", "parts")).unwrap(), "CCDD");
    assert_eq!(fs::read_to_string(at("m", "parts")).unwrap(), "CCDD");
    fs::write(at("m", "log"), "one\ntwo\nthree\n").unwrap();
    assert_eq!(fs::read(at("other", "log")).unwrap().len(), 14);
    File::options().write(true).open(at("other", "log")).unwrap().set_len(4).unwrap();
    File::options().append(true).open(at("m", "log")).unwrap().write_all(b"five\n").unwrap();
    // The kernel is told the new size beside the answer to open(2).
    within("the log is whole", || fs::read_to_string(at("other", "log")).unwrap() == "one\nfive\n");
    far.place.unmount("other");
    far.place.unmount("m");
}

#[test]
fn a_name_that_another_client_removed_can_be_made_again_at_once() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    let (place, root) = (&far.place, far.server.root());
    far.mount("");
    for name in ["written", "emptied", "read"] {
        fs::write(place.at("m").join(name), "old").unwrap();
        assert_eq!(fs::read(place.at("m").join(name)).unwrap(), b"old");
        fs::remove_file(root.join(name)).unwrap();
    }
    fs::write(place.at("m/written"), "new").unwrap();
    assert_eq!(fs::read(root.join("written")).unwrap(), b"new");
    File::options().write(true).create(true).truncate(false).open(place.at("m/emptied")).unwrap();
    assert_eq!(fs::read(root.join("emptied")).unwrap(), b"");
    for vanished in ["moded", "cut"] {
        fs::write(place.at("m").join(vanished), "old").unwrap();
        fs::remove_file(root.join(vanished)).unwrap();
    }
    let mode = PermissionsExt::from_mode(0o600);
    assert_eq!(fs::set_permissions(place.at("m/moded"), mode).unwrap_err().raw_os_error(), Some(2));
    place.run_as("truncate", &["-s", "5", "m/cut"]).ok();
    assert_eq!(fs::read(root.join("cut")).unwrap(), [0; 5]);
    let missing = File::options().append(true).open(place.at("m/read")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(2));
    place.unmount("m");
}

/// As of a directory of this machine: layers stand on it, not on the root of the server.
#[test]
fn a_layer_of_a_command_stands_on_the_directory_before_the_separator() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    let (place, vault) = (&far.place, far.location("/vault"));
    let pass = place.file("pass", "correct horse\n");
    fs::set_permissions(pass, PermissionsExt::from_mode(0o600)).unwrap();
    far.run(&["mkdir", &vault]).ok();
    far.run(&["crypt", "init", "--memory", "1", "--passes", "1", "--passfile", "pass", &vault]).ok();
    place.file("letter", "secret");
    let layer = ["--layer", "crypt=passfile=pass,plain"];
    let run = |words: &[&str]| far.run(&[&layer[..], words].concat());
    let at = |path: &str| format!("{vault}::{path}");
    run(&["cp", "letter", &at("/letter")]).ok();
    run(&["mkdir", &at("/dir")]).ok();
    run(&["mv", &at("/letter"), &at("/dir/moved")]).ok();
    assert_eq!(run(&["cat", &at("/dir/moved")]).ok(), "secret");
    assert_eq!(far.run(&["--layer", "crypt=passfile=pass", "ls", &at("/")]).ok(), "dir\n");
    assert!(far.run(&["ls", &vault]).ok().contains("outrigger-crypt.json"));
    assert_eq!(far.run(&["ls", &at("/")]).ok(), far.run(&["ls", &vault]).ok(), "also without a layer");
    let refused = far.run(&["--layer", "crypt=passfile=pass", "ls", &vault]).refused(2);
    assert!(refused.contains("commands take a directory as DIR::/PATH"), "{refused}");
}

/// A damaged block is reported once, under the path of its file, and nothing else is.
#[test]
fn a_check_of_an_encrypted_directory_names_the_damaged_file_and_no_other() {
    let Some(far) = Far::new(Nfsd::Own) else { return };
    let (place, vault) = (&far.place, far.location("/vault"));
    let pass = place.file("pass", "correct horse\n");
    fs::set_permissions(pass, PermissionsExt::from_mode(0o600)).unwrap();
    far.run(&["mkdir", &vault]).ok();
    far.run(&["crypt", "init", "--memory", "1", "--passes", "1", "--passfile", "pass", &vault]).ok();
    let run = |words: &[&str]| far.run(&[&["--layer", "crypt=passfile=pass,plain"], words].concat());
    run(&["mkdir", &format!("{vault}::/dir")]).ok();
    place.file("letter", "secret".repeat(3000));
    run(&["cp", "letter", &format!("{vault}::/dir/letter")]).ok();
    let find = "f=$(find . -path '*/vault/*' -size +9k -type f) && printf x | dd of=\"$f\" bs=1 seek=9000 conv=notrunc";
    place.run_as("sh", &["-ec", find]).ok();
    let said = far.run(&["crypt", "check", "--passfile", "pass", &vault]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 2, "{said:?}");
    assert!(lines[0].starts_with("/dir/letter: block 2 is damaged"), "{said:?}");
    assert!(lines[1].ends_with("1 damaged"), "{said:?}");
}
