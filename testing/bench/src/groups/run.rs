// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is run with trees in its file system: what its system calls and a build cost, beside the program alone and other ways
//! to give it another file system.

use super::Bench;
use super::relay::{BUILD, program};
use crate::compare::{Sampler, in_turns, in_turns_cold};
use crate::programs::seconds;
use crate::scratch::Ground;
use crate::table::{Goal, Row, Table, Unit};
use anyhow::{Context, Result};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const NATIVE: &str = "native";
const RUN: &str = "outrigger run";
const SECCOMP: &str = "run --via seccomp";
const PTRACE: &str = "run --via ptrace";
/// All local files are in the tree.
const COW: &str = "run --cow";
/// It stops a program at each call: a build would take it minutes.
const STRACE: &str = "strace";
/// Where the tree stands for the program.
const PREFIX: &str = "/outrigger-bench";
/// System calls of one sample.
const CALLS: usize = 200_000;
/// The five stages of the Andrew benchmark (Howard et al., *Scale and Performance in a Distributed File System*, 1988), five times in
/// `$2`: directories are made, `$1` is unpacked to them, all files are looked at, all are read, and a part is compiled.
const ANDREW: &str = r#"
set -e
cd "$2"; mkdir andrew; cd andrew
for n in 1 2 3 4 5; do
    mkdir -p "$n/a/b/c" "$n/d"; tar xf "$1" -C "$n/a/b/c"; cp -r "$n/a" "$n/d/"
    ls -lR "$n" >/dev/null; find "$n" -newer "$1" -type f >/dev/null; du -s "$n" >/dev/null
    grep -r no-such-word "$n" || true
    cc -c -o "$n/part.o" "$n/a/b/c/part0.c"
done
cd ..; rm -r andrew
"#;
/// What is read much and changed little: `$1` is a repository in `$2` from the second time on.
const SEARCH: &str = r#"
set -e
cd "$2"
if ! [ -d search ]; then
    mkdir search; cd search; tar xf "$1"; git init -q .; git add .
    git -c user.name=Someone -c user.email=someone@example.org commit -qm all; cd ..
fi
cd search
for n in $(seq 30); do git status --porcelain; grep -r no-such-word . || true; done
"#;

/// A way to run a program: the words before those of the program.
struct Way {
    name: &'static str,
    words: Vec<OsString>,
}

impl Way {
    fn is_peer(&self) -> bool {
        ![NATIVE, RUN, SECCOMP, PTRACE, COW].contains(&self.name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut words = self.words.iter().map(OsString::as_os_str).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or(OsStr::new("false")));
        command.args(words);
        command
    }
}

/// Measures the group.
///
/// # Errors
/// When the programs cannot be compiled or run.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::ext4(&bench.scratch, "run", 2 << 30, 100_000)?;
    let tree = ground.dir().join("tree-shown");
    fs::create_dir(&tree)?;
    fs::write(tree.join("file"), "content\n")?;
    let archive = program(bench, ground.dir())?;
    let calls =
        bench.peers.calls.as_deref().context("the program that makes system calls was not compiled")?;
    let ways = ways(bench, &tree, ground.dir());
    let local = tree.join("file");
    let on = |what, call, path: &Path, ways: &[&Way]| row(bench, what, (calls, call), path, ways);
    let all: Vec<&Way> = ways.iter().collect();
    let fast: Vec<&Way> = ways.iter().filter(|way| way.name != STRACE).collect();
    let ours: Vec<&Way> = ways.iter().filter(|way| !way.is_peer() && way.name != COW).collect();
    let goal = |factor| Goal::Below { subject: RUN, factor, than: NATIVE };
    let shown = Path::new(PREFIX).join("file");
    let rows = vec![
        on("getppid", "getppid", &local, &all)?.goal(goal(1.1)),
        on("stat of a local file", "stat", &local, &all)?.goal(goal(1.1)),
        on("open and close of a local file", "open", &local, &all)?.goal(goal(1.1)),
        compared(bench, "stat in a tree, and of a local file", calls, "stat", (&local, &shown), &ours)?
            .goal(goal(2.0)),
        compared(
            bench,
            "open and close in a tree, and of a local file",
            calls,
            "open",
            (&local, &shown),
            &ours,
        )?
        .goal(goal(2.0)),
        script(bench, "untar, configure, compile, delete", (BUILD, &archive), ground.dir(), &fast)?
            .goal(goal(1.03)),
        script(bench, "git status, grep -r", (SEARCH, &archive), ground.dir(), &fast)?.goal(goal(1.05)),
        script(bench, "Andrew", (ANDREW, &archive), ground.dir(), &fast)?.goal(goal(1.33)),
        on("Iostone, each file", "iostone", &tree, &all)?.goal(goal(8.0)),
        compared(
            bench,
            "Iostone in a tree, and locally",
            calls,
            "iostone",
            (&tree, Path::new(PREFIX)),
            &ours,
        )?,
    ];
    Ok(vec![Table { name: "run", title: "a program with a tree in its file system".to_owned(), rows }])
}

