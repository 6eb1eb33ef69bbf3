// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs to start, the kernel's side of a conversation with them, and what is left of them.
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use outrigger_driver_libfuse::launch::Launch;
use outrigger_proto_fuse::{
    AttrOut, GetattrIn, InHeader, InitFlags, InitIn, InitOut, MAJOR, Opcode, OutHeader, ROOT_ID,
    encode_request,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// By when everything here must have happened, on the slowest machine.
pub const SOON: Duration = Duration::from_secs(60);
/// By when something that never happens is given up.
pub const MOMENT: Duration = Duration::from_millis(300);
pub const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";
/// What keeps the programs from becoming daemons.
pub const FOREGROUND: [&str; 3] = ["-f", "-fg", "-ono_detach"];
const MARK: &str = "OUTRIGGER_TEST_AREA";

/// A FUSE program and how to start it.
pub struct Case {
    pub name: &'static str,
    pub needs: &'static [&'static str],
    /// Makes what the program needs, and gives the command; it mounts on [`Area::target`].
    pub prepare: fn(&Area) -> Vec<OsString>,
    /// Whether it works for a user without privileges.
    pub without_privileges: bool,
    /// What it leaves in the mountpoint.
    pub leaves: &'static [&'static str],
}

const CASE: Case =
    Case { name: "", needs: &[], prepare: |_| Vec::new(), without_privileges: true, leaves: &[] };

pub const PROGRAMS: &[Case] = &[
    Case {
        name: "bindfs",
        needs: &["bindfs"],
        prepare: |area| command(&["bindfs", "-f", &area.directory("source"), &area.target()]),
        ..CASE
    },
    Case { name: "sshfs", needs: &["sshfs", SFTP_SERVER], prepare: |area| sshfs(area, "reconnect"), ..CASE },
    Case {
        name: "sshfs that unmounts",
        needs: &["sshfs", SFTP_SERVER, "fusermount3"],
        prepare: |area| sshfs(area, "auto_unmount"),
        ..CASE
    },
    Case {
        name: "squashfuse",
        needs: &["squashfuse", "mksquashfs"],
        prepare: |area| command(&["squashfuse", "-f", &squash(area), &area.target()]),
        ..CASE
    },
    Case {
        name: "squashfuse_ll",
        needs: &["squashfuse_ll", "mksquashfs"],
        prepare: |area| command(&["squashfuse_ll", "-f", &squash(area), &area.target()]),
        ..CASE
    },
    Case {
        name: "fuse-overlayfs",
        needs: &["fuse-overlayfs"],
        prepare: |area| {
            let [lower, upper, work] = ["lower", "upper", "work"].map(|name| area.directory(name));
            let option = format!("lowerdir={lower},upperdir={upper},workdir={work}");
            command(&["fuse-overlayfs", "-f", "-o", &option, &area.target()])
        },
        ..CASE
    },
    Case {
        name: "mergerfs",
        needs: &["mergerfs"],
        prepare: |area| {
            let branches = format!("{}:{}", area.directory("one"), area.directory("two"));
            command(&["mergerfs", "-f", &branches, &area.target()])
        },
        ..CASE
    },
    Case {
        name: "ntfs-3g",
        needs: &["ntfs-3g", "mkntfs"],
        prepare: |area| {
            let image = area.file("image", &vec![0; 4 << 20]);
            run(Command::new("mkntfs")
                .args(["-q", "-F", "-f", "-s", "512", "-p", "0", "-H", "1", "-S", "1", &image]));
            command(&["ntfs-3g", "-ono_detach", &image, &area.target()])
        },
        ..CASE
    },
    Case {
        name: "gocryptfs",
        needs: &["gocryptfs"],
        prepare: |area| {
            let (cipher, password) = (area.directory("cipher"), area.file("password", b"secret\n"));
            run(Command::new("gocryptfs").args([
                "-q",
                "-init",
                "-scryptn=10",
                "-passfile",
                &password,
                &cipher,
            ]));
            command(&["gocryptfs", "-fg", "-passfile", &password, &cipher, &area.target()])
        },
        ..CASE
    },
    Case {
        name: "archivemount",
        needs: &["archivemount", "tar"],
        prepare: |area| {
            let (archive, source) = (area.join("archive.tar"), area.directory("source"));
            run(Command::new("tar").args(["-cf", &archive, "-C", &source, "."]));
            command(&["archivemount", "-f", &archive, &area.target()])
        },
        ..CASE
    },
    Case {
        name: "rclone",
        needs: &["rclone"],
        prepare: |area| {
            let (config, cache) = (area.file("rclone.conf", b""), area.directory("cache"));
            let words = [
                "rclone",
                "mount",
                "--config",
                &config,
                "--cache-dir",
                &cache,
                &area.directory("source"),
                &area.target(),
            ];
            command(&words)
        },
        ..CASE
    },
];

