// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damage with a purpose: images cut off, empty, of a size they do not have, and directories that lead into themselves.
//!
//! Sources: the structures of each type in its `fs/` directory of Linux.

use crate::bytes::Bytes;
use crate::seal::Seals;

/// Damage, and what to call it.
pub type Crafted = (String, Bytes);

/// What every image can suffer: less of it, or nothing.
pub fn cut(bytes: &Bytes) -> Vec<Crafted> {
    let mut found: Vec<Crafted> = Vec::new();
    let sizes = [0, 1, 512, 4096, 70_000, bytes.size / 4, bytes.size / 2, bytes.size.saturating_sub(4096)];
    for size in sizes.into_iter().filter(|&size| size < bytes.size) {
        found.push((format!("cut to {size} bytes"), bytes.cut(size)));
    }
    let ranges = [("the first block", 0, 4096), ("the first MiB but that", 4096, 1 << 20)];
    for (name, start, end) in ranges {
        let mut damaged = bytes.clone();
        let end = bytes.size.min(end);
        if start < end {
            damaged.set(start, &vec![0; (end - start) as usize]);
            found.push((format!("{name} empty"), damaged));
        }
    }
    found
}

/// Where a type notes its size, in units of its own: place, length, whether the most significant byte is first.
const SIZES: &[(&str, u64, usize, bool)] = &[
    ("ext4", 1028, 4, false),
    ("ext3", 1028, 4, false),
    ("ext2", 1028, 4, false),
    ("xfs", 8, 8, true),
    ("btrfs", 0x1_0070, 8, false),
    ("f2fs", 1060, 8, false),
    ("nilfs2", 1048, 8, false),
    ("jfs", 0x8008, 8, false),
    ("ntfs", 0x28, 8, false),
    ("exfat", 72, 8, false),
    ("vfat", 32, 4, false),
    ("minix", 1044, 4, false),
    ("hfs", 1042, 2, true),
    ("hfsplus", 1068, 4, true),
    ("ufs1", 8228, 4, false),
    ("ufs", 8228, 4, false),
    ("ufs2", 66_616, 8, false),
    ("squashfs", 40, 8, false),
    ("erofs", 1060, 4, false),
    ("iso9660", 32_848, 4, false),
    ("romfs", 8, 4, true),
    ("cramfs", 4, 4, false),
    ("MBR", 454, 4, false),
    ("MBR", 458, 4, false),
    ("qcow2", 24, 8, true),
    ("qcow2", 36, 4, true),
    ("qcow2", 40, 8, true),
];

/// Sizes that are not the image's.
pub fn sized(name: &str, bytes: &Bytes) -> Vec<Crafted> {
    let mut found = Vec::new();
    for &(_, place, length, big_endian) in SIZES.iter().filter(|row| row.0 == name) {
        let size = bytes.number(place, length, big_endian);
        let most = u64::MAX >> (64 - 8 * length);
        for (what, other) in
            [("no", 0), ("the least", 1), ("half the", size / 2), ("twice the", size * 2), ("the most", most)]
        {
            let mut damaged = bytes.clone();
            damaged.set_number(place, length, big_endian, other);
            Seals::of(name).renew(bytes, &mut damaged, place / 4096 * 4096);
            found.push((format!("{what} size"), damaged));
        }
    }
    found
}

/// Directories in directories of their own, and lists of names or clusters without an end. What they lead through is
/// called `dir` and `sub` in all images here.
pub fn looped(name: &str, bytes: &Bytes) -> Vec<Crafted> {
    let mut damaged = bytes.clone();
    let count = match name {
        // The number of an inode stands so far before the name it belongs to.
        "ext4" | "ext3" | "ext2" => renumber(&mut damaged, b"\x03\x02sub", 6, 4, 2),
        "ufs1" | "ufs" | "ufs2" => renumber(&mut damaged, b"\x04\x03sub\0", 6, 4, 2),
        "nilfs2" => renumber(&mut damaged, b"\x03\x02sub", 10, 8, 2),
        "minix" => renumber(&mut damaged, b"sub\0\0\0\0\0", 4, 4, 1),
        "btrfs" => renumber(&mut damaged, b"\x03\0\x02sub", 27, 8, 256),
        "f2fs" => renumber(&mut damaged, b"\x03\0\x02", 4, 4, 3),
        "xfs" => xfs(&mut damaged),
        "erofs" => erofs(&mut damaged),
        "iso9660" => iso9660(&mut damaged),
        "cramfs" => cramfs(&mut damaged),
        "romfs" => return romfs(bytes),
        "vfat" => return vfat(bytes),
        _ => 0,
    };
    for offset in bytes.used() {
        Seals::of(name).renew(bytes, &mut damaged, offset);
    }
    if count == 0 { Vec::new() } else { vec![("a directory in itself".to_owned(), damaged)] }
}

/// Makes every directory whose entry matches the root, which is number `root`. Returns how many there were.
fn renumber(bytes: &mut Bytes, pattern: &[u8], before: u64, length: usize, root: u64) -> usize {
    let places = bytes.find(pattern);
    places.iter().for_each(|place| bytes.set_number(place - before, length, false, root));
    places.len()
}

/// In an inode with its few entries the number follows the name; that of the root is 128.
fn xfs(bytes: &mut Bytes) -> usize {
    let places = bytes.find(b"sub\x02");
    places.iter().for_each(|place| bytes.set_number(place + 4, 4, true, 128));
    places.len()
}

