// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger trace` on running mounts.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use support::{Place, can_mount, within};

#[test]
fn lines_come_as_programs_ask_and_one_tracer_at_a_time() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m"]).ok();
    let mut asked = 0;
    for json in [false, true] {
        let mut tracer = place.spawn(if json { &["trace", "m", "--json"] } else { &["trace", "m"] });
        let mut lines = BufReader::new(tracer.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        // Only the one who traces keeps another from it.
        within("tracing has started", || {
            let mut other = place.spawn(&["trace", "m"]);
            let _ = fs::metadata(place.at(&format!("m/none{asked}")));
            asked += 1;
            let refused = other.try_wait().unwrap().is_some();
            let _ = other.kill();
            let output = other.wait_with_output().unwrap();
            refused && String::from_utf8_lossy(&output.stderr).contains("somebody traces this mount already")
        });
        fs::create_dir(place.at(&format!("m/new{json}"))).unwrap();
        let line = lines.find(|line| line.contains("mkdir")).unwrap();
        assert!(line.contains(&format!("/new{json}")), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), json, "{line}");
        // Killed, it can tell nobody; the next one can trace all the same.
        tracer.kill().unwrap();
        tracer.wait().unwrap();
    }
    let mut tracer = place.spawn(&["trace", "m"]);
    place.run(&["umount", "m"]).ok();
    tracer.wait().unwrap();
}
