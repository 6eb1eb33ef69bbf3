// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images that are files of other trees: of archives, of archives in them, of hosts.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use support::{Place, can_mount, can_serve, has, within};

const SERVER: &str = "command=/usr/lib/openssh/sftp-server";

/// A place with an ext4 image `dir/d.img`, whose files are `src/a` and `src/etc/b`, in a `d.tar`, beside `pad` in it.
fn place() -> Option<Place> {
    if !can_serve() || !["mkfs.ext4", "tar"].iter().all(|tool| has(tool)) {
        return None;
    }
    let place = Place::new();
    place.file("src/a", "one\n");
    place.file("src/etc/b", vec![b'b'; 8 << 20]);
    let image = place.file("dir/d.img", "");
    File::options().write(true).open(image).unwrap().set_len(32 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "-d", "src", "dir/d.img"]).ok();
    place.file("dir/pad", vec![b'p'; 1_000_000]);
    place.run_as("tar", &["-cf", "d.tar", "-C", "dir", "pad", "d.img"]).ok();
    Some(place)
}

/// What is in the image at `location` is the same as in `src`.
fn must_be_the_source(place: &Place, options: &[&str], location: &str) {
    let run = |words: &[&str]| place.run(&[&words[..1], options, &words[1..]].concat());
    assert_eq!(run(&["ls", location]).ok(), "a\netc\nlost+found\n", "{location}");
    assert_eq!(run(&["cat", &format!("{location}/a")]).ok(), "one\n");
    run(&["cp", "-r", location, "back"]).ok();
    fs::remove_dir(place.at("back/lost+found")).unwrap();
    place.run_as("diff", &["-r", "src", "back"]).ok();
    fs::remove_dir_all(place.at("back")).unwrap();
}

#[test]
fn an_image_in_an_archive_is_a_tree() {
    let Some(place) = place() else { return };
    must_be_the_source(&place, &[], "d.tar::/d.img::/");
    for (tool, name) in [("zstd", "d.tar.zst"), ("xz", "d.tar.xz")] {
        if has(tool) {
            place.run_as("sh", &["-c", &format!("{tool} -T1 -1 -c d.tar > {name}")]).ok();
            must_be_the_source(&place, &[], &format!("{name}::/d.img::/"));
        }
    }
}

#[test]
fn an_image_in_an_archive_in_an_archive_is_a_tree() {
    let Some(place) = place() else { return };
    place.run_as("tar", &["-cf", "outer.tar", "d.tar"]).ok();
    must_be_the_source(&place, &[], "outer.tar::/d.tar::/d.img::/");
}

#[test]
fn a_compressed_image_is_a_tree() {
    let Some(place) = place() else { return };
    for (tool, suffix) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")] {
        if has(tool) {
            place.run_as("sh", &["-c", &format!("{tool} -c dir/d.img > d.img.{suffix}")]).ok();
            must_be_the_source(&place, &[], &format!("d.img.{suffix}::/d.img::/"));
        }
    }
}

#[test]
fn an_image_of_another_form_in_an_archive_is_a_tree() {
    let Some(place) = place() else { return };
    if !has("qemu-img") {
        return;
    }
    for form in ["qcow2", "vdi", "vhdx", "vmdk", "vpc"] {
        place.run_as("qemu-img", &["convert", "-O", form, "dir/d.img", "disk"]).ok();
        place.run_as("tar", &["-cf", "disk.tar", "disk"]).ok();
        must_be_the_source(&place, &[], "disk.tar::/disk::/");
    }
    place.run_as("qemu-img", &["convert", "-O", "qcow2", "dir/d.img", "base"]).ok();
    place.run_as("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base", "-F", "qcow2", "disk"]).ok();
    place.run_as("tar", &["-cf", "disk.tar", "disk", "base"]).ok();
    let said = place.run(&["ls", "disk.tar::/disk::/"]).refused(2);
    assert!(said.contains("it needs \"base\" beside it"), "{said}");
}

#[test]
fn an_image_on_a_host_is_a_tree() {
    let Some(place) = place() else { return };
    if !has("/usr/lib/openssh/sftp-server") {
        return;
    }
    let options = ["--allow-programs", "--opt", SERVER];
    let image = format!("host:{}::/", place.at("dir/d.img").display());
    let run = |words: &[&str]| place.run(&[&options, words].concat());
    assert_eq!(run(&["ls", &image]).ok(), "a\netc\nlost+found\n");
    assert_eq!(run(&["cat", &format!("{image}a")]).ok(), "one\n");
    let in_archive = format!("host:{}::/d.img::/etc", place.at("d.tar").display());
    run(&["cp", "-r", &in_archive, "back"]).ok();
    place.run_as("cmp", &["src/etc/b", "back/b"]).ok();
}

#[test]
fn a_partition_of_an_image_in_an_archive_is_a_directory() {
    let Some(place) = place() else { return };
    if !has("sfdisk") {
        return;
    }
    let disk = File::options().write(true).create_new(true).open(place.at("disk")).unwrap();
    disk.set_len(40 << 20).unwrap();
    place.run_as("sh", &["-c", "echo '2048,65536,83' | sfdisk -q disk"]).ok();
    disk.write_all_at(&fs::read(place.at("dir/d.img")).unwrap(), 2048 * 512).unwrap();
    place.run_as("tar", &["-cf", "disk.tar", "disk"]).ok();
    assert_eq!(place.run(&["cat", "disk.tar::/disk::/p1/a"]).ok(), "one\n");
}

