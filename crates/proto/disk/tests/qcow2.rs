// SPDX-License-Identifier: MIT OR Apache-2.0
//! qcow2 images against QEMU's own tools: what one side writes the other reads, and nothing that may happen to a writer
//! makes an image of which `qemu-img check` finds more than lost clusters.

#[path = "support/tools.rs"]
mod tools;

use outrigger_proto_disk::Medium;
use outrigger_proto_disk::container::Container;
use outrigger_proto_disk::qcow2::{Qcow2, Storage};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tools::{Numbers, Place};

/// The size of the disks, in bytes; no multiple of most clusters.
const SIZE: usize = (3 << 20) + 512;
const SECTOR: usize = 512;

/// A change of the file an image is kept in.
#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Grow(u64),
    Punch(u64, u64),
    Flush,
}

/// A file, and everything that was done to it.
struct Kept {
    file: File,
    done: RefCell<Vec<Change>>,
}

fn apply(file: &File, change: &Change) -> io::Result<()> {
    match change {
        Change::Write(place, data) => file.write_all_at(data, *place),
        Change::Grow(size) => file.set_len(*size),
        Change::Punch(place, length) => file.write_all_at(&vec![0xee; *length as usize], *place),
        Change::Flush => Ok(()),
    }
}

impl Kept {
    fn change(&self, change: Change) -> io::Result<()> {
        apply(&self.file, &change)?;
        self.done.borrow_mut().push(change);
        Ok(())
    }
}

impl Medium for Kept {
    fn size(&self) -> u64 {
        self.file.metadata().map_or(0, |data| data.len())
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

impl Storage for Kept {
    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(Change::Write(offset, data.to_vec()))
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.change(Change::Grow(size))
    }

    fn flush(&self) -> io::Result<()> {
        self.change(Change::Flush)
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.change(Change::Punch(offset, length))
    }
}

impl Place {
    /// What the disk in an image holds, by the tools.
    fn content(&self, name: &str, more: &str) -> Vec<u8> {
        self.must(&format!("convert {more}-O raw {name} out"));
        std::fs::read(self.at("out")).expect("a file")
    }

    fn open(&self, name: &str, backing: &str) -> Qcow2<Kept> {
        Qcow2::open(kept(&self.at(name)), self.backing(backing)).expect("it opens")
    }

    /// The image with the form and the name of `FORM NAME`.
    fn backing(&self, words: &str) -> Option<Box<dyn Medium + Send + Sync>> {
        let (form, name) = words.split_once(' ')?;
        let whole = std::fs::read(self.at(name)).expect("a file");
        let plain = Plain(whole);
        Some(match form {
            "raw" => Box::new(plain),
            _ => Box::new(std::sync::Mutex::new(Qcow2::open(plain, None).expect("it opens"))),
        })
    }
}

/// A file in memory.
struct Plain(Vec<u8>);

impl Medium for Plain {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        Medium::read(&&self.0[..], buffer, offset)
    }
}

fn kept(path: &Path) -> Kept {
    let file = File::options().read(true).write(true).open(path).expect("a file");
    Kept { file, done: RefCell::default() }
}

/// Bytes that compress, with holes in between.
fn sample(seed: u8, size: usize) -> Vec<u8> {
    (0..size).map(|at| if (at >> 15) % 3 == 1 { 0 } else { (at / 7) as u8 ^ seed }).collect()
}

/// One of the things that are done to a disk, done to an image and to a copy.
fn act(disk: &mut Qcow2<Kept>, copy: &mut [u8], numbers: &mut Numbers) {
    let unit = [1, SECTOR, SECTOR, 4096][numbers.below(4)];
    let most = [2_000, 20_000, 300_000][numbers.below(3)] / unit;
    let length = (1 + numbers.below(most.max(1))) * unit;
    let place = numbers.below((SIZE - length) / unit + 1) * unit;
    match numbers.below(6) {
        0 => {
            disk.discard(place as u64, length as u64, true).expect("zeroes");
            copy[place..place + length].fill(0);
        }
        1 => {
            disk.discard(place as u64, length as u64, false).expect("a discard");
            disk.read(&mut copy[place..place + length], place as u64).expect("a read");
        }
        _ => {
            let data: Vec<u8> = (0..length).map(|at| (at * 3 + place) as u8).collect();
            disk.write(&data, place as u64).expect("a write");
            copy[place..place + length].copy_from_slice(&data);
        }
    }
    if numbers.below(5) == 0 {
        disk.flush().expect("a flush");
    }
}

fn whole(disk: &mut Qcow2<Kept>) -> Vec<u8> {
    let mut content = vec![1; disk.header().size as usize];
    disk.read(&mut content, 0).expect("a read");
    content
}

