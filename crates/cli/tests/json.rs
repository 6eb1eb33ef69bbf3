// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--json`: every object that a command prints is as docs/JSON.md says.

mod support;

use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::sync::mpsc;
use std::thread;
use support::{Place, can_mount, can_serve, has, within};

const DOCUMENT: &str = include_str!("../../../docs/JSON.md");

/// The fields of each kind of object, by name, with their types.
fn documented() -> HashMap<&'static str, HashMap<&'static str, &'static str>> {
    let mut kinds: HashMap<_, HashMap<_, _>> = HashMap::new();
    let mut kind = "";
    for line in DOCUMENT.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            kind = heading;
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if let [_, field, of_type, _, _] = cells[..]
            && let Some(field) = field.strip_prefix('`').and_then(|field| field.strip_suffix('`'))
        {
            kinds.entry(kind).or_default().insert(field, of_type);
        }
    }
    kinds
}

/// Whether the field at `path` may have this value.
fn fits(fields: &HashMap<&str, &str>, path: &str, value: &Value) -> bool {
    let last = path.rsplit('.').next().unwrap_or(path);
    let of_volume = path.contains("volume.").then(|| fields.get(&*format!("*.{last}"))).flatten();
    let Some(of_type) = fields.get(path).or(of_volume) else { return false };
    let name = match value {
        Value::Null => return of_type.ends_with('?'),
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    of_type.trim_end_matches('?') == name
}

fn check_object(fields: &HashMap<&str, &str>, above: &str, object: &Value, said: &str) {
    for (name, value) in object.as_object().expect(said) {
        let path = format!("{above}{name}");
        assert!(fits(fields, &path, value), "{path} is not as documented: {said}");
        match value {
            Value::Object(_) if path != "args" => check_object(fields, &format!("{path}."), value, said),
            Value::Array(list) => {
                for item in list.iter().filter(|item| item.is_object()) {
                    check_object(fields, &format!("{path}[]."), item, said);
                }
            }
            _ => {}
        }
    }
    let needed = fields.iter().filter(|(path, of_type)| {
        let inner = path.strip_prefix(above).is_some_and(|rest| !rest.contains(['.', '[']));
        inner && !of_type.ends_with('?')
    });
    for (path, _) in needed {
        let name = &path[above.len()..];
        assert!(object.get(name).is_some(), "{path} is missing: {said}");
    }
}

/// All lines are objects of this kind, and there is one.
fn check(kind: &str, lines: &str) {
    let kinds = documented();
    assert!(!lines.is_empty(), "no {kind}");
    for line in lines.lines() {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        check_object(&kinds[kind], "", &object, line);
    }
}

#[test]
fn results_are_as_documented() {
    let place = Place::new();
    for (file, content) in [("a/f", "1"), ("a/only", ""), ("b/f", "2"), ("b/same", ""), ("a/same", "")] {
        place.file(file, content);
    }
    symlink("f", place.at("a/link")).unwrap();
    symlink("g", place.at("b/link")).unwrap();
    for (kind, words) in [
        ("File", &["ls", "-R", "a"][..]),
        ("File", &["ls", "-d", "/dev/null"]),
        ("File", &["stat", "a/f", "a/link"]),
        ("File", &["find", "a"]),
        ("File", &["tree", "a"]),
        ("Space", &["df", "--total", "a"]),
        ("Space", &["stat", "-f", "a", "mem:"]),
        ("Count", &["du", "-a", "a"]),
        ("Count", &["du", "--inodes", "a"]),
        ("Count", &["du", "--time", "a"]),
        ("Link", &["readlink", "a/link"]),
        ("Difference", &["diff", "-rs", "--no-dereference", "a", "b"]),
        ("Transfer", &["cp", "-rv", "a", "c"]),
        ("Transfer", &["mv", "-v", "c", "d"]),
        ("Message", &["rm", "-rv", "d"]),
        ("Message", &["mkdir", "-v", "e"]),
        ("Message", &["chmod", "-v", "700", "e"]),
        ("Kind of tree", &["drivers"]),
        ("Check", &["doctor"]),
    ] {
        let words: Vec<_> = ["--json"].iter().chain(words).copied().collect();
        check(kind, &place.run(&words).out);
    }
}

#[test]
fn what_goes_wrong_is_an_object_on_standard_error() {
    let place = Place::new();
    place.file("f", "");
    for words in [
        &["ls", "nothing"][..],
        &["cat", "nothing"],
        &["cp", "nothing", "f", "f"],
        &["rm", "nothing"],
        &["find", "nothing"],
        &["df", "nothing"],
        &["mount", "nothing", "m"],
        &["umount", "nothing"],
        &["inspect", "nothing"],
        &["ls", "f::/\x1b[31m"],
        &["du", "a\u{9b}"],
    ] {
        let words: Vec<_> = ["--json"].iter().chain(words).copied().collect();
        let said = place.run(&words);
        assert_ne!(said.code, Some(0), "{words:?}");
        check("Message", &said.err);
        assert!(said.out.is_empty(), "{said:?}");
        assert!(!said.err.trim_end().contains(char::is_control), "{:?} controls terminals", said.err);
    }
}

#[test]
fn disks_are_as_documented() {
    if !can_serve() || !has("mkfs.ext4") || !has("sfdisk") {
        return;
    }
    let place = Place::new();
    for (image, table) in [("gpt", "gpt"), ("mbr", "dos")] {
        let table = format!("printf 'label: {table}\\n,10M\\n,\\n' | sfdisk -q {image}");
        let script =
            format!("truncate -s 64M {image} && {table} && mkfs.ext4 -q -F -E offset=1048576 {image} 10M");
        place.run_as("sh", &["-c", &script]).ok();
        check("Disk", &place.run(&["--json", "inspect", image]).ok());
    }
    place.run_as("sh", &["-c", "truncate -s 16M plain && mkfs.ext4 -q -L name plain"]).ok();
    check("Disk", &place.run(&["--json", "inspect", "plain"]).ok());
}

#[test]
fn mounts_and_their_requests_are_as_documented() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("src/f", "1");
    place.run(&["mount", "src", "m"]).ok();
    let mut tracer = place.spawn(&["--json", "trace", "m"]);
    let (sender, requests) = mpsc::channel();
    let lines = BufReader::new(tracer.stdout.take().unwrap()).lines();
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let (mut asked, mut request) = (0, None);
    within("a request is traced", || {
        asked += 1;
        // A name never asked for before, so that the kernel has to ask the mount.
        let _ = std::fs::metadata(place.at(&format!("m/none-{asked}")));
        request = requests.try_iter().find(|line: &String| line.contains("ENOENT"));
        request.is_some()
    });
    check("Request", &request.unwrap());
    check("Mount", &place.run(&["--json", "status", "m"]).ok());
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    place.run(&["umount", "m"]).ok();
}

