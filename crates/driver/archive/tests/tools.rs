// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives made by the real tools, compared with the trees they were made from.
//!
//! Debian packages: tar gzip bzip2 xz-utils zstd zip cpio binutils dpkg (and libarchive-tools for bsdtar).

mod common;

use common::{Tree, assert_same, at, in_archive, make_tree, on_disk, open, read, read_all, shell};
use std::{fs, path::Path};
use tempfile::TempDir;

/// A directory with the tree in `t`.
fn sample(links: bool, special: bool) -> TempDir {
    let dir = TempDir::new().expect("tempdir");
    fs::create_dir(dir.path().join("t")).expect("mkdir");
    make_tree(&dir.path().join("t"), links, special);
    dir
}

fn without(mut tree: Tree, change: impl Fn(&mut common::Seen)) -> Tree {
    tree.values_mut().for_each(change);
    tree
}

fn seconds(seen: &mut common::Seen) {
    seen.mtime.1 = 0;
    // Rounding goes down for times before the epoch too.
}

fn no_xattrs(seen: &mut common::Seen) {
    seen.xattrs.clear();
}

/// `script` makes `archive` from `t`.
fn compare(dir: &Path, tool: &str, script: &str, archive: &str, change: fn(&mut common::Seen)) {
    if !shell(dir, tool, script) {
        return;
    }
    let driver = open(&dir.join(archive));
    let expected = without(on_disk(&dir.join("t")), change);
    for step in [1 << 20, 70_001] {
        let found = without(in_archive(&driver, step), change);
        assert_same(&expected, &found);
    }
}

#[test]
fn tar_formats() {
    let dir = sample(true, true);
    let p = dir.path();
    compare(p, "tar", "tar -C t --format=gnu -cf g.tar .", "g.tar", seconds);
    compare(p, "tar", "tar -C t --format=pax -cf p.tar .", "p.tar", no_xattrs);
    compare(
        p,
        "tar",
        "tar -C t --format=posix --pax-option=globexthdr.name=x,foo:=bar -cf q.tar .",
        "q.tar",
        no_xattrs,
    );
    compare(p, "bsdtar", "bsdtar -C t --format=pax -cf b.tar .", "b.tar", no_xattrs);
    // This writer turns times before the epoch into 0.
    assert!(shell(p, "touch", "touch -d @1 t/a/nothing"));
    compare(p, "bsdtar", "bsdtar -C t --format=gnutar -cf bg.tar .", "bg.tar", seconds);
}

#[test]
fn ustar_and_v7_have_short_names() {
    let dir = TempDir::new().expect("tempdir");
    let t = dir.path().join("t");
    fs::create_dir_all(t.join("d".repeat(90)).join("e".repeat(60))).expect("mkdir");
    fs::write(t.join("d".repeat(90)).join("e".repeat(60)).join("f".repeat(90)), b"prefix").expect("write");
    compare(dir.path(), "tar", "tar -C t --format=ustar -cf u.tar .", "u.tar", seconds);
    fs::remove_dir_all(&t).expect("rm");
    fs::create_dir(&t).expect("mkdir");
    fs::write(t.join("short"), b"v7").expect("write");
    compare(dir.path(), "tar", "tar -C t --format=v7 -cf v.tar .", "v.tar", seconds);
}

#[test]
fn compressed_tar() {
    let dir = sample(true, true);
    let p = dir.path();
    for (tool, suffix, command) in [
        ("gzip", "gz", "gzip"),
        ("bzip2", "bz2", "bzip2 -1"),
        ("bzip2", "m.bz2", "(head -c 100000 >h; cat >r; bzip2 -c h; bzip2 -c r) <"),
        ("xz", "xz", "xz -0"),
        ("xz", "b.xz", "xz -0 --block-size=100000"),
        ("zstd", "zst", "zstd -1"),
        ("zstd", "m.zst", "(head -c 1000000 >h; cat >r; zstd -c h; zstd -c r) <"),
        ("gzip", "m.gz", "(head -c 100000 >h; cat >r; gzip -c h; gzip -c r) <"),
    ] {
        // The archive comes on standard input, or its name at the end of the command.
        let script = match command.strip_suffix('<') {
            Some(c) => format!("tar -C t -cf x.tar .; {c} <x.tar >x.tar.{suffix}"),
            None => format!("tar -C t -c . | {command} >x.tar.{suffix}"),
        };
        compare(p, tool, &script, &format!("x.tar.{suffix}"), seconds);
    }
}

