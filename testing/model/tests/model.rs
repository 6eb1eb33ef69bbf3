// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model against a native directory, which shows that the model is right, against services and against mounts.

use outrigger_conformance::mount::{Mounted, obstacle};
use outrigger_conformance::{Direct, HostDir, Kind};
use outrigger_core::ops::RenameFlags;
use outrigger_core::{Abilities, Answer, Cx, Inline, Notify, Reply, Request, Service};
use outrigger_driver_mem::{Mem, Options};
use outrigger_model::{Op, check, explore};
use outrigger_remote::{HOST, Sshd};
use outrigger_runtime::Threads;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn mem() -> Arc<dyn Service> {
    let threads = Arc::new(Threads::new());
    Arc::new(Inline::new(Mem::new(Options::default(), threads.clone()), threads))
}

/// Runs lists in new directories below `root`.
fn explore_directory(root: &Path, kind: Kind, cases: u32) {
    explore(cases, 50, |list| {
        let dir = tempfile::tempdir_in(root).map_err(|error| error.to_string())?;
        let subject = HostDir::new(dir.path(), kind).map_err(|errno| format!("{errno:?}"))?;
        check(&subject, list)
    });
}

#[test]
fn a_native_directory_agrees() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    explore_directory(dir.path(), Kind::Native, 60);
}

#[test]
fn memory_agrees() {
    explore(400, 80, |list| check(&Direct::new(mem()), list));
}

fn explore_mount(location: &str, options: &str) {
    if let Some(reason) = obstacle() {
        return println!("SKIPPED: {reason}");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mounted = Mounted::new(location, dir.path(), options, Duration::from_secs(300)).expect("the mount");
    explore_directory(mounted.dir(), Kind::Fuse, 40);
}

#[test]
fn a_mount_of_memory_agrees() {
    explore_mount("mem:", "");
}

#[test]
fn a_mount_of_memory_with_writeback_agrees() {
    explore_mount("mem:", ",writeback_cache");
}

#[test]
fn a_mount_of_a_directory_agrees() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = dir.path().join("source");
    fs::create_dir(&source).expect("a directory");
    explore_mount(source.to_str().expect("UTF-8"), "");
}

/// Whether the file transfer protocol of SSH has this operation.
fn is_of_sftp(op: &Op) -> bool {
    match op {
        Op::MkFifo(_) | Op::Fallocate(..) => false,
        Op::SetXattr(..) | Op::GetXattr(..) | Op::RemoveXattr(..) => false,
        Op::Rename(.., flags) => !flags.contains(RenameFlags::EXCHANGE),
        _ => true,
    }
}

#[test]
fn a_mount_of_another_host_agrees() {
    let missing = Sshd::missing().map(|name| format!("there is no {name}"));
    if let Some(reason) = obstacle().or(missing) {
        return println!("SKIPPED: {reason}");
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let [far, keys, mountpoint] = ["far", "sshd", "m"].map(|name| scratch.path().join(name));
    [&far, &keys, &mountpoint].into_iter().for_each(|dir| fs::create_dir(dir).expect("a directory"));
    let sshd = Sshd::start(keys).expect("a server");
    let options = format!(",F={}", sshd.configuration().display());
    let location = format!("{HOST}:{}", far.display());
    let mounted =
        Mounted::new(&location, &mountpoint, &options, Duration::from_secs(300)).expect("the mount");
    explore(12, 50, |list| {
        let list: Vec<Op> = list.iter().filter(|op| is_of_sftp(op)).cloned().collect();
        let dir = tempfile::tempdir_in(mounted.dir()).map_err(|error| error.to_string())?;
        let subject = HostDir::new(dir.path(), Kind::Fuse).map_err(|errno| format!("{errno:?}"))?;
        check(&subject, &list)
    });
}

/// A tree whose driver forgets what it should do now and then.
struct Forgetful(Arc<dyn Service>);

impl Service for Forgetful {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        match request {
            Request::Fallocate(_) => Answer::Ready(Reply::Done(())),
            other => self.0.call(cx, other),
        }
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

#[test]
#[should_panic(expected = "the shortest list that fails")]
fn a_defect_is_found_and_its_list_shortened() {
    explore(200, 80, |list| check(&Direct::new(Arc::new(Forgetful(mem()))), list));
}
