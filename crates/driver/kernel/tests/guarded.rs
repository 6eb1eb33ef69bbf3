// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guarded images: nobody notices that workers die, and the image holds what was told.

use outrigger_conformance::{Direct, Target, block_on, run};
use outrigger_core::ops::{Create, FSync, MkDir, OpenFlags, SyncFs};
use outrigger_core::{
    Abilities, Answer, Credentials, Cx, Errno, Name, Node, Notify, Op, Request, Result, Service, ask,
};
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, Tree, WRITTEN, content, kind};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn open(image: &Image) -> Arc<Kernel> {
    open_held(image, Duration::ZERO)
}

/// The same, for a user who wants the tree to be held for so long.
fn open_held(image: &Image, hold: Duration) -> Arc<Kernel> {
    let options = Options { guard: true, hold, ..Options::default() };
    let kernel = Kernel::start(&image.path(), &options);
    Arc::new(kernel.unwrap_or_else(|error| panic!("{}: {error}", image.name())))
}

/// Kills the worker of a guarded image.
fn kill(kernel: &Kernel) {
    let pid = kernel.worker().and_then(|pid| Pid::from_raw(pid as i32)).expect("a guarded image");
    // It may have been killed before and nobody has noticed yet.
    let _ = kill_process(pid, Signal::KILL);
}

/// An image whose worker is killed at every so many requests: before them, or when they were just sent.
struct Mortal {
    kernel: Arc<Kernel>,
    every: u64,
    /// And before one of so many there is a checkpoint.
    checkpoints: u64,
    count: AtomicU64,
}

impl Service for Mortal {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        if count % self.checkpoints == 15 {
            call(&self.kernel, SyncFs { node: Node::ROOT }).expect("a checkpoint");
        }
        let (dies, when) = (count.is_multiple_of(self.every), count / self.every % 2);
        if dies && when == 0 {
            kill(&self.kernel);
        }
        let answer = self.kernel.call(cx, request);
        if dies && when == 1 {
            kill(&self.kernel);
        }
        answer
    }

    fn abilities(&self) -> Abilities {
        self.kernel.abilities()
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        self.kernel.attach(notify);
    }
}

/// Makes the tree with deaths, and looks at it afterwards, also by other means.
fn survives(name: &str, every: u64) {
    let Some(kind) = kind(name) else { return };
    let image = Image::new(kind);
    let kernel = open(&image);
    let (checkpoints, count) = (16, AtomicU64::new(0));
    let mortal = Arc::new(Mortal { kernel: Arc::clone(&kernel), every, checkpoints, count });
    Tree::new(&Direct::new(mortal.clone())).make();
    Tree::new(&Direct::new(mortal)).must_be_there();
    let history = kernel.history().expect("a guarded image");
    println!("{name}: {} deaths, felt for {:?}", history.deaths, history.recovery_times.iter().max());
    assert!(history.deaths > 0);
    kernel.unmount().expect("it unmounts");
    image.must_be_clean();
    let kernel = Arc::new(image.open());
    Tree::new(&Direct::new(kernel.clone())).must_be_there();
    kernel.unmount().expect("it unmounts");
}

/// The process that this one has started for the image at `path`.
fn worker_of(path: &Path) -> Option<i32> {
    let own = std::process::id();
    let children = std::fs::read_dir(format!("/proc/{own}/task")).expect("threads").flatten();
    let lists = children.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let pids: Vec<i32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    pids.into_iter()
        .find(|pid| std::fs::read_link(format!("/proc/{pid}/fd/0")).is_ok_and(|input| input == path))
}

fn make_directory(kernel: &Kernel, text: &str) -> Result<()> {
    let made = MkDir { dir: Node::ROOT, name: name(text), mode: 0o755, umask: 0, initial: None };
    call(kernel, made).map(drop)
}

/// Without a time to hold the tree, five starts that fail are the last ones.
#[test]
fn an_image_that_cannot_be_mounted_for_a_while_is_held_for_as_long_as_its_user_wants() {
    let Some(kind) = kind("ext4") else { return };
    for hold in [Duration::ZERO, Duration::from_secs(600)] {
        let image = Image::new(kind);
        let kernel = open_held(&image, hold);
        make_directory(&kernel, "first").expect("a directory");
        let path = std::fs::canonicalize(image.path()).expect("a path");
        let bytes = OpenOptions::new().read(true).write(true).open(&path).expect("the image");
        let mut superblock = [0; 4096];
        bytes.read_exact_at(&mut superblock, 0).expect("the superblock");
        bytes.write_all_at(&[0; 4096], 0).expect("no superblock");
        kill(&kernel);
        if hold.is_zero() {
            let error = make_directory(&kernel, "second").expect_err("the image cannot be mounted");
            assert_eq!(error.errno, Errno::EIO, "{error}");
            continue;
        }
        std::thread::scope(|scope| {
            let second = scope.spawn(|| make_directory(&kernel, "second"));
            let mut started = HashSet::new();
            while started.len() < 8 {
                started.extend(worker_of(&path));
            }
            bytes.write_all_at(&superblock, 0).expect("the superblock");
            second.join().expect("no panic").expect("another directory");
        });
        kernel.unmount().expect("it unmounts");
        image.must_be_clean();
    }
}

