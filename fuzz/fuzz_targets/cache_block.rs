// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of the content cache, with its checksum put right so that what is behind it is reached: what decodes is what would
//! have been stored.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outrigger_core::Time;
use outrigger_layer_cache::Block;
use std::sync::Arc;

fuzz_target!(|data: &[u8]| {
    let (tree, time) = (Arc::from("sftp host:/srv"), Time::new(1, 2));
    for size in [0, 5, u64::MAX] {
        let block = Block { tree: Arc::clone(&tree), ino: 7, size, mtime: time, ctime: time, number: 0 };
        let mut file = data.to_vec();
        if let Some((seal, rest)) = file.split_at_mut_checked(12) {
            seal[8..].copy_from_slice(&crc32fast::hash(rest).to_le_bytes());
        }
        if let Some(content) = block.decode(file.clone()) {
            assert_eq!(content.len() as u64, block.len());
            assert_eq!(block.encode(&[content]), file);
        }
        assert!(block.decode(Bytes::copy_from_slice(data)).is_none_or(|_| file == data));
    }
});