#[test]
fn an_image_in_an_archive_is_inspected_as_one_on_the_host_is() {
    let Some(place) = place() else { return };
    let without_name = |said: String| said.split_once(": ").unwrap().1.to_owned();
    let on_host = without_name(place.run(&["inspect", "dir/d.img"]).ok());
    assert!(on_host.contains("ext4"), "{on_host}");
    assert_eq!(without_name(place.run(&["inspect", "d.tar::/d.img"]).ok()), on_host);
    let said = place.run(&["inspect", "d.tar::/none"]).refused(1);
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn an_image_in_a_tree_is_not_written() {
    let Some(place) = place() else { return };
    let before = fs::read(place.at("d.tar")).unwrap();
    let said = place.run(&["rm", "d.tar::/d.img::/a"]).refused(1);
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(fs::read(place.at("d.tar")).unwrap() == before);
}

/// How many bytes `outrigger cat LOCATION` reads from `file`, by itself and with the kernel code.
fn bytes_read(place: &Place, location: &str, file: &str) -> u64 {
    let path = place.at(file);
    let program = support::PROGRAM;
    let calls = "trace=read,pread64,preadv,preadv2";
    let words = ["-f", "-y", "-o", "calls", "-e", calls, program, "cat", location];
    assert_eq!(place.run_as("strace", &words).ok(), "one\n");
    let calls = fs::read_to_string(place.at("calls")).unwrap();
    let named = format!("<{}>", path.display());
    let count = |line: &str| line.rsplit_once(" = ")?.1.parse::<u64>().ok();
    calls.lines().filter(|line| line.contains(&named)).filter_map(count).sum()
}

#[test]
fn a_small_file_costs_as_few_bytes_of_the_archive_as_of_the_image() {
    let Some(place) = place() else { return };
    if !has("strace") {
        return;
    }
    let alone = bytes_read(&place, "dir/d.img::/a", "dir/d.img");
    let in_archive = bytes_read(&place, "d.tar::/d.img::/a", "d.tar");
    assert!(alone > 0);
    assert!(in_archive <= 3 * alone, "{in_archive} bytes of the archive, {alone} of the image");
}

#[test]
fn an_image_that_is_cut_off_is_an_error() {
    let Some(place) = place() else { return };
    File::options().write(true).open(place.at("d.tar")).unwrap().set_len(3 << 20).unwrap();
    let said = place.run(&["cat", "--opt", "partial", "d.tar::/d.img::/etc/b"]);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("d.img"), "{said:?}");
}

#[test]
fn what_is_beyond_the_end_of_an_image_is_an_error_with_a_reason() {
    if !can_serve() || !has("mkfs.vfat") {
        return;
    }
    let place = Place::new();
    // A type that is mounted without a look at its end.
    let image = place.file("d.img", "");
    File::options().write(true).open(&image).unwrap().set_len(40 << 20).unwrap();
    place.run_as("mkfs.vfat", &["-F", "32", "-s", "1", "d.img"]).ok();
    place.file("large", vec![b'x'; 3 << 20]);
    place.run(&["cp", "large", "d.img::/"]).ok();
    File::options().write(true).open(&image).unwrap().set_len(1 << 20).unwrap();
    place.run_as("tar", &["-cf", "d.tar", "d.img"]).ok();
    for location in ["d.img::/large", "d.tar::/d.img::/large"] {
        let said = place.run(&["cat", location]);
        assert_eq!(said.code, Some(1), "{location}");
        let why = "the file system has 41943040 bytes, and the image ends after 1048576 of them";
        assert!(said.err.contains(why), "{location}: {}", said.err);
    }
}

#[test]
fn a_server_that_dies_while_its_image_is_read_is_an_error() {
    let Some(place) = place() else { return };
    if !has("/usr/lib/openssh/sftp-server") {
        return;
    }
    // What the first one says ends in the middle of the content, and there is no second one.
    let used = place.at("used");
    let server = format!(
        "#!/bin/sh\nmkdir {} || exit 1\n/usr/lib/openssh/sftp-server | head -c 4000000\n",
        used.display()
    );
    let server = place.file("server", server);
    fs::set_permissions(&server, PermissionsExt::from_mode(0o755)).unwrap();
    let command = format!("command={}", server.display());
    let location = format!("host:{}::/etc/b", place.at("dir/d.img").display());
    let said = place.run(&["--allow-programs", "--timeout", "3", "cat", "--opt", &command, &location]);
    assert!(used.exists());
    assert_eq!(said.code, Some(1), "{}", said.err);
    let reasons = ["no connection within 3 s", "cannot be read: "];
    assert!(reasons.iter().any(|reason| said.err.contains(reason)), "{}", said.err);
}

#[test]
fn a_mount_of_an_image_in_an_archive_says_what_it_can_do() {
    let Some(place) = place().filter(|_| can_mount()) else { return };
    let said = place.run(&["mount", "d.tar::/d.img::/", "m"]);
    assert!(said.err.contains("--no-guard mounts it"), "{said:?}");
    assert!(!place.is_mounted());
    place.run(&["mount", "--no-guard", "d.tar::/d.img::/", "m"]).ok();
    let same = Command::new("cmp").args([place.at("src/etc/b"), place.at("m/etc/b")]).status().unwrap();
    assert!(same.success());
    place.unmount("m");
    within("the mount is gone", || !place.is_mounted());
}
