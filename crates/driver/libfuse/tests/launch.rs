// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real FUSE programs on a socket, as root and as a user without any privilege.
mod common;

use common::{Area, FOREGROUND, PROGRAMS, Peer, SFTP_SERVER, SOON, command, present};
use outrigger_driver_libfuse::launch::{End, Launch, LaunchError, Mountpoint, Program};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Says to the copy of this test that is started as another process what it is.
const ROLE: &str = "OUTRIGGER_LAUNCH_ROLE";

fn start(launch: &Launch) -> Program {
    match launch.start(Instant::now() + SOON) {
        Ok(program) => program,
        Err(error) => panic!("{:?}: {error}", launch.command),
    }
}

/// Hangs up and waits for the end, which must not need force.
fn hang_up(program: Program, name: &str) {
    let Program { socket, processes, .. } = program;
    drop(socket);
    let exit = processes.wait(Instant::now() + SOON);
    assert!(exit.is_some(), "{name} did not end when its connection hung up; said {:?}", processes.said());
    assert!(!processes.is_alive());
}

fn try_program(name: &str) {
    let Some(case) = PROGRAMS.iter().find(|case| case.name == name) else { panic!("no case {name}") };
    if !present(case.needs) {
        return;
    }
    let area = Area::new();
    let words = (case.prepare)(&area);
    let named = words.iter().rposition(|word| Path::new(word) == area.mountpoint());
    let program = start(&area.launch(words.clone()));
    assert_eq!(program.mounted.target, area.mountpoint(), "{name}");
    assert_eq!(program.mounted.argument, named, "{name}");
    assert!(program.mounted.fstype.to_string_lossy().starts_with("fuse"), "{name}: {:?}", program.mounted);
    assert!(!common::is_mounted(&area.mountpoint()), "{name} has really mounted");
    let mut peer = Peer::new(&program.socket);
    peer.init();
    assert_eq!(peer.root_mode() & libc::S_IFMT, libc::S_IFDIR, "{name}: {}", program.processes.said());
    hang_up(program, name);
    assert_eq!(area.processes(), Vec::<String>::new(), "{name}");

    // Again as a daemon, and at a place of its own: nothing may look at the directory that is served by now.
    let words: Vec<_> =
        words.into_iter().filter(|word| !FOREGROUND.iter().any(|flag| word == flag)).collect();
    let argument = words.iter().rposition(|word| Path::new(word) == area.mountpoint());
    let again = Launch { mountpoint: Mountpoint::Replaced(argument.unwrap()), ..area.launch(words) };
    let program = start(&again);
    let private = program.mounted.target.clone();
    assert_eq!(program.mounted.argument, argument);
    assert_ne!(private, area.mountpoint());
    let mut peer = Peer::new(&program.socket);
    peer.init();
    assert_eq!(peer.root_mode() & libc::S_IFMT, libc::S_IFDIR, "{name}");
    hang_up(program, name);
    assert!(!private.exists(), "{name} has left {}", private.display());
    assert_eq!(common::entries(&area.mountpoint()), case.leaves, "{name}");
}

macro_rules! programs {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            try_program($name);
        })*

        /// The same with no right to open `/dev/fuse` or to mount.
        #[test]
        fn without_privileges() {
            if !rustix::process::geteuid().is_root() {
                return println!("SKIPPED: becoming another user needs root");
            }
            for name in [$($name),*] {
                let case = PROGRAMS.iter().find(|case| case.name == name).unwrap();
                if case.without_privileges {
                    again_as_user_nobody(name);
                }
            }
        }

        const TESTS: &[(&str, &str)] = &[$(($name, stringify!($test))),*];
    };
}

programs! {
    bindfs: "bindfs",
    sshfs: "sshfs",
    sshfs_that_unmounts: "sshfs that unmounts",
    squashfuse: "squashfuse",
    squashfuse_ll: "squashfuse_ll",
    fuse_overlayfs: "fuse-overlayfs",
    mergerfs: "mergerfs",
    ntfs_3g: "ntfs-3g",
    gocryptfs: "gocryptfs",
    archivemount: "archivemount",
    rclone: "rclone",
}

