// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format against what it stands for, and the vectors of docs/CRYPT-FORMAT.md.

use super::*;
use crate::format::{Known, header_with, open_blocks, read_header, seal_block};
use crate::keys::Id;
use outrigger_core::Target;
use outrigger_core::ops::{Fallocate, FallocateMode, Flush, Open, Release};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn sizes_of_the_tree_below_are_those_of_files() {
    for size in [0, 1, 4095, 4096, 4097, 8192, 1 << 40, SIZE_MAX] {
        assert_eq!(plain_size(sealed_size(size)), size);
    }
    for sealed in 0..(HEADER + 2 * SLOT) as u64 {
        let size = plain_size(sealed);
        assert!(sealed_size(size) <= sealed.max(HEADER as u64), "{sealed}");
    }
    assert!(sealed_size(SIZE_MAX) <= i64::MAX as u64);
}

/// A change of a file.
#[derive(Debug, Clone)]
enum Step {
    Write(u64, Vec<u8>),
    Append(Vec<u8>),
    Resize(u64),
    Punch(u64, u64),
    Zero(u64, u64),
    Copy(u64, u64, u64),
    Reopen,
}

const MOST: u64 = 6 * BLOCK as u64;

fn step() -> impl Strategy<Value = Step> {
    let place = || prop_oneof![0..MOST, (0..6_u64).prop_map(|block| block * BLOCK as u64)];
    let bytes = || {
        (1..2 * BLOCK, any::<u8>()).prop_map(|(len, seed)| {
            (0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed | 1).collect::<Vec<u8>>()
        })
    };
    prop_oneof![
        4 => (place(), bytes()).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        1 => bytes().prop_map(Step::Append),
        2 => place().prop_map(Step::Resize),
        1 => (place(), 1..MOST).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => (place(), 1..MOST).prop_map(|(at, len)| Step::Zero(at, len)),
        1 => (place(), place(), 1..MOST).prop_map(|(at, to, len)| Step::Copy(at, to, len)),
        2 => Just(Step::Reopen),
    ]
}

fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    model.resize(model.len().max(at + bytes.len()), 0);
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Takes a range out of a file.
fn erase(client: &Client, offset: u64, len: u64, mode: FallocateMode) {
    let node = client.walk(b"/file", Follow::No).expect("it is there");
    let flags = OpenFlags::READ_WRITE;
    let opened = client.call(Open { node: node.node(), flags }).expect("it opens");
    let (node, handle, owner) = (node.node(), opened.handle, Default::default());
    client.call(Fallocate { node, handle, offset, len, mode }).expect("it is erased");
    client.call(Flush { node, handle, owner }).expect("it is stored");
    client.call(Release { node, handle, flags, owner, flock_release: false }).expect("it is closed");
}

