// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images beside the host's own kernel: what one writes the other one reads, down to the last attribute, and the tools
//! of the file system find nothing wrong with it.
//!
//! `make crosscheck` does the same with 100,000 files in a directory and a file of more than 4 GiB.

mod support;

use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::view::{Scope, View};
use support::{PROGRAM, Place, can_mount, can_serve, has};

/// A file system that both write. In commands, `image` is the image.
struct Written {
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const EXT4: Written = Written { make: &["mkfs.ext4", "-q", "image"], check: &["e2fsck", "-fn", "image"] };
const XFS: Written =
    Written { make: &["mkfs.xfs", "-q", "image"], check: &["xfs_repair", "-n", "-f", "image"] };
const BTRFS: Written =
    Written { make: &["mkfs.btrfs", "-q", "image"], check: &["btrfs", "check", "--readonly", "image"] };

/// How large the trees are, and how long that may take. `OUTRIGGER_CROSSCHECK=large` asks for the large ones.
struct Load {
    /// Files in one directory.
    files: u32,
    /// Bytes of a file without holes.
    real: u64,
    /// Size of an image, in MiB.
    image: u64,
    patience: Duration,
}

impl Load {
    fn wanted() -> Self {
        match std::env::var("OUTRIGGER_CROSSCHECK").as_deref() {
            Ok("large") => Load {
                files: 100_000,
                real: (4 << 30) + 12_345,
                image: 12 << 10,
                patience: Duration::from_secs(3600),
            },
            _ => Load { files: 300, real: 3_000_000, image: 512, patience: Duration::from_secs(240) },
        }
    }
}

/// Bytes that no compression makes small, and others for each number.
fn noise(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Runs one of the host's programs that must succeed.
fn host(place: &Place, words: &[&str]) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = place.command(words[0], &words[1..]).env("PATH", path).output().expect(words[0]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
}

/// Regular files of many sizes, with and without holes.
fn contents(place: &Place, load: &Load) {
    for (number, size) in [0, 1, 511, 4095, 4096, 4097, 65_536, 300_001].into_iter().enumerate() {
        place.file(&format!("src/sizes/{size}"), noise(number as u64, size));
    }
    for number in 0..load.files {
        place.file(&format!("src/many/file {number:06}"), number.to_le_bytes());
    }
    let real = File::create(place.at("src/real")).unwrap();
    let piece = noise(7, 1 << 20);
    let mut at = 0;
    while at < load.real {
        let length = (load.real - at).min(1 << 20) as usize;
        real.write_all_at(&piece[..length], at).unwrap();
        at += length as u64;
    }
    // A hole first, then between, then last; more than 4 GiB in all.
    let sparse = File::create(place.at("src/sparse")).unwrap();
    for at in [1 << 20, (4_u64 << 30) - 2048, 4_u64 << 30, (5_u64 << 30) - 9_000] {
        sparse.write_all_at(&noise(at, 5_000), at).unwrap();
    }
    sparse.set_len((5 << 30) + 54_321).unwrap();
    File::create(place.at("src/only a hole")).unwrap().set_len(1 << 20).unwrap();
}

/// Names that are hard to print, long ones, and many ways to one file.
fn names(place: &Place) {
    let root = place.at("src/names");
    fs::create_dir(&root).unwrap();
    let names: [&[u8]; 6] =
        [b" ", b"-rf", b"new\nline", b"\xff\xfe\x01", "\u{e4}\u{6f22}\u{1f600}".as_bytes(), b"a\\b\"'*"];
    for name in
        names.map(<[u8]>::to_vec).into_iter().chain([vec![b'n'; 255], "\u{e9}".repeat(127).into_bytes()])
    {
        fs::write(root.join(std::ffi::OsString::from_vec(name.clone())), name).unwrap();
    }
    let deep = (0..30).map(|depth| format!("dir{depth}")).collect::<Vec<_>>().join("/");
    place.file(&format!("src/deep/{deep}/file"), "at the bottom");
    fs::create_dir(place.at("src/links")).unwrap();
    for name in ["one", "two", "names/three"] {
        fs::hard_link(place.at("src/sizes/300001"), place.at("src/links").join(name.replace("names/", "")))
            .unwrap();
    }
    for (number, target) in ["one", "../sizes/1", "/nowhere", "..", &"t/".repeat(450)].into_iter().enumerate()
    {
        symlink(target, place.at("src/links").join(format!("to {number}"))).unwrap();
    }
    fs::hard_link(place.at("src/links/to 0"), place.at("src/links/also to 0")).unwrap();
}

/// Owners, modes, devices, attributes, access control lists and times.
fn properties(place: &Place) {
    let dir = place.at("src/properties");
    fs::create_dir(&dir).unwrap();
    for (number, mode) in [0, 0o4755, 0o2711, 0o1777, 0o6640, 0o444].into_iter().enumerate() {
        let file = place.file(&format!("src/properties/mode {mode:o}"), "x");
        let id = [0, 1000, 65_534, 3_000_000_000, 70_000, 1][number];
        chown(&file, Some(id), Some(id / 2)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }
    for special in ["pipe p", "character c 5 1", "block b 259 70000", "null c 1 3"] {
        let words: Vec<String> = special.split(' ').map(str::to_owned).collect();
        let path = dir.join(&words[0]).display().to_string();
        let words: Vec<&str> =
            ["mknod", &path].into_iter().chain(words[1..].iter().map(String::as_str)).collect();
        host(place, &words);
    }
    let acl = place.file("src/properties/acl", "x");
    let file = place.file("src/properties/attributes", "x");
    let inherited = dir.join("inherited");
    fs::create_dir(&inherited).unwrap();
    let [acl, inherited] = [acl, inherited].map(|path| path.display().to_string());
    host(place, &["setfacl", "-m", "u:1000:rw,u:70000:r,g:5:x,m::rwx", &acl]);
    host(place, &["setfacl", "-m", "u:7:rwx,d:u:1000:rwx,d:g::r-x,d:o::-", &inherited]);
    fs::write(Path::new(&inherited).join("file"), "x").unwrap();
    let none = rustix::fs::XattrFlags::empty();
    let large = noise(3, 3_000);
    let values: [(&str, &[u8]); 4] =
        [("user.empty", b""), ("user.large", &large), ("trusted.t", b"\0\xff"), ("security.s", b"label")];
    for (name, value) in values {
        rustix::fs::setxattr(&file, name, value, none).unwrap();
    }
    rustix::fs::lsetxattr(place.at("src/links/to 1"), "trusted.link", b"on a link", none).unwrap();
    for (number, time) in
        ["1960-02-03 04:05:06.7 UTC", "2040-01-01 00:00:00.000000001 UTC", "2001-09-09"].iter().enumerate()
    {
        let file = place.file(&format!("src/properties/time {number}"), "x").display().to_string();
        host(place, &["touch", "-d", time, &file]);
    }
    let link = place.at("src/links/to 2").display().to_string();
    host(place, &["touch", "-h", "-d", "1999-12-31 23:59:59.999999999 UTC", &link]);
}

fn sample(place: &Place, load: &Load) {
    fs::create_dir(place.at("src")).unwrap();
    contents(place, load);
    names(place);
    properties(place);
    fs::create_dir(place.at("h")).unwrap();
}

fn can_check(tools: &[&str]) -> bool {
    can_serve() && can_mount() && tools.iter().all(|tool| has(tool))
}

fn format(place: &Place, load: &Load, kind: &Written) {
    let path = place.file("image", "");
    File::options().write(true).open(path).unwrap().set_len(load.image << 20).unwrap();
    host(place, kind.make);
}

/// Does `work` while the host's kernel has mounted the image on `h`.
fn by_the_host<T>(place: &Place, options: &str, work: impl FnOnce(PathBuf) -> T) -> T {
    struct Mounted<'a>(&'a Place);
    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let ended = self.0.command("umount", &["h"]).status();
            assert!(std::thread::panicking() || ended.is_ok_and(|status| status.success()));
        }
    }
    host(place, &["mount", "-o", &format!("loop,{options}"), "image", "h"]);
    let _mounted = Mounted(place);
    work(place.at("h"))
}