fn sshfs(area: &Area, option: &str) -> Vec<OsString> {
    let ssh = area.script("ssh", &format!("exec {SFTP_SERVER}"));
    let (options, source) =
        (format!("ssh_command={ssh},{option}"), format!("host:{}", area.directory("source")));
    command(&["sshfs", "-f", "-o", &options, &source, &area.target()])
}

fn squash(area: &Area) -> String {
    let image = area.join("image.sqsh");
    run(Command::new("mksquashfs").args([&area.directory("source"), &image, "-quiet", "-no-progress"]));
    image
}

pub fn command(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Whether these programs are here; says so when not.
pub fn present(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = |name: &&str| path.split(':').any(|directory| Path::new(directory).join(name).exists());
    let missing = programs.iter().find(|name| !found(name));
    if let Some(name) = missing {
        println!("SKIPPED: {name} is not installed");
    }
    missing.is_none()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A temporary directory, and the processes started in its name.
pub struct Area {
    path: PathBuf,
    /// Removes the directory.
    _directory: Option<tempfile::TempDir>,
}

impl Area {
    /// With an empty mountpoint, and a file in `source`.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let area = Self { path: directory.path().canonicalize().unwrap(), _directory: Some(directory) };
        area.directory("mnt");
        fs::write(Path::new(&area.directory("source")).join("file"), "content").unwrap();
        area
    }

    /// The area of another process.
    pub fn at(path: PathBuf) -> Self {
        Self { path, _directory: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.path.join("mnt")
    }

    pub fn target(&self) -> String {
        self.join("mnt")
    }

    pub fn join(&self, name: &str) -> String {
        self.path.join(name).into_os_string().into_string().unwrap()
    }

    pub fn directory(&self, name: &str) -> String {
        fs::create_dir_all(self.path.join(name)).unwrap();
        self.join(name)
    }

    pub fn file(&self, name: &str, content: &[u8]) -> String {
        fs::write(self.path.join(name), content).unwrap();
        self.join(name)
    }

    pub fn script(&self, name: &str, lines: &str) -> String {
        let text = self.file(&format!("{name}.text"), format!("#!/bin/sh\n{lines}\n").as_bytes());
        install(Path::new(&text), &self.path.join(name));
        self.join(name)
    }

    /// A named pipe without a writer.
    pub fn pipe(&self, name: &str) -> String {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let made = rustix::fs::mknodat(rustix::fs::CWD, self.path.join(name), FileType::Fifo, mode, 0);
        assert!(matches!(made, Ok(()) | Err(Errno::EXIST)), "{made:?}");
        self.join(name)
    }

    /// Starts a command whose processes can be found again.
    pub fn launch(&self, words: Vec<OsString>) -> Launch {
        Launch { environment: vec![(MARK.into(), self.path.clone().into())], ..Launch::new(words) }
    }

    /// The names of the processes there are, each once: the parent of a daemon may still be about to end.
    pub fn processes(&self) -> Vec<String> {
        let mut names: Vec<_> = self.living().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        names
    }

    fn living(&self) -> Vec<(String, Pid)> {
        let mark = format!("{MARK}={}\0", self.path.display()).into_bytes();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids =
            processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        pids.filter_map(|pid| {
            let directory = Path::new("/proc").join(pid.to_string());
            let environment = fs::read(directory.join("environ")).ok()?;
            let name = fs::read_to_string(directory.join("comm")).ok()?;
            environment.windows(mark.len()).any(|part| part == mark).then(|| (name.trim().to_owned(), pid))
        })
        .collect()
    }

    /// Waits until there are none.
    pub fn wait_until_empty(&self) {
        while let Some((_, pid)) = self.living().first() {
            if let Ok(process) = pidfd_open(*pid, PidfdFlags::empty()) {
                wait_readable(&process);
            }
        }
    }

    /// Sends a signal to all.
    pub fn signal(&self, signal: Signal) {
        let living = self.living();
        assert!(!living.is_empty());
        for (_, pid) in living {
            pidfd_send_signal(pidfd_open(pid, PidfdFlags::empty()).unwrap(), signal).unwrap();
        }
    }
}

/// Copies a program. Another process does it: what ours has open for writing, a child of another test has too, and then
/// it cannot be executed (`ETXTBSY`).
pub fn install(from: &Path, to: &Path) {
    run(Command::new("install").arg("--mode=755").args([from, to]));
}

/// Lets every user into a directory.
pub fn open_to_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
}

pub fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode()
}

