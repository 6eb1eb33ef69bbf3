// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading damaged images: what is damaged is named, everything else is there, and of a file the part before the damage.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use support::{Place, can_serve, has};

const BLOCK: usize = 4096;

/// An ext4 image with `dir/good1`, `dir/bad`, `dir/good2`, of which the inode of `bad` has a wrong checksum.
fn with_a_damaged_inode() -> Option<Place> {
    if !can_serve() || !has("mkfs.ext4") || !has("debugfs") {
        return None;
    }
    let place = Place::new();
    fs::create_dir_all(place.at("made/dir")).unwrap();
    for name in ["good1", "bad", "good2"] {
        place.file(&format!("made/dir/{name}"), name);
    }
    let image = fs::File::create(place.at("image")).unwrap();
    image.set_len(32 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "-b", "4096", "-O", "metadata_csum", "-d", "made", "image"]).ok();
    // "Inode 14 is part of block group 0\n\tlocated at block 41, offset 0x0d00"
    let said = place.run_as("debugfs", &["-R", "imap /dir/bad", "image"]).ok();
    let (_, located) = said.split_once("at block ").unwrap();
    let (block, offset) = located.trim().split_once(", offset 0x").unwrap();
    let at = block.parse::<u64>().unwrap() * BLOCK as u64 + u64::from_str_radix(offset, 16).unwrap();
    let image = fs::File::options().read(true).write(true).open(place.at("image")).unwrap();
    // The lower half of the checksum.
    let mut byte = [0];
    image.read_exact_at(&mut byte, at + 0x7c).unwrap();
    image.write_all_at(&[!byte[0]], at + 0x7c).unwrap();
    Some(place)
}

#[test]
fn a_damaged_inode_is_named_and_the_rest_is_listed() {
    let Some(place) = with_a_damaged_inode() else { return };
    for (words, code, shows) in [
        (&["ls", "image::/dir"][..], 1, "bad\ngood1\ngood2\n"),
        (&["ls", "-RU", "image::/dir"], 1, "good2"),
        (&["ls", "-l", "image::/dir"], 1, "? bad"),
        (&["find", "image::/dir"], 1, "image::/dir/good2"),
        (&["find", "image::/dir", "-depth"], 1, "image::/dir/good2"),
        (&["tree", "image::/dir"], 2, "good2"),
        (&["du", "-a", "image::/dir"], 1, "image::/dir/good2"),
        (&["diff", "-rq", "made/dir", "image::/dir"], 2, ""),
        (&["--opt", "ro", "cp", "-a", "image::/dir", "copy"], 1, ""),
    ] {
        let said = place.run(words);
        assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
        assert!(said.err.lines().count() == 1 && said.err.contains("/dir/bad"), "{words:?}: {said:?}");
        assert!(said.out.contains(shows), "{words:?}: {said:?}");
    }
    assert_eq!(fs::read_dir(place.at("copy")).unwrap().count(), 2);
    assert_eq!(fs::read_to_string(place.at("copy/good2")).unwrap(), "good2");
}

/// A btrfs image with a `file` of 4 MiB, and where in it the damage begins.
fn with_damaged_content() -> Option<(Place, Vec<u8>, usize)> {
    if !can_serve() || !has("mkfs.btrfs") {
        return None;
    }
    let place = Place::new();
    fs::create_dir(place.at("made")).unwrap();
    let numbered =
        |block: usize| [block.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes(); BLOCK / 8].concat();
    let content: Vec<u8> = (1..=1024).flat_map(numbered).collect();
    place.file("made/file", &content);
    fs::File::create(place.at("image")).unwrap().set_len(128 << 20).unwrap();
    place.run_as("mkfs.btrfs", &["-q", "--rootdir", "made", "image"]).ok();
    let damage = 700 * BLOCK;
    let mut image = fs::read(place.at("image")).unwrap();
    let wanted = &content[damage..damage + BLOCK];
    let hits: Vec<usize> =
        image.chunks_exact(BLOCK).enumerate().filter(|(_, data)| *data == wanted).map(|(at, _)| at).collect();
    assert!(!hits.is_empty());
    for at in hits {
        image[at * BLOCK + 100] ^= 1;
    }
    fs::write(place.at("image"), image).unwrap();
    Some((place, content, damage))
}

#[test]
fn the_part_of_a_file_in_front_of_the_damage_is_kept() {
    let Some((place, content, damage)) = with_damaged_content() else { return };
    let said = place.run(&["cp", "image::/file", "part"]);
    assert_eq!(said.code, Some(1));
    let said = said.err;
    let kept = format!("'part' has the first {damage} of {} bytes", content.len());
    assert!(said.contains("error reading 'image::/file'") && said.contains(&kept), "{said}");
    assert!(fs::read(place.at("part")).unwrap() == content[..damage]);
    let said = place.run(&["mv", "image::/file", "moved"]);
    assert_eq!(said.code, Some(1));
    let said = said.err;
    assert!(said.contains("removed incomplete 'moved'") && !place.at("moved").exists(), "{said}");
    let shown = place.run_as("sh", &["-c", &format!("{} cat image::/file >shown", support::PROGRAM)]);
    assert_eq!(shown.code, Some(1), "{shown:?}");
    assert!(content.starts_with(&fs::read(place.at("shown")).unwrap()));
}
