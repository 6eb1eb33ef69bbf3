// SPDX-License-Identifier: MIT OR Apache-2.0
//! VDI, VHD, VMDK and VHDX images that `qemu-img` makes: whole, cut off and damaged.

#[path = "support/bounded.rs"]
mod bounded;
#[path = "support/tools.rs"]
mod tools;

use bounded::{Bounded, content, disk};
use outrigger_proto_disk::form::{Form, Other, open};
use outrigger_proto_disk::{Bytes, Medium};
use std::path::Path;
use tools::{Numbers, Place};

/// The size of the disks, in bytes: several blocks of each form, and no multiple of any.
const SIZE: usize = (9 << 20) + 512;
/// More than any of the disks has.
const MOST: u64 = 64 << 20;

/// Forms, and what makes an image of them.
const FORMS: &[(&str, &str)] = &[
    ("vdi", "-O vdi"),
    ("vdi", "-O vdi -o static=on"),
    ("vhd", "-O vpc"),
    ("vhd", "-O vpc -o subformat=fixed"),
    ("vhd", "-O vpc -o subformat=dynamic,force_size=on"),
    ("vmdk", "-O vmdk"),
    ("vmdk", "-O vmdk -o subformat=streamOptimized"),
    ("vmdk", "-O vmdk -o subformat=monolithicFlat"),
    ("vmdk", "-O vmdk -o subformat=twoGbMaxExtentSparse"),
    ("vmdk", "-O vmdk -o subformat=twoGbMaxExtentFlat"),
    ("vhdx", "-O vhdx -o block_size=1M"),
    ("vhdx", "-O vhdx"),
    ("vhdx", "-O vhdx -o subformat=fixed,block_size=2M"),
];

/// A directory with a plain disk `raw`.
fn place() -> Option<Place> {
    let place = Place::new()?;
    std::fs::write(place.at("raw"), raw()).expect("a file");
    Some(place)
}

impl Place {
    fn convert(&self, options: &str, from: &str, to: &str) {
        self.must(&format!("convert {options} {from} {to}"));
    }
}

/// Bytes that compress, with holes in between.
fn raw() -> Vec<u8> {
    (0..SIZE).map(|at| if (at >> 17) % 3 == 1 { 0 } else { (at / 7) as u8 }).collect()
}

/// The files of a disk, found as a program that opens the image finds them.
fn files(path: &Path) -> Vec<(Form, Bytes)> {
    let read = |path: &Path| Bounded(std::fs::read(path).expect("a file"));
    let beside = |other: &Other| path.with_file_name(String::from_utf8_lossy(&other.name).into_owned());
    let file = read(path);
    let form = Form::of(&file).expect("a form that is served");
    let others = form.others(&file).expect("it names files");
    let mut all: Vec<(Form, Bytes)> = vec![(form, Box::new(file))];
    all.extend(others.extents.iter().map(|other| (Form::Extent, Box::new(read(&beside(other))) as Bytes)));
    all.extend(others.below.iter().flat_map(|other| files(&beside(other))));
    all
}

fn whole(path: &Path) -> Vec<u8> {
    content(&open(files(path)).expect("it opens"), MOST).expect("it can be read")
}

#[test]
fn what_qemu_writes_is_read_byte_by_byte_the_same() {
    let Some(place) = place() else { return };
    let raw = raw();
    for (form, options) in FORMS {
        place.convert(options, "raw", "image");
        let image = place.at("image");
        let files = files(&image);
        assert_eq!(files[0].0.name(), *form, "{options}");
        let disk = open(files).expect("it opens");
        let found = content(&disk, MOST).expect("it can be read");
        // A VHD may have to be a bit larger.
        assert!(
            found.len() >= SIZE && found[..SIZE] == raw && found[SIZE..].iter().all(|&byte| byte == 0),
            "{options}"
        );
        assert!(disk.read(&mut [0], found.len() as u64).is_err(), "{options}: beyond the end");
        let is_fixed = *options == "-O vpc -o subformat=fixed";
        let bytes = Bounded(std::fs::read(&image).expect("a file"));
        assert_eq!(Form::of(&bytes).expect("a form").read_only(&bytes).expect("a VHD").is_none(), is_fixed);
        std::fs::remove_file(&image).expect("a file");
    }
}

