// SPDX-License-Identifier: MIT OR Apache-2.0
//! An empty HFS+ volume: Debian has no tool that makes one. Apple's Technical Note TN1150 has the format.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// In bytes; also of a node of the trees, so that a block is a node.
const BLOCK: usize = 4096;
/// The files of the volume itself, as ranges of blocks. Block 0 has the volume header, the last one its copy.
const BITMAP: Range = Range { start: 1, count: 1 };
const EXTENTS: Range = Range { start: 2, count: 4 };
const CATALOG: Range = Range { start: 6, count: 64 };
/// Blocks before the first free one.
const TAKEN: u32 = CATALOG.start + CATALOG.count;

/// The parent of the root directory, and the root directory.
const PARENT_OF_ROOT: u32 = 1;
const ROOT: u32 = 2;
/// The first number for a file of the user.
const FIRST_NUMBER: u32 = 16;
/// In seconds since 1904.
const CREATED: u32 = 3_800_000_000;
const VOLUME_NAME: &str = "outrigger";

const IS_UNMOUNTED: u32 = 1 << 8;
/// Of a tree: key lengths take two bytes; keys of index nodes are as long as they need be.
const BIG_KEYS: u32 = 2;
const VARIABLE_KEYS: u32 = 4;

struct Range {
    start: u32,
    count: u32,
}

/// Writes an empty volume into all of the file `path`, whose size is a whole number of blocks, at most 32768.
///
/// # Errors
/// Those of writing.
pub fn format(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let size = file.metadata()?.len();
    let blocks = u32::try_from(size / BLOCK as u64).map_err(io::Error::other)?;
    let write = |block: u32, data: &[u8]| file.write_all_at(data, u64::from(block) * BLOCK as u64);
    write(BITMAP.start, &bitmap(blocks))?;
    write(EXTENTS.start, &tree_header(&EXTENTS, 10, BIG_KEYS, 0))?;
    write(CATALOG.start, &tree_header(&CATALOG, 516, BIG_KEYS | VARIABLE_KEYS, 2))?;
    write(CATALOG.start + 1, &root_leaf())?;
    let header = volume_header(blocks);
    file.write_all_at(&header, 1024)?;
    file.write_all_at(&header, size - 1024)
}

/// Numbers in the order of this format: big-endian.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16s(mut self, values: &[u16]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        self
    }

    fn u32s(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        self
    }

    fn zeroes(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn name(self, name: &str) -> Self {
        let units: Vec<u16> = name.encode_utf16().collect();
        self.u16s(&[units.len() as u16]).u16s(&units)
    }

    /// A file of the volume itself.
    fn fork(self, range: &Range) -> Self {
        let size = range.count * BLOCK as u32;
        self.u32s(&[0, size, size, range.count, range.start, range.count]).zeroes(7 * 8)
    }
}

fn volume_header(blocks: u32) -> Vec<u8> {
    let (files, folders, clump) = (0, 0, 16 * BLOCK as u32);
    let header = Bytes(b"H+".to_vec()).u16s(&[4]).u32s(&[IS_UNMOUNTED]);
    let header = Bytes([header.0, b"10.0".to_vec()].concat()).u32s(&[0]);
    let header = header.u32s(&[CREATED, CREATED, 0, CREATED, files, folders]);
    let header = header.u32s(&[BLOCK as u32, blocks, blocks - TAKEN - 1, TAKEN, clump, clump]);
    let encodings = [0, 1];
    let header = header.u32s(&[FIRST_NUMBER, 0]).u32s(&encodings).zeroes(32);
    // None for extended attributes: that file is made with the first of them; and none to start a computer from.
    header.fork(&BITMAP).fork(&EXTENTS).fork(&CATALOG).zeroes(2 * 80).0
}

fn bitmap(blocks: u32) -> Vec<u8> {
    let mut bits = vec![0; BLOCK];
    for block in (0..TAKEN).chain([blocks - 1]) {
        bits[block as usize / 8] |= 0x80 >> (block % 8);
    }
    bits
}

/// A node: its records, and at its end where they begin.
fn node(kind: u8, height: u8, records: &[Vec<u8>]) -> Vec<u8> {
    let mut node = Bytes::default().u32s(&[0, 0]).0;
    node.extend([kind, height]);
    let mut node = Bytes(node).u16s(&[records.len() as u16, 0]).0;
    let mut starts = vec![node.len() as u16];
    for record in records {
        node.extend(record);
        starts.push(node.len() as u16);
    }
    node.resize(BLOCK - 2 * starts.len(), 0);
    starts.reverse();
    Bytes(node).u16s(&starts).0
}

/// The first node of a tree, which has its second one for `records` of data, if there are any.
fn tree_header(range: &Range, longest_key: u16, attributes: u32, records: u32) -> Vec<u8> {
    let used = if records > 0 { 2 } else { 1 };
    let (depth, leaf) = if records > 0 { (1, 1) } else { (0, 0) };
    let header = Bytes::default().u16s(&[depth]).u32s(&[leaf, records, leaf, leaf]);
    let header = header.u16s(&[BLOCK as u16, longest_key]).u32s(&[range.count, range.count - used]);
    let header = header.u16s(&[0]).u32s(&[range.count * BLOCK as u32]);
    // An ordinary tree, whose names are the same in capitals.
    let header = header.u16s(&[0]).u32s(&[attributes]).zeroes(64).0;
    let mut map = vec![0; BLOCK - 14 - 106 - 128 - 8];
    map[0] = !(0xff >> used);
    node(1, 0, &[header, vec![0; 128], map])
}

/// The leaf with the root directory, under the name of the volume, and with the way back from its number to that.
fn root_leaf() -> Vec<u8> {
    let key = |parent: u32, name: &str| {
        let key = Bytes::default().u32s(&[parent]).name(name).0;
        [Bytes::default().u16s(&[key.len() as u16]).0, key].concat()
    };
    let directory = Bytes(key(PARENT_OF_ROOT, VOLUME_NAME)).u16s(&[1, 0]).u32s(&[0, ROOT]);
    let directory = directory.u32s(&[CREATED, CREATED, CREATED, CREATED, 0]);
    let directory = directory.u32s(&[0, 0]).u16s(&[0, 0o40755]).u32s(&[0]).zeroes(16 + 16 + 4 + 4).0;
    let way_back = Bytes(key(ROOT, "")).u16s(&[3, 0]).u32s(&[PARENT_OF_ROOT]).name(VOLUME_NAME).0;
    node(0xff, 1, &[directory, way_back])
}