/// All ways there are here.
fn ways(bench: &Bench, tree: &Path, ground: &Path) -> Vec<Way> {
    let mut map = OsString::from(format!("{PREFIX}="));
    map.push(tree);
    let words = |words: &[&OsStr]| words.iter().map(|&word| word.to_owned()).collect();
    let ours = |via: &str| {
        let options = ["run", "--via", via, "--no-hosts", "--mounts", "/dev/null", "--map"].map(OsStr::new);
        words(&[&[bench.outrigger.as_os_str()][..], &options, &[&map]].concat())
    };
    let mut overlay = OsString::from("--cow=");
    overlay.push(ground.join("overlay"));
    let cow = ["run".as_ref(), overlay.as_os_str(), "--no-hosts".as_ref()];
    let cow = words(&[&[bench.outrigger.as_os_str()][..], &cow].concat());
    let mut ways = vec![
        Way { name: NATIVE, words: Vec::new() },
        Way { name: RUN, words: ours("namespace") },
        Way { name: SECCOMP, words: ours("seccomp") },
        Way { name: PTRACE, words: ours("ptrace") },
        Way { name: COW, words: cow },
    ];
    let peers = &bench.peers;
    for (name, program, options) in [
        ("bwrap", &peers.bwrap, &["--dev-bind", "/", "/"][..]),
        ("proot", &peers.proot, &[]),
        ("fakechroot", &peers.fakechroot, &[]),
        (STRACE, &peers.strace, &["-f", "-o", "/dev/null"]),
    ] {
        if let Some(program) = program {
            let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
            ways.push(Way { name, words: words(&[&[program.as_os_str()][..], &options].concat()) });
        }
    }
    ways
}

/// What a system call takes, each way.
fn row(bench: &Bench, what: &str, (calls, call): (&Path, &str), path: &Path, ways: &[&Way]) -> Result<Row> {
    let samplers = ways.iter().map(|way| (way.name, sampler(bench, way, (calls, call), path))).collect();
    in_turns(what, Unit::Microseconds, bench.effort.rounds, samplers)
}

/// What a system call takes on a local file for the program alone, and on a file of a tree for one that is run.
fn compared(
    bench: &Bench,
    what: &str,
    calls: &Path,
    call: &str,
    (local, shown): (&Path, &Path),
    ways: &[&Way],
) -> Result<Row> {
    let path = |way: &Way| if [RUN, SECCOMP, PTRACE].contains(&way.name) { shown } else { local };
    let samplers = ways.iter().map(|way| (way.name, sampler(bench, way, (calls, call), path(way)))).collect();
    in_turns(what, Unit::Microseconds, bench.effort.rounds, samplers)
}

fn sampler<'a>(bench: &Bench, way: &Way, (calls, call): (&Path, &str), path: &Path) -> Sampler<'a> {
    // A tree takes a hundred times as long to open a file as the kernel, and so does what stops the program at each call.
    let in_tree = path.starts_with(PREFIX);
    let count = bench.scaled(match (way.name, call) {
        (STRACE | PTRACE, "iostone") => CALLS / 100,
        (_, "iostone") if in_tree => CALLS / 100,
        (COW, "iostone") => CALLS / 100,
        (_, "iostone") => CALLS / 5,
        (STRACE | SECCOMP | PTRACE | COW, _) => CALLS / 20,
        (_, "open") if in_tree => CALLS / 20,
        _ => CALLS,
    });
    let mut command = way.command(calls);
    command.arg(call).arg(count.to_string()).arg(path);
    Box::new(move || {
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let micros = text.parse().with_context(|| {
            format!("{command:?}: '{text}' {}", String::from_utf8_lossy(&output.stderr).trim_end())
        });
        micros.map(Some)
    })
}

/// Runs a script with an archive and a directory, each way in a directory of its own.
fn script(
    bench: &Bench,
    what: &str,
    (script, archive): (&str, &Path),
    ground: &Path,
    ways: &[&Way],
) -> Result<Row> {
    let samplers = ways.iter().map(|way| {
        let own: PathBuf = ground.join(format!("own-{}", way.name.replace(' ', "-")));
        let mut command = way.command(Path::new("sh"));
        command.args(["-c", script, "sh"]).args([archive, &own]);
        let is_peer = way.is_peer();
        let sampler = move || {
            fs::create_dir_all(&own)?;
            match seconds(&mut command) {
                // Others may not be able to run it.
                Err(error) if is_peer => {
                    eprintln!("LEFT OUT: {error:#}");
                    Ok(None)
                }
                taken => taken.map(Some),
            }
        };
        (way.name, Box::new(sampler) as Sampler<'_>)
    });
    in_turns_cold(what, Unit::Seconds, bench.effort.rounds.min(5), samplers.collect())
}
