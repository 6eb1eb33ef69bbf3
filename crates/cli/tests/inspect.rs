// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger inspect` beside the tools of each file system.

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use support::{Place, has};

/// A file system: how it is made (IMAGE, TREE), its size in MiB, and the type, label and UUID there must be. Where the UUID
/// is `blkid`, that program knows it.
struct Row {
    make: &'static [&'static str],
    size: u64,
    kind: &'static str,
    label: &'static str,
    uuid: &'static str,
}

const fn row(make: &'static [&'static str], size: u64, kind: &'static str, label: &'static str) -> Row {
    Row { make, size, kind, label, uuid: "blkid" }
}

const ROWS: &[Row] = &[
    row(&["mkfs.ext2", "-q", "-L", "name", "IMAGE"], 8, "ext2", "name"),
    row(&["mkfs.ext3", "-q", "-L", "name", "IMAGE"], 16, "ext3", "name"),
    row(&["mkfs.ext4", "-q", "-L", "name", "IMAGE"], 16, "ext4", "name"),
    row(&["mkfs.xfs", "-q", "-L", "name", "IMAGE"], 320, "xfs", "name"),
    row(&["mkfs.btrfs", "-q", "-L", "name", "IMAGE"], 128, "btrfs", "name"),
    row(&["mkfs.f2fs", "-q", "-l", "name", "IMAGE"], 64, "f2fs", "name"),
    row(&["mkfs.nilfs2", "-q", "-L", "name", "IMAGE"], 160, "nilfs2", "name"),
    row(&["mkfs.jfs", "-q", "-L", "name", "IMAGE"], 32, "jfs", "name"),
    row(&["mkfs.ntfs", "-q", "-F", "-f", "-L", "name", "IMAGE"], 16, "ntfs", "name"),
    row(&["mkfs.exfat", "-L", "name", "IMAGE"], 16, "exfat", "name"),
    row(&["mkfs.vfat", "-F", "32", "-n", "NAME", "IMAGE"], 64, "vfat", "NAME"),
    row(&["mkfs.vfat", "-F", "12", "-n", "NAME", "IMAGE"], 2, "vfat", "NAME"),
    row(&["mkudffs", "--utf8", "-l", "name", "IMAGE"], 16, "udf", "name"),
    row(&["mkfs.minix", "-3", "IMAGE"], 4, "minix", ""),
    Row { uuid: "", ..row(&["hformat", "-l", "name", "IMAGE"], 16, "hfs", "name") },
    row(&["mksquashfs", "TREE", "IMAGE", "-quiet", "-no-progress", "-noappend"], 0, "squashfs", ""),
    row(&["mkfs.erofs", "IMAGE", "TREE"], 0, "erofs", ""),
    row(&["genisoimage", "-quiet", "-V", "name", "-o", "IMAGE", "TREE"], 0, "iso9660", "name"),
    row(&["genromfs", "-V", "name", "-d", "TREE", "-f", "IMAGE"], 0, "romfs", "name"),
    Row { uuid: "", ..row(&["mkfs.cramfs", "-n", "name", "TREE", "IMAGE"], 0, "cramfs", "name") },
    Row { uuid: "", ..row(&["mkfs.jffs2", "-r", "TREE", "--pad=1048576", "-o", "IMAGE"], 0, "jffs2", "") },
    Row { uuid: "", ..row(&["makefs", "-t", "ffs", "-s", "4m", "IMAGE", "TREE"], 0, "ufs", "") },
];

fn make(place: &Place, row: &Row) -> bool {
    let program = row.make[0];
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let image = place.file("image", "");
    if row.size > 0 {
        fs::File::options().write(true).open(&image).unwrap().set_len(row.size << 20).unwrap();
    }
    let words = row.make[1..].iter().map(|word| match *word {
        "IMAGE" => "image",
        "TREE" => "src",
        word => word,
    });
    match place.command(program, &words.collect::<Vec<_>>()).env("PATH", path).output() {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(_) => {
            println!("SKIPPED: {} images need {program}", row.kind);
            false
        }
    }
}

#[test]
fn an_archive_is_called_one() {
    let place = Place::new();
    place.file("dir/f", "content");
    place.run_as("tar", &["-czf", "a.tar.gz", "dir"]).ok();
    let said = place.run(&["inspect", "a.tar.gz"]).ok();
    assert!(
        said.contains("not a disk but an archive") && said.contains("outrigger ls 'a.tar.gz::/'"),
        "{said}"
    );
}

fn inspect(place: &Place) -> Value {
    serde_json::from_str(&place.run(&["inspect", "--json", "image"]).ok()).unwrap()
}