/// The subdirectories of the root become the root: their entries follow its inode.
fn erofs(bytes: &mut Bytes) -> usize {
    let root = bytes.number(1024 + 14, 2, false);
    let inode = bytes.number(1024 + 40, 4, false) * 4096 + root * 32;
    let header = if bytes.get(inode, 1)[0] & 1 == 0 { 32 } else { 64 };
    let attributes = match bytes.number(inode + 2, 2, false) {
        0 => 0,
        count => 12 + 4 * (count - 1),
    };
    let first = inode + header + attributes;
    let entries = bytes.number(first + 8, 2, false) / 12;
    let is_directory = |entry: &u64| bytes.get(first + entry * 12 + 10, 1)[0] == 2;
    let directories: Vec<u64> = (0..entries.min(100)).filter(is_directory).collect();
    directories.iter().for_each(|entry| bytes.set_number(first + entry * 12, 8, false, root));
    directories.len()
}

/// Records of the root that are directories lead to its own extent. Sectors have 2048 bytes (ECMA-119).
fn iso9660(bytes: &mut Bytes) -> usize {
    let extent = bytes.get(16 * 2048 + 156 + 2, 16);
    let (start, size) =
        (bytes.number(16 * 2048 + 158, 4, false) * 2048, bytes.number(16 * 2048 + 166, 4, false));
    let (mut at, mut count) = (start, 0);
    while at < start + size.min(1 << 16) {
        let length = u64::from(bytes.get(at, 1)[0]);
        if length == 0 {
            at = (at / 2048 + 1) * 2048;
            continue;
        }
        let [flags, name_length] = [25, 32].map(|field| bytes.get(at + field, 1)[0]);
        if flags & 2 != 0 && name_length > 1 {
            bytes.set(at + 2, &extent);
            count += 1;
        }
        at += length;
    }
    count
}

/// Directories in the root have its content. An inode is 12 bytes: mode, owner; size; length of the name and offset.
fn cramfs(bytes: &mut Bytes) -> usize {
    let (root, mut count) = (64, 0);
    let size = bytes.number(root + 4, 3, false);
    let content = bytes.number(root + 8, 4, false) >> 6;
    let mut at = content * 4;
    while at < content * 4 + size.min(1 << 16) {
        let names = bytes.number(at + 8, 4, false) & 0x3f;
        if bytes.number(at, 2, false) & 0o170_000 == 0o040_000 {
            bytes.set_number(at + 4, 3, false, size);
            bytes.set_number(at + 8, 4, false, content << 6 | names);
            count += 1;
        }
        at += 12 + 4 * names;
    }
    count
}

/// Entries of a directory are a list: it leads back to its second, or to `.`, and nothing ends it. Or a directory is its own.
fn romfs(bytes: &Bytes) -> Vec<Crafted> {
    let aligned = |at: u64| at.div_ceil(16) * 16;
    let volume = bytes.get(16, 256).iter().position(|&byte| byte == 0).unwrap_or(0) as u64;
    let first = aligned(16 + volume + 1);
    let next = |at: u64| bytes.number(at, 4, true);
    let (mut entries, mut at) = (Vec::new(), first);
    while at != 0 && entries.len() < 100 {
        entries.push(at);
        at = next(at) & !15;
    }
    let (Some(&last), Some(&third)) = (entries.last(), entries.get(2)) else { return Vec::new() };
    let lead = |from: u64, to: u64| {
        let mut damaged = bytes.clone();
        damaged.set_number(from, 4, true, to | next(from) & 15);
        Seals::of("romfs").renew(bytes, &mut damaged, 0);
        damaged
    };
    let mut own = bytes.clone();
    for &entry in entries.iter().filter(|&&entry| next(entry) & 7 == 1) {
        own.set_number(entry + 4, 4, true, first);
    }
    Seals::of("romfs").renew(bytes, &mut own, 0);
    vec![
        ("a directory in itself".to_owned(), own),
        ("a list without an end".to_owned(), lead(last, third)),
        ("a list of one name".to_owned(), lead(third, third)),
        ("a list of no name".to_owned(), lead(first, first)),
    ]
}

/// Chains of clusters in circles, and `sub` being `dir`. The table has 16 bits a cluster (fatgen103).
fn vfat(bytes: &Bytes) -> Vec<Crafted> {
    let field = |place, length| bytes.number(place, length, false);
    let (sector, reserved, tables) = (field(11, 2), field(14, 2), field(16, 1));
    let table = reserved * sector;
    let root = table + tables * field(22, 2) * sector;
    let data = root + field(17, 2) * 32;
    let cluster_of = |entry: u64| bytes.number(entry + 26, 2, false);
    let place_of = |cluster: u64| data + cluster.saturating_sub(2) * field(13, 1) * sector;
    let entry = |start: u64, name: &[u8]| {
        (0..64).map(|number| start + number * 32).find(|&at| bytes.get(at, 11) == name)
    };
    let Some(dir) = entry(root, b"DIR        ") else { return Vec::new() };
    let inside = place_of(cluster_of(dir));
    let (Some(sub), Some(file)) = (entry(inside, b"SUB        "), entry(inside, b"FILE       ")) else {
        return Vec::new();
    };
    let circle = |cluster: u64| {
        let mut damaged = bytes.clone();
        damaged.set_number(table + cluster * 2, 2, false, cluster);
        damaged
    };
    let mut own = bytes.clone();
    own.set_number(sub + 26, 2, false, cluster_of(dir));
    vec![
        ("a directory in itself".to_owned(), own),
        ("a directory of clusters in a circle".to_owned(), circle(cluster_of(dir))),
        ("a file of clusters in a circle".to_owned(), circle(cluster_of(file))),
    ]
}