pub fn entries(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// The children of a process, whichever thread made them.
pub fn children(process: u32) -> Vec<OwnedFd> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let text = lists.collect::<String>();
    let pids = text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap()));
    pids.map(|pid| pidfd_open(pid, PidfdFlags::empty()).unwrap()).collect()
}

/// Waits until a descriptor has something, or its process has ended.
pub fn wait_readable(descriptor: &OwnedFd) {
    let limit = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
    let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
    assert_eq!(poll(&mut descriptors, Some(&limit)).unwrap(), 1, "nothing has happened");
}

pub fn wait_forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// The kernel's side of a conversation.
pub struct Peer<'a> {
    socket: &'a OwnedFd,
    unique: u64,
}

impl<'a> Peer<'a> {
    pub fn new(socket: &'a OwnedFd) -> Self {
        Self { socket, unique: 0 }
    }

    /// Sends a request to the root and gives the body of its reply.
    fn ask(&mut self, opcode: Opcode, body: &[u8]) -> Vec<u8> {
        self.unique += 2;
        let header = InHeader {
            len: 0,
            opcode: 0,
            unique: self.unique,
            nodeid: ROOT_ID,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            pid: std::process::id(),
            total_extlen: 0,
        };
        let request = encode_request(header, opcode, &[body]);
        rustix::net::send(self.socket, &request, SendFlags::NOSIGNAL).unwrap();
        let mut reply = vec![0; 1 << 17];
        loop {
            wait_readable(self.socket);
            let (length, _) =
                rustix::net::recv(self.socket.as_fd(), reply.as_mut_slice(), RecvFlags::empty()).unwrap();
            assert_ne!(length, 0, "{opcode:?}: the program has hung up");
            let (header, body) = OutHeader::decode(&reply[..length]).unwrap();
            assert_eq!(header.len as usize, length);
            if header.unique == self.unique {
                assert_eq!(header.error, 0, "{opcode:?}");
                return body.to_vec();
            }
        }
    }

    pub fn init(&mut self) {
        // fuse-overlayfs insists on not having the umask applied.
        let flags = InitFlags::ASYNC_READ | InitFlags::BIG_WRITES | InitFlags::DONT_MASK;
        let request = InitIn { major: MAJOR, minor: 31, max_readahead: 1 << 17, flags };
        let reply = InitOut::decode(&self.ask(Opcode::Init, &request.encode())).unwrap();
        assert!(reply.minor >= 12, "{reply:?}");
    }

    /// The mode of the root directory.
    pub fn root_mode(&mut self) -> u32 {
        let body = self.ask(Opcode::Getattr, &GetattrIn { getattr_flags: 0, fh: 0 }.encode());
        AttrOut::decode(&body).unwrap().0.attr.mode
    }

    /// Whether the next that comes is the end. A child of another test may hold the other end until it executes.
    pub fn is_hung_up(&self) -> bool {
        wait_readable(self.socket);
        let mut byte = [0];
        matches!(rustix::net::recv(self.socket, &mut byte, RecvFlags::DONTWAIT), Ok((0, _)))
    }
}
