// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real mounts, as root: what programs see, and what happens when drivers and servers misbehave.
mod support;

use outrigger_core::{Inline, Name, Node, Notice, Service};
use outrigger_door_fuse::{Device, End, Force, Mountpoint, Options, Session, inspect, mount, unmount};
use outrigger_host::MountEntry;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use support::tree::{Habits, HostFile, Tree, Trouble};
use support::{DEADLINE, Fixture, can_mount, limited, runtime, within};

fn serve(habits: Habits) -> (Tree, Arc<dyn Service>) {
    let tree = Tree::new(habits);
    (tree.clone(), Arc::new(Inline::new(tree, runtime())))
}

/// Bytes in which every position is recognisable.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn programs_see_a_file_system() {
    if !can_mount() {
        return;
    }
    for options in ["", "writeback", "attr_timeout=10,entry_timeout=10", "readers=3", "direct_io"] {
        let (_, service) = serve(Habits::default());
        let fixture = Fixture::new(service, options);
        let dir = fixture.dir.clone();
        limited(move || {
            fs::create_dir(dir.join("d")).unwrap();
            fs::write(dir.join("d/a"), "hello").unwrap();
            assert_eq!(fs::read(dir.join("d/a")).unwrap(), b"hello");
            fs::rename(dir.join("d/a"), dir.join("b")).unwrap();
            assert_eq!(fs::metadata(dir.join("d/a")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
            std::os::unix::fs::symlink("b", dir.join("link")).unwrap();
            assert_eq!(fs::read_link(dir.join("link")).unwrap().as_os_str().as_bytes(), b"b");
            assert_eq!(fs::read_to_string(dir.join("link")).unwrap(), "hello");
            let file = OpenOptions::new().read(true).write(true).open(dir.join("b")).unwrap();
            file.set_len(3).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 3);
            assert_eq!(fs::metadata(dir.join("nothing")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
            fs::remove_file(dir.join("b")).unwrap();
            fs::remove_dir(dir.join("d")).unwrap();
            let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, ["link"]);
        });
    }
}

#[test]
fn large_content_travels_in_large_requests() {
    if !can_mount() {
        return;
    }
    let (_, service) = serve(Habits::default());
    let fixture = Fixture::new(service, "");
    let path = fixture.path("big");
    let content = pattern(8 << 20);
    limited(move || {
        fs::write(&path, &content).unwrap();
        assert!(fs::read(&path).unwrap() == content, "content differs");
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let mut piece = vec![0; 3 << 20];
        direct.read_exact_at(&mut piece, 12345 * 4096 / 4096 * 4).unwrap();
        assert!(piece == content[49380..49380 + piece.len()], "direct content differs");
    });
    assert_eq!(fixture.count("write"), 8, "writes of 1 MiB");
}

#[test]
fn long_directories_are_complete_and_leave_no_references() {
    if !can_mount() {
        return;
    }
    let (tree, service) = serve(Habits::default());
    let fixture = Fixture::new(service, "");
    let dir = fixture.dir.clone();
    limited(move || {
        let expected: BTreeSet<String> =
            (0..3000).map(|n| format!("{n:0width$}", width = 1 + n % 200)).collect();
        for name in &expected {
            File::create(dir.join(name)).unwrap();
        }
        let listed = |dir: &std::path::Path| -> BTreeSet<String> {
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        };
        assert_eq!(listed(&dir), expected);
        // With the attributes asked for as well, the kernel uses READDIRPLUS.
        let sizes: u64 = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert_eq!((sizes, listed(&dir)), (0, expected));
        let raw = rustix::fs::Dir::read_from(File::open(&dir).unwrap()).unwrap();
        let dots = raw.filter(|e| e.as_ref().unwrap().file_name().to_bytes().starts_with(b".")).count();
        assert_eq!(dots, 2, "`.` and `..`");
    });
    assert!(fixture.count("readdirplus") > 0);
    fixture.session.stop(Force::No, DEADLINE).unwrap();
    assert_eq!(fixture.session.wait_timeout(DEADLINE), Some(End::Unmounted));
    let state = tree.state();
    let negative: Vec<_> = state.references.iter().filter(|(_, count)| **count < 0).collect();
    assert!(negative.is_empty(), "more forgotten than referenced: {negative:?}");
}

#[test]
fn attributes_locks_and_ranges() {
    if !can_mount() {
        return;
    }
    let (_, service) = serve(Habits::default());
    let fixture = Fixture::new(service, "umask=027,uid=12,gid=34");
    let path = fixture.path("f");
    let root = fixture.dir.clone();
    limited(move || {
        fs::write(&path, pattern(8192)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode()), (12, 34, 0o100750));
        assert_eq!(meta.created().unwrap(), std::time::UNIX_EPOCH + Duration::from_secs(77), "statx btime");
        use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, removexattr, setxattr};
        setxattr(&path, "user.colour", b"blue", XattrFlags::empty()).unwrap();
        let mut value = [0; 16];
        assert_eq!(getxattr(&path, "user.colour", &mut value), Ok(4));
        assert_eq!(getxattr_query(&path, "user.colour"), Ok(4));
        assert_eq!(getxattr(&path, "user.colour", &mut value[..2]), Err(rustix::io::Errno::RANGE));
        assert_eq!(listxattr(&path, &mut value), Ok(12));
        removexattr(&path, "user.colour").unwrap();
        assert_eq!(getxattr(&path, "user.colour", &mut value), Err(rustix::io::Errno::NODATA));
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(100)), Ok(8192));
        let copy =
            OpenOptions::new().create(true).truncate(true).write(true).open(path.with_file_name("copy"));
        let copied = rustix::fs::copy_file_range(&file, Some(&mut 4096), copy.unwrap(), None, 100_000);
        assert_eq!(copied, Ok(4096));
        assert_eq!(fs::read(path.with_file_name("copy")).unwrap(), pattern(8192)[4096..]);
        let stat = rustix::fs::statvfs(&root).unwrap();
        assert_eq!((stat.f_blocks, stat.f_bfree, stat.f_namemax), (1000, 500, 255));
    });
}

