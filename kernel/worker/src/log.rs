// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel code prints: kept in a ring, where the parent process finds the last lines of one that died.
//!
//! The file is a number, how many bytes were ever written (`u64`, little-endian), and the ring after it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the ring starts, in bytes.
const START: u64 = 8;
/// How much is kept, in bytes.
const SIZE: u64 = 64 << 10;

static FILE: OnceLock<File> = OnceLock::new();
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// How long the file is that it is kept in, in bytes, with what is in front of it.
pub const LENGTH: u64 = START + SIZE;

/// Keeps what is printed in `file`. Until then it goes to standard error.
pub fn keep_in(file: File) {
    // There is one at most.
    drop(FILE.set(file));
}

/// Adds text. A failure cannot be reported.
pub fn append(text: &[u8]) {
    let Some(file) = FILE.get() else {
        drop(std::io::Write::write_all(&mut std::io::stderr(), text));
        return;
    };
    let end = WRITTEN.fetch_add(text.len() as u64, Ordering::Relaxed) + text.len() as u64;
    let (mut at, mut rest) = (end - text.len() as u64, text);
    while !rest.is_empty() {
        let place = at % SIZE;
        let (now, later) = rest.split_at(rest.len().min((SIZE - place) as usize));
        drop(file.write_all_at(now, START + place));
        at += now.len() as u64;
        rest = later;
    }
    drop(file.write_all_at(&end.to_le_bytes(), 0));
}