/// How an image is made, and what it is based on.
const FORMS: &[(&str, &str)] = &[
    ("create -q -f qcow2 -o compat=0.10 image SIZE", ""),
    ("create -q -f qcow2 -o compat=1.1,lazy_refcounts=on image SIZE", ""),
    ("create -q -f qcow2 -o cluster_size=512,refcount_bits=64 image SIZE", ""),
    ("create -q -f qcow2 -o cluster_size=512,refcount_bits=1 image SIZE", ""),
    ("create -q -f qcow2 -o cluster_size=4096,refcount_bits=2 image SIZE", ""),
    ("create -q -f qcow2 -o cluster_size=2M,refcount_bits=8 image SIZE", ""),
    ("create -q -f qcow2 -o preallocation=metadata image SIZE", ""),
    ("create -q -f qcow2 -F raw -b base image SIZE", "raw base"),
    ("create -q -f qcow2 -o compat=0.10,cluster_size=1024 -F raw -b base image SIZE", "raw base"),
    ("create -q -f qcow2 -o cluster_size=16k -F qcow2 -b packed image SIZE", "qcow2 packed"),
    ("convert -c -O qcow2 whole image", ""),
    ("convert -c -O qcow2 -o compression_type=zstd,cluster_size=32k whole image", ""),
    ("convert -c -O qcow2 -o compat=0.10,cluster_size=4096 whole image", ""),
    ("convert -O qcow2 -o cluster_size=1024 whole image", ""),
];

fn make(place: &Place, form: &str) {
    std::fs::write(place.at("base"), sample(1, 2 << 20)).expect("a file");
    std::fs::write(place.at("whole"), sample(2, SIZE)).expect("a file");
    place.must("convert -c -O qcow2 -o cluster_size=8k base packed");
    place.must(&form.replace("SIZE", &SIZE.to_string()));
}

#[test]
fn what_each_side_has_written_the_other_reads() {
    let Some(place) = Place::new() else { return };
    for (seed, (form, backing)) in (1..).zip(FORMS) {
        make(&place, form);
        let mut copy = place.content("image", "");
        let mut numbers = Numbers(seed);
        for round in 0..3 {
            let mut disk = place.open("image", backing);
            assert!(whole(&mut disk) == copy, "{form}: {round}: read");
            (0..40).for_each(|_| act(&mut disk, &mut copy, &mut numbers));
            assert!(whole(&mut disk) == copy, "{form}: {round}: read again");
            disk.flush().expect("a flush");
            place.must("check -q image");
            assert!(place.content("image", "") == copy, "{form}: {round}: read by qemu-img");
        }
        assert!(place.open("image", backing).flush().is_ok(), "nothing was written");
    }
}

#[test]
fn snapshots_stay_what_they_are() {
    let Some(place) = Place::new() else { return };
    for form in ["convert -O qcow2 -o cluster_size=4096 whole image", "convert -c -O qcow2 whole image"] {
        make(&place, form);
        let before = place.content("image", "");
        place.must("snapshot -c one image");
        let mut copy = before.clone();
        let mut disk = place.open("image", "");
        assert_eq!(disk.header().snapshots, 1);
        let mut numbers = Numbers(9);
        (0..40).for_each(|_| act(&mut disk, &mut copy, &mut numbers));
        disk.flush().expect("a flush");
        place.must("check -q image");
        assert!(place.content("image", "") == copy);
        assert!(place.content("image", "-l snapshot.name=one ") == before, "{form}");
        place.must("snapshot -d one image");
        place.must("check -q image");
        assert!(place.content("image", "") == copy);
    }
}

/// A disk that is larger than its first refcount table reaches: the table moves.
#[test]
fn the_refcount_table_grows() {
    let Some(place) = Place::new() else { return };
    place.must("create -q -f qcow2 -o cluster_size=512,refcount_bits=64 image 24M");
    let mut disk = place.open("image", "");
    let content: Vec<u8> = (0..20_u32 << 18).flat_map(u32::to_le_bytes).collect();
    for (piece, at) in content.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
        disk.write(piece, at).expect("a write");
    }
    disk.flush().expect("a flush");
    place.must("check -q image");
    assert!(place.content("image", "")[..content.len()] == content);
    disk.discard(0, 24 << 20, false).expect("a discard");
    disk.flush().expect("a flush");
    place.must("check -q image");
    let size = std::fs::metadata(place.at("image")).expect("a file").len();
    disk.write(&content, 0).expect("a write");
    disk.flush().expect("a flush");
    place.must("check -q image");
    let now = std::fs::metadata(place.at("image")).expect("a file").len();
    assert!(now <= size + 64 * 1024, "what was given back is used again: {size} {now}");
}

/// What is left of the changes when power fails in the middle: all before the last flush, and of those after it any sectors
/// of any; or, when only the process dies, everything up to some moment.
fn cut_off(changes: &[Change], at: usize, power: bool, numbers: &mut Numbers) -> Vec<Change> {
    if !power {
        return changes[..at].to_vec();
    }
    let safe = changes[..at].iter().rposition(|change| matches!(change, Change::Flush)).unwrap_or(0);
    let mut left = changes[..safe].to_vec();
    for change in &changes[safe..at] {
        match change {
            Change::Write(place, data) => {
                let sectors = data.chunks(SECTOR).zip((*place..).step_by(SECTOR));
                let kept = sectors.filter(|_| numbers.below(2) == 0);
                left.extend(kept.map(|(data, place)| Change::Write(place, data.to_vec())));
            }
            Change::Punch(..) if numbers.below(2) == 0 => {}
            other => left.push(other.clone()),
        }
    }
    left
}