/// Does `work` while we have mounted the image on `m`.
fn by_us<T>(place: &Place, options: &str, work: impl FnOnce(PathBuf) -> T) -> T {
    host(place, &[PROGRAM, "mount", "-o", options, "image", "m"]);
    let result = work(place.at("m"));
    host(place, &[PROGRAM, "umount", "m"]);
    result
}

/// What the host's kernel and we say about the image is the same; and this is it, as far as a copy has it.
fn the_same_for_both(place: &Place, scope: Scope, what: &str) -> View {
    let format = "%P %y %m %U:%G %n %s %T@ %A@ %C@ %i %b %l\\n";
    let listed = |program: &str, words: &[&str]| {
        let path = format!("find {words:?}");
        let output = place.command(program, words).output().expect(&path);
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        let mut lines: Vec<Vec<u8>> =
            output.stdout.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        lines
    };
    let (theirs, copied, lines) = by_the_host(place, "ro", |dir| {
        let lines = listed("find", &["h", "-printf", format]);
        (View::of(&dir, scope), View::of(&dir, Scope::Copy), lines)
    });
    by_us(place, "ro", |dir| View::of(&dir, scope)).must_equal(&theirs, what);
    let ours = listed(PROGRAM, &["find", "image::/", "-printf", format]);
    let differing = ours.iter().zip(&lines).find(|(ours, theirs)| ours != theirs);
    assert!(ours == lines, "{what}: {differing:?}");
    copied
}

