// SPDX-License-Identifier: MIT OR Apache-2.0
//! More files than the kernel code has memory for: somebody refers to all of them, and each is where it belongs.

use outrigger_conformance::block_on;
use outrigger_core::attr::SetAttrs;
use outrigger_core::ops::*;
use outrigger_core::{Credentials, Cx, Name, Node, Op, Payload, ask};
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, Kind, WRITTEN, kind};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;

/// With less the kernel code could not hold a third of the files.
const MEMORY: u64 = 24 << 20;
const DIRS: usize = 40;
const FILES: usize = 10_000;

/// Room for all files.
static LARGE: Kind = Kind {
    name: "ext4",
    make: &["mkfs.ext4", "-q", "-b", "1024", "-N", "15000", "IMAGE"],
    check: WRITTEN[0].check,
    size: 64,
    asked: None,
};

/// The image and the numbers of its directories and files.
struct Crowd {
    kernel: Arc<Kernel>,
    dirs: Vec<Node>,
    files: Vec<Node>,
}

fn open(image: &Image) -> Arc<Kernel> {
    let options = Options { guard: true, memory: Some(MEMORY), ..Options::default() };
    Arc::new(Kernel::start(&image.path(), &options).expect("it opens"))
}

fn call<O: Op + std::fmt::Debug>(kernel: &Kernel, op: O) -> O::Out {
    let what = format!("{op:?}");
    let cx = Cx::new(1, Credentials::new(1000, 100), "test");
    block_on(ask(kernel, &cx, op)).unwrap_or_else(|error| panic!("{what}: {error}"))
}

fn name(text: String) -> Name {
    Name::try_from(text.as_str()).expect("a good name")
}

fn dir_of(file: usize) -> usize {
    file * DIRS / FILES
}

impl Crowd {
    /// Files of as many bytes as their numbers say, modulo 100.
    fn make(image: &Image) -> Self {
        let kernel = open(image);
        let mkdir = |dir| {
            call(
                &kernel,
                MkDir {
                    dir: Node::ROOT,
                    name: name(format!("dir{dir}")),
                    mode: 0o755,
                    umask: 0,
                    initial: None,
                },
            )
            .node
        };
        let dirs: Vec<Node> = (0..DIRS).map(mkdir).collect();
        let create = |file: usize| {
            let (dir, name, flags) = (dirs[dir_of(file)], name(format!("file{file}")), OpenFlags::READ_WRITE);
            let created = call(&kernel, Create { dir, name, mode: 0o600, umask: 0, flags, initial: None });
            let (node, handle, owner) = (created.entry.node, created.opened.handle, Default::default());
            let data = Payload::from(vec![b'x'; file % 100]);
            let write = Write { node, handle, offset: 0, data, kill_setid: false, cached: false };
            call(&kernel, write);
            call(&kernel, Release { node, handle, flags, owner, flock_release: false });
            node
        };
        let files = (0..FILES).map(create).collect();
        Crowd { kernel, dirs, files }
    }

    fn kill(&self) {
        let pid = self.kernel.worker().and_then(|pid| Pid::from_raw(pid as i32)).expect("a guarded image");
        kill_process(pid, Signal::KILL).expect("it serves");
    }

    /// What one would see who has them all open by their places.
    fn must_be_there(&self, mode: u32) {
        for (file, &node) in self.files.iter().enumerate() {
            let attr = call(&self.kernel, GetAttr { node, handle: None }).attr;
            assert_eq!((attr.size, attr.mode & 0o777), ((file % 100) as u64, mode), "file {file}");
        }
    }

    fn chmod(&self, mode: u32) {
        for &node in &self.files {
            let attrs = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
            call(&self.kernel, SetAttr { node, handle: None, attrs });
        }
    }

    fn rename(&self, dir: usize, from: &str, to: &str) {
        let (from, to) = (name(format!("{from}{dir}")), name(format!("{to}{dir}")));
        let (top, flags) = (Node::ROOT, RenameFlags::empty());
        call(&self.kernel, Rename { dir: top, name: from, to_dir: top, to_name: to, flags });
    }

    /// Also those that the kernel code has given up meanwhile: a server of NFS tells a directory by its number.
    fn directories_above_have_their_numbers(&self) {
        for (at, &dir) in self.dirs.iter().enumerate() {
            let (below, name) = (name("below".to_owned()), name(format!("dir{at}")));
            let made =
                call(&self.kernel, MkDir { dir, name: below.clone(), mode: 0o700, umask: 0, initial: None });
            for _ in 0..2 {
                assert_eq!(call(&self.kernel, Parent { dir: made.node }).node, dir);
                assert_eq!(call(&self.kernel, Parent { dir }).node, Node::ROOT);
                assert_eq!(call(&self.kernel, Lookup { dir: Node::ROOT, name: name.clone() }).node, dir);
            }
            call(&self.kernel, RmDir { dir, name: below });
        }
    }
}

#[test]
fn a_mount_knows_more_files_than_the_kernel_code_can_hold() {
    if kind("ext4").is_none() {
        return;
    }
    let image = Image::new(&LARGE);
    let crowd = Crowd::make(&image);
    crowd.must_be_there(0o600);
    crowd.directories_above_have_their_numbers();
    (0..DIRS).step_by(2).for_each(|dir| crowd.rename(dir, "dir", "moved"));
    crowd.chmod(0o640);
    crowd.kill();
    crowd.must_be_there(0o640);
    // Each file has its number under a second name too, also when neither is held.
    let (kernel, other) = (&crowd.kernel, crowd.dirs[DIRS - 1]);
    let linked = || (0..500).map(|file| (crowd.files[file], name(format!("link{file}"))));
    for (node, name) in linked() {
        assert_eq!(call(kernel, Link { node, dir: other, name }).node, node);
    }
    crowd.chmod(0o644);
    for (node, name) in linked() {
        assert_eq!(call(kernel, Lookup { dir: other, name }).node, node);
    }
    crowd.must_be_there(0o644);
    crowd.kill();
    for (node, name) in linked() {
        assert_eq!(call(kernel, Lookup { dir: other, name: name.clone() }).node, node);
        call(kernel, Unlink { dir: other, name });
    }
    crowd.must_be_there(0o644);
    kernel.unmount().expect("it unmounts");
    image.must_be_clean();
    let kernel = open(&image);
    for dir in 0..DIRS {
        let name = name(format!("{}{dir}", if dir % 2 == 0 { "moved" } else { "dir" }));
        let entry = call(&kernel, Lookup { dir: Node::ROOT, name });
        assert_eq!(entry.attr.nlink, 2, "directory {dir}");
    }
}

#[test]
fn files_are_found_again_while_their_directories_get_other_names() {
    if kind("ext4").is_none() {
        return;
    }
    let image = Image::new(&LARGE);
    let crowd = Crowd::make(&image);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..50 {
                let names = if round % 2 == 0 { ("dir", "moved") } else { ("moved", "dir") };
                (0..DIRS).for_each(|dir| crowd.rename(dir, names.0, names.1));
            }
        });
        scope.spawn(|| crowd.must_be_there(0o600));
        crowd.must_be_there(0o600);
    });
    crowd.kernel.unmount().expect("it unmounts");
    image.must_be_clean();
}