fn blkid(place: &Place, tag: &str) -> String {
    let mut command = Command::new("/sbin/blkid");
    let output = command.args(["-p", "-o", "value", "-s", tag]).arg(place.at("image")).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn every_type_is_described_as_its_tools_do() {
    for row in ROWS {
        let place = Place::new();
        // Nothing that is compressed away.
        let noise = |at: u32| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8;
        place.file("src/dir/file", (0..300_000).map(noise).collect::<Vec<u8>>());
        if !make(&place, row) {
            continue;
        }
        let before = fs::read(place.at("image")).unwrap();
        let volume = inspect(&place)["volume"].clone();
        assert!(before == fs::read(place.at("image")).unwrap(), "{} was changed", row.kind);
        assert_eq!(volume["type"], row.kind);
        assert_eq!(volume["label"].as_str().unwrap_or(""), row.label, "{volume}");
        let uuid = if row.uuid == "blkid" { blkid(&place, "UUID") } else { row.uuid.to_owned() };
        assert_eq!(volume["uuid"].as_str().unwrap_or(""), uuid, "{volume}");
        // A file system is as large as its image, but for what does not fill a block or a group of them.
        let (size, whole) = (volume["size"].as_u64().unwrap(), before.len() as u64);
        assert!(size <= whole && size > whole / 10 * 7, "{}: {size} of {whole}", row.kind);
        assert!(volume["free"].as_u64().is_none_or(|free| free < size), "{volume}");
    }
}

/// The value of a line `name: value` that a program prints about the image.
fn value_of(place: &Place, program: &[&str], name: &str) -> String {
    let said = place.run_as(program[0], &program[1..]);
    let line = said.out.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
    line.expect(name).trim().to_owned()
}

#[test]
fn ext4_is_described_as_dumpe2fs_does() {
    let row = ROWS.iter().find(|row| row.kind == "ext4").unwrap();
    let place = Place::new();
    if !has("dumpe2fs") || !make(&place, row) {
        return;
    }
    let volume = &inspect(&place)["volume"];
    let dumped = |name: &str| value_of(&place, &["dumpe2fs", "-h", "image"], name);
    let unit: u64 = dumped("Block size").parse().unwrap();
    assert_eq!(volume["block_size"], unit);
    assert_eq!(volume["size"], unit * dumped("Block count").parse::<u64>().unwrap());
    assert_eq!(volume["free"], unit * dumped("Free blocks").parse::<u64>().unwrap());
    let listed = dumped("Filesystem features");
    let mut expected: Vec<&str> = listed.split_whitespace().collect();
    let mut features: Vec<&str> =
        volume["features"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    expected.sort_unstable();
    features.sort_unstable();
    assert_eq!(features, expected);
}

#[test]
fn partitions_are_described_as_sfdisk_does() {
    if !has("sfdisk") || !has("mkfs.ext4") {
        return;
    }
    let place = Place::new();
    let row = Row { make: &["mkfs.ext4", "-q", "-L", "a\u{1b}b", "IMAGE"], ..row(&[], 16, "ext4", "") };
    assert!(make(&place, &row));
    let part = fs::read(place.at("image")).unwrap();
    let disk = fs::File::options().write(true).open(place.file("image", "")).unwrap();
    disk.set_len(32 << 20).unwrap();
    place.file("script", "start=1M,size=16M,name=data\nsize=4M,type=S\n");
    place.run_as("sh", &["-c", "/sbin/sfdisk -q --label gpt image <script"]).ok();
    disk.write_all_at(&part, 1 << 20).unwrap();

    let found = inspect(&place);
    let text = place.run_as("sh", &["-c", "/sbin/sfdisk --json image"]).ok();
    let said: Value = serde_json::from_str::<Value>(&text).unwrap()["partitiontable"].clone();
    let upper = |value: &Value| value.as_str().unwrap().to_uppercase();
    assert_eq!(
        (found["table"]["scheme"].as_str(), upper(&found["table"]["id"])),
        (Some("gpt"), upper(&said["id"]))
    );
    let partitions = found["table"]["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 2);
    for (ours, theirs) in partitions.iter().zip(said["partitions"].as_array().unwrap()) {
        assert_eq!(ours["start"], theirs["start"].as_u64().unwrap() * 512);
        assert_eq!(ours["size"], theirs["size"].as_u64().unwrap() * 512);
        assert_eq!(upper(&ours["type"]), upper(&theirs["type"]));
        assert_eq!(upper(&ours["id"]), upper(&theirs["uuid"]));
    }
    assert_eq!((&partitions[0]["name"], &partitions[0]["volume"]["type"]), (&"data".into(), &"ext4".into()));
    assert_eq!((&partitions[1]["purpose"], &partitions[1]["volume"]), (&"Linux swap".into(), &Value::Null));
    // What the image says reaches no terminal as it is.
    let text = place.run(&["inspect", "image"]).ok();
    assert!(
        text.contains(r#"label "a\u{1b}b""#) && text.contains("p1: 16777216 bytes (16M) from 1048576"),
        "{text}"
    );
}

#[test]
fn what_is_no_image_is_said() {
    let place = Place::new();
    place.file("image", "nothing");
    assert!(place.run(&["inspect", "image"]).ok().contains("no file system and no partition table"));
    assert!(place.run(&["inspect", "m"]).refused(1).contains("neither a regular file"));
    assert!(place.run(&["inspect", "missing"]).refused(1).contains("No such file"));
}
