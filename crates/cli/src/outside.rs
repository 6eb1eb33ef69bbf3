// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver and the layer of docs/GUIDE.md in the program: one line in each list is all that they take outside of this file. The
//! tests run this test program as outrigger.

use crate::cli::Cli;
use clap::Parser;
use outrigger_core::ops::{GetAttr, Lookup, Read, ReadDir};
use outrigger_core::registry::{DriverInfo, Lasts, LayerInfo, Made, Scheme};
use outrigger_core::reply::{Attrs, Data, Dirent, Dirents, Entry, Ttl};
use outrigger_core::{
    Abilities, Answer, Attr, BlockingDriver, Cx, Errno, FileKind, Generation, Identity, Inline, Layer, Name,
    Node, OpCode, OpSet, Place, Prompt, Request, Result, Service, Traverse, Visit,
};
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

pub const DRIVER: DriverInfo = DriverInfo {
    name: "notes",
    opens: "notes that are compiled into the program",
    location: "notes:[PATH]",
    schemes: &[Scheme {
        name: "notes",
        authority: false,
        lasts: Lasts::Stored,
        open: |_, _, site| {
            let notes = Notes(vec![(Name::try_from("hello")?, b"Hello, world!\n".to_vec())]);
            Ok(Arc::new(Inline::new(notes, Arc::clone(site.runtime))))
        },
    }],
    ..DriverInfo::NONE
};

pub const LAYER: LayerInfo = LayerInfo {
    name: "shout",
    argument: "",
    does: "asks for every name in lower case",
    options: &[],
    make: |_argument, _site| Ok(Made::layer(Shout)),
};

/// Files that never change. Node 1 is the root, node 2 the first file.
pub struct Notes(Vec<(Name, Vec<u8>)>);

impl Notes {
    fn content(&self, node: Node) -> Result<&[u8]> {
        let file = usize::try_from(node.0).ok().and_then(|number| self.0.get(number.checked_sub(2)?));
        Ok(&file.ok_or(Errno::ESTALE)?.1)
    }

    fn attr(&self, node: Node) -> Result<Attr> {
        let ino = node.0;
        if node == Node::ROOT {
            return Ok(Attr { ino, mode: FileKind::Directory.bits() | 0o555, nlink: 2, ..Attr::default() });
        }
        let size = self.content(node)?.len() as u64;
        Ok(Attr { ino, size, mode: FileKind::Regular.bits() | 0o444, nlink: 1, ..Attr::default() })
    }
}

impl BlockingDriver for Notes {
    fn abilities(&self) -> Abilities {
        let ops = OpSet::of(&[OpCode::Lookup, OpCode::GetAttr, OpCode::ReadDir, OpCode::Read]);
        let identity = Identity::Persistent;
        let plain = Abilities::new("notes", "notes:", ops);
        Abilities { identity, read_only: true, stateless_files: true, stateless_dirs: true, ..plain }
    }

    fn lookup(&self, _: &Cx, Lookup { dir, name }: Lookup) -> Result<Entry> {
        let place =
            self.0.iter().position(|(own, _)| dir == Node::ROOT && *own == name).ok_or(Errno::ENOENT)?;
        let node = Node(place as u64 + 2);
        let (attr, ttl) = (self.attr(node)?, Ttl::FOREVER);
        Ok(Entry { node, generation: Generation(0), attr, entry_ttl: ttl, attr_ttl: ttl })
    }

    fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        Ok(Attrs { attr: self.attr(op.node)?, ttl: Ttl::FOREVER })
    }

    fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        if op.node != Node::ROOT {
            return Err(Errno::ENOTDIR.into());
        }
        let rest = self.0.iter().enumerate().skip(op.cookie as usize);
        let dirent = |(place, (name, _)): (usize, &(Name, Vec<u8>))| {
            let (ino, cookie, kind) = (place as u64 + 2, place as u64 + 1, Some(FileKind::Regular));
            Dirent { ino, cookie, kind, name: name.clone() }
        };
        Ok(Dirents { entries: rest.map(dirent).collect(), eof: true })
    }

    fn read(&self, _: &Cx, op: Read) -> Result<Data> {
        let rest = self.content(op.node)?.get(op.offset as usize..).unwrap_or_default();
        Ok(rest[..rest.len().min(op.len as usize)].to_vec().into())
    }
}

