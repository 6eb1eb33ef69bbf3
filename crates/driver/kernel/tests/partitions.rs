// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images with partition tables that sgdisk and sfdisk made.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::RenameFlags;
use outrigger_core::{Errno, Service};
use outrigger_driver_kernel::{Kernel, Options, Partitions, open};
use outrigger_images::{Image, Tree, command, kind};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A disk in a directory of its own.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    /// A disk of this size, partitioned by a program that reads `script`; none when the program is missing.
    fn new(mebibytes: u64, program: &[&str], script: &str) -> Option<Self> {
        let disk = Disk { dir: tempfile::tempdir().expect("a directory") };
        File::create(disk.path()).expect("a file").set_len(mebibytes * MIB).expect("a size");
        let mut command = command(program[0]);
        command.args(&program[1..]).arg(disk.path()).stdin(Stdio::piped());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(mut child) = child else {
            println!("SKIPPED: partitions need {}", program[0]);
            return None;
        };
        child.stdin.take().expect("its input").write_all(script.as_bytes()).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "{program:?}");
        Some(disk)
    }

    fn mbr(mebibytes: u64, script: &str) -> Option<Self> {
        Disk::new(mebibytes, &["sfdisk", "--quiet", "--label", "dos"], script)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Puts a new file system at `start` MiB.
    fn put(&self, start: u64, name: &str) -> bool {
        let Some(kind) = kind(name) else { return false };
        let image = std::fs::read(Image::new(kind).path()).expect("an image");
        let disk = File::options().write(true).open(self.path()).expect("the disk");
        for (chunk, offset) in image.chunks(MIB as usize).zip((start * MIB..).step_by(MIB as usize)) {
            if chunk.iter().any(|&byte| byte != 0) {
                disk.write_all_at(chunk, offset).expect("a write");
            }
        }
        true
    }

    /// The bytes of `size` MiB from `start` MiB on.
    fn bytes(&self, start: u64, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; (size * MIB) as usize];
        File::open(self.path()).expect("the disk").read_exact_at(&mut bytes, start * MIB).expect("a read");
        bytes
    }

    /// A tool finds nothing wrong with the file system there.
    fn must_be_clean(&self, start: u64, size: u64, check: &[&str]) {
        let part = self.dir.path().join("part");
        std::fs::write(&part, self.bytes(start, size)).expect("a file");
        let output = command(check[0]).args(&check[1..]).arg(&part).output().expect("a check");
        assert!(output.status.success(), "{check:?}: {}", String::from_utf8_lossy(&output.stdout));
    }

    fn open(&self) -> Direct {
        Direct::new(open(&self.path(), &Options::default()).expect("it opens").service())
    }

    /// The processes that have it as their standard input.
    fn workers(&self) -> Vec<Pid> {
        let path = std::fs::canonicalize(self.path()).expect("a path");
        let threads = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<String> =
            lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
        let has_it =
            |pid: &&String| std::fs::read_link(format!("/proc/{pid}/fd/0")).is_ok_and(|input| input == path);
        children.iter().filter(has_it).filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    fn partition(&self, number: u32) -> outrigger_core::Result<Kernel> {
        let options = Options { partition: Some(number), ..Options::default() };
        Kernel::start(&self.path(), &options)
    }
}

fn names(direct: &Direct, dir: &str) -> Vec<String> {
    let open = direct.open(Path::new(dir), Flags::READ | Flags::DIRECTORY, 0).expect("a directory");
    let listing = direct.read_dir(open, 0, 4096).expect("a listing");
    direct.close(open).expect("close");
    listing.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
}

/// ext4, nothing, vfat; the second has no file system.
fn gpt() -> Option<Disk> {
    let layout = ["-n", "1:1M:+64M", "-n", "2:0:+4M", "-t", "2:8200", "-n", "3:0:+32M", "-c", "3:data"];
    let disk = Disk::new(128, &[&["sgdisk"], &layout[..]].concat(), "")?;
    (disk.put(1, "ext4") && disk.put(69, "vfat")).then_some(disk)
}