fn again_as_user_nobody(name: &str) {
    let (_, test) = TESTS.iter().find(|(case, _)| *case == name).unwrap();
    // The build directory may be closed to others.
    let copy = tempfile::tempdir().unwrap();
    let program = copy.path().join("launch");
    common::install(&std::env::current_exe().unwrap(), &program);
    common::open_to_all(copy.path());
    let status = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .status()
        .unwrap();
    assert!(status.success(), "{name} as nobody");
}

#[test]
fn private_mountpoint_is_last_or_where_it_says() {
    if !present(&["bindfs"]) {
        return;
    }
    let area = Area::new();
    let source = area.directory("source");
    for words in [command(&["bindfs", "-f", &source]), command(&["bindfs", "-f", &source, "{}"])] {
        let program = start(&Launch { mountpoint: Mountpoint::Private, ..area.launch(words) });
        assert_eq!(program.mounted.argument, Some(3));
        let private = program.mounted.target.clone();
        assert_eq!(common::mode(&private) & 0o7777, 0o700);
        hang_up(program, "bindfs");
        assert!(!private.exists());
    }
}

#[test]
fn what_cannot_start_says_why() {
    let area = Area::new();
    let fail = |words: &[&str]| {
        let result = Launch::new(command(words)).start(Instant::now() + SOON);
        result.err().unwrap_or_else(|| panic!("{words:?} has mounted"))
    };
    let LaunchError::Start { error, .. } = fail(&["no-such-program"]) else { panic!() };
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(fail(&["no-such-program"]).to_string().ends_with("; is it installed?"));
    assert!(matches!(fail(&[]), LaunchError::Empty));
    let error = fail(&["sh", "-c", "echo out; echo error >&2; exit 3"]);
    assert_eq!(error.to_string(), "sh has mounted nothing; it ended with exit status 3; it said: out\nerror");
    let LaunchError::Ended { exit, .. } = fail(&["sh", "-c", "kill -KILL $$"]) else { panic!() };
    assert_eq!((exit.end, exit.said.as_str()), (End::Signal(libc::SIGKILL), ""));
    // A daemon that fails after its parent has gone well.
    let LaunchError::Ended { exit, .. } = fail(&["sh", "-c", "setsid sh -c 'exit 4' & exit 0"]) else {
        panic!()
    };
    assert_eq!(exit.end, End::Code(4));
    let LaunchError::Ended { exit, .. } = fail(&["sh", "-c", "head -c 100000 /dev/zero; echo end"]) else {
        panic!()
    };
    assert_eq!(exit.said.chars().count(), 64 << 10);
    // What may have been written by strangers does nothing to a terminal.
    assert!(!exit.said.contains('\0'));
    assert!(exit.said.ends_with("end\n"));
    let words =
        command(&["sh", "-c", "echo wait; while :; do read x < \"$1\"; done", "sh", &area.pipe("never")]);
    let late = area.launch(words).start(Instant::now() + common::MOMENT).err().unwrap();
    assert!(late.to_string().starts_with("sh has not mounted in time"), "{late}");
    assert!(matches!(late, LaunchError::Late { .. }));
    area.wait_until_empty();
}

#[test]
fn no_launcher_below_a_launcher() {
    if std::env::var_os(ROLE).is_some() {
        let result = Launch::new(command(&["true"])).start(Instant::now() + SOON);
        return println!("RESULT {}", result.err().unwrap());
    }
    let own = std::env::current_exe().unwrap();
    let words = command(&[own.to_str().unwrap(), "--exact", "no_launcher_below_a_launcher", "--nocapture"]);
    let outer = Launch { environment: vec![(ROLE.into(), "inner".into())], ..Launch::new(words) };
    let Err(LaunchError::Ended { exit, .. }) = outer.start(Instant::now() + SOON) else { panic!() };
    assert!(exit.said.contains("RESULT true cannot be started: "), "{exit}");
    assert!(exit.said.contains("we are ourselves under a seccomp listener"), "{exit}");
}

