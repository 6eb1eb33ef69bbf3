// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images that `make-image` makes, checked by the system's own tools.

mod support;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};
use support::{PROGRAM, Place, can_serve, has};

/// 2001-09-09 01:46:40 UTC.
const OLD: u64 = 1_000_000_000;

fn dated(path: &Path, nanoseconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(OLD) + Duration::from_nanos(nanoseconds);
    let times = FileTimes::new().set_modified(time).set_accessed(time);
    File::open(path).unwrap().set_times(times).unwrap();
}

/// A tree with something of everything that the user may make, in `name`. Its files are made in the order of `backwards`.
fn sample(place: &Place, name: &str, backwards: bool) {
    let at = |path: &str| place.at(&format!("{name}/{path}"));
    fs::create_dir_all(at("dir/deep")).unwrap();
    let mut numbers: Vec<u32> = (0..300).collect();
    if backwards {
        numbers.reverse();
    }
    for number in numbers {
        fs::write(at(&format!("dir/{number}")), vec![number as u8; number as usize * 40]).unwrap();
        dated(&at(&format!("dir/{number}")), number.into());
    }
    fs::write(
        at("large"),
        (0..3_000_003_u32).map(|at| (at / 4096 * 31 + at % 251) as u8).collect::<Vec<_>>(),
    )
    .unwrap();
    fs::write(at(&"n".repeat(255)), "a long name").unwrap();
    fs::hard_link(at("large"), at("dir/deep/another name")).unwrap();
    symlink("dir/7", at("link")).unwrap();
    symlink("t".repeat(300), at("long link")).unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 32 << 20).unwrap();
    setxattr(at("large"), "user.colour", b"green", XattrFlags::empty()).unwrap();
    fs::set_permissions(at("dir/1"), Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(at("dir/deep"), Permissions::from_mode(0o1777)).unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    if is_root() {
        let device = makedev(8, 300);
        mknodat(CWD, at("device"), FileType::BlockDevice, Mode::from_raw_mode(0o600), device).unwrap();
        chown(at("dir/2"), Some(1234), Some(70_000)).unwrap();
        chown(at("dir/1"), Some(1234), Some(1234)).unwrap();
        fs::set_permissions(at("dir/1"), Permissions::from_mode(0o4711)).unwrap();
    }
    for path in ["large", &"n".repeat(255), "sparse", "dir/deep", "dir", "."] {
        dated(&at(path), 5);
    }
    // Of links and special files the times are those of now: touch(1) does not open them.
    for path in ["link", "long link", "pipe", "device"] {
        let path = format!("{name}/{path}");
        place.run_as("touch", &["--no-create", "--no-dereference", "--date=@1000000001", &path]).ok();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Path, kind, mode, owner, links, size, target and time of everything in a tree, sorted.
fn listing(place: &Place, tree: &str) -> Vec<String> {
    let found = place.run(&["find", tree, "-printf", "%P|%y|%m|%U|%G|%T@|%n|%s|%l\n"]).ok();
    let lines = found.lines().filter(|line| !line.contains("lost+found"));
    // Links and size of a directory are the file system's own.
    let is_directory = |line: &str| line.split('|').nth(1) == Some("d");
    let fields = |line: &str| {
        line.split('|').take(if is_directory(line) { 6 } else { 9 }).collect::<Vec<_>>().join("|")
    };
    let mut listing: Vec<String> = lines.map(fields).collect();
    listing.sort();
    listing
}

/// Compares the content of a tree with that of an image.
fn same_content(place: &Place, tree: &str, image: &str) {
    let special = ["--exclude=pipe", "--exclude=device", "--exclude=lost+found"];
    place.run(&["cp", "-a", &format!("{image}::/."), "back"]).ok();
    place.run_as("diff", &[&["-r", "--no-dereference"], &special[..], &[tree, "back"]].concat()).ok();
    fs::remove_dir_all(place.at("back")).unwrap();
}

#[test]
fn an_ext4_image_has_all_of_the_tree_and_e2fsck_finds_nothing() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    sample(&place, "tree", false);
    place.run(&["make-image", "--label=sample", "tree", "image"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    assert_eq!(listing(&place, "tree"), listing(&place, "image::/"));
    same_content(&place, "tree", "image");
    let debugfs = |command: &str| place.run_as("debugfs", &["-R", command, "image"]).ok();
    assert!(debugfs("ea_get /large user.colour").contains("green"));
    assert!(debugfs("show_super_stats -h").contains("sample"));
    let blocks = debugfs("stat /sparse");
    assert!(blocks.contains("Blockcount: 8\n"), "a hole stays one: {blocks}");
    if is_root() {
        let device = debugfs("stat /device");
        assert!(device.contains("Device major/minor number: 08:300"), "{device}");
    }
    let names = fs::read_dir(place.at(".")).unwrap().count();
    assert_eq!(names, 3, "m, tree and image, and no other file");
}

#[test]
fn the_same_tree_gives_the_same_bytes_whatever_the_order_of_its_directories_and_whoever_makes_it() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    sample(&place, "one", false);
    sample(&place, "other", true);
    place.run(&["make-image", "one", "image"]).ok();
    let mut again = place.command(PROGRAM, &["make-image", "../other", "../image2"]);
    again.current_dir(place.at("m")).env("TZ", "Asia/Tokyo").env("LC_ALL", "C.UTF-8");
    if is_root() && has("setpriv") {
        place.run_as("chmod", &["-R", "a+rX", "other", "one"]).ok();
        place.run_as("chmod", &["a+rwx", ".", "m"]).ok();
        place.run(&["make-image", "--force", "one", "image"]).ok();
        again = place.command(
            "setpriv",
            &["--reuid=65534", "--clear-groups", PROGRAM, "make-image", "other", "image2"],
        );
    }
    let output = again.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    place.run_as("cmp", &["image", "image2"]).ok();
    // No time in it is one of today.
    let debugfs = |command: &str| place.run_as("debugfs", &["-R", command, "image"]).ok();
    let text = debugfs("show_super_stats -h")
        + &debugfs("stat /dir/3")
        + &debugfs("stat /lost+found")
        + &debugfs("stat <8>");
    let year = format!(
        "{}",
        1970 + SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 31_556_952
    );
    assert!(text.contains(" 2001\n") && !text.contains(&format!(" {year}\n")), "{text}");
    place.run(&["make-image", "--seed=other words", "one", "image3"]).ok();
    assert_ne!(place.run_as("cmp", &["image", "image3"]).code, Some(0));
}

#[test]
fn no_time_is_later_than_that_of_the_source() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    place.file("tree/new", "content");
    let make = |date: &str| {
        place
            .command(PROGRAM, &["make-image", "tree", "image"])
            .env("SOURCE_DATE_EPOCH", date)
            .output()
            .unwrap()
    };
    assert!(make("1000000000").status.success());
    let times = place.run(&["find", "image::/new", "-printf", "%T@"]).ok();
    assert!(times.starts_with("1000000000.0"), "{times}");
    fs::remove_file(place.at("image")).unwrap();
    let refused = make("yesterday");
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("SOURCE_DATE_EPOCH")
    );
}

