// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of the metadata cache, with its checksum put right so that what is behind it is reached: what decodes is what would
//! have been stored.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outrigger_layer_cache::SavedTree;

const TREE: &str = "http 127.0.0.1/";

fuzz_target!(|data: &[u8]| {
    let mut file = data.to_vec();
    if let Some((seal, rest)) = file.split_at_mut_checked(12) {
        seal[8..].copy_from_slice(&crc32fast::hash(rest).to_le_bytes());
    }
    if let Some(mut tree) = SavedTree::decode(Bytes::copy_from_slice(&file), TREE, 1000) {
        assert_eq!(tree.encode(TREE), file);
        assert!(tree.dirs.iter().map(|dir| dir.entries.len()).sum::<usize>() <= 1000);
        tree.expire(5);
        assert!(SavedTree::decode(tree.encode(TREE).into(), TREE, 1000) == Some(tree));
    }
    assert!(SavedTree::decode(Bytes::copy_from_slice(data), "another", 1000).is_none());
});
