// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions in other processes: one that is killed and replaced, and ones without privileges.
//!
//! The other process is this test binary again, told by the environment to run one test that does nothing otherwise.
mod support;

use outrigger_core::Inline;
use outrigger_door_fuse::{Connection, Force, Negotiated, Options, Session, mount, unmount};
use outrigger_proto_fuse::{InHeader, InitFlags, InitIn, InitOut, MAJOR, Opcode};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use support::tree::{Habits, Tree, Trouble};
use support::{DEADLINE, can_mount, limited, runtime, watchdog, within};

/// Folder the two processes exchange files in.
const FOLDER: &str = "OUTRIGGER_TEST_FOLDER";

/// The folder, in the other process only.
fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    if folder.is_none() {
        eprintln!("nothing to do: another test runs this one as its second half, in a process of its own");
    }
    folder
}

/// Serves standard input, a descriptor of `/dev/fuse`, until killed.
#[test]
fn worker() {
    let Some(folder) = folder() else { return };
    let (service, _gate) = Trouble::new(Tree::new(Habits::default()), runtime());
    let fd = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let options = Options { lock_buffers: true, ..Options::default() };
    let session = Session::serve(fd.into(), service, runtime(), options).unwrap();
    let negotiated = session.wait_ready(DEADLINE).unwrap();
    fs::write(folder.join("negotiated"), negotiated.to_bytes()).unwrap();
    within(|| !session.status().in_flight.is_empty());
    fs::write(folder.join("received"), "").unwrap();
    session.wait_timeout(DEADLINE);
}

/// What makes this binary run one test.
fn arguments(test: &str) -> [&str; 3] {
    ["--exact", test, "--nocapture"]
}

#[test]
fn a_killed_server_is_replaced_unnoticed() {
    if !can_mount() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    let (device, mounted) = mount(&dir, "test", "test:", &Options::default()).unwrap();
    let _over = watchdog(&mounted.mountpoint);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(arguments("worker"))
        .env(FOLDER, temp.path())
        .stdin(Stdio::from(device.try_clone().unwrap()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let keeper = device.try_clone().unwrap();
    let path = dir.join("hang");
    let waiting = thread::spawn(move || fs::metadata(path).unwrap_err());
    within(|| temp.path().join("received").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!waiting.is_finished(), "the program noticed the death of the server");

    let negotiated = Negotiated::from_bytes(&fs::read(temp.path().join("negotiated")).unwrap()).unwrap();
    let service = Arc::new(Inline::new(Tree::new(Habits::default()), runtime()));
    let session = match Session::resume(keeper.into(), negotiated, service, runtime(), Options::default()) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            eprintln!("SKIPPED: this kernel cannot send requests again");
            unmount(&dir, Force::Abort, DEADLINE).unwrap();
            return;
        }
        session => session.unwrap(),
    };
    let error = limited(move || waiting.join().unwrap());
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "the new server's answer");
    let file = dir.join("file");
    limited(move || {
        fs::write(&file, "x").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"x");
    });
    // A process that another test has just forked holds our open files until it executes its program.
    within(|| unmount(&dir, Force::No, DEADLINE).is_ok());
    assert!(session.wait_timeout(DEADLINE).is_some());
}

#[test]
fn a_successor_asks_for_what_was_lost_before_it_reads() {
    let agreed = InitOut {
        minor: 45,
        flags: InitFlags::HAS_RESEND | InitFlags::INIT_EXT,
        max_write: 1 << 20,
        ..InitOut::default()
    };
    let agreed = Negotiated::from_bytes(&agreed.encode()).unwrap();
    let socket = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, kernel) = socketpair(socket.0, socket.1, socket.2, None).unwrap();
    // A request waits already, so that a reader has something to answer at once: GETATTR of the root.
    let mut request = vec![0; 56];
    request[..4].copy_from_slice(&56_u32.to_ne_bytes());
    request[4..8].copy_from_slice(&3_u32.to_ne_bytes());
    request[8..16].copy_from_slice(&2_u64.to_ne_bytes());
    request[16..24].copy_from_slice(&1_u64.to_ne_bytes());
    rustix::io::write(&kernel, &request).unwrap();
    let service = Arc::new(Inline::new(Tree::new(Habits::default()), runtime()));
    let _session = Session::resume(ours.into(), agreed, service, runtime(), Options::default()).unwrap();
    let said = limited(move || {
        let mut said = [0; 4096];
        let len = rustix::io::read(&kernel, &mut said[..]).unwrap();
        said[..len].to_vec()
    });
    assert_eq!(said.len(), 16, "a header alone");
    assert_eq!(said[4..8], 7_i32.to_ne_bytes(), "FUSE_NOTIFY_RESEND");
    assert_eq!(said[8..16], [0; 8], "not a reply");
}

