// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `fault` on mounts: rules that change while programs use them, and what disks do when they lie or lose power.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use support::{Place, can_mount, within};

fn status(place: &Place) -> Value {
    serde_json::from_str(&place.run(&["status", "m", "--json"]).ok()).unwrap()
}

#[test]
fn rules_change_while_the_mount_is_used_and_survive_its_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "--layer", "fault", "mem:", "m"]).ok();
    place.file("m/before", "x");
    place.run(&["fault", "m", "op=create,path=*.db,error=ENOSPC", "op=mkdir,error=EROFS,times=1"]).ok();
    let refused = File::create(place.at("m/a.db")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc_enospc()));
    place.file("m/a.txt", "x");

    let server = status(&place)["pid"].as_i64().unwrap() as i32;
    kill_process(Pid::from_raw(server).unwrap(), Signal::KILL).unwrap();
    within("another server", || fs::read(place.at("m/before")).is_ok() && status(&place)["pid"] != server);
    assert!(File::create(place.at("m/b.db")).is_err(), "the next server obeys the same rules");
    let said = place.run(&["fault", "m"]).ok();
    assert_eq!(
        said,
        "op=create,path=*.db,error=ENOSPC: matched 2, acted on 2\nop=mkdir,error=EROFS,times=1: matched 0, acted on 0\n"
    );

    let bad = place.run(&["fault", "m", "op=creat,error=EIO"]);
    assert!(bad.code == Some(1) && bad.err.contains("no operation \"creat\""), "{}", bad.err);
    assert!(File::create(place.at("m/c.db")).is_err(), "a bad rule changes nothing");
    place.run(&["fault", "m", "--clear"]).ok();
    place.file("m/c.db", "x");
    assert_eq!(place.run(&["fault", "m"]).ok(), "");
    place.run(&["umount", "m"]).ok();

    place.run(&["mount", "mem:", "m"]).ok();
    let none = place.run(&["fault", "m", "--clear"]);
    assert!(none.code == Some(1) && none.err.contains("--layer fault"), "{}", none.err);
    place.run(&["umount", "m"]).ok();
}

fn libc_enospc() -> i32 {
    rustix::io::Errno::NOSPC.raw_os_error()
}

#[test]
fn a_power_cut_takes_what_was_not_synchronised() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/old", "0123456789");
    place.file("src/other", "as it was");
    place.run(&["mount", "--layer", "fault=op=mkdir,path=cut,cut", "src", "m"]).ok();
    let old = OpenOptions::new().write(true).open(place.at("m/old")).unwrap();
    old.write_all_at(b"AB", 2).unwrap();
    old.sync_all().unwrap();
    old.write_all_at(b"lost", 8).unwrap();
    fs::write(place.at("m/other"), "replaced and not synchronised").unwrap();
    let mut new = File::create(place.at("m/new")).unwrap();
    new.write_all(b"also lost").unwrap();
    let mut kept = File::create(place.at("m/kept")).unwrap();
    kept.write_all(b"kept").unwrap();
    kept.sync_data().unwrap();

    let cut = fs::create_dir(place.at("m/cut")).unwrap_err();
    assert_eq!(cut.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert!(fs::create_dir(place.at("m/after")).is_err(), "nothing works without power");
    let content = |name: &str| fs::read_to_string(place.at("src").join(name)).unwrap();
    assert_eq!(
        (content("old"), content("other"), content("new"), content("kept")),
        ("01AB456789".into(), "as it was".into(), String::new(), "kept".into())
    );
    drop((old, new, kept));
    place.run(&["fault", "m", "--clear"]).ok();
    fs::create_dir(place.at("m/after")).unwrap();
    place.run(&["umount", "m"]).ok();
}

#[test]
fn disks_lie() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "\0\0\0\0");
    place.file("src/g", "as it was");
    place.run(&["mount", "--layer", "fault=path=f,flip;path=g,lose", "src", "m"]).ok();
    let read = fs::read(place.at("m/f")).unwrap();
    assert_eq!(read.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1, "{read:?}");
    let lost = OpenOptions::new().write(true).open(place.at("m/g")).unwrap();
    lost.write_all_at(b"AS", 0).unwrap();
    lost.sync_all().unwrap();
    assert_eq!(fs::read(place.at("src/g")).unwrap(), b"as it was");
    drop(lost);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn layer_trace_prints_what_passes_where_it_stands() {
    let place = Place::new();
    place.file("src/f", "x");
    let said = place.run(&["--layer", "trace", "ls", "src"]);
    assert_eq!((said.code, &*said.out), (Some(0), "f\n"));
    assert!(said.err.contains(" readdirplus ") || said.err.contains(" readdir "), "{}", said.err);
    let (trace, fault) = (["--layer", "trace=json"], ["--layer", "fault=op=opendir,error=EIO"]);
    for (layers, passes) in [([trace, fault], false), ([fault, trace], true)] {
        let said = place.run(&[&layers.concat()[..], &["ls", "src"]].concat());
        let lines = said.err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let traced: Vec<Value> = lines.filter(|line| line["op"].is_string()).collect();
        assert!(!traced.is_empty(), "{}", said.err);
        let seen = traced.iter().any(|line| line["op"] == "opendir");
        assert_eq!(seen, passes, "what is refused above does not pass: {}", said.err);
    }
    let refused = place.run(&["mount", "--layer", "trace", "src", "m"]);
    assert!(refused.code == Some(1) && refused.err.contains("--foreground"), "{}", refused.err);
}
