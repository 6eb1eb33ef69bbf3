// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on images: of the types that are written most, checked with their own tools afterwards, and of
//! those that are made of a directory, the sample tree.

use outrigger_conformance::{Direct, Target, run};
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, kind};
use std::sync::Arc;

/// Runs the suite; `least` cases hold, and none fails but those that `exceptions` names, with the reason.
fn every_case_holds(image: &Image, has_sample: bool, least: usize, exceptions: &[Exception]) {
    let kernel = Arc::new(image.open());
    {
        let direct = Direct::new(kernel.clone());
        let report = run(&direct, &Target { abilities: direct.abilities(), has_sample, exceptions });
        println!("{}: {report}", image.name());
        report.must_hold(least);
    }
    kernel.unmount().expect("it unmounts");
}

fn written(name: &str, least: usize, exceptions: &[Exception]) {
    let Some(kind) = kind(name) else { return };
    let image = Image::new(kind);
    every_case_holds(&image, false, least, exceptions);
    image.must_be_clean();
}

fn made_of_a_directory(name: &str, exceptions: &[Exception]) {
    let Some(kind) = kind(name) else { return };
    let image = Image::new(kind);
    every_case_holds(&image, true, 10, exceptions);
}

/// A case that does not hold, and what the format or Linux' code for it lacks.
type Exception = (&'static str, &'static str);

const LONG_TARGET: Exception = ("links/target_of_4095_bytes", "its links are shorter");
const DIRECTORY_LINKS: [Exception; 6] = [
    ("directories/links_count_subdirectories", "its directories have one link"),
    ("directories/files_do_not_change_its_links", "its directories have one link"),
    ("rename/link_counts_follow_a_moved_directory", "its directories have one link"),
    ("rename/link_counts_after_replacing_a_directory", "its directories have one link"),
    ("rename/exchange_swaps_file_and_directory", "its directories have one link"),
    ("rename/back_and_forth_many_times", "its directories have one link"),
];

#[test]
fn ext4() {
    written("ext4", 220, &[]);
}

#[test]
fn xfs() {
    written("xfs", 220, &[LONG_TARGET]);
}

#[test]
fn btrfs() {
    written("btrfs", 210, &DIRECTORY_LINKS);
}

#[test]
fn squashfs() {
    made_of_a_directory("squashfs", &[]);
}

#[test]
fn erofs() {
    made_of_a_directory("erofs", &[]);
}

#[test]
fn iso9660() {
    let inodes = ("sample/hard_links_are_one_file", "inode numbers are places of directory entries");
    made_of_a_directory("iso9660", &[inodes]);
}

#[test]
fn hfsplus() {
    let links = ("sample/hard_links_are_one_file", "the tool that makes it copies");
    made_of_a_directory("hfsplus", &[links]);
}

#[test]
fn romfs() {
    let own = [
        ("sample/every_path_has_its_kind_and_mode", "it keeps no modes"),
        ("sample/modification_times", "it keeps no times"),
        ("sample/hard_links_are_one_file", "it counts no links"),
    ];
    made_of_a_directory("romfs", &own);
}

#[test]
fn cramfs() {
    let own = [
        ("sample/modification_times", "it keeps no times"),
        ("sample/hard_links_are_one_file", "it keeps no links"),
    ];
    made_of_a_directory("cramfs", &own);
}

#[test]
fn ufs() {
    made_of_a_directory("ufs", &[]);
}

#[test]
fn ufs2() {
    made_of_a_directory("ufs2", &[]);
}

#[test]
fn jffs2() {
    let own = [("sample/hard_links_are_one_file", "the tool that makes it copies")];
    made_of_a_directory("small jffs2", &own);
}

#[test]
fn tmpfs() {
    if kind("ext4").is_none() {
        return;
    }
    let kernel = Arc::new(Kernel::in_memory(&Options::default()).expect("memory"));
    let direct = Direct::new(kernel.clone());
    let report = run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
    println!("tmpfs: {report}");
    report.must_hold(210);
    drop(direct);
    kernel.unmount().expect("it ends");
}