#[test]
fn a_late_answer_delays_no_other() {
    if !can_mount() {
        return;
    }
    let tree = Tree::new(Habits::default());
    let (service, gate) = Trouble::new(tree, runtime());
    let fixture = Fixture::new(service, "max_readers=1");
    let path = fixture.path("later");
    let waiting = thread::spawn(move || fs::metadata(path));
    fixture.wait_in_flight("lookup");
    // Not a new file: that needs the directory for itself, which the kernel's pending lookup shares.
    let other = fixture.path("other");
    limited(move || assert!(!other.exists()));
    assert!(!waiting.is_finished());
    gate.send(()).unwrap();
    let result = limited(move || waiting.join().unwrap());
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    within(|| fixture.session.status().in_flight.is_empty());
}

#[test]
fn a_killed_program_gets_away() {
    if !can_mount() {
        return;
    }
    let (service, _gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fixture = Fixture::new(service, "");
    for (name, signal) in [("hang", libc::SIGKILL), ("deaf", libc::SIGKILL), ("deaf", libc::SIGINT)] {
        let mut child = Command::new("stat").arg(fixture.path(name)).stderr(Stdio::null()).spawn().unwrap();
        let id = child.id();
        // Not the question for the attributes of the root that comes before.
        let wanted = (id, "lookup", Node::ROOT);
        within(|| fixture.session.status().in_flight.iter().any(|one| (one.pid, one.op, one.node) == wanted));
        let pid = rustix::process::Pid::from_raw(id.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::from_named_raw(signal).unwrap()).unwrap();
        let status = limited(move || child.wait().unwrap());
        assert_eq!(status.signal(), Some(signal), "{name}");
    }
    // The driver that cares has finished; the deaf one is still shown.
    within(|| fixture.session.status().in_flight.len() == 2);
}

#[test]
fn a_killed_program_gets_away_from_the_flush_of_its_open_files() {
    if !can_mount() {
        return;
    }
    let (service, _gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fixture = Fixture::new(Arc::clone(&service) as _, "");
    let path = fixture.path("f");
    limited(move || fs::write(path, "x").unwrap());
    // A signal to the process stays pending while it ends, so the kernel interrupts FLUSH. One to the thread does not.
    for (call, signal) in [(libc::SYS_kill, libc::SIGINT), (libc::SYS_tkill, libc::SIGKILL)] {
        service.frozen.store(false, Ordering::SeqCst);
        let file = File::open(fixture.path("f")).unwrap();
        let mut child = Command::new("sleep").arg("infinity").stdin(file).spawn().unwrap();
        service.frozen.store(true, Ordering::SeqCst);
        // SAFETY: sends a signal to our own child, which is not reaped before.
        assert_eq!(unsafe { libc::syscall(call, child.id(), signal) }, 0);
        let status = limited(move || child.wait().unwrap());
        assert_eq!(status.signal(), Some(signal));
        assert_eq!(fixture.session.wait_timeout(Duration::ZERO), None, "ended by cutting the mount off");
    }
    assert!(fixture.count("flush") > 2, "the deaf driver was asked");
}

extern "C" fn ignore(_: libc::c_int) {}

#[test]
fn a_signal_that_a_program_survives_disturbs_nothing() {
    if !can_mount() {
        return;
    }
    let (service, gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fixture = Fixture::new(service, "");
    let path = fixture.path("later");
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = thread::spawn(move || {
        // SAFETY: the handler does nothing, which is safe at any moment.
        unsafe { libc::signal(libc::SIGUSR1, ignore as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        // SAFETY: asks for the calling thread, which the receiver knows to be alive while it waits below.
        sender.send(unsafe { libc::pthread_self() }).unwrap();
        fs::metadata(path).unwrap_err()
    });
    let target = receiver.recv().unwrap();
    fixture.wait_in_flight("lookup");
    // SAFETY: the thread waits for the gate that is opened below.
    unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
    within(|| fixture.count("interrupt") > 0);
    assert!(!waiting.is_finished());
    gate.send(()).unwrap();
    let error = limited(move || waiting.join().unwrap());
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "and not EINTR");
}

#[test]
fn a_panicking_driver_answers_eio_and_lives_on() {
    if !can_mount() {
        return;
    }
    let (service, _gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fixture = Fixture::new(service, "");
    for name in ["panic", "lost", "panic"] {
        let path = fixture.path(name);
        let error = limited(move || fs::metadata(path).unwrap_err());
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    }
    let failure = fixture.session.status().last_failure.unwrap();
    assert_eq!((failure.op, failure.error.reason.as_deref()), ("lookup", Some("the driver panicked")));
    let path = fixture.path("fine");
    limited(move || fs::write(path, "x").unwrap());
}

#[test]
fn more_readers_come_when_all_are_stuck() {
    if !can_mount() {
        return;
    }
    let (service, _gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fixture = Fixture::new(Arc::clone(&service) as _, "max_readers=4");
    // Several directories, because the kernel looks one name up at a time.
    for dir in ["1", "2", "3"] {
        let dir = fixture.path(dir);
        limited(move || fs::create_dir(dir).unwrap());
    }
    let stuck: Vec<_> = ["1", "2", "3"]
        .map(|dir| fixture.path(dir).join("stuck"))
        .map(|path| thread::spawn(move || fs::metadata(path).is_err()))
        .into();
    within(|| fixture.session.status().in_flight.len() == 3);
    let path = fixture.path("free");
    limited(move || fs::write(path, "x").unwrap());
    assert_eq!(fixture.session.status().readers, 4);
    service.barrier.open();
    limited(move || stuck.into_iter().for_each(|thread| assert!(thread.join().unwrap())));
}

#[test]
fn any_way_of_unmounting_ends_the_session() {
    if !can_mount() {
        return;
    }
    let (_, service) = serve(Habits::default());
    let fixture = Fixture::new(service, "");
    let busy = File::create(fixture.path("open")).unwrap();
    let error = fixture.session.stop(Force::No, DEADLINE).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    assert!(fixture.session.is_connected());
    drop(busy);
    // The file is released in the background.
    within(|| unmount(&fixture.dir, Force::No, DEADLINE).is_ok());
    assert!(!fixture.session.is_connected(), "known at once");
    assert_eq!(fixture.session.wait_timeout(DEADLINE), Some(End::Unmounted));
    assert_eq!(MountEntry::at(&fixture.dir).unwrap(), None);
    fixture.session.stop(Force::No, DEADLINE).unwrap();
}

#[test]
fn a_hanging_driver_cannot_keep_the_mount() {
    if !can_mount() {
        return;
    }
    let (service, _gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fixture = Fixture::new(Arc::clone(&service) as _, "");
    let path = fixture.path("stuck");
    let waiting = thread::spawn(move || fs::metadata(path).unwrap_err());
    fixture.wait_in_flight("lookup");
    fixture.session.stop(Force::Abort, Duration::from_millis(500)).unwrap();
    let error = limited(move || waiting.join().unwrap());
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    assert_eq!(MountEntry::at(&fixture.dir).unwrap(), None);
    service.barrier.open();
    assert!(fixture.session.wait_timeout(DEADLINE).is_some());
}

#[test]
fn a_mount_that_others_cut_off_is_removed_too() {
    if !can_mount() {
        return;
    }
    let (service, _gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fixture = Fixture::new(service, "");
    let busy = File::create(fixture.path("open")).unwrap();
    // In use, so that this cuts the connection but leaves the mount.
    let path = fixture.dir.clone();
    limited(move || rustix::mount::unmount(path, rustix::mount::UnmountFlags::FORCE).unwrap_err());
    assert!(fixture.session.wait_timeout(DEADLINE).is_some());
    assert_eq!(inspect(&fixture.dir), Mountpoint::Dead);
    drop(busy);
    within(|| fixture.session.stop(Force::No, DEADLINE).is_ok());
    assert_eq!(MountEntry::at(&fixture.dir).unwrap(), None);
}

#[test]
fn a_dead_mount_is_recognised_and_removed() {
    if !can_mount() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let (device, mounted): (Device, _) = mount(temp.path(), "test", "test:", &Options::default()).unwrap();
    drop(device);
    assert_eq!(inspect(&mounted.mountpoint), Mountpoint::Dead);
    let (_, service) = serve(Habits::default());
    let error = Session::mount(temp.path(), service, runtime(), Options::default()).err().unwrap();
    assert!(error.to_string().contains("the server of the mount there has died"), "{error}");
    unmount(temp.path(), Force::No, DEADLINE).unwrap();
    assert_eq!(inspect(temp.path()), Mountpoint::Usable { is_dir: true });
}

#[test]
fn the_kernel_reads_backing_files_by_itself() {
    if !can_mount() {
        return;
    }
    let mut host = tempfile::tempfile().unwrap();
    host.write_all(&pattern(1 << 20)).unwrap();
    let backing = Some(Arc::new(OwnedFd::from(host.try_clone().unwrap())));
    let (_, service) = serve(Habits { backing, ..Habits::default() });
    let fixture = Fixture::new(service, "");
    if !fixture.session.status().negotiated.unwrap().abilities().contains(&"PASSTHROUGH") {
        eprintln!("SKIPPED: this kernel has no FUSE passthrough");
        return;
    }
    let path = fixture.path("f");
    let mut seen = host.try_clone().unwrap();
    limited(move || {
        let first =
            OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&path).unwrap();
        first.write_at(b"written through", 0).unwrap();
        let second = File::open(&path).unwrap();
        let mut content = [0; 15];
        second.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"written through");
        seen.seek(SeekFrom::Start(0)).unwrap();
        seen.read_exact(&mut content).unwrap();
        assert_eq!(&content, b"written through");
    });
    assert_eq!((fixture.count("read"), fixture.count("write")), (0, 0));
    let (_, service) = serve(Habits {
        backing: Some(Arc::new(OwnedFd::from(host.try_clone().unwrap()))),
        ..Habits::default()
    });
    let plain = Fixture::new(service, "no_passthrough");
    let path = plain.path("f");
    limited(move || {
        fs::write(&path, "x").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x");
    });
    assert!(plain.count("write") > 0);
}

#[test]
fn slices_of_files_arrive_whole() {
    if !can_mount() {
        return;
    }
    let mut host = tempfile::tempfile().unwrap();
    // An odd size, so that the last piece is short.
    let content = [pattern(5 << 20), b"end".to_vec()].concat();
    host.write_all(&content).unwrap();
    for options in ["", "no_splice", "max_read=131072"] {
        let slices = Some(Arc::new(HostFile(host.try_clone().unwrap())));
        let (_, service) = serve(Habits { slices, ..Habits::default() });
        let fixture = Fixture::new(service, options);
        let path = fixture.path("f");
        let expected = content.clone();
        limited(move || {
            let file =
                OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
            let mut read = vec![0; expected.len()];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read == expected, "content differs with {options:?}");
            let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let mut piece = vec![0; 4 << 20];
            direct.read_exact_at(&mut piece, 1 << 20).unwrap();
            assert!(piece == expected[1 << 20..5 << 20], "direct content differs with {options:?}");
            assert_eq!(direct.read_at(&mut piece, expected.len() as u64 - 3).unwrap(), 3);
        });
    }
}

#[test]
fn notices_reach_the_kernel() {
    if !can_mount() {
        return;
    }
    let habits = Habits { attr_ttl: outrigger_core::reply::Ttl::FOREVER, ..Habits::default() };
    let (tree, service) = serve(habits);
    let fixture = Fixture::new(Arc::clone(&service), "");
    let path = fixture.path("f");
    let made = path.clone();
    let ino = limited(move || {
        fs::write(&made, "old").unwrap();
        fs::metadata(&made).unwrap().ino()
    });
    // A second session of the tree would do the same: the change does not pass the mount.
    let cx = outrigger_core::Cx::new(1, outrigger_core::Credentials::ROOT, "test");
    let attrs = outrigger_core::SetAttrs { mode: Some(0o600), ..Default::default() };
    let change = outrigger_core::ops::SetAttr { node: Node(ino), handle: None, attrs };
    drop(service.call(&cx, change.into()));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644, "cached");
    let notify = tree.notify.get().unwrap();
    notify.notify(Notice::InvalidateNode { node: Node(ino), offset: -1, len: 0 });
    within(|| fs::metadata(&path).unwrap().mode() & 0o777 == 0o600);
    let remove = outrigger_core::ops::Unlink { dir: Node::ROOT, name: Name::try_from("f").unwrap() };
    drop(service.call(&cx, remove.into()));
    assert!(path.exists(), "cached");
    notify.notify(Notice::InvalidateEntry { dir: Node::ROOT, name: Name::try_from("f").unwrap() });
    within(|| !path.exists());
}

#[test]
fn a_file_that_is_opened_has_the_attributes_of_a_notice_that_waits() {
    if !can_mount() {
        return;
    }
    let (tree, service) =
        serve(Habits { attr_ttl: outrigger_core::reply::Ttl::FOREVER, ..Habits::default() });
    let (trouble, gate) = Trouble::new(tree.clone(), runtime());
    let fixture = Fixture::new(trouble, "");
    let (path, later) = (fixture.path("f"), fixture.path("later"));
    let made = path.clone();
    let ino = limited(move || {
        fs::write(&made, "old").unwrap();
        fs::metadata(&made).unwrap().ino()
    });
    let lookup = thread::spawn(move || later.exists());
    fixture.wait_in_flight("lookup");
    let cx = outrigger_core::Cx::new(1, outrigger_core::Credentials::ROOT, "test");
    let attrs = outrigger_core::SetAttrs { mode: Some(0o600), ..Default::default() };
    drop(service.call(&cx, outrigger_core::ops::SetAttr { node: Node(ino), handle: None, attrs }.into()));
    let notify = tree.notify.get().unwrap();
    // The kernel takes this one when the lookup has ended, and all others after it.
    notify.notify(Notice::InvalidateEntry { dir: Node::ROOT, name: Name::try_from("other").unwrap() });
    notify.notify(Notice::InvalidateNode { node: Node(ino), offset: 0, len: 0 });
    let mode = limited(move || {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644, "cached");
        File::open(&path).unwrap().metadata().unwrap().mode()
    });
    assert_eq!(mode & 0o777, 0o600);
    gate.send(()).unwrap();
    assert!(!lookup.join().unwrap());
}

#[test]
fn references_that_the_kernel_does_not_have_are_returned_when_doubted() {
    if !can_mount() {
        return;
    }
    let (tree, service) = serve(Habits::default());
    let fixture = Fixture::new(service, "");
    let path = fixture.path("f");
    let (_open, known) = limited(move || {
        let file = File::create(path).unwrap();
        let ino = file.metadata().unwrap().ino();
        (file, ino)
    });
    let unknown = 1 << 40;
    let before = tree.state().references.get(&known).copied();
    // One after the other.
    for node in [known, unknown] {
        tree.notify.get().unwrap().notify(Notice::Revalidate { node: Node(node) });
    }
    within(|| tree.state().references.get(&unknown) == Some(&-(u64::MAX as i64)));
    assert_eq!(tree.state().references.get(&known).copied(), before);
}

/// Whether the kernel can be asked to forget the nodes it does not use, as from 6.18 on.
fn can_prune() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(6), Some(18))
}

#[test]
fn the_kernel_lets_go_of_what_it_does_not_use_when_asked_to_if_it_can() {
    if !can_mount() {
        return;
    }
    let (tree, service) = serve(Habits::default());
    let fixture = Fixture::new(service, "");
    let (used, unused) = (fixture.path("used"), fixture.path("unused"));
    let path = unused.clone();
    let (open, [used, unused]) = limited(move || {
        let open = File::create(used).unwrap();
        drop(File::create(&unused).unwrap());
        let inos = [open.metadata().unwrap().ino(), fs::metadata(&unused).unwrap().ino()];
        (open, inos)
    });
    let referred = |ino: u64| tree.state().references.get(&ino).is_some_and(|&count| count > 0);
    assert!(referred(used) && referred(unused));
    let ask = || {
        let nodes = vec![Node(used), Node(1 << 40), Node(unused)];
        tree.notify.get().unwrap().notify(Notice::Prune { nodes });
    };
    ask();
    if can_prune() {
        within(|| {
            ask();
            !referred(unused)
        });
    }
    assert!(referred(used));
    assert_eq!(limited(move || fs::metadata(path).unwrap().ino()), unused);
    drop(open);
}

#[test]
fn stateless_drivers_are_not_asked_to_open() {
    if !can_mount() {
        return;
    }
    let (_, service) = serve(Habits { stateless: true, ..Habits::default() });
    let fixture = Fixture::new(service, "");
    let path = fixture.path("f");
    limited(move || {
        fs::write(&path, "x").unwrap();
        for _ in 0..10 {
            assert_eq!(fs::read(&path).unwrap(), b"x");
        }
    });
    assert!(fixture.count("open") <= 1 && fixture.count("opendir") <= 1);
}

#[test]
fn a_tree_without_totals_still_has_some() {
    if !can_mount() {
        return;
    }
    struct Bare;
    impl outrigger_core::Driver for Bare {
        fn abilities(&self) -> outrigger_core::Abilities {
            outrigger_core::Abilities::new("bare", "bare:", outrigger_core::OpSet::NONE)
        }
    }
    let fixture = Fixture::new(Arc::new(outrigger_core::Serve(Bare)), "");
    let dir = fixture.dir.clone();
    let totals = limited(move || rustix::fs::statvfs(&dir).unwrap());
    assert_eq!((totals.f_blocks, totals.f_namemax), (0, 255));
    let file = fixture.path("file");
    assert_eq!(limited(move || fs::metadata(file).unwrap_err()).raw_os_error(), Some(libc::ENOSYS));
}