fn apply(model: &mut Vec<u8>, client: &Client, file: &outrigger_client::File, step: &Step) {
    use FallocateMode as Mode;
    let mut inode = client.walk(b"/file", Follow::No).expect("it is there");
    match step {
        Step::Write(at, bytes) => {
            file.write_all_at(*at, Bytes::copy_from_slice(bytes)).expect("room");
            put(model, *at as usize, bytes);
        }
        Step::Append(bytes) => {
            append(client, "/file", bytes);
            model.extend_from_slice(bytes);
        }
        Step::Resize(size) => {
            let attrs = outrigger_core::SetAttrs { size: Some(*size), ..Default::default() };
            inode.set(attrs).expect("another size");
            model.resize(*size as usize, 0);
        }
        Step::Punch(at, len) => {
            erase(client, *at, *len, Mode::PUNCH_HOLE | Mode::KEEP_SIZE);
            let end = (at + len).min(model.len() as u64);
            model[(*at).min(end) as usize..end as usize].fill(0);
        }
        Step::Zero(at, len) => {
            erase(client, *at, *len, Mode::ZERO_RANGE);
            put(model, *at as usize, &vec![0; *len as usize]);
        }
        Step::Copy(at, to, len) => {
            let len = (*len).min((model.len() as u64).saturating_sub(*at));
            if at + len <= *to || to + len <= *at {
                let done = file.copy_range(*at, file, *to, len).expect("it is copied");
                let bytes = model[(*at as usize).min(model.len())..][..done as usize].to_vec();
                if done > 0 {
                    put(model, *to as usize, &bytes);
                }
            }
        }
        Step::Reopen => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_file_is_what_was_done_to_it(steps in proptest::collection::vec(step(), 1..16), handles in any::<bool>()) {
        let both = if handles { Both::new() } else { Both::without_handles() };
        both.write("file", b"");
        let mut shown = both.shown();
        let mut model = Vec::new();
        let find = |shown: &Client| {
            let inode = shown.walk(b"/file", Follow::No).expect("it is there");
            let file = inode.open(OpenFlags::READ_WRITE).expect("it opens");
            (inode, file)
        };
        let (mut inode, mut file) = find(&shown);
        for step in &steps {
            apply(&mut model, &shown, &file, step);
            if matches!(step, Step::Reopen) {
                file.close().expect("it is stored");
                shown = both.shown();
                (inode, file) = find(&shown);
            }
            prop_assert_eq!(inode.refresh().expect("attributes").size, model.len() as u64, "{:?}", step);
            let found = read(&shown, "/file").expect("it can be read");
            prop_assert!(found == model, "after {:?}", step);
        }
        file.close().expect("it is stored");
        prop_assert!(both.read("file").expect("it can be read") == model);
    }

    #[test]
    fn names_targets_and_attributes_come_back(
        name in proptest::collection::vec(1_u8..255, 1..255),
        target in proptest::collection::vec(1_u8..255, 1..400),
        dir in any::<Id>(),
    ) {
        let keys = Keys::of(&Master::random().expect("random numbers"));
        if let Ok(name) = Name::new(name) {
            let stored = keys.stored(&dir, &name);
            let full = stored.side.map_or_else(|| stored.name.to_vec(), |(_, full)| full.into_bytes());
            prop_assert_eq!(keys.name(&dir, &full), Some(name));
        }
        let target = Target::new(target).expect("a target");
        let stored = keys.stored_target(&target).expect("it fits");
        prop_assert_eq!(names::target_len(stored.len() as u64), target.len() as u64);
        prop_assert_eq!(keys.target(&stored), Some(target));
    }
}

/// The vectors of the document: lines `name = value` in its blocks of code.
fn vectors() -> BTreeMap<String, String> {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/CRYPT-FORMAT.md");
    let text = std::fs::read_to_string(document).expect("the document is there");
    let line =
        |line: &str| line.split_once(" = ").map(|(name, value)| (name.trim().to_owned(), value.to_owned()));
    text.split("```").skip(1).step_by(2).flat_map(|block| block.lines().filter_map(line)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_vectors_of_the_document_hold() {
    let master = Master::of(&(0..32).collect::<Vec<u8>>()).expect("32 bytes");
    let keys = Keys::of(&master);
    let dir: Id = std::array::from_fn(|at| 0x10 + at as u8);
    let id: Id = std::array::from_fn(|at| 0x20 + at as u8);
    let nonce: [u8; 12] = std::array::from_fn(|at| 0x30 + at as u8);
    let number: Id = std::array::from_fn(|at| 0x40 + at as u8);
    let key = Arc::new(keys.file(id));
    let mut slot = [&[0; 12][..], b"Hello, world!\n", &[0; 16]].concat();
    seal_block(&key, 1, nonce, &mut slot);
    let target = Target::new(&b"../elsewhere"[..]).expect("a target");
    let secret = Secret::Passphrase(b"correct horse".to_vec().into());
    let cost = Cost { memory_kib: 64, passes: 2 };
    let config = Config::wrap_with(&master, &secret, cost, &std::array::from_fn(|at| 0x50 + at as u8));
    let config = config.expect("a configuration");
    let header = header_with(&key, Record { size: 4110, sparse: true }, nonce);
    let made = [
        ("key.names", hex(&keys.names.0[..])),
        ("key.targets", hex(&keys.targets.0[..])),
        ("key.xattrs", hex(&keys.xattrs.0[..])),
        ("key.directories", hex(&keys.directories.0[..])),
        ("directory", hex(&keys.directory(&dir))),
        ("name", keys.stored(&dir, &named("readme.txt")).name.to_string()),
        ("long.name", keys.stored(&dir, &named(&"x".repeat(255))).name.to_string()),
        ("header", hex(&header)),
        ("block", hex(&slot)),
        ("target", keys.target_with(&target, &number).expect("it fits").to_string()),
        (
            "xattr.name",
            keys.stored_xattr(&outrigger_core::XattrName::new(&b"user.colour"[..]).unwrap())
                .unwrap()
                .to_string(),
        ),
        ("config.about", config.about()),
        (
            "config.wrapped",
            serde_json::from_slice::<serde_json::Value>(&config.print()).unwrap()["wrapped"]
                .as_str()
                .unwrap()
                .to_owned(),
        ),
    ];
    let said = vectors();
    for (name, value) in &made {
        assert_eq!(said.get(*name), Some(value), "{name} = {value}");
    }
    let known: Known = read_header(&keys, &header).expect("the header is good");
    assert_eq!(known.record, Record { size: 4110, sparse: true });
    assert_eq!(open_blocks(&known, 1, &mut slot), Ok(14));
    assert_eq!(&slot[..14], b"Hello, world!\n");
}