/// Workers that others kill before they serve say nothing about the image: there is another one as long as it takes.
#[test]
fn many_workers_in_a_row_that_are_killed_before_they_serve_are_not_the_end() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let kernel = open(&image);
    make_directory(&kernel, "0").expect("a directory");
    let path = std::fs::canonicalize(image.path()).expect("a path");
    let mut killed = Vec::new();
    while killed.len() < 12 {
        let Some(pid) = worker_of(&path).filter(|pid| !killed.contains(pid)) else { continue };
        let _ = kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL);
        killed.push(pid);
    }
    make_directory(&kernel, "1").expect("another directory");
    kernel.unmount().expect("it unmounts");
    image.must_be_clean();
}

/// A fault of the kernel code would count against the requests at work, and against the image.
#[test]
fn a_fault_that_another_process_sends_is_none_of_the_kernel_code() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let kernel = open(&image);
    make_directory(&kernel, "0").expect("a directory");
    let pid = kernel.worker().and_then(|pid| Pid::from_raw(pid as i32)).expect("a guarded image");
    kill_process(pid, Signal::SEGV).expect("it lives");
    make_directory(&kernel, "1").expect("another directory");
    let death = kernel.history().expect("a guarded image").last_death.expect("one has died");
    assert!(death.reason.contains("a signal of another process"), "{}", death.reason);
    kernel.unmount().expect("it unmounts");
    image.must_be_clean();
}

#[test]
fn nobody_notices_deaths_with_ext4() {
    survives("ext4", 7);
}

#[test]
fn nobody_notices_deaths_with_xfs() {
    survives("xfs", 7);
}

#[test]
fn nobody_notices_deaths_with_vfat() {
    survives("vfat", 7);
}

#[test]
fn nobody_notices_deaths_with_any_type() {
    let others = WRITTEN.iter().filter(|kind| !["ext4", "xfs", "vfat", "jfs"].contains(&kind.name));
    for kind in others {
        survives(kind.name, 23);
    }
}

fn call<O: Op>(kernel: &Kernel, op: O) -> Result<O::Out> {
    let cx = Cx::new(1, Credentials::new(1000, 100), "test");
    block_on(ask(kernel, &cx, op))
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

#[test]
fn the_image_changes_at_checkpoints_only() {
    let Some(kind) = kind("vfat") else { return };
    let image = Image::new(kind);
    let before = content(&image.path());
    let kernel = open(&image);
    call(&kernel, MkDir { dir: Node::ROOT, name: name("dir"), mode: 0o755, umask: 0, initial: None })
        .expect("mkdir");
    assert!(content(&image.path()) == before);
    let flags = OpenFlags::READ_WRITE;
    let created = call(
        &kernel,
        Create { dir: Node::ROOT, name: name("file"), mode: 0o644, umask: 0, flags, initial: None },
    )
    .expect("create");
    let (node, handle) = (created.entry.node, created.opened.handle);
    call(&kernel, FSync { node, handle, data_only: false }).expect("fsync");
    assert!(content(&image.path()) != before);
}

/// What does not hold of a guarded image.
const GIVEN_UP: &[(&str, &str)] = &[(
    "service/a_referenced_node_outlives_its_name",
    "a file that has no name and is not open is given up at a checkpoint",
)];

/// The whole suite, with deaths.
fn suite(name: &str, every: u64) {
    let Some(kind) = kind(name) else { return };
    let image = Image::new(kind);
    let kernel = open(&image);
    let (checkpoints, count) = (499, AtomicU64::new(0));
    let mortal = Arc::new(Mortal { kernel: Arc::clone(&kernel), every, checkpoints, count });
    let direct = Direct::new(mortal);
    let report =
        run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: GIVEN_UP });
    println!("{name}: {report}");
    report.must_hold(220);
    drop(direct);
    kernel.unmount().expect("it unmounts");
    image.must_be_clean();
}

#[test]
fn every_case_holds_with_deaths() {
    suite("ext4", 4001);
}
