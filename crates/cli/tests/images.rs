// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images on the command line and as mounts, made and checked by the system's own tools.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use support::{PROGRAM, Place, can_mount, can_serve, has, kernel_code, mounted_ext4, signal, status};

fn blank(place: &Place, mebibytes: u64) -> PathBuf {
    let path = place.file("image", "");
    File::options().write(true).open(&path).unwrap().set_len(mebibytes << 20).unwrap();
    path
}

/// Path, kind, mode, links, size, target and time of everything in a tree, sorted.
fn listing(place: &Place, tree: &str) -> Vec<String> {
    let found = place.run(&["find", tree, "-printf", "%P %y %m %n %s %l %Ts\n"]).ok();
    let lines = found.lines().filter(|line| !line.contains("lost+found"));
    // Links and size of a directory are the file system's own.
    let is_directory = |line: &str| line.split(' ').nth(1) == Some("d");
    let words = |line: &str| {
        line.split(' ').take(if is_directory(line) { 3 } else { 7 }).collect::<Vec<_>>().join(" ")
    };
    let mut listing: Vec<String> = lines.map(words).collect();
    listing.sort();
    listing
}

fn sample(place: &Place) {
    place.file("src/dir/file", vec![b'x'; 200_000]);
    place.file("src/dir/empty", "");
    place.file(&format!("src/{}", "n".repeat(255)), "a long name");
    fs::hard_link(place.at("src/dir/file"), place.at("src/second")).unwrap();
    std::os::unix::fs::symlink("dir/file", place.at("src/link")).unwrap();
    let sparse = place.file("src/sparse", "begin");
    File::options().write(true).open(sparse).unwrap().set_len(10 << 20).unwrap();
}