#[test]
fn images_are_based_on_images_of_any_form() {
    let Some(place) = place() else { return };
    place.convert("-O vmdk", "raw", "base.vmdk");
    place.convert("-O vdi", "raw", "base.vdi");
    place.convert("-O vpc -o force_size=on", "raw", "base.vhd");
    let mut raw = raw();
    raw[100 << 10..400 << 10].fill(7);
    for (form, base, its) in [
        ("vmdk", "base.vmdk", "vmdk"),
        ("qcow2", "base.vmdk", "vmdk"),
        ("qcow2", "base.vdi", "vdi"),
        ("qcow2", "base.vhd", "vpc"),
    ] {
        place.must(&format!("create -q -f {form} -b {base} -F {its} top"));
        let (status, text) = place.run("qemu-io", &["-f", form, "-c", "write -P 7 100k 300k", "top"]);
        assert_eq!(status, 0, "{text}");
        assert!(whole(&place.at("top")) == raw, "{form} on {base}");
    }
}

#[test]
fn an_exchanged_base_is_noticed() {
    let Some(place) = place() else { return };
    place.convert("-O vmdk", "raw", "base");
    place.must("create -q -f vmdk -b base -F vmdk top");
    place.must("create -q -f vmdk base 10M");
    let error = open(files(&place.at("top"))).err().expect("it is another one").to_string();
    assert!(error.contains("another one"), "{error}");
}

/// Forms of one file.
fn single() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    FORMS.iter().filter(|(_, options)| !options.contains("Flat") && !options.contains("twoGb"))
}

#[test]
fn an_image_that_is_cut_off_is_an_error_and_never_other_content() {
    let Some(place) = place() else { return };
    for (_, options) in single() {
        place.convert(options, "raw", "image");
        let image = std::fs::read(place.at("image")).expect("a file");
        let expected = content(&disk(image.clone()).expect("it opens"), MOST).expect("it can be read");
        for number in 0..40 {
            let length = if number % 2 == 0 { image.len() / 40 * number } else { image.len() - number * 511 };
            let found = disk(image[..length].to_vec());
            // What has lost its mark is a plain file.
            let is_raw = Form::of(&Bounded(image[..length].to_vec())).is_ok_and(|form| form == Form::Raw);
            let fits = |disk: Bytes| content(&disk, MOST).map_or(true, |found| found == expected);
            assert!(is_raw || found.map_or(true, fits), "{options}: {length} of {}", image.len());
        }
    }
}

#[test]
fn a_compressed_grain_whose_sum_is_wrong_is_an_error() {
    let Some(place) = place() else { return };
    place.convert("-O vmdk -o subformat=streamOptimized", "raw", "image");
    let mut image = std::fs::read(place.at("image")).expect("a file");
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes")) as usize;
    // Behind the headers: the number of a sector, how many bytes follow, and these, with their sum at the end.
    let grain = word(64) * 512;
    let sum = grain + 12 + word(grain + 8) - 4;
    image[sum] ^= 1;
    let error = content(&disk(image).expect("it opens"), MOST).expect_err("it is damaged").to_string();
    assert!(error.contains("a compressed grain"), "{error}");
}

#[test]
fn no_damage_leads_out_of_the_file() {
    let Some(place) = place() else { return };
    let mut numbers = Numbers(1);
    let mut next = |bound| numbers.below(bound);
    std::fs::write(place.at("small"), &raw()[..3 << 20]).expect("a file");
    for (_, options) in single() {
        place.convert(options, "small", "image");
        let image = std::fs::read(place.at("image")).expect("a file");
        // Where something stands that is not content: the start, the end, and for VHDX what follows the first megabyte.
        let parts = [0..4096, 0..(512 << 10), (2 << 20)..(4 << 20), image.len() - 1536..image.len()];
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..200 {
            let mut image = image.clone();
            let part = parts[next(parts.len())].clone();
            let part = part.start.min(image.len() - 8)..part.end.min(image.len());
            for _ in 0..1 + next(6) {
                let place = part.start + next(part.len());
                image[place] = [0xff, 1 << next(8), next(256) as u8][next(3)];
            }
            match disk(image).map(|disk| content(&disk, MOST)) {
                Ok(Ok(_)) => opened += 1,
                _ => refused += 1,
            }
        }
        assert!(opened > 0 && opened + refused == 200, "{options}: {opened} {refused}");
    }
}