#[test]
fn sparse_files() {
    let dir = TempDir::new().expect("tempdir");
    let p = dir.path();
    fs::create_dir(p.join("t")).expect("mkdir");
    let make = "cd t; truncate -s 3000000 s; for i in 5 100 200 300 400 500 600 650 700; do \
                printf block$i | dd of=s bs=4096 seek=$i conv=notrunc status=none; done; \
                truncate -s 50000 hole; printf x > full";
    assert!(shell(p, "dd", make));
    for (format, version) in [
        ("gnu", ""),
        ("pax", "--sparse-version=0.0"),
        ("pax", "--sparse-version=0.1"),
        ("pax", "--sparse-version=1.0"),
    ] {
        let script = format!("tar -C t -S --format={format} {version} -cf s.tar .");
        compare(p, "tar", &script, "s.tar", seconds);
        let driver = open(&p.join("s.tar"));
        assert!(fs::metadata(p.join("s.tar")).expect("stat").len() < 500_000, "tar made it sparse");
        let node = at(&driver, "s");
        assert_eq!(&read(&driver, node, 5 * 4096, 6).expect("read")[..6], b"block5");
        assert_eq!(read(&driver, node, 6 * 4096, 3).expect("read"), [0; 3]);
        assert_eq!(read(&driver, node, 700 * 4096, 8).expect("read"), b"block700");
    }
}

#[test]
fn zip_archives() {
    let dir = sample(false, false);
    let p = dir.path();
    // Modes, links and UT times (whole seconds); zip stores neither the attributes of the root nor times before 1970.
    fn change(s: &mut common::Seen) {
        seconds(s);
        no_xattrs(s);
    }
    assert!(shell(p, "touch", "touch -d @1600000000 t/a/nothing"));
    // zip 3.0-13 makes no data descriptors for links.
    let streamed =
        "find . ! -type l | zip -q -fd ../stream.zip -@; find . -type l | zip -q -y ../stream.zip -@";
    for (name, command) in [
        ("d.zip", "zip -q -r -y ../d.zip ."),
        ("s.zip", "zip -q -r -y -0 ../s.zip ."),
        ("b.zip", "zip -q -r -y -Z bzip2 ../b.zip ."),
        ("stream.zip", streamed),
    ] {
        let script = format!("cd t; {command}");
        if !shell(p, "zip", &script) {
            return;
        }
        let driver = open(&p.join(name));
        let mut expected = without(on_disk(&p.join("t")), change);
        let mut found = without(in_archive(&driver, 100_000), change);
        expected.remove(&b""[..]);
        found.remove(&b""[..]);
        assert_same(&expected, &found);
    }
    let script = "cd t; cat a/b/c/large | zip -q ../z64.zip - ; zip -q -r -fz ../f64.zip a";
    if shell(p, "zip", script) {
        let driver = open(&p.join("z64.zip"));
        let content = read_all(&driver, at(&driver, "-"), 1 << 20);
        assert_eq!(content, fs::read(p.join("t/a/b/c/large")).expect("read"));
        assert_eq!(
            read_all(&open(&p.join("f64.zip")), at(&open(&p.join("f64.zip")), "a/small"), 9),
            b"hello\n"
        );
        assert!(shell(p, "cat", "(cat /bin/true z64.zip) >sfx"));
        let driver = open(&p.join("sfx"));
        assert_eq!(read_all(&driver, at(&driver, "-"), 1 << 20), content);
    }
}