#[test]
fn changes_that_are_kept_apart_and_audits_are_as_documented() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("tree/f", "1");
    place.file("tree/g", "1");
    let script = "echo 2 >tree/f; rm tree/g; mkdir tree/g; echo x >tree/$(printf 'odd\\377')";
    place.run(&["run", "--cow=kept", "--audit=audit", "sh", "-c", script]).ok();
    check("Request", &std::fs::read_to_string(place.at("audit")).unwrap());
    check("Change", &place.run(&["--json", "diff", "kept"]).out);
    check("Change", &place.run(&["--json", "commit", "kept"]).ok());
    check("Message", &place.run(&["--json", "commit", "kept"]).err);
}

#[test]
fn a_command_line_that_cannot_be_understood_is_an_object_too() {
    let place = Place::new();
    for (words, command, part) in [
        (&["--json", "ls", "--no-such-option"][..], "ls", "--no-such-option"),
        (&["mount", "--json", "here"], "mount", "DIR"),
        (&["--json", "no-such-command"], "outrigger", "no-such-command"),
        (&["--json", "fuse.outrigger:/x"], "outrigger", "is no command"),
    ] {
        let said = place.run(words);
        assert_eq!((said.code, &*said.out, said.err.lines().count()), (Some(2), "", 1), "{said:?}");
        let object: Value = serde_json::from_str(&said.err).expect(&said.err);
        let error = object["error"].as_str().expect(&said.err);
        assert_eq!(object["command"].as_str(), Some(command), "{said:?}");
        assert!(error.contains(part) && !error.contains("Usage:"), "{error}");
        check("Message", &said.err);
    }
    let said = place.run(&["ls", "--no-such-option", "--", "--json"]);
    assert!(said.err.contains("Usage:"), "{said:?}");
}