#[test]
fn a_crash_is_reported() {
    if !present(&["bindfs"]) {
        return;
    }
    let area = Area::new();
    let program = start(&area.launch(command(&["bindfs", "-f", &area.directory("source"), &area.target()])));
    let ended = program.processes.ended().unwrap();
    area.signal(Signal::SEGV);
    common::wait_readable(&ended);
    let exit = program.processes.wait(Instant::now() + SOON).unwrap();
    assert_eq!(exit.end, End::Signal(libc::SIGSEGV));
    assert!(Peer::new(&program.socket).is_hung_up());
}

const SCATTERED: [&str; 3] = ["sftp-server", "sh", "sshfs"];

/// sshfs as a daemon, with an ssh of its own and a process that left session and group.
fn scattered(area: &Area) -> Launch {
    let (up, never) = (area.pipe("up"), area.pipe("never"));
    let lines =
        ["setsid sh -c 'echo > {up}; read x < {never}' >/dev/null 2>&1 &", "read x < {up}", "exec {server}"];
    let lines =
        lines.join("\n").replace("{up}", &up).replace("{never}", &never).replace("{server}", SFTP_SERVER);
    let ssh = area.script("ssh", &lines);
    let option = format!("ssh_command={ssh}");
    let source = format!("host:{}", area.directory("source"));
    area.launch(command(&["sshfs", "-o", &option, &source, &area.target()]))
}

#[test]
fn killing_leaves_no_process() {
    if !present(&["sshfs", SFTP_SERVER]) {
        return;
    }
    let area = Area::new();
    let program = start(&scattered(&area));
    Peer::new(&program.socket).init();
    assert_eq!(area.processes(), SCATTERED);
    program.processes.kill();
    assert!(program.processes.wait(Instant::now() + SOON).is_some());
    assert_eq!(area.processes(), Vec::<String>::new());

    let program = start(&scattered(&area));
    let ended = program.processes.ended().unwrap();
    drop(program);
    common::wait_readable(&ended);
    assert_eq!(area.processes(), Vec::<String>::new());
}