#[test]
fn cpio_archives() {
    let dir = sample(true, true);
    let p = dir.path();
    for format in ["newc", "crc", "odc"] {
        assert!(shell(p, "touch", "touch -d @1600000000 t/a/nothing"));
        let script = format!("cd t; find . | cpio -o --quiet -H {format} > ../{format}.cpio");
        compare(p, "cpio", &script, &format!("{format}.cpio"), seconds);
    }
    // The oldest format has 16-bit fields: owners and short names only.
    compare(p, "cpio", "cd t; find . | cpio -o --quiet -H bin > ../bin.cpio", "bin.cpio", seconds);
    let both =
        "cat newc.cpio newc.cpio > two.cpio; head -c 512 /dev/zero >> two.cpio; cat odc.cpio >> two.cpio";
    compare(p, "cpio", both, "two.cpio", seconds);
}

#[test]
fn ar_and_deb() {
    let dir = TempDir::new().expect("tempdir");
    let p = dir.path();
    let make = "printf one > one; printf 'a longer content' > a_name_longer_than_sixteen_bytes; printf 3 > odd; \
                ar rcD x.a one a_name_longer_than_sixteen_bytes odd";
    if !shell(p, "ar", make) {
        return;
    }
    let driver = open(&p.join("x.a"));
    assert_eq!(read_all(&driver, at(&driver, "a_name_longer_than_sixteen_bytes"), 5), b"a longer content");
    assert_eq!(read_all(&driver, at(&driver, "odd"), 5), b"3");
    let make = "mkdir -p pkg/DEBIAN pkg/usr/share; printf 'Package: x\\nVersion: 1\\nArchitecture: all\\nMaintainer: m\\n\
                Description: d\\n' > pkg/DEBIAN/control; printf data > pkg/usr/share/f; dpkg-deb -Zxz -b pkg x.deb >/dev/null";
    if shell(p, "dpkg-deb", make) {
        let driver = open(&p.join("x.deb"));
        let names: Vec<_> =
            common::list(&driver, outrigger_core::Node::ROOT).into_iter().map(|e| e.0).collect();
        assert_eq!(names, [&b"debian-binary"[..], b"control.tar.xz", b"data.tar.xz"]);
        let inner = read_all(&driver, at(&driver, "data.tar.xz"), 1 << 20);
        let inner =
            common::open_bytes("data.tar.xz", inner, Default::default()).expect("the inner archive opens");
        assert_eq!(read_all(&inner, at(&inner, "usr/share/f"), 9), b"data");
    }
}

#[test]
fn single_compressed_files() {
    let dir = TempDir::new().expect("tempdir");
    let p = dir.path();
    let data = common::noise(2_000_000, 9);
    fs::write(p.join("plain.txt"), &data).expect("write");
    for (tool, suffix) in [("gzip", "gz"), ("bzip2", "bz2"), ("xz", "xz"), ("zstd", "zst")] {
        if shell(p, tool, &format!("{tool} -q -c plain.txt > plain.txt.{suffix}")) {
            let driver = open(&p.join(format!("plain.txt.{suffix}")));
            let node = at(&driver, "plain.txt");
            assert_eq!(read(&driver, node, 1_999_990, 100).expect("read"), data[1_999_990..]);
            assert_eq!(read_all(&driver, node, 65_536), data);
        }
    }
}

#[test]
fn extended_attributes() {
    let dir = TempDir::new().expect("tempdir");
    let p = dir.path();
    fs::create_dir(p.join("t")).expect("mkdir");
    fs::write(p.join("t/f"), b"x").expect("write");
    let name = c"user.colour";
    let set = rustix::fs::setxattr(p.join("t/f"), name, b"blue\0\n=", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        eprintln!("SKIPPED: no user extended attributes in {}", p.display());
        return;
    }
    for (tool, script) in [
        ("tar", "tar -C t --xattrs --format=pax -cf x.tar ."),
        ("bsdtar", "bsdtar -C t --xattrs --format=pax -cf x.tar ."),
    ] {
        if shell(p, tool, script) {
            let tree = in_archive(&open(&p.join("x.tar")), 10);
            assert_eq!(
                tree[&b"f"[..]].xattrs.get(&b"user.colour"[..]).map(Vec::as_slice),
                Some(&b"blue\0\n="[..])
            );
        }
    }
}
