// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that find no room below, or are stored in part, leave what was there before.

use super::*;
use outrigger_core::Payload;
use std::sync::atomic::{AtomicU64, Ordering};

/// A tree with little room, or one that stores a part of one write and refuses the next.
struct Scarce {
    below: Arc<dyn Service>,
    /// Where files end for lack of room.
    end: AtomicU64,
    /// How many bytes are stored until a write is refused, once.
    left: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Scarce {
    fn new(below: &Arc<dyn Service>) -> Arc<Self> {
        let (end, left) = (AtomicU64::new(NEVER), AtomicU64::new(NEVER));
        Arc::new(Scarce { below: Arc::clone(below), end, left })
    }
}

impl Service for Scarce {
    fn call<'a>(&'a self, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        if let Request::Write(write) = &mut request {
            let bytes = write.data.clone().into_bytes().expect("bytes");
            let room = self.end.load(Ordering::Relaxed).saturating_sub(write.offset);
            if room == 0 {
                return Answer::error(Errno::ENOSPC);
            }
            let left = self.left.load(Ordering::Relaxed);
            if left == 0 {
                self.left.store(NEVER, Ordering::Relaxed);
                return Answer::error(Errno::EIO);
            }
            let stored = (bytes.len() as u64).min(room).min(left);
            if left != NEVER {
                self.left.store(left - stored, Ordering::Relaxed);
            }
            write.data = Payload::Bytes(bytes.slice(..stored as usize));
        }
        self.below.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.below.abilities()
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

fn client(both: &Both, scarce: &Arc<Scarce>) -> Client {
    let layer = Crypt::new(Keys::of(&both.master));
    let service = Stack::new(scarce.clone()).push(layer).expect("a stack").service();
    Client::new(service, both.runtime.clone(), Settings::default())
}

#[test]
fn a_write_without_room_leaves_what_was_stored_before() {
    for without_handles in [false, true] {
        for (len, extra, written) in [
            (100, 0, 50),
            (100, 30, 10_000),
            (100, 4500, 10_000),
            (BLOCK + 10, 100, 3 * BLOCK),
            (2 * BLOCK, 0, 10),
            (2 * BLOCK, 40, 5000),
        ] {
            let both = if without_handles { Both::without_handles() } else { Both::new() };
            both.write("file", &content(len));
            let scarce = Scarce::new(&both.below);
            let client = client(&both, &scarce);
            let inode = client.walk(b"/file", Follow::No).expect("it is there");
            let file = inode.open(OpenFlags::READ_WRITE).expect("it opens");
            scarce.end.store(sealed_size(len as u64) + extra, Ordering::Relaxed);
            let refused = file.write_at(len as u64, vec![7; written].into()).map_err(|error| error.errno);
            let why = format!("{len} {extra} {written} {without_handles}");
            assert_eq!(refused, Err(Errno::ENOSPC), "{why}");
            assert!(file.read_at(0, len).is_ok_and(|found| found == content(len)), "{why}");
            file.close().expect("it is stored");
            assert!(both.read("file") == Ok(content(len)), "{why}");
        }
    }
}

#[test]
fn an_append_that_finds_no_room_leaves_earlier_appends_vouched_for() {
    let both = Both::new();
    both.write("file", &content(100));
    let scarce = Scarce::new(&both.below);
    let client = client(&both, &scarce);
    let file =
        client.walk(b"/file", Follow::No).and_then(|it| it.open(OpenFlags::READ_WRITE)).expect("it opens");
    file.write_all_at(100, vec![1; 2 * BLOCK].into()).expect("room");
    scarce.end.store(sealed_size(100 + 2 * BLOCK as u64), Ordering::Relaxed);
    file.write_at(100 + 2 * BLOCK as u64, vec![2; 10].into()).expect_err("no room");
    file.close().expect("it is stored");
    let whole = both.bytes();
    both.store(&whole[..HEADER + SLOT]);
    assert_eq!(both.read("file").map_err(|error| error.errno), Err(Errno::EBADMSG), "a cut is found");
}

#[test]
fn a_write_that_is_stored_in_part_leaves_no_block_torn() {
    let old = content(5 * BLOCK + 10);
    let changes =
        [(5000, 100), (BLOCK as u64, 3 * BLOCK), (300, 9000), (0, 5 * BLOCK + 5), (4 * BLOCK as u64, 9000)];
    for (offset, len) in changes {
        for left in [1, 11, 12, 40, 127, 4000, 4123, 4124, 4125, 8000, 12_300] {
            let both = Both::new();
            both.write("file", &old);
            let scarce = Scarce::new(&both.below);
            let client = client(&both, &scarce);
            let inode = client.walk(b"/file", Follow::No).expect("it is there");
            let file = inode.open(OpenFlags::READ_WRITE).expect("it opens");
            scarce.left.store(left, Ordering::Relaxed);
            let _ = file.write_at(offset, vec![7; len].into());
            scarce.left.store(NEVER, Ordering::Relaxed);
            file.close().expect("it is stored");
            let found = both.read("file").expect("no block is damaged");
            for (at, (found, old)) in (0..).zip(found.iter().zip(&old)) {
                let new = at >= offset && at < offset + len as u64 && *found == 7;
                assert!(found == old || new, "byte {at} after {left} bytes of {offset} {len}");
            }
            assert!(found.len() >= old.len());
        }
    }
}

#[test]
fn a_hole_in_which_a_write_finds_no_room_stays_one() {
    let both = Both::new();
    both.write("file", &content(100));
    let inode = both.shown().walk(b"/file", Follow::No).expect("it is there");
    let file = inode.open(OpenFlags::READ_WRITE).expect("it opens");
    file.write_all_at(10 * BLOCK as u64, Bytes::from_static(b"end")).expect("room");
    file.close().expect("it is stored");
    let scarce = Scarce::new(&both.below);
    let client = client(&both, &scarce);
    let file =
        client.walk(b"/file", Follow::No).and_then(|it| it.open(OpenFlags::READ_WRITE)).expect("it opens");
    scarce.end.store(slot_at(5) + 1000, Ordering::Relaxed);
    file.write_at(5 * BLOCK as u64 + 10, vec![7; 100].into()).expect_err("no room");
    file.close().expect("it is stored");
    let found = both.read("file").expect("no block is damaged");
    assert!(found[BLOCK..10 * BLOCK].iter().all(|&byte| byte == 0) && found.ends_with(b"end"));
}

#[test]
fn a_cut_or_a_header_that_is_stored_in_part_costs_nothing() {
    let old = content(3 * BLOCK + 10);
    // The header is written first, then what is left of the last block.
    for left in [1, 30, 63, 64, 70, 500] {
        let both = Both::new();
        both.write("file", &old);
        let scarce = Scarce::new(&both.below);
        let mut inode = client(&both, &scarce).walk(b"/file", Follow::No).expect("it is there");
        scarce.left.store(left, Ordering::Relaxed);
        let size = Some(BLOCK as u64 + 1000);
        inode.set(outrigger_core::SetAttrs { size, ..Default::default() }).expect_err("it is refused");
        assert!(both.read("file") == Ok(old.clone()), "{left}");
    }
}