impl Prompt for Notes {}

/// Asks for every name in lower case.
struct Shout;

impl Visit for Shout {
    fn name(&mut self, name: &mut Name) {
        *name = Name::new(name.to_ascii_lowercase()).unwrap_or_else(|_| name.clone());
    }
}

impl Layer for Shout {
    fn place(&self) -> Place {
        Place::anywhere("shout")
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        request.traverse(&mut Shout);
        next.call(cx, request)
    }
}

/// The words of the command line that [`program`] runs, one a line.
const WORDS: &str = "OUTRIGGER_TEST_WORDS";

/// Runs the command line in the environment; without one there is nothing to do.
#[test]
fn program() -> ExitCode {
    let Ok(words) = env::var(WORDS) else { return ExitCode::SUCCESS };
    match Cli::try_parse_from(["outrigger"].into_iter().chain(words.lines())) {
        Ok(cli) => crate::run(cli),
        Err(error) => panic!("{error}"),
    }
}

/// This test program as outrigger.
fn outrigger(words: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["outside::program", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(WORDS, words.join("\n"));
    command
}

/// What a command prints, which succeeds.
fn said(words: &[&str]) -> String {
    let Output { status, stdout, stderr } = outrigger(words).output().expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{words:?}: {out}{err}");
    out.into_owned()
}

#[test]
fn commands_know_a_driver_by_one_line_in_the_list() {
    for (words, expected) in [
        (&["ls", "notes:"][..], "hello\n"),
        (&["ls", "notes:/hello"], "notes:/hello\n"),
        (&["cat", "notes:hello"], "Hello, world!\n"),
        (&["find", "notes:", "-type", "f"], "notes:hello\n"),
        (&["df", "notes:/hello"], " notes:/hello\n"),
        (&["stat", "-c", "%s", "notes:/hello"], "14\n"),
        (
            &["drivers", "notes"],
            "notes: notes:[PATH]  (read only)\n  notes that are compiled into the program\n",
        ),
        (&["--layer", "shout", "cat", "notes:/HELLO"], "Hello, world!\n"),
        (&["drivers", "shout"], "--layer shout\n  asks for every name in lower case\n"),
    ] {
        let said = said(words);
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn the_manual_and_completion_know_them_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().to_str().expect("UTF-8");
    said(&["generate", "man", pages]);
    let page = fs::read_to_string(dir.path().join("outrigger-drivers.7")).expect("the page");
    for expected in [".SS notes\nOpens notes that are compiled into the program.\n", ".SS shout\n"] {
        assert!(page.contains(expected), "{page}");
    }
    let names = |candidates: Vec<clap_complete::CompletionCandidate>| {
        let names = candidates.iter().map(|name| name.get_value().display().to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(crate::complete::values::drivers("no".as_ref())), ["notes"]);
    assert_eq!(names(crate::complete::values::layers("sh".as_ref())), ["shout"]);
    assert_eq!(names(crate::complete::values::locations("notes:he".as_ref())), ["notes:hello"]);
}

#[test]
fn it_is_mounted() {
    if fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("SKIPPED: /dev/fuse cannot be opened");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().to_str().expect("UTF-8");
    let mut server = outrigger(&["mount", "-f", "--no-guard", "notes:", at]).spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(30);
    let read = loop {
        match fs::read_to_string(dir.path().join("hello")) {
            Err(_) if Instant::now() < deadline && matches!(server.try_wait(), Ok(None)) => {
                thread::sleep(Duration::from_millis(10));
            }
            read => break read,
        }
    };
    let unmounted = outrigger(&["umount", at]).output();
    if !unmounted.is_ok_and(|output| output.status.success()) {
        let _ = server.kill();
    }
    let _ = server.wait();
    assert_eq!(read.ok().as_deref(), Some("Hello, world!\n"));
}
