// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion in the shells themselves, with what `outrigger generate completions` writes.

mod support;

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use support::Place;

/// Types into an interactive shell in a terminal: `SHELL INIT LINE EXPECTED`. Ends well when that appears.
const TYPE: &str = r#"
import os, pty, sys
shell, init, line, expected = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    words = shell.split()
    os.execvpe(words[0], words, dict(os.environ, TERM="dumb", PS1="READY"))
seen = b""
def wait(*texts):
    global seen
    for text in texts:
        while text not in seen:
            seen += os.read(terminal, 4096)
        seen = seen[seen.index(text) + len(text):]
wait(b"READY")
os.write(terminal, (init + "; echo BE''GUN\n").encode())
wait(b"BEGUN", b"READY")
os.write(terminal, line.encode())
print(f"waiting for {expected!r}", flush=True)
# zsh rings the bell before it goes on.
while expected.encode() not in seen.replace(b"\a", b""):
    seen += os.read(terminal, 4096)
    print(seen, flush=True)
"#;

/// A place with an archive in which `/etc` holds `a b`, and the completions of each shell.
fn place() -> Place {
    let place = Place::new();
    place.file("tree/etc/a b", "");
    place.file("tree/etc/hosts", "");
    place.run_as("tar", &["-C", "tree", "-cf", "a.tar", "etc"]).ok();
    place.run(&["generate", "completions", "c"]).ok();
    place
}

/// The directory of the program under test.
fn programs() -> String {
    Path::new(env!("CARGO_BIN_EXE_outrigger")).parent().unwrap().display().to_string()
}

fn typed(place: &Place, shell: &str, init: &str, line: &str, expected: &str) {
    let path = format!("PATH={}:{}", programs(), env::var("PATH").unwrap());
    let words = ["20", "env", &path, "python3", "-c", TYPE, shell, init, line, expected];
    let said = place.run_as("timeout", &words);
    assert_eq!(
        said.code,
        Some(0),
        "{shell}: {line:?} does not become {expected:?}: {}{}",
        said.out,
        said.err
    );
}

/// Lines with a tab, and how they have to look then.
const LINES: [(&str, &str); 6] = [
    ("outrigger umou\t", "outrigger umount "),
    ("outrigger ls a.tar::/e\t", "outrigger ls a.tar::/etc/"),
    ("outrigger cat a.tar::/etc/a\t", r"outrigger cat a.tar::/etc/a\ b "),
    ("outrigger stat null:fi\t", "outrigger stat null:file "),
    ("outrigger mount -o ro,gua\t", "outrigger mount -o ro,guard="),
    ("outrigger --layer fault=op=read,er\t", "outrigger --layer fault=op=read,error="),
];

#[test]
fn bash_completes_what_it_would_break_into_words() {
    let place = place();
    for (line, expected) in LINES {
        typed(&place, "bash --norc -i", ". c/outrigger.bash", line, expected);
    }
}

#[test]
fn zsh_completes_places_in_archives() {
    let place = place();
    let init = "fpath=(c $fpath); autoload -U compinit; compinit -D -u";
    for (line, expected) in LINES {
        typed(&place, "zsh -f -i", init, line, expected);
    }
}

#[test]
fn fish_completes_places_in_archives() {
    let place = place();
    for (line, expected) in LINES {
        let script = format!("source c/outrigger.fish; complete --do-complete '{}'", line.trim_end());
        let path = format!("PATH={}:{}", programs(), env::var("PATH").unwrap());
        let said = place.run_as("env", &[&path, "fish", "--no-config", "-c", &script]).ok();
        let last = expected.replace(r"\ b", " b");
        let last = last.trim_end();
        let word = last.trim_end_matches('/').rfind(['/', ' ']).map_or(last, |at| &last[at + 1..]);
        assert!(!word.is_empty() && said.contains(word), "{line:?} does not become {word:?}: {said}");
    }
}

#[test]
fn completion_asks_nobody_and_prints_no_control_characters() {
    let place = place();
    place.file("fine", "");
    place.file("fi\u{1b}]0;title\u{7}", "");
    place.file("fi\nve", "");
    place.file("fi\u{9b}31m", "");
    let complete = |line: &str, replaced: &str| {
        let program = env!("CARGO_BIN_EXE_outrigger");
        place.run_as("env", &["OUTRIGGER_COMPLETE=bash", program, "--", line, replaced])
    };
    assert_eq!(complete("outrigger ls fi", "fi").ok(), "files\nfine\n");
    let program = "outrigger --allow-programs ls fuse:touch\\ started::/";
    assert_eq!(complete(program, "/").out, "words\n");
    assert!(!place.at("started").exists(), "a program was started");
    let ssh = place.file("bin/ssh", "#!/bin/sh\necho \"$@\" >>asked\n");
    std::fs::set_permissions(ssh, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("PATH={}:/usr/bin:/bin", place.at("bin").display());
    let ask = |line: &str, replaced: &str| {
        let program = env!("CARGO_BIN_EXE_outrigger");
        place.run_as("env", &[&path, "OUTRIGGER_COMPLETE=bash", program, "--", line, replaced])
    };
    assert_eq!(ask("outrigger ls --", "--").code, Some(0));
    assert!(!place.at("asked").exists(), "ssh was started for an option");
    assert_eq!(ask("outrigger ls outrigger-test.invalid:", "").out, "words\n");
    let asked = std::fs::read_to_string(place.at("asked")).unwrap();
    assert!(asked.lines().all(|line| line.contains("BatchMode=yes")), "it asks for nothing: {asked}");
}