/// What comes out of the image through the command line is what the host sees in it.
fn comes_out(place: &Place, expected: &View, what: &str) {
    host(place, &[PROGRAM, "cp", "-a", "image::/", "back"]);
    View::of(&place.at("back"), Scope::Copy).must_equal(expected, what);
    fs::remove_dir_all(place.at("back")).unwrap();
}

fn is_written_and_read(kind: &Written) {
    if !can_check(&[kind.make[0], kind.check[0], "setfacl"]) {
        return;
    }
    let load = Load::wanted();
    let place = Place::patient(load.patience);
    sample(&place, &load);
    let expected = View::of(&place.at("src"), Scope::Copy);
    assert!(expected.len() > load.files as usize + 80);
    let ways: [(&str, &dyn Fn()); 3] = [
        ("the command line", &|| host(&place, &[PROGRAM, "cp", "-a", "src/.", "image::/"])),
        ("a mount", &|| by_us(&place, "dev,suid", |_| host(&place, &["cp", "-a", "src/.", "m/"]))),
        ("the host", &|| by_the_host(&place, "rw", |_| host(&place, &["cp", "-a", "src/.", "h/"]))),
    ];
    for (what, write) in ways {
        format(&place, &load, kind);
        write();
        host(&place, kind.check);
        let copied = the_same_for_both(&place, Scope::Holes, what);
        copied.must_equal(&expected, what);
        comes_out(&place, &expected, what);
        println!("{}: {} paths written by {what}", kind.make[0], copied.len());
    }
}

/// A file system that is made of a directory, with names of up to `longest` bytes.
fn is_read(make: &[&str], longest: usize) {
    if !can_check(&[make[0], "setfacl"]) {
        return;
    }
    let load = Load::wanted();
    let place = Place::patient(load.patience);
    sample(&place, &load);
    // They look at every byte of a hole.
    File::options().write(true).open(place.at("src/sparse")).unwrap().set_len(50 << 20).unwrap();
    fs::rename(place.at("src/names").join("n".repeat(255)), place.at("src/names").join("n".repeat(longest)))
        .unwrap();
    host(&place, make);
    let seen = the_same_for_both(&place, Scope::Image, make[0]);
    assert!(seen.len() > load.files as usize + 80);
    comes_out(&place, &seen, make[0]);
}

/// Other programs look there for files in use, from wherever they are.
#[test]
fn the_mount_table_has_the_path_of_an_image() {
    if !can_check(&["mkfs.ext4"]) {
        return;
    }
    let place = Place::new();
    format(&place, &Load::wanted(), &EXT4);
    by_us(&place, "ro", |dir| {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(&dir.display().to_string())).unwrap();
        assert!(line.contains(&format!(" {} ", place.at("image").display())), "{line}");
    });
}

#[test]
fn ext4() {
    is_written_and_read(&EXT4);
}

#[test]
fn xfs() {
    is_written_and_read(&XFS);
}

#[test]
fn btrfs() {
    is_written_and_read(&BTRFS);
}

#[test]
fn squashfs() {
    is_read(&["mksquashfs", "src", "image", "-quiet", "-no-progress", "-noappend"], 255);
}

#[test]
fn erofs() {
    // mkfs.erofs 1.5 cannot make longer names.
    is_read(&["mkfs.erofs", "-zlz4", "image", "src"], 254);
}