#[test]
fn partitions_are_directories_and_each_is_written() {
    let Some(disk) = gpt() else { return };
    let table = disk.bytes(0, 1);
    let direct = disk.open();
    assert_eq!(names(&direct, ""), ["p1", "p3"]);
    for place in ["p1", "p3"] {
        direct.mkdir(&Path::new(place).join("dir"), 0o755).expect("mkdir");
        let file = direct.open(&Path::new(place).join("dir/file"), Flags::NEW, 0o644).expect("create");
        assert_eq!(direct.write_at(file, 0, place.as_bytes()), Ok(2));
        direct.fsync(file, false).expect("fsync");
        direct.close(file).expect("close");
    }
    drop(direct);
    assert!(disk.bytes(0, 1) == table && disk.bytes(65, 4).iter().all(|&byte| byte == 0));
    disk.must_be_clean(1, 64, &["e2fsck", "-fn"]);
    disk.must_be_clean(69, 32, &["fsck.vfat", "-n"]);
    let direct = disk.open();
    for place in ["p1", "p3"] {
        let file = direct.open(&Path::new(place).join("dir/file"), Flags::READ, 0).expect("open");
        assert_eq!(direct.read_at(file, 0, 10), Ok(place.as_bytes().to_vec()));
    }
}

/// Each partition is served by a process of its own, whose death nobody notices.
#[test]
fn the_processes_of_guarded_partitions_may_die_at_any_time() {
    let Some(disk) = gpt() else { return };
    let options = Options { guard: true, ..Options::default() };
    let opened = open(&disk.path(), &options).expect("it opens");
    let direct = Direct::new(opened.service());
    let name = |place: &str, number: u32| PathBuf::from(format!("{place}/dir{number}"));
    for number in 0..30 {
        for place in ["p1", "p3"] {
            direct.mkdir(&name(place, number), 0o755).expect("mkdir");
        }
        if number % 3 == 0 {
            // One that has just died needs no signal.
            disk.workers().into_iter().for_each(|pid| _ = kill_process(pid, Signal::KILL));
        }
    }
    for place in ["p1", "p3"] {
        assert!((0..30).all(|number| direct.stat(&name(place, number)).is_ok()), "{place}");
    }
    drop(direct);
    opened.unmount().expect("it unmounts");
    drop(opened);
    disk.must_be_clean(1, 64, &["e2fsck", "-fn"]);
    disk.must_be_clean(69, 32, &["fsck.vfat", "-n"]);
    let direct = disk.open();
    for place in ["p1", "p3"] {
        assert!((0..30).all(|number| direct.stat(&name(place, number)).is_ok()), "{place}");
    }
}

#[test]
fn what_goes_from_one_partition_to_another_is_another_file_system() {
    let Some(disk) = gpt() else { return };
    let direct = disk.open();
    let [from, to] = ["p1/dir", "p3/dir"].map(Path::new);
    direct.mkdir(from, 0o755).expect("mkdir");
    assert_eq!(direct.rename(from, to, RenameFlags::empty()), Err(Errno::EXDEV));
    assert_eq!(direct.rename(Path::new("p1"), Path::new("p9"), RenameFlags::empty()), Err(Errno::EPERM));
    assert_eq!(direct.mkdir(Path::new("new"), 0o755), Err(Errno::EPERM));
    // Numbers of files are different, though both file systems count from the same.
    let inodes: Vec<u64> =
        ["", "p1", "p3"].map(|path| direct.stat(Path::new(path)).expect("stat").ino).into();
    assert!(inodes[0] != inodes[1] && inodes[1] != inodes[2] && inodes[0] != inodes[2], "{inodes:?}");
}

