// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger tree` draws what tree(1) draws, where the host has it.

mod specimen;

use specimen::{Specimen, has};

const TREES: &[&str] = &[
    "",
    "-a",
    "-d",
    "-L 1",
    "-L 2",
    "-f",
    "-p",
    "-s",
    "-h",
    "-D",
    "-F",
    "-i",
    "-fi",
    "--noreport",
    "--dirsfirst",
    "-ug",
    "--inodes",
    "-psugD",
    "-Q",
    "-r",
    "-N dir",
    "-P *.c",
    "-I dir",
    "-U dir/sub/deep",
    "dir",
    "dir/",
    "dir odd",
    "nowhere",
    "small",
    "small dir",
    "-d dir",
    "-J dir/sub",
    "-J -ps dir/sub",
    "-J dir dir/sub",
    "empty-dir",
    "-t dir",
    "-v dir",
    "link-dir",
];

#[test]
fn trees() {
    if has("tree") {
        Specimen::new().compare("tree", TREES, &[]);
    }
}

#[test]
fn trees_in_utf8() {
    if has("tree") {
        Specimen::new().compare("tree", &["dir", "-a .dot-dir"], &[("LC_ALL", "C.UTF-8")]);
    }
}

#[test]
fn json_is_json() {
    let said = Specimen::new().ours(&["tree", "-J", "-ps", "."]);
    let value: serde_json::Value = serde_json::from_str(&said.out).expect(&said.out);
    let report = &value[1];
    assert_eq!(report["type"], "report");
    assert!(report["directories"].as_u64() > Some(5) && report["files"].as_u64() > Some(20), "{report}");
}