#[test]
fn an_image_that_exists_stays_unless_it_is_to_be_replaced() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    place.file("tree/file", "content");
    place.file("image", "precious");
    let said = place.run(&["make-image", "tree", "image"]).refused(1);
    assert!(said.contains("--force"), "{said}");
    assert_eq!(fs::read(place.at("image")).unwrap(), b"precious");
    place.run(&["make-image", "--force", "tree", "image"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    let said = place.run(&["make-image", "--force", "tree", "tree/image"]).refused(1);
    assert!(said.contains("in the tree"), "{said}");
    fs::create_dir(place.at("directory")).unwrap();
    place.run(&["make-image", "--force", "tree", "directory"]).refused(1);
}

#[test]
fn what_fails_leaves_no_image() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    place.file("tree/file", vec![7; 20 << 20]);
    let said = place.run(&["make-image", "--size=8M", "tree", "image"]).refused(1);
    assert!(said.contains("--size"), "{said}");
    place.run(&["make-image", "tree/file", "image"]).refused(1);
    place.run(&["make-image", "nothing", "image"]).refused(1);
    place.run(&["make-image", "--size=none", "tree", "image"]).refused(1);
    let mut without = place.command(PROGRAM, &["make-image", "tree", "image"]);
    without.env("PATH", place.at("m"));
    if !Path::new("/usr/sbin/mke2fs").exists() {
        let said = String::from_utf8(without.output().unwrap().stderr).unwrap();
        assert!(said.contains("e2fsprogs"), "{said}");
    }
    let mut names: Vec<_> =
        fs::read_dir(place.at(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["m", "tree"]);
}

#[test]
fn an_interrupted_command_leaves_no_image() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    // More than is copied before the signal arrives, and nothing that takes space.
    let large = File::create(place.file("tree/large", "")).unwrap();
    large.set_len(8 << 40).unwrap();
    for at in 0..4000 {
        large.write_all_at(b"content", at << 26).unwrap();
    }
    let child = place.spawn(&["make-image", "--size=64G", "tree", "image"]);
    let pid = child.id();
    support::within("the file system is made", || support::descendant(pid, "outrigger-kerne").is_some());
    support::signal(pid, "INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let mut names: Vec<_> =
        fs::read_dir(place.at(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["m", "tree"]);
}

#[test]
fn a_tree_in_an_archive_becomes_an_image() {
    if !can_serve() || !has("mke2fs") || !has("tar") {
        return;
    }
    let place = Place::new();
    place.file("tree/dir/file", "content");
    fs::hard_link(place.at("tree/dir/file"), place.at("tree/again")).unwrap();
    place.tar("tree.tar.gz", "tree");
    place.run(&["make-image", "tree.tar.gz::/", "image"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    assert_eq!(place.run(&["cat", "image::/again"]).ok(), "content");
    assert_eq!(place.run(&["find", "image::/again", "-printf", "%n"]).ok(), "2");
}

/// Regular files and directories, which every type has.
fn plain_sample(place: &Place) {
    for number in 0..300 {
        place.file(&format!("tree/dir/{number}"), vec![number as u8; number * 40]);
    }
    place.file("tree/large", vec![b'x'; 3_000_003]);
    place.file("tree/a long name with blanks and Ünïcödé", "content");
    for path in ["tree/large", "tree/dir/0", "tree/dir/299"] {
        dated(&place.at(path), 0);
    }
}

/// Makes an image of this type of what is in `tree`, lets the system's tool check it, and compares.
fn checked(kind: &str, tool: &str, check: &[&str], make: fn(&Place)) {
    if !can_serve() || !has(tool) || !has(check[0]) {
        return;
    }
    let place = Place::new();
    make(&place);
    place.run(&["make-image", "--type", kind, "--label=LABEL", "tree", "image"]).ok();
    place.run_as(check[0], &[&check[1..], &["image"]].concat()).ok();
    same_content(&place, "tree", "image");
    let time = place.run(&["find", "image::/large", "-printf", "%Ts"]).ok();
    assert_eq!(time, OLD.to_string());
}

fn whole_sample(place: &Place) {
    sample(place, "tree", false);
}

#[test]
fn an_xfs_image_has_the_tree() {
    checked("xfs", "mkfs.xfs", &["xfs_repair", "-n", "-f"], whole_sample);
}

#[test]
fn a_btrfs_image_has_the_tree() {
    checked("btrfs", "mkfs.btrfs", &["btrfs", "check", "--readonly"], whole_sample);
}

#[test]
fn an_f2fs_image_has_the_tree() {
    checked("f2fs", "mkfs.f2fs", &["fsck.f2fs", "--dry-run"], whole_sample);
}

#[test]
fn a_vfat_image_has_the_tree() {
    checked("vfat", "mkfs.vfat", &["fsck.fat", "-n"], plain_sample);
}

#[test]
fn an_exfat_image_has_the_tree() {
    checked("exfat", "mkfs.exfat", &["fsck.exfat", "-n"], plain_sample);
}

#[test]
fn an_ntfs_image_has_the_tree() {
    checked("ntfs", "mkfs.ntfs", &["ntfsfix", "-n"], plain_sample);
}

#[test]
fn what_a_type_cannot_hold_is_refused_before_there_is_an_image() {
    if !can_serve() || !has("mkfs.vfat") {
        return;
    }
    let place = Place::new();
    place.file("tree/file", "content");
    symlink("file", place.at("tree/link")).unwrap();
    let said = place.run(&["make-image", "--type=vfat", "tree", "image"]).refused(1);
    assert!(said.contains("'tree/link'"), "{said}");
    assert!(!place.at("image").exists());
    let said = place.run(&["make-image", "--type=tar", "--size=1M", "tree", "image"]).refused(1);
    assert!(said.contains("--size"), "{said}");
}

#[test]
fn a_tar_archive_has_all_of_the_tree_for_gnu_tar_and_for_us() {
    if !has("tar") {
        return;
    }
    let place = Place::new();
    sample(&place, "tree", false);
    sample(&place, "other", true);
    place.run(&["make-image", "--type=tar", "tree", "image"]).ok();
    place.run(&["make-image", "--type=tar", "other", "image2"]).ok();
    place.run_as("cmp", &["image", "image2"]).ok();
    assert_eq!(listing(&place, "tree"), listing(&place, "image::/"));
    assert!(fs::metadata(place.at("image")).unwrap().len() < 32 << 20, "holes are not stored");
    fs::create_dir(place.at("out")).unwrap();
    place.run_as("tar", &["-xpf", "image", "--xattrs", "--numeric-owner", "-C", "out"]).ok();
    assert_eq!(listing(&place, "tree"), listing(&place, "out"));
    place
        .run_as("diff", &["-r", "--no-dereference", "--exclude=pipe", "--exclude=device", "tree", "out"])
        .ok();
    let colour = place.run_as("getfattr", &["-n", "user.colour", "--only-values", "out/large"]);
    assert!(colour.code != Some(0) || colour.out == "green", "{colour:?}");
}

#[test]
fn a_cpio_archive_has_the_tree_for_cpio_and_for_us() {
    if !has("cpio") {
        return;
    }
    let place = Place::new();
    place.file("tree/dir/file", "content");
    place.file("tree/dir/other", vec![b'x'; 100_001]);
    fs::hard_link(place.at("tree/dir/other"), place.at("tree/a name before")).unwrap();
    symlink("dir/file", place.at("tree/link")).unwrap();
    for path in ["dir/file", "dir/other", "dir", "."] {
        dated(&place.at(&format!("tree/{path}")), 0);
    }
    place.run_as("touch", &["--no-dereference", "--date=@1000000001", "tree/link"]).ok();
    place.run(&["make-image", "--type=cpio", "tree", "image"]).ok();
    assert_eq!(listing(&place, "tree"), listing(&place, "image::/"));
    let unpack = "mkdir out && cd out && cpio --quiet -idm < ../image";
    place.run_as("sh", &["-c", unpack]).ok();
    place.run_as("diff", &["-r", "--no-dereference", "tree", "out"]).ok();
    let links = place.run(&["find", "out/dir/other", "-printf", "%n"]).ok();
    assert_eq!(links, "2");
}

#[test]
fn a_name_that_ends_a_cpio_archive_is_refused() {
    let place = Place::new();
    place.file("tree/TRAILER!!!", "");
    place.file("tree/last", "content");
    let said = place.run(&["make-image", "--type=cpio", "tree", "image"]).refused(1);
    assert!(said.contains("TRAILER!!!") && !place.at("image").exists(), "{said}");
}

/// Files of /proc say that they are empty.
#[test]
fn a_file_with_more_content_than_its_size_says_is_an_error_and_not_empty() {
    let place = Place::new();
    for kind in ["tar", "cpio"] {
        let said = place.run(&["make-image", "--type", kind, "/proc/sys/kernel/random", "image"]);
        assert!(said.code == Some(1) && said.err.contains("more content"), "{said:?}");
        assert!(!place.at("image").exists());
    }
}

#[test]
fn names_of_attributes_with_signs_of_the_format_are_kept_in_tar_archives() {
    let place = Place::new();
    place.file("tree/f", "");
    let names = ["user.a=b", "user.%3D", "user.100%"];
    for name in names {
        let set = "import os, sys; os.setxattr('tree/f', sys.argv[1], b'v=1')";
        place.run_as("python3", &["-c", set, name]).ok();
    }
    place.run(&["make-image", "--type=tar", "tree", "image"]).ok();
    place.run(&["cp", "-a", "image::/f", "ours"]).ok();
    place.run_as("tar", &["-xf", "image", "--xattrs", "f"]).ok();
    let get = "import os; print(*[(n, os.getxattr(f, n)) for f in ('ours', 'f') for n in sorted(os.listxattr(f)) if n.startswith('user.')])";
    let all = "('user.%3D', b'v=1') ('user.100%', b'v=1') ('user.a=b', b'v=1')";
    assert_eq!(place.run_as("python3", &["-c", get]).ok(), format!("{all} {all}\n"));
}

#[test]
fn a_tree_with_the_directory_that_mke2fs_makes_becomes_an_image() {
    if !can_serve() || !has("mke2fs") {
        return;
    }
    let place = Place::new();
    place.file("tree/lost+found/part", "content");
    fs::set_permissions(place.at("tree/lost+found"), PermissionsExt::from_mode(0o750)).unwrap();
    place.run(&["make-image", "tree", "image"]).ok();
    assert_eq!(place.run(&["cat", "image::/lost+found/part"]).ok(), "content");
    assert_eq!(place.run(&["stat", "-c", "%a", "image::/lost+found"]).ok(), "750\n");
}