#[test]
fn a_kernel_that_does_not_send_again_is_known_by_its_first_message() {
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    for (minor, flags, again) in [
        (45, InitFlags::HAS_RESEND | InitFlags::INIT_EXT, true),
        (38, InitFlags::MAX_PAGES | InitFlags::INIT_EXT, false),
        (31, InitFlags::MAX_PAGES, false),
    ] {
        let (ours, kernel) = pair();
        let body = InitIn { major: MAJOR, minor, max_readahead: 1 << 17, flags }.encode();
        let len = (InHeader::SIZE + body.len()) as u32;
        let header = InHeader { len, opcode: Opcode::Init as u32, unique: 2, ..InHeader::default() };
        let init = [&header.encode()[..], &body].concat();
        rustix::io::write(&kernel, &init).unwrap();
        let mut connection = Connection::from(ours);
        assert_eq!(connection.sends_again(DEADLINE).unwrap(), again, "minor {minor}");
        let (socket, proxy) = pair();
        let mut connection = connection
            .through(DEADLINE, |_, first| {
                assert_eq!(first, init, "the proxy has to know what was read already");
                io::Result::Ok(socket)
            })
            .unwrap();
        assert!(connection.sends_again(DEADLINE).unwrap(), "the proxy does");
        rustix::io::write(&proxy, &init).unwrap();
        let service = Arc::new(Inline::new(Tree::new(Habits::default()), runtime()));
        let session = Session::serve(connection, service, runtime(), Options::default()).unwrap();
        let negotiated = session.wait_ready(DEADLINE).unwrap();
        assert!(negotiated.max_write() <= 128 << 10 && !negotiated.has(InitFlags::PASSTHROUGH));
    }
}

/// Mounts, uses and unmounts as the user it runs as.
#[test]
fn unprivileged() {
    let Some(folder) = folder() else { return };
    let dir = folder.join("mnt");
    let service = Arc::new(Inline::new(Tree::new(Habits::default()), runtime()));
    // The tree belongs to root; without a umask everybody may write.
    let options = Options { umask: Some(0), ..Options::default() };
    let session = Session::mount(&dir, service, runtime(), options).unwrap();
    let _over = watchdog(&dir);
    session.wait_ready(DEADLINE).unwrap();
    let file = dir.join("file");
    limited(move || {
        fs::write(&file, "x").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"x");
    });
    session.stop(Force::No, DEADLINE).unwrap();
    fs::write(folder.join("done"), "").unwrap();
}

#[test]
fn users_without_privileges_can_mount() {
    if !can_mount() {
        return;
    }
    const NOBODY: u32 = 65534;
    for (how, wrapper) in [("user namespace", "unshare -Urm"), ("fusermount3", "")] {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let folder = temp.path().join("folder");
        fs::create_dir_all(folder.join("mnt")).unwrap();
        // To where that user can get at it. Not by fs::copy: a child forked meanwhile would keep the copy open for
        // writing, and then it cannot be executed.
        let exe = temp.path().join("tests");
        assert!(
            Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&exe).status().unwrap().success()
        );
        for path in [&folder, &folder.join("mnt")] {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        // Everybody may use the device in a mount namespace of our own.
        let script = format!(
            "mknod {0}/fuse c 10 229 && chmod 666 {0}/fuse && mount --bind {0}/fuse /dev/fuse && \
             exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups {wrapper} \"$@\"",
            temp.path().display(),
        );
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", &script, "sh"])
            .arg(&exe)
            .args(arguments("unprivileged"))
            .env(FOLDER, &folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let impossible = ["Operation not permitted", "not found", "cannot be run"];
        if !output.status.success()
            && !said.contains("panicked")
            && impossible.iter().any(|why| said.contains(why))
        {
            eprintln!("SKIPPED: no mount by {how} here: {said}");
            continue;
        }
        assert!(folder.join("done").exists(), "{how}: {said}{}", String::from_utf8_lossy(&output.stdout));
    }
}
