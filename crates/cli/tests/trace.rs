// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger trace` on running mounts.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use support::{Place, can_mount, is_running, kernel_code, mounted_ext4, signal, within};

/// A tracer whose first line has come, and its further lines.
///
/// One that starts before the mount has noticed the end of the tracer before it is refused, and tried again.
fn tracing(place: &Place, args: &[&str]) -> (Child, Receiver<String>) {
    let mut tracer = place.spawn(args);
    let mut lines = drained(&mut tracer);
    let mut asked = 0;
    within("a line has come", || {
        // A name never asked for before, so that the kernel has to ask the mount.
        let _ = fs::metadata(place.at(&format!("m/none-{}-{asked}", tracer.id())));
        asked += 1;
        if tracer.try_wait().unwrap().is_some() {
            tracer = place.spawn(args);
            lines = drained(&mut tracer);
        }
        lines.try_recv().is_ok()
    });
    (tracer, lines)
}

/// The lines of the tracer, read as they come: the mount drops lines for a tracer that does not read.
fn drained(tracer: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let lines = BufReader::new(tracer.stdout.take().unwrap()).lines();
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

#[test]
fn lines_come_as_programs_ask_and_one_tracer_at_a_time() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m"]).ok();
    for json in [false, true] {
        let args: &[&str] = if json { &["trace", "m", "--json"] } else { &["trace", "m"] };
        let (mut tracer, lines) = tracing(&place, args);
        let other = place.spawn(&["trace", "m"]).wait_with_output().unwrap();
        assert!(!other.status.success());
        assert!(String::from_utf8_lossy(&other.stderr).contains("another `outrigger trace` is attached"));
        fs::create_dir(place.at(&format!("m/new{json}"))).unwrap();
        let line = lines.iter().find(|line| line.contains("mkdir")).unwrap();
        assert!(line.contains(&format!("/new{json}")), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), json, "{line}");
        // A killed tracer does not sign off; the next one can trace nevertheless.
        tracer.kill().unwrap();
        tracer.wait().unwrap();
    }
    let (mut tracer, _lines) = tracing(&place, &["trace", "m"]);
    place.run(&["umount", "m"]).ok();
    tracer.wait().unwrap();
}

/// Ends the process of the kernel code; it sends and prints nothing after this returns.
fn end_kernel_code(place: &Place, name: &str) {
    let process = kernel_code(place);
    signal(process, name);
    within("the end of the kernel code", || !is_running(process));
}

/// The third death is the second one without an outside cause: after that the mount's own process serves.
#[test]
fn a_trace_goes_on_after_deaths_of_the_kernel_code_and_shows_each_message_once() {
    let Some(place) = mounted_ext4(&[]) else { return };
    let (mut tracer, lines) = tracing(&place, &["trace", "m"]);
    let mut seen = Vec::new();
    for (life, end) in ["KILL", "SEGV", "SEGV"].into_iter().enumerate() {
        end_kernel_code(&place, end);
        fs::create_dir(place.at(&format!("m/new{life}"))).unwrap();
        let of_this_life =
            |line: &String| line.contains(&format!("mkdir /new{life}")) && !line.ends_with("...");
        seen.extend(lines.iter().find(of_this_life));
        assert_eq!(seen.len(), life + 1, "{seen:?}");
    }
    place.run(&["umount", "m"]).ok();
    tracer.wait().unwrap();
    let again = lines.iter().find(|line| line.contains("mkdir"));
    assert_eq!(again, None, "{seen:?}");
}

/// How many sockets a process has open.
fn sockets(process: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.filter(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:")).count()
}

#[test]
fn a_tracer_that_hangs_up_after_a_death_of_the_kernel_code_is_let_go() {
    let Some(place) = mounted_ext4(&[]) else { return };
    let before = sockets(kernel_code(&place));
    let (mut tracer, _lines) = tracing(&place, &["trace", "m", "--json"]);
    end_kernel_code(&place, "KILL");
    fs::create_dir(place.at("m/traced")).unwrap();
    assert_eq!(sockets(kernel_code(&place)), before + 1);
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    within("nothing is printed any more", || sockets(kernel_code(&place)) == before);
    end_kernel_code(&place, "KILL");
    fs::create_dir(place.at("m/not-traced")).unwrap();
    assert_eq!(sockets(kernel_code(&place)), before);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_trace_shows_only_what_is_asked_for() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.run(&["mount", "mem:", "m"]).ok();
    for (condition, expected) in [
        (["--op", "lookup|rmdir"], &[" lookup ", " rmdir "][..]),
        (["--errors", "--op=any"], &[" = E"]),
        (["--path", "*[-]*"], &["-"]),
    ] {
        let (mut tracer, lines) = tracing(&place, &[&["trace", "m"], &condition[..]].concat());
        fs::create_dir(place.at("m/d")).unwrap();
        fs::write(place.at("m/d/f"), "x").unwrap();
        fs::remove_file(place.at("m/d/f")).unwrap();
        fs::remove_dir(place.at("m/d")).unwrap();
        // Every condition selects it, and the kernel has not asked for it before.
        assert!(fs::symlink_metadata(place.at(&format!("m/the-last-{}", tracer.id()))).is_err());
        let seen: Vec<String> = lines.iter().take_while(|line| !line.contains("/the-last")).collect();
        for line in &seen {
            assert!(expected.iter().any(|text| line.contains(text)), "{condition:?}: {line}");
        }
        tracer.kill().unwrap();
        tracer.wait().unwrap();
    }
    let wrong = place.run(&["trace", "m", "--op", "rmdri"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("no operation \"rmdri\""), "{}", wrong.err);
    place.run(&["umount", "m"]).ok();
}