#[test]
fn a_partition_without_a_known_file_system_says_so() {
    let Some(disk) = gpt() else { return };
    let service = Partitions::start(&disk.path(), &Options::default()).expect("it opens");
    let direct = Direct::new(Arc::new(service));
    assert_eq!(direct.stat(Path::new("p2")).map(drop), Err(Errno::EINVAL));
    assert_eq!(direct.stat(Path::new("p4")).map(drop), Err(Errno::ENOENT));
    drop(direct);
    let error = disk.partition(9).map(drop).expect_err("there is no such partition");
    assert_eq!(error.errno, Errno::ENXIO);
    assert!(error.reason.expect("a reason").contains("1, 2, 3"));
}

#[test]
fn logical_partitions_are_served_like_others() {
    let script = "1M,34M,L\n,,E\n,32M,c\n,32M,L\n";
    let Some(disk) = Disk::mbr(120, script) else { return };
    // The first sector of a logical partition is aligned to 1 MiB behind its record.
    if !(disk.put(1, "ext2") && disk.put(36, "vfat") && disk.put(69, "ext3")) {
        return;
    }
    assert_eq!(names(&disk.open(), ""), ["p1", "p5", "p6"]);
    let places =
        [(1, 1, 34, &["e2fsck", "-fn"]), (5, 36, 32, &["fsck.vfat", "-n"]), (6, 69, 32, &["e2fsck", "-fn"])];
    for (number, start, size, check) in places {
        let kernel: Arc<dyn Service> = Arc::new(disk.partition(number).expect("it opens"));
        Tree::new(&Direct::new(kernel)).make();
        disk.must_be_clean(start, size, check);
    }
    for (number, ..) in places {
        let kernel: Arc<dyn Service> = Arc::new(disk.partition(number).expect("it opens"));
        Tree::new(&Direct::new(kernel)).must_be_there();
    }
}

/// Changes an entry of the table in the first sector: (first sector, sectors).
fn set_entry(disk: &Disk, number: u64, first: u32, count: u32) {
    let file = File::options().write(true).open(disk.path()).expect("the disk");
    let bytes = [first.to_le_bytes(), count.to_le_bytes()].concat();
    file.write_all_at(&bytes, 446 + 16 * (number - 1) + 8).expect("a write");
}

#[test]
fn partitions_that_overlap_are_read_and_not_written() {
    let Some(disk) = Disk::mbr(80, "1M,32M,L\n,32M,L\n") else { return };
    if !disk.put(1, "ext2") {
        return;
    }
    set_entry(&disk, 2, 20_000, 2_000);
    let kernel = Arc::new(disk.partition(1).expect("it opens"));
    assert!(kernel.abilities().read_only);
    let direct = Direct::new(kernel);
    assert_eq!(names(&direct, ""), ["lost+found"]);
    assert_eq!(direct.mkdir(Path::new("dir"), 0o755), Err(Errno::EROFS));
    drop(direct);
    assert_eq!(disk.open().mkdir(Path::new("p1/dir"), 0o755), Err(Errno::EROFS));
}

#[test]
fn partitions_that_are_not_there_are_errors() {
    let Some(disk) = Disk::mbr(80, "1M,32M,L\n,32M,L\n") else { return };
    if !disk.put(1, "ext2") {
        return;
    }
    set_entry(&disk, 2, u32::MAX, u32::MAX);
    let direct = disk.open();
    assert_eq!(names(&direct, ""), ["p1"]);
    assert_eq!(direct.stat(Path::new("p2")).map(drop), Err(Errno::ENXIO));
    drop(direct);
    // Only the first 8 MiB of the file system are there.
    set_entry(&disk, 1, 146_000, 65_536);
    let error = disk.partition(1).map(drop).expect_err("nothing is known there");
    assert_eq!(error.errno, Errno::EINVAL);
    File::options().write(true).open(disk.path()).expect("the disk").set_len(9 * MIB).expect("a size");
    set_entry(&disk, 1, 2048, 65_536);
    let error = disk.partition(1).map(drop).expect_err("the file system is larger");
    assert!(error.reason.expect("a reason").contains("EXT"), "the kernel's words");
}
