// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a command of GNU coreutils and the one of the same name here, each in its own copy of the same directory, and
//! compares everything a user can see: output, messages, exit status, and the tree that is left.

use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What a command did.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    tree: String,
}

fn shell(dir: &Path, script: &str) -> std::process::Output {
    Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC0")
        .env("OUTRIGGER", env!("CARGO_BIN_EXE_outrigger"))
        .stdin(Stdio::null())
        .output()
        .expect("sh starts")
}

/// Everything about every file: kind, mode, links, owner, size unless it is a directory's, time unless it is of today,
/// link target, content, extended attributes.
const LIST: &str = r#"
now=$(date +%s)
find . -printf '%Ts|%y %m %n %U:%G |%s|%l|%p\n' | awk -F'|' -v OFS='|' -v now="$now" '
    NF >= 5 { if ($1 > now - 86400) $1 = "today"; if ($2 ~ /^d/) $3 = "-" } { print }' | sort -t'|' -k5
find . -type f -exec cksum {} + | sort -k3
getfattr -R -d -m - . 2>/dev/null
true
"#;

fn outcome(setup: &str, command: &str) -> Outcome {
    let dir = TempDir::new().expect("a temporary directory");
    let made = shell(dir.path(), &format!("set -e\numask 022\n{setup}"));
    assert!(made.status.success(), "the fixture failed: {}", String::from_utf8_lossy(&made.stderr));
    let output = shell(dir.path(), command);
    let tree = shell(dir.path(), LIST);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("outrigger ", "");
    let mut stdout = text(&output.stdout);
    // Of a directory's files each comes at its inode number, which the host chooses anew for each fixture.
    if command.contains(" -rv ") {
        stdout = sorted(&stdout);
    }
    Outcome { status: output.status.code(), stdout, stderr: text(&output.stderr), tree: text(&tree.stdout) }
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<_> = text.split_inclusive('\n').collect();
    lines.sort_unstable();
    lines.concat()
}

/// Whether our messages are GNU's, each with an optional reason after it.
fn same_messages(gnu: &str, ours: &str) -> bool {
    let (gnu, ours): (Vec<_>, Vec<_>) = (gnu.lines().collect(), ours.lines().collect());
    gnu.len() == ours.len() && gnu.iter().zip(&ours).all(|(gnu, ours)| ours.starts_with(gnu))
}

/// Runs each command line after `setup` both ways. The first word of a line, or the word after a `|`, is the command.
pub fn compare(setup: &str, lines: &[&str]) {
    let mut failures = String::new();
    for line in lines {
        let ours = match line.split_once("| ") {
            Some((before, after)) => format!("{before}| \"$OUTRIGGER\" {after}"),
            None => format!("\"$OUTRIGGER\" {line}"),
        };
        let (gnu, ours) = (outcome(setup, line), outcome(setup, &ours));
        let same = (gnu.status, &gnu.stdout, &gnu.tree) == (ours.status, &ours.stdout, &ours.tree);
        if !same || !same_messages(&gnu.stderr, &ours.stderr) {
            failures.push_str(&format!("\n$ {line}\n{}", difference(&gnu, &ours)));
        }
    }
    assert!(failures.is_empty(), "not as GNU has it:{failures}");
}

fn difference(gnu: &Outcome, ours: &Outcome) -> String {
    let mut text = String::new();
    if gnu.status != ours.status {
        text.push_str(&format!("  status: GNU {:?}, ours {:?}\n", gnu.status, ours.status));
    }
    for (what, gnu, ours) in [
        ("stdout", &gnu.stdout, &ours.stdout),
        ("stderr", &gnu.stderr, &ours.stderr),
        ("tree", &gnu.tree, &ours.tree),
    ] {
        for line in gnu.lines().filter(|line| !ours.lines().any(|other| other == *line)) {
            text.push_str(&format!("  {what}: GNU  {line}\n"));
        }
        for line in ours.lines().filter(|line| !gnu.lines().any(|other| other == *line)) {
            text.push_str(&format!("  {what}: ours {line}\n"));
        }
        if what == "stdout" && gnu != ours && text.is_empty() {
            text.push_str(&format!("  {what}: GNU  {gnu:?}\n  {what}: ours {ours:?}\n"));
        }
    }
    text
}
