// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens at the limits of size, inodes and links.

use outrigger_conformance::{Direct, Expect, Fd, Flags, Subject};
use outrigger_core::ops::{FallocateMode, XattrFlags};
use outrigger_core::{Credentials, Errno, Inline};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::path::Path;
use std::sync::Arc;

const PAGE: usize = 4096;

fn tree(set: impl FnOnce(&mut Options)) -> Direct {
    let mut options = Options::default();
    set(&mut options);
    let threads = Arc::new(Threads::new());
    Direct::new(Arc::new(Inline::new(Mem::new(options, threads.clone()), threads)))
}

fn create(fs: &Direct, name: &str) -> Fd {
    fs.open(Path::new(name), Flags::NEW, 0o644).must()
}

#[test]
fn a_full_tree_refuses_content_and_takes_it_again() {
    let fs = tree(|options| options.size = 10 * PAGE as u64);
    let fd = create(&fs, "a");
    assert_eq!(fs.write_at(fd, 0, &vec![1; 20 * PAGE]).must(), 10 * PAGE, "as much as there is room for");
    fs.write_at(fd, 10 * PAGE as u64, b"x").must_fail(Errno::ENOSPC);
    assert_eq!(fs.write_at(fd, 5, b"y").must(), 1, "overwriting takes no space");
    assert_eq!(fs.statfs(Path::new("")).must().bfree, 0);
    let other = create(&fs, "b");
    fs.write_at(other, 0, b"x").must_fail(Errno::ENOSPC);
    fs.fallocate(other, FallocateMode::empty(), 0, 1).must_fail(Errno::ENOSPC);
    fs.set_xattr(Path::new("b"), "user.x", b"1", XattrFlags::empty()).must_fail(Errno::ENOSPC);
    fs.ftruncate(fd, 5 * PAGE as u64).must();
    assert_eq!(fs.write_at(other, 0, b"x").must(), 1);
    fs.ftruncate(other, 1 << 40).must();
    assert_eq!(fs.statfs(Path::new("")).must().bfree, 4, "a hole takes no space");
}

#[test]
fn reserved_space_is_there_when_it_is_needed() {
    let fs = tree(|options| options.size = 10 * PAGE as u64);
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.fallocate(a, FallocateMode::KEEP_SIZE, 0, 8 * PAGE as u64).must();
    assert_eq!(fs.write_at(b, 0, &vec![1; 8 * PAGE]).must(), 2 * PAGE);
    assert_eq!(fs.write_at(a, 0, &vec![2; 8 * PAGE]).must(), 8 * PAGE);
    fs.fallocate(a, FallocateMode::empty(), 0, 9 * PAGE as u64).must_fail(Errno::ENOSPC);
    assert_eq!(fs.fstat(a).must().size, 8 * PAGE as u64, "a failure changes nothing");
}

#[test]
fn a_tree_out_of_inodes_refuses_new_files() {
    let fs = tree(|options| options.inodes = 3);
    create(&fs, "a");
    fs.mkdir(Path::new("d"), 0o755).must();
    fs.open(Path::new("b"), Flags::NEW, 0o644).must_fail(Errno::ENOSPC);
    fs.symlink(b"x", Path::new("b")).must_fail(Errno::ENOSPC);
    fs.link(Path::new("a"), Path::new("b")).must();
    fs.rmdir(Path::new("d")).must();
    create(&fs, "c");
}

#[test]
fn links_are_limited() {
    let fs = tree(|options| options.links = 3);
    create(&fs, "a");
    fs.link(Path::new("a"), Path::new("b")).must();
    fs.link(Path::new("a"), Path::new("c")).must();
    fs.link(Path::new("a"), Path::new("d")).must_fail(Errno::EMLINK);
    fs.mkdir(Path::new("e"), 0o755).must();
    fs.mkdir(Path::new("f"), 0o755).must_fail(Errno::EMLINK);
    fs.mkdir(Path::new("e/g"), 0o755).must();
    fs.rename(Path::new("e/g"), Path::new("g"), Default::default()).must_fail(Errno::EMLINK);
}

#[test]
fn a_deep_tree_is_dropped_without_recursion() {
    use outrigger_core::ops::{Forget, MkDir};
    use outrigger_core::{Name, Node};
    let fs = tree(|_| {});
    let name = Name::try_from("d").expect("a name");
    let mut dir = Node::ROOT;
    for _ in 0..100_000 {
        let made = fs.ask(MkDir { dir, name: name.clone(), mode: 0o755, umask: 0, initial: None }).must();
        dir = made.node;
        fs.ask(Forget { node: dir, count: 1 }).must();
    }
    drop(fs);
}

/// As tmpfs of Linux since 6.2.
#[test]
fn a_new_group_clears_set_group_id_without_group_execute_for_who_is_not_in_the_old_one() {
    let (user, group, others, fs) = (1000, 1000, 2000, tree(|_| ()));
    let path = Path::new("f");
    for (caller, gid, mode, expected) in [
        (user, others, 0o2644, 0o644),
        (user, group, 0o2644, 0o2644),
        (user, others, 0o2654, 0o654),
        (user, others, 0o6644, 0o644),
        (user, group, 0o6644, 0o2644),
        (0, others, 0o2644, 0o2644),
    ] {
        let fd = create(&fs, "f");
        fs.close(fd).must();
        fs.chown(path, Some(user), Some(gid)).must();
        fs.chmod(path, mode).must();
        fs.as_user(Credentials::new(caller, caller), &mut || fs.chown(path, None, Some(group)).must());
        assert_eq!(fs.stat(path).must().permissions(), expected, "{caller} {gid} {mode:o}");
        fs.unlink(path).must();
    }
}