#[test]
fn a_killed_worker_leaves_no_process() {
    if let Some(area) = std::env::var_os(ROLE) {
        let program =
            start(&Launch { mountpoint: Mountpoint::Replaced(4), ..scattered(&Area::at(area.into())) });
        Peer::new(&program.socket).init();
        println!("READY {}", program.mounted.target.display());
        common::wait_forever();
    }
    if !present(&["sshfs", SFTP_SERVER]) {
        return;
    }
    let area = Area::new();
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_worker_leaves_no_process", "--nocapture"])
        .env(ROLE, area.path())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines().map_while(Result::ok);
    let private = lines.find_map(|line| line.split_once("READY ").map(|(_, path)| path.to_owned())).unwrap();
    assert_eq!(area.processes(), SCATTERED);
    let init = common::children(worker.id());
    assert_eq!(init.len(), 1);
    // With all that is in its group, as a terminal or timeout(1) does.
    let group = Pid::from_raw(worker.id() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    worker.wait().unwrap();
    init.iter().for_each(common::wait_readable);
    assert_eq!(area.processes(), Vec::<String>::new());
    assert!(!Path::new(&private).exists());
}

/// A program that makes the calls of libfuse itself, and some it does not make.
const CALLER: &str = r#"
import ctypes, fcntl, os, resource, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
target = sys.argv[1]
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    return result if result >= 0 else -ctypes.get_errno()
print("fsopen", call("syscall", 430, b"fuse", 0))
how = struct.pack("QQQ", os.O_RDWR | os.O_CLOEXEC, 0, 0)
device = call("syscall", 437, -100, b"/dev/fuse", how, len(how))
print("close on exec", not os.get_inheritable(device))
os.close(device)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
print("no room", call("open", b"/dev/fuse", os.O_RDWR))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print("no device", call("mount", b"src", b".", b"fuse.test", 0, b"fd=77"))
device = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
os.chdir(target)
print("mount", call("mount", b"src", b".", b"fuse.test", 6, options))
print("again", call("mount", b"src", b".", b"fuse.test", 6, options))
print("other type", call("mount", b"src", b"/nowhere", b"tmpfs", 0, None) < 0)
second = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
fcntl.ioctl(second, 0x8004e500, struct.pack("I", device))
print("same", os.fstat(device).st_ino == os.fstat(second).st_ino, not os.get_inheritable(second))
umounts = [(target, 2), (".", 2), (target + "/./", 0)]
print("umount", [call("umount2", path.encode(), flags) for path, flags in umounts])
print("other", call("umount2", b"/nowhere", 0))
print("probe", call("open", (target + "/.go-fuse-epoll-hack").encode(), 0) > 0)
print("no probe", call("open", (target + "/../.go-fuse-epoll-hack").encode(), 0))
print("end", flush=True)
os.read(second, 1 << 17)
"#;

#[test]
fn every_call() {
    if !present(&["python3"]) {
        return;
    }
    let area = Area::new();
    let program = start(&area.launch(command(&["python3", "-c", CALLER, &area.target()])));
    assert_eq!(program.mounted.target, area.mountpoint());
    assert_eq!(program.mounted.argument, Some(3));
    assert_eq!((program.mounted.source.to_str(), program.mounted.flags), (Some("src"), 6));
    // Any message is what it waits for, and it may be as large as promised.
    assert!(program.message_max > 128 << 10);
    let message = vec![0; program.message_max];
    rustix::net::send(&program.socket, &message, rustix::net::SendFlags::NOSIGNAL).unwrap();
    let exit = program.processes.wait(Instant::now() + SOON).unwrap();
    let said = "fsopen -38\nclose on exec True\nno room -24\nno device -2\nmount 0\nagain -16\nother type True\nsame True True\n\
                umount [0, 0, 0]\nother -2\nprobe True\nno probe -2\nend\n";
    assert_eq!(exit.said, said);
    assert_eq!(exit.end, End::Code(0));
}

#[test]
fn a_terminal_is_kept_for_passwords() {
    if std::env::var_os(ROLE).is_some() {
        let words =
            command(&["sh", "-c", "printf 'Password: '; read -r word < /dev/tty; echo got $word; exit 5"]);
        let error =
            Launch { terminal: true, ..Launch::new(words) }.start(Instant::now() + SOON).err().unwrap();
        return println!("RESULT {error}");
    }
    if !present(&["script"]) {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let inner = format!("{} --exact a_terminal_is_kept_for_passwords --nocapture", program.display());
    let mut terminal = Command::new("script")
        .args(["--quiet", "--echo", "never", "--command", &inner, "/dev/null"])
        .env(ROLE, "terminal")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = terminal.stdin.take().unwrap();
    let mut output = BufReader::new(terminal.stdout.take().unwrap());
    let mut shown = Vec::new();
    // The prompt has no end of line.
    while !shown.ends_with(b"Password: ") {
        let byte = output.fill_buf().unwrap().first().copied().expect("the prompt is not shown");
        shown.push(byte);
        output.consume(1);
    }
    input.write_all(b"secret\n").unwrap();
    let result = output.lines().map_while(Result::ok).find(|line| line.starts_with("RESULT"));
    let expected =
        "RESULT sh has mounted nothing; it ended with exit status 5; it said: Password: got secret";
    assert_eq!(result.as_deref().map(str::trim), Some(expected));
    terminal.wait().unwrap();
}