#[test]
fn a_tree_goes_into_an_image_and_comes_out_the_same() {
    if !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    sample(&place);
    blank(&place, 64);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    place.run(&["cp", "-a", "src/.", "image::/"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    place.run(&["cp", "-a", "image::/", "back"]).ok();
    fs::remove_dir(place.at("back/lost+found")).unwrap();
    place.run_as("diff", &["-r", "--no-dereference", "src", "back"]).ok();
    assert_eq!(listing(&place, "src"), listing(&place, "image::/"));
    assert_eq!(place.run(&["cat", "image::/link"]).ok().len(), 200_000);
}

/// XFS keeps what it changed in memory until its log is written, and that is not bounded by how much memory there is.
#[test]
fn thousands_of_files_go_into_an_image_with_little_memory() {
    if !can_serve() || !has("mkfs.xfs") {
        return;
    }
    let place = Place::new();
    for number in 0..9000 {
        place.file(&format!("src/{}/{number}", number / 300), number.to_string());
    }
    blank(&place, 1024);
    place.run_as("mkfs.xfs", &["-q", "image"]).ok();
    place.run(&["cp", "-a", "--opt", "memory=32M", "src/.", "image::/"]).ok();
    place.run_as("xfs_repair", &["-n", "image"]).ok();
    place.run(&["cp", "-a", "image::/", "back"]).ok();
    place.run_as("diff", &["-r", "src", "back"]).ok();
}

/// Content that the kernel code takes from the host's file, or puts there, by itself.
#[test]
fn large_files_go_into_an_image_and_come_out_the_same() {
    if !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    let content: Vec<u8> = (0..20_000_003_u32).map(|at| (at / 4096 * 31 + at % 251) as u8).collect();
    place.file("src/large", &content);
    let holes = place.file("src/holes", &content[..3 << 20]);
    let holes = File::options().write(true).open(holes).unwrap();
    holes.write_all_at(&content, 30 << 20).unwrap();
    holes.set_len(60 << 20).unwrap();
    blank(&place, 96);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    for sparse in ["auto", "never", "always"] {
        place.run(&["cp", "-a", &format!("--sparse={sparse}"), "src/.", "image::/"]).ok();
        place.run(&["cp", "-a", &format!("--sparse={sparse}"), "image::/", "back"]).ok();
        fs::remove_dir(place.at("back/lost+found")).unwrap();
        place.run_as("diff", &["-r", "src", "back"]).ok();
        fs::remove_dir_all(place.at("back")).unwrap();
    }
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    let said = place.run(&["cp", "--sparse=never", "src/holes", "image::/second"]);
    let complaint = "error writing 'image::/second': No space left on device";
    assert!(said.code == Some(1) && said.err.contains(complaint), "{said:?}");
    place.run_as("e2fsck", &["-fn", "image"]).ok();
}

/// Small files that go into an image together: when one fails, the others arrive.
#[test]
fn one_of_many_small_files_that_cannot_be_made_does_not_take_others_along() {
    if !can_serve() || !has("mkfs.vfat") {
        return;
    }
    let place = Place::new();
    for number in 0..100 {
        place.file(&format!("src/dir{}/file{number}", number / 40), vec![number as u8; number * 700]);
    }
    place.file("src/dir1/not:a:name", "content");
    place.file("src/dir1/FILE50", "the same name for this file system");
    blank(&place, 16);
    place.run_as("mkfs.vfat", &["image"]).ok();
    let said = place.run(&["cp", "-r", "src", "image::/"]);
    let refused = |line: &str| line.contains("cannot create regular file 'image::/src/dir1/");
    assert_eq!((said.code, said.err.lines().count()), (Some(1), 2), "{said:?}");
    assert!(said.err.lines().all(refused) && said.err.contains("not:a:name"), "{said:?}");
    assert_eq!(place.run(&["find", "image::/src", "-type", "f"]).ok().lines().count(), 100);
    for number in [0, 1, 39, 40, 63, 64, 99] {
        let file = format!("image::/src/dir{}/file{number}", number / 40);
        assert_eq!(place.run(&["cat", &file]).ok().len(), number * 700);
    }
}

#[test]
fn several_look_at_an_image_at_once_and_leave_it_as_it_is() {
    if !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    place.file("src/large", vec![b'x'; 4 << 20]);
    blank(&place, 64);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    place.run(&["cp", "src/large", "image::/large"]).ok();
    let before = fs::read(place.at("image")).unwrap();
    // It has begun, and cannot end before the rest is read.
    let mut reader = place.spawn(&["cat", "image::/large"]);
    let mut content = reader.stdout.take().expect("a pipe");
    content.read_exact(&mut [0; 100]).unwrap();
    for look in ["ls", "stat", "find", "du", "df", "tree"] {
        place.run(&[look, "image::/"]).ok();
    }
    place.run(&["diff", "src/large", "image::/large"]).ok();
    place.run(&["cp", "image::/large", "copy"]).ok();
    place.run(&["touch", "-r", "image::/large", "copy"]).ok();
    place.run(&["chmod", "--reference=image::/large", "copy"]).ok();
    for change in [&["rm", "image::/large"][..], &["find", "image::/large", "-delete"]] {
        let complaint = place.run(change).refused(1);
        assert!(complaint.contains("another process uses this image"), "{complaint}");
    }
    assert_eq!(content.read_to_end(&mut Vec::new()).unwrap(), (4 << 20) - 100);
    assert!(reader.wait().unwrap().success());
    assert!(fs::read(place.at("image")).unwrap() == before, "looking has changed it");
}

#[test]
fn options_concern_the_side_of_a_copy_that_knows_them() {
    if !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    place.file("src/file", "content");
    blank(&place, 16);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    place.run(&["cp", "-r", "--opt", "io=mmap,xattr=off,commit=9", "src", "image::/"]).ok();
    place.run(&["cp", "--opt", "io=mmap,xattr=off", "image::/src/file", "back"]).ok();
    place.run(&["diff", "--opt", "io=mmap", "src", "image::/src"]).ok();
    place.run(&["mv", "--opt", "xattr=off,io=buffered", "image::/src/file", "moved"]).ok();
    assert_eq!(fs::read_to_string(place.at("moved")).unwrap(), "content");
    for (words, code) in
        [(&["cp", "--opt", "io=mmap", "moved", "other"][..], 1), (&["ls", "--opt", "io=mmap", "src"], 2)]
    {
        let complaint = place.run(words).refused(code);
        assert!(complaint.contains("local has no option io"), "{complaint}");
    }
    let complaint = place.run(&["cp", "--opt", "io=none", "moved", "image::/"]).refused(1);
    assert!(complaint.contains("option io cannot be \"none\""), "{complaint}");
    // The reason, and nothing the kernel says at every start.
    let complaint = place.run(&["ls", "--opt", "bogus=1", "image::/"]).refused(2);
    assert!(complaint.ends_with("cannot mount it: ext4: Unknown parameter 'bogus'\n"), "{complaint}");
    assert!(!place.at("other").exists());
}

#[test]
fn archives_of_file_systems_are_read() {
    if !can_serve() || !has("mksquashfs") {
        return;
    }
    let place = Place::new();
    sample(&place);
    place.run_as("mksquashfs", &["src", "image", "-quiet", "-no-progress"]).ok();
    assert_eq!(listing(&place, "src"), listing(&place, "image::/"));
    let complaint = place.run(&["mkdir", "image::/new"]).refused(1);
    assert!(complaint.contains("Read-only file system"), "{complaint}");
}

#[test]
fn an_image_is_mounted_written_and_clean_afterwards() {
    let Some(place) = mounted_ext4(&[]) else { return };
    fs::create_dir(place.at("m/dir")).unwrap();
    fs::write(place.at("m/dir/file"), "content").unwrap();
    fs::rename(place.at("m/dir/file"), place.at("m/moved")).unwrap();
    assert_eq!(fs::read_to_string(place.at("m/moved")).unwrap(), "content");
    place.run(&["umount", "m"]).ok();
    place.run_as("e2fsck", &["-fn", "image"]).ok();
    assert_eq!(place.run(&["cat", "image::/moved"]).ok(), "content");
}

/// The next program that checks or mounts an image need not wait for it.
#[test]
fn an_image_is_free_when_umount_returns_however_it_was_mounted() {
    if !can_serve() || !can_mount() || !has("sfdisk") || !has("mkfs.vfat") || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    partitioned(&place);
    place.run(&["write", "image::/p1/file"]).ok();
    place.run(&["mkdir", "image::/p1/dir"]).ok();
    for (source, options) in [
        ("image", "rw"),
        ("image", "guard=none"),
        ("image", "partition=1"),
        ("image", "partition=1,guard=none"),
        ("image::/p1/dir", "rw"),
    ] {
        place.run(&["mount", "-o", options, source, "m"]).ok();
        let looked = fs::read_dir(place.at("m")).unwrap().all(|entry| entry.unwrap().metadata().is_ok());
        let made = ["m/p1/new", "m/new"].iter().filter(|name| fs::write(place.at(name), "new").is_ok());
        assert!(looked && made.count() == 1, "{source} {options}");
        place.run(&["umount", "m"]).ok();
        let file = File::open(place.at("image")).unwrap();
        let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert_eq!(locked, Ok(()), "{source} {options}");
    }
}

#[test]
fn umount_waits_for_the_kernel_code_as_long_as_it_is_told() {
    let Some(place) = mounted_ext4(&[]) else { return };
    let (server, code) = (place.server(), kernel_code(&place));
    signal(code, "STOP");
    let complaint = place.run(&["umount", "--timeout=0.1", "m"]).refused(1);
    assert!(complaint.contains(&format!("process {code} is stopped")), "{complaint} (of server {server})");
    assert!(!place.is_mounted());
    signal(code, "CONT");
    support::within("the mount's process ends", || !support::is_running(server));
}

#[test]
fn umount_does_not_wait_for_a_mount_that_is_still_there_elsewhere() {
    let Some(place) = mounted_ext4(&[]) else { return };
    let server = place.server();
    fs::create_dir(place.at("other")).unwrap();
    place.run_as("mount", &["--bind", "m", "other"]).ok();
    place.run(&["umount", "m"]).ok();
    fs::write(place.at("other/file"), "content").unwrap();
    place.run_as("umount", &["other"]).ok();
    support::within("the mount's process ends", || !support::is_running(server));
}

/// An image with ext4 and vfat in partitions made by sfdisk, of 32 MiB each.
fn partitioned(place: &Place) {
    let path = blank(place, 70);
    fs::write(place.at("script"), "1M,32M,L\n,32M,c\n").unwrap();
    place.run_as("sh", &["-c", "PATH=$PATH:/sbin:/usr/sbin sfdisk -q --label dos image <script"]).ok();
    let disk = File::options().write(true).open(path).unwrap();
    for (tool, start) in [("mkfs.ext4", 1), ("mkfs.vfat", 33)] {
        let part = place.file("part", "");
        File::options().write(true).open(&part).unwrap().set_len(32 << 20).unwrap();
        place.run_as(tool, &["part"]).ok();
        disk.write_all_at(&fs::read(&part).unwrap(), start << 20).unwrap();
    }
}

#[test]
fn partitions_are_copied_into_moved_between_and_listed() {
    if !can_serve() || !has("sfdisk") || !has("mkfs.vfat") || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    sample(&place);
    partitioned(&place);
    assert_eq!(place.run(&["ls", "image::/"]).ok(), "p1\np2\n");
    place.run(&["cp", "-a", "src", "image::/p1/"]).ok();
    place.run(&["cp", "-r", "src/dir", "image::/p2/"]).ok();
    place.run(&["mv", "image::/p2/dir/file", "image::/p1/moved"]).ok();
    assert_eq!(place.run(&["find", "image::/p2"]).ok(), "image::/p2\nimage::/p2/dir\nimage::/p2/dir/empty\n");
    assert_eq!(place.run(&["cat", "--opt", "partition=1", "image::/moved"]).ok().len(), 200_000);
    assert_eq!(listing(&place, "src"), listing(&place, "image::/p1/src"));
    let complaint = place.run(&["ls", "image::/p7"]).refused(2);
    assert!(complaint.contains("No such file"), "{complaint}");
    let complaint = place.run(&["ls", "--opt", "partition=7", "image::/"]).refused(2);
    assert!(complaint.contains("no partition 7, but 1, 2"), "{complaint}");
}

/// A place where the partitions of an image are mounted together, if that is possible here.
fn mounted_partitions() -> Option<Place> {
    if !can_serve() || !can_mount() || !has("sfdisk") || !has("mkfs.vfat") || !has("mkfs.ext4") {
        return None;
    }
    let place = Place::new();
    partitioned(&place);
    place.run(&["mount", "image", "m"]).ok();
    Some(place)
}

#[test]
fn partitions_are_mounted_together_and_alone() {
    let Some(place) = mounted_partitions() else { return };
    fs::write(place.at("m/p1/file"), "one").unwrap();
    fs::write(place.at("m/p2/file"), "two").unwrap();
    assert!(fs::hard_link(place.at("m/p1/file"), place.at("m/p2/link")).is_err());
    place.run(&["umount", "m"]).ok();
    place.run(&["mount", "-o", "partition=2", "image", "m"]).ok();
    assert_eq!(fs::read_to_string(place.at("m/file")).unwrap(), "two");
    place.run(&["umount", "m"]).ok();
    assert_eq!(place.run(&["cat", "image::/p1/file"]).ok(), "one");
}

#[test]
fn status_tells_of_the_deaths_in_all_partitions() {
    let Some(place) = mounted_partitions() else { return };
    let status = || place.run(&["status", "m"]).ok();
    let end_the_next = |partition: &str, known: &[u32]| {
        fs::create_dir(place.at(&format!("m/{partition}/one"))).unwrap();
        let of_it = support::kernel_codes(&place).into_iter().find(|process| !known.contains(process));
        signal(of_it.expect("a process of this partition"), "KILL");
        fs::create_dir(place.at(&format!("m/{partition}/two"))).unwrap();
    };
    assert!(!status().contains("survived"));
    end_the_next("p1", &[]);
    support::within("the death is told of", || status().contains("survived 1 death of its server"));
    end_the_next("p2", &[kernel_code(&place)]);
    support::within("both deaths are told of", || status().contains("survived 2 deaths of its server"));
    let json: serde_json::Value =
        serde_json::from_str(&place.run(&["status", "--json", "m"]).ok()).expect("JSON");
    assert_eq!(json.pointer("/guard/incarnations").and_then(serde_json::Value::as_u64), Some(4), "{json}");
    let last = json.pointer("/guard/last_death").and_then(serde_json::Value::as_str).expect("a reason");
    assert!(last.starts_with("partition 2: "), "{last}");
    place.run(&["umount", "m"]).ok();
}

/// What fstab needs is one word: the type `outrigger.ext4` instead of `ext4`.
#[test]
fn mount_8_mounts_images_by_their_type() {
    if !can_serve() || !can_mount() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    blank(&place, 16);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    let helper = place.at("mount.outrigger").display().to_string();
    std::os::unix::fs::symlink(PROGRAM, &helper).unwrap();
    let [image, dir] = ["image", "m"].map(|name| place.at(name).display().to_string());
    place.run_as(&helper, &[&image, &dir, "-o", "rw,noatime", "-t", "outrigger.ext4"]).ok();
    assert!(place.at("m/lost+found").exists());
    place.run(&["umount", "m"]).ok();
    place.run(&["ls", "image::/"]).ok();
    let complaint = place.run_as(&helper, &[&image, &dir, "-t", "outrigger.nothing"]).refused(32);
    assert!(complaint.contains("no file system \"nothing\""), "{complaint}");
}

/// The source of a tmpfs is any word; its options are the kernel's.
#[test]
fn a_tmpfs_of_the_kernel_code_is_mounted() {
    if !can_serve() || !can_mount() {
        return;
    }
    let place = Place::new();
    let helper = place.at("mount.outrigger").display().to_string();
    std::os::unix::fs::symlink(PROGRAM, &helper).unwrap();
    let dir = place.at("m").display().to_string();
    place.run_as(&helper, &["none", &dir, "-o", "size=200m,mode=750", "-t", "outrigger.tmpfs"]).ok();
    fs::write(place.at("m/file"), vec![7; 150 << 20]).unwrap();
    assert_eq!(fs::read(place.at("m/file")).unwrap().len(), 150 << 20);
    let full = fs::write(place.at("m/more"), vec![7; 60 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(place.run(&["stat", "-c", "%a", "m"]).ok(), "750\n");
    place.run(&["umount", "m"]).ok();
    assert_eq!(place.run(&["ls", "tmpfs:"]).ok(), "");
    place.file("image", "");
    let complaint = place.run(&["ls", "tmpfs:/path"]).refused(2);
    assert!(complaint.contains("tmpfs:/path': No such file or directory"), "{complaint}");
}

#[test]
fn standard_input_is_written_into_an_image() {
    if !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    blank(&place, 16);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    place.run_as("sh", &["-c", &format!("printf content | {PROGRAM} write image::/file")]).ok();
    assert_eq!(place.run(&["cat", "image::/file"]).ok(), "content");
    place.run_as("e2fsck", &["-fn", "image"]).ok();
}

#[test]
fn images_of_other_forms_are_refused_by_name() {
    let place = Place::new();
    for (name, mark) in [
        ("qcow2", &b"QFI\xfb\0\0\0\x01"[..]),
        ("QED", b"QED\0"),
        ("Parallels", b"WithoutFreeSpace"),
        ("VMDK", b"COWD"),
    ] {
        place.file("disk", [mark, &[0; 4096]].concat());
        for (words, status) in
            [(&["ls", "disk::/"][..], 2), (&["inspect", "disk"], 1), (&["mount", "disk", "m"], 1)]
        {
            let complaint = place.run(words).refused(status);
            assert!(complaint.contains(name) && complaint.contains("qemu-img convert"), "{complaint}");
        }
    }
}

#[test]
fn what_disks_hold_and_is_not_served_has_a_name() {
    let place = Place::new();
    let contents: [(&str, usize, &[u8]); 3] =
        [("LUKS2", 0, b"LUKS\xba\xbe\0\x02"), ("swap", 4086, b"SWAPSPACE2"), ("APFS", 32, b"NXSB\0\x10\0\0")];
    for (name, at, mark) in contents {
        let mut disk = vec![0; 1 << 20];
        disk[at..at + mark.len()].copy_from_slice(mark);
        place.file("disk", disk);
        assert!(place.run(&["inspect", "disk"]).ok().contains(name));
        let complaint = place.run(&["ls", "disk::/"]).refused(2);
        assert!(complaint.contains(&format!("holds {name}, which is not served")), "{complaint}");
    }
}

#[test]
fn what_was_erased_is_no_empty_archive() {
    let place = Place::new();
    place.file("disk", vec![0; 1 << 20]);
    let complaint = place.run(&["ls", "disk::/"]).refused(2);
    assert!(complaint.contains("tar, zip") && complaint.contains("neither a disk image"), "{complaint}");
}

#[test]
fn qcow2_images_are_served_as_others_are() {
    if !can_serve() || !has("qemu-img") || !has("sfdisk") || !has("mkfs.vfat") || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    sample(&place);
    partitioned(&place);
    place.run_as("qemu-img", &["convert", "-O", "qcow2", "image", "disk.qcow2"]).ok();
    assert_eq!(place.run(&["ls", "disk.qcow2::/"]).ok(), "p1\np2\n");
    place.run(&["cp", "-a", "src/.", "disk.qcow2::/p1"]).ok();
    place.run(&["cp", "-r", "src/dir", "disk.qcow2::/p2/"]).ok();
    assert_eq!(place.run(&["cat", "disk.qcow2::/p2/dir/file"]).ok().len(), 200_000);
    assert_eq!(listing(&place, "src"), listing(&place, "disk.qcow2::/p1"));
    place.run(&["cp", "-a", "disk.qcow2::/p1", "back"]).ok();
    fs::remove_dir(place.at("back/lost+found")).unwrap();
    place.run_as("diff", &["-r", "--no-dereference", "src", "back"]).ok();
    assert!(place.run(&["inspect", "disk.qcow2"]).ok().starts_with("disk.qcow2: qcow2, 73400320 bytes"));
    // Two processes that take up clusters would take the same ones.
    let complaint = place.run(&["mv", "disk.qcow2::/p1/dir/file", "disk.qcow2::/p2/other"]).refused(1);
    assert!(complaint.contains("partition="), "{complaint}");
    place.run_as("qemu-img", &["check", "-q", "disk.qcow2"]).ok();
    place.run_as("qemu-img", &["convert", "-O", "raw", "disk.qcow2", "image"]).ok();
    assert_eq!(listing(&place, "src"), listing(&place, "image::/p1"));
}

#[test]
fn a_qcow2_image_is_mounted_written_and_clean_afterwards() {
    if !can_serve() || !can_mount() || !has("qemu-img") || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    blank(&place, 64);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    place.run_as("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "image", "disk"]).ok();
    place.run(&["ls", "disk::/"]).ok();
    place.run(&["mount", "disk", "m"]).ok();
    fs::create_dir(place.at("m/dir")).unwrap();
    fs::write(place.at("m/dir/file"), vec![b'x'; 3_000_000]).unwrap();
    fs::rename(place.at("m/dir/file"), place.at("m/moved")).unwrap();
    place.run(&["umount", "m"]).ok();
    place.run_as("qemu-img", &["check", "-q", "disk"]).ok();
    place.run_as("qemu-img", &["convert", "-O", "raw", "disk", "plain"]).ok();
    place.run_as("e2fsck", &["-fn", "plain"]).ok();
    assert_eq!(place.run(&["cat", "plain::/moved"]).ok().len(), 3_000_000);
    assert_eq!(place.run(&["ls", "image::/"]).ok(), "lost+found\n");
}

/// A file system with a damaged magic number, and one that begins at an offset: the given type and offset are used.
#[test]
fn a_type_and_an_offset_that_are_named_count_for_more_than_what_is_found() {
    if !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    blank(&place, 16);
    place.run_as("mkfs.ext4", &["-q", "-b", "1024", "image"]).ok();
    let image = fs::read(place.at("image")).unwrap();
    place.file("later", [vec![0; 1 << 20], image.clone()].concat());
    assert!(place.run(&["ls", "--opt", "offset=1M", "later::/"]).ok().contains("lost+found"));
    place.run(&["ls", "later::/"]).refused(2);
    assert!(place.run(&["ls", "--opt", "offset=100G", "later::/"]).refused(2).contains("ends before"));
    if can_mount() {
        place.run(&["mount", "-o", "offset=1M", "later", "m"]).ok();
        signal(kernel_code(&place), "KILL");
        assert_eq!(fs::read_dir(place.at("m")).unwrap().count(), 1, "it is guarded as an image is");
        assert_eq!(status(&place, "/guard/deaths"), Some(1));
        place.run(&["umount", "m"]).ok();
    }
    // The first superblock is gone; the second is in block 8193.
    let damaged = [&image[..1024], &[0; 1024], &image[2048..]].concat();
    place.file("damaged", damaged);
    place.run(&["ls", "damaged::/"]).refused(2);
    let listed = place.run(&["ls", "--opt", "ro,type=ext4,sb=8193", "damaged::/"]).ok();
    assert!(listed.contains("lost+found"), "{listed}");
}

/// A disc that also starts from a USB stick has a partition table in the room that is left for it.
#[test]
fn a_disc_with_partitions_is_described_with_them() {
    if !has("genisoimage") || !has("sfdisk") {
        return;
    }
    let place = Place::new();
    place.file("src/dir/file", vec![1; 300_000]);
    place.run_as("genisoimage", &["-quiet", "-V", "name", "-o", "image", "src"]).ok();
    place.file("script", "start=4,size=8,type=ef\n");
    place.run_as("sh", &["-c", "/sbin/sfdisk -q --label dos image <script"]).ok();
    let text = place.run(&["inspect", "image"]).ok();
    assert!(text.contains("iso9660") && text.contains("partition table") && text.contains("EFI"), "{text}");
}

/// XFS shows an access control list under a second name, which is of no use elsewhere.
#[test]
fn a_list_that_xfs_shows_under_two_names_is_copied_under_one() {
    if !can_serve() || !has("mkfs.xfs") || !has("setfacl") {
        return;
    }
    let place = Place::new();
    blank(&place, 320);
    place.run_as("mkfs.xfs", &["-q", "image"]).ok();
    place.file("file", "x");
    place.run_as("setfacl", &["-m", "u:1234:r", "file"]).ok();
    place.run(&["cp", "-a", "file", "image::/"]).ok();
    place.run(&["cp", "-a", "image::/file", "back"]).ok();
    let mut names = vec![0_u8; 4096];
    let length = rustix::fs::listxattr(place.at("back"), &mut names[..]).unwrap();
    let names = String::from_utf8_lossy(&names[..length]).into_owned();
    assert!(names.contains("posix_acl_access") && !names.contains("SGI"), "{names}");
}

#[test]
fn an_image_is_not_moved_or_copied_into_itself() {
    if !can_serve() || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    blank(&place, 64);
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    std::os::unix::fs::symlink("image", place.at("link")).unwrap();
    fs::create_dir(place.at("dir")).unwrap();
    fs::hard_link(place.at("image"), place.at("dir/image")).unwrap();
    place.file("other", "other");
    for words in [
        &["mv", "image", "image::/"][..],
        &["mv", "image", "link::/"],
        &["mv", "dir", "dir/image::/"],
        &["mv", "-t", "image::/", "image"],
        &["cp", "image", "image::/copy"],
        &["cp", "-r", "dir", "dir/image::/"],
    ] {
        assert!(place.run(words).refused(1).contains("into itself"), "{words:?}");
    }
    let some = place.run(&["mv", "image", "other", "image::/"]);
    assert!(some.code == Some(1) && some.err.contains("'image' into itself"), "{some:?}");
    assert_eq!(place.run(&["cat", "image::/other"]).ok(), "other");
    assert!(place.at("dir/image").exists() && place.at("image").exists());
}