#[test]
fn a_writer_that_is_cut_off_leaves_lost_clusters_at_worst() {
    let Some(place) = Place::new() else { return };
    let forms = [FORMS[0], FORMS[2], FORMS[3], FORMS[8], FORMS[9], FORMS[10]];
    for (seed, (form, backing)) in (50..).zip(forms) {
        make(&place, form);
        if seed % 2 == 0 && !form.contains("refcount_bits=1 ") {
            place.must("snapshot -c one image");
        }
        std::fs::copy(place.at("image"), place.at("before")).expect("a copy");
        let mut disk = place.open("image", backing);
        let mut copy = whole(&mut disk);
        let mut numbers = Numbers(seed);
        // What the disk held when, by the number of changes of the file since.
        let mut history = vec![(0, copy.clone())];
        for _ in 0..30 {
            act(&mut disk, &mut copy, &mut numbers);
            history.push((disk.storage().done.borrow().len(), copy.clone()));
        }
        disk.flush().expect("a flush");
        let changes = disk.storage().done.borrow().clone();
        for round in 0..24 {
            let at = numbers.below(changes.len());
            let left = cut_off(&changes, at, round % 2 == 0, &mut numbers);
            std::fs::copy(place.at("before"), place.at("image")).expect("a copy");
            let file = kept(&place.at("image")).file;
            left.iter().for_each(|change| apply(&file, change).expect("a change"));
            let (status, text) = place.run("qemu-img", &["check", "image"]);
            assert!(status == 0 || status == 3, "{form}: {round}: cut off after {at}: {text}");
            let mut disk = place.open("image", backing);
            let found = whole(&mut disk);
            // A program that goes on with it finds nothing that is in use twice.
            (0..5).for_each(|_| act(&mut disk, &mut copy, &mut numbers));
            disk.flush().expect("a flush");
            let (status, text) = place.run("qemu-img", &["check", "image"]);
            assert!(status == 0 || status == 3, "{form}: {round}: written after {at}: {text}");
            must_be_of_the_time(&found, &history, &changes, at);
        }
    }
}

/// Each sector holds what it held at the last flush that was complete, or something that was written there since.
fn must_be_of_the_time(found: &[u8], history: &[(usize, Vec<u8>)], changes: &[Change], at: usize) {
    // A flush of the disk ends with one of the file; those in between only order things, so go back to one that ended an act.
    let safe = history
        .iter()
        .rposition(|(count, _)| *count <= at && *count > 0 && matches!(changes[count - 1], Change::Flush));
    let since = &history[safe.unwrap_or(0)..];
    for (number, sector) in found.chunks(SECTOR).enumerate() {
        let range = number * SECTOR..number * SECTOR + sector.len();
        let mixed = since.len() > 1
            && since.windows(2).any(|pair| pair[0].1[range.clone()] != pair[1].1[range.clone()]);
        assert!(mixed || since[0].1[range.clone()] == *sector, "sector {number} is lost");
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let Some(place) = Place::new() else { return };
    let rows: &[(&str, u64, &[u8], &str)] = &[
        ("", 4, &[0, 0, 0, 1], "version 1"),
        ("", 4, &[0, 0, 0, 4], "version 4"),
        ("", 32, &[0, 0, 0, 1], "encryption"),
        ("", 79, &[4], "external data file"),
        ("", 79, &[16], "subclusters"),
        ("", 78, &[1], "the feature number 8"),
        ("", 20, &[0, 0, 0, 30], "clusters of 2^30"),
        ("", 36, &[0, 0, 0, 0], "first table is too small"),
        ("", 36, &[0, 255, 0, 0], "first table lies outside"),
        ("", 56, &[0, 1, 0, 0], "refcount table lies outside"),
        ("", 99, &[7], "refcounts of 2^7 bits"),
        ("-F raw -b base ", 16, &[0, 0, 255, 255], "name of its backing file"),
    ];
    for (more, at, bytes, what) in rows {
        std::fs::write(place.at("base"), [1; 4096]).expect("a file");
        place.must(&format!("create -q -f qcow2 {more}image 64M"));
        kept(&place.at("image")).file.write_all_at(bytes, *at).expect("a write");
        let error = Qcow2::open(kept(&place.at("image")), place.backing("raw base")).err();
        let said = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(what), "{what}: {said}");
    }
}

#[test]
fn an_image_that_is_marked_is_read_only() {
    let Some(place) = Place::new() else { return };
    for (bit, what) in [(1, "not closed"), (2, "corrupt")] {
        place.must("create -q -f qcow2 image 64M");
        kept(&place.at("image")).file.write_all_at(&[bit], 79).expect("a write");
        let mut disk = place.open("image", "");
        disk.read(&mut [0; 10], 5).expect("a read");
        let error = disk.write(&[1], 0).expect_err("read-only").to_string();
        assert!(error.contains(what) && error.contains("qemu-img check"), "{error}");
        assert!(disk.storage().done.borrow().is_empty());
    }
}
