// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the content of a file.

use super::*;

fn space() -> Space {
    Space::new(1 << 40, 1)
}

fn bytes(content: &Content, offset: u64, len: u64, store: &Arc<Store>) -> Vec<u8> {
    content.read(offset, len, store).and_then(Payload::into_bytes).unwrap().to_vec()
}

#[test]
fn what_was_read_does_not_change() {
    let (space, store, mut content) = (space(), Store::private(), Content::default());
    for len in [10_000, 1 << 20] {
        let edit = &mut Edit::new(&space, &store);
        content.write(0, &vec![1; len], edit).unwrap();
        let before = content.read(0, len as u64, &store).unwrap();
        content.write(5000, &[2; 100], edit).unwrap();
        content.truncate(0, edit).unwrap();
        edit.freed.clear();
        assert!(before.into_bytes().unwrap().iter().all(|&byte| byte == 1), "{len}");
    }
    assert_eq!(space.bytes().1, 1 << 40, "all pages were given back");
}

#[test]
fn small_appends_share_a_page() {
    let (space, store, mut content) = (space(), Store::private(), Content::default());
    let edit = &mut Edit::new(&space, &store);
    let mut expected = Vec::new();
    for i in 0..3000_u64 {
        let piece = [i as u8; 7];
        assert_eq!(content.write(expected.len() as u64, &piece, edit).unwrap(), 7);
        expected.extend_from_slice(&piece);
    }
    assert_eq!(bytes(&content, 0, u64::MAX, &store), expected);
    assert_eq!(content.pages(), 21_000_u64.div_ceil(PAGE));
    assert_eq!(content.extents().count(), 1, "pages that follow each other are one extent");
}

#[test]
fn a_write_stops_where_space_does() {
    let (space, store, mut content) = (Space::new(3 * PAGE, 1), Store::private(), Content::default());
    let edit = &mut Edit::new(&space, &store);
    let mut write = |offset, data: &[u8]| content.write(offset, data, edit).unwrap();
    assert_eq!(write(PAGE / 2, &vec![1; 1 << 20]), (3 * PAGE - PAGE / 2) as usize);
    assert_eq!(write(0, &[2; 10]), 10, "an allocated page needs no space");
    assert_eq!(write(1 << 30, &[2; 10]), 0);
    assert_eq!(content.size, 3 * PAGE);
}

#[test]
fn bytes_behind_the_end_never_come_back() {
    let (space, store, mut content) = (space(), Store::private(), Content::default());
    let edit = &mut Edit::new(&space, &store);
    for extend in [0, 1, 2] {
        content.write(0, &[1; 200], edit).unwrap();
        content.truncate(100, edit).unwrap();
        match extend {
            0 => content.truncate(300, edit).unwrap(),
            1 => assert_eq!(content.write(299, &[0], edit).unwrap(), 1),
            _ => content.extend(300, edit).unwrap(),
        }
        let mut expected = [0; 300];
        expected[..100].fill(1);
        assert_eq!(bytes(&content, 0, u64::MAX, &store), expected, "{extend}");
        content.truncate(0, edit).unwrap();
    }
}

#[test]
fn a_copy_and_what_it_was_made_of_go_their_own_ways() {
    let (space, store) = (space(), Store::private());
    let (mut one, mut other) = (Content::default(), Content::default());
    let edit = &mut Edit::new(&space, &store);
    one.write(0, &[1; 3 * PAGE as usize], edit).unwrap();
    let (extents, end) = one.share(0..3, 10);
    assert_eq!((extents.len(), end), (1, 3));
    space.take_pages(3).unwrap();
    other.take_in(0..3, extents, edit).unwrap();
    one.write(PAGE + 5, &[2; 10], edit).unwrap();
    other.write(2 * PAGE, &[3; 10], edit).unwrap();
    one.truncate(0, edit).unwrap();
    edit.freed.clear();
    let mut expected = [1; 3 * PAGE as usize];
    expected[2 * PAGE as usize..][..10].fill(3);
    assert!(bytes(&other, 0, u64::MAX, &store) == expected);
}

/// Every change against a plain vector, with offsets that meet, touch and miss page borders.
#[test]
fn ranges_do_what_a_plain_vector_would() {
    let (space, store) = (space(), Store::private());
    let (mut content, mut plain) = (Content::default(), Vec::<u8>::new());
    let (mut redone, elsewhere) = (Content::default(), Store::private());
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..4000_u64 {
        let start = random(40) * PAGE / 2 + random(3);
        let len = 1 + random(8) * PAGE / 2 + random(3);
        let (from, to) = (start as usize, (start + len) as usize);
        let edit = &mut Edit::new(&space, &store);
        match random(6) {
            0 | 1 => {
                let data = vec![round as u8 | 1; len as usize];
                content.write(start, &data, edit).unwrap();
                plain.resize(plain.len().max(to), 0);
                plain[from..to].copy_from_slice(&data);
            }
            2 => {
                content.truncate(start, edit).unwrap();
                plain.resize(from, 0);
            }
            3 => {
                content.punch(start..start + len, edit).unwrap();
                let to = to.min(plain.len());
                plain[from.min(to)..to].fill(0);
            }
            4 => {
                let pages = start / PAGE..(start + len).div_ceil(PAGE);
                content.reserve(pages, edit).unwrap();
                content.zero(start..start + len, edit).unwrap();
                let to = to.min(plain.len());
                plain[from.min(to)..to].fill(0);
            }
            _ if round % 2 == 0 && start > 0 && ((start / PAGE + 1) * PAGE) < plain.len() as u64 => {
                let page = start / PAGE;
                content.collapse(page..page + 1, edit);
                plain.drain((page * PAGE) as usize..((page + 1) * PAGE) as usize);
            }
            _ if (start / PAGE * PAGE) < plain.len() as u64 => {
                let page = start / PAGE;
                content.open_gap(page..page + 1, edit);
                let at = (page * PAGE) as usize;
                plain.splice(at..at, vec![0; PAGE as usize]);
            }
            _ => {}
        }
        assert_eq!(content.size, plain.len() as u64, "round {round}");
        assert!(bytes(&content, 0, u64::MAX, &store) == plain, "round {round}");
        for change in edit.changes.drain(..) {
            assert!(redone.redo(change, &elsewhere));
        }
        let holes = |content: &Content| content.holes(0..100);
        assert_eq!(holes(&redone), holes(&content), "round {round}: what the log says");
        assert_eq!(redone.pages(), content.pages());
    }
    content.truncate(0, &mut Edit::new(&space, &store)).unwrap();
    assert_eq!(space.bytes().1, 1 << 40);
}
