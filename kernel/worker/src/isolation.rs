// SPDX-License-Identifier: GPL-2.0-only
//! What this process leaves of the host it runs on before it starts a thread and reads an image: its user, its capabilities, its
//! namespaces and every path. What the host forbids is left out, for [`crate::sandbox`] stops every system call that could
//! use it anyway; the log says what was possible.

use crate::log;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The line of the log that says what was possible begins so; `crates/driver/kernel/src/worker.rs` looks for it.
const SAYS: &str = "outrigger-kernel: isolated:";

/// `struct landlock_ruleset_attr` (landlock(7)); earlier versions know the beginning of it.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scopes: u64,
}

/// For each version of Landlock that knows more than the one before: its number, how many accesses to files, accesses to the
/// network and scopes it knows, and how much of [`Ruleset`].
const LANDLOCK: &[(i64, u32, u32, u32, usize)] = &[
    (1, 13, 0, 0, 8),
    (2, 14, 0, 0, 8),
    (3, 15, 0, 0, 8),
    (4, 15, 2, 0, 16),
    (5, 16, 2, 0, 16),
    (6, 16, 2, 2, 24),
];

/// Users that no account has: beyond those of systemd's containers, one for each process. A container that knows none of them has this
/// one instead.
const NOBODY: u32 = 0x7000_0000;
const NOBODY_IN_CONTAINERS: u32 = 65_533;
/// The buffers of requests stay in memory, also without the right to keep any amount there: bytes.
const LOCKED: u64 = 1 << 30;

/// `_LINUX_CAPABILITY_VERSION_3` of `<linux/capability.h>`, which the library does not have.
const CAPABILITIES: u32 = 0x2008_0522;
/// Above the highest capability there can be.
const CAPABILITY_END: libc::c_ulong = 64;

const OTHERS: libc::c_int =
    libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;

/// Leaves the host. Only this thread does, so there must be no other one.
///
/// # Errors
/// When it cannot give up gaining privileges, or the capabilities it has.
pub fn enter() -> io::Result<()> {
    // SAFETY: a plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: as above.
    let is_root = unsafe { libc::geteuid() } == 0;
    let mut has = Vec::new();
    let mounts = is_root && leave_mounts();
    let others = is_root && unshare(OTHERS);
    if is_root && become_unused_user() {
        has.push("a user of its own".to_owned());
    }
    let user = unshare(libc::CLONE_NEWUSER | if others { 0 } else { OTHERS });
    drop_capabilities()?;
    has.push("no capabilities".to_owned());
    let spaces = [("user", user), ("mount", mounts), ("network, ipc, uts and cgroup", others || user)];
    let spaces: Vec<&str> = spaces.iter().filter(|(_, own)| *own).map(|(name, _)| *name).collect();
    if !spaces.is_empty() {
        has.push(format!("namespaces ({})", spaces.join(", ")));
    }
    if let Some(version) = leave_files() {
        has.push(format!("landlock {version}"));
    }
    log::append(format!("{SAYS} {}\n", has.join(", ")).as_bytes());
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the host lets this process have namespaces of its own.
fn unshare(flags: libc::c_int) -> bool {
    // SAFETY: a plain system call.
    unsafe { libc::unshare(flags) == 0 }
}

/// An empty tree instead of the host's, none of whose mounts is kept from being unmounted by this process.
fn leave_mounts() -> bool {
    let Ok(before) = File::open("/proc/self/ns/mnt") else { return false };
    if !unshare(libc::CLONE_NEWNS) {
        return false;
    }
    let left = empty_tree().is_ok();
    if !left {
        // A copy of all mounts would be worse than none of its own.
        // SAFETY: a plain system call with an open descriptor.
        unsafe { libc::setns(before.as_raw_fd(), libc::CLONE_NEWNS) };
    }
    left
}

/// Exchanges the root for a tmpfs that is not written (pivot_root(2) says why twice the same place) and unmounts all else here.
fn empty_tree() -> io::Result<()> {
    const PLACE: &CStr = c"/proc";
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RDONLY;
    let (none, here) = (std::ptr::null(), c".".as_ptr());
    // SAFETY: all strings are complete and live longer than the calls.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
        let kind = c"tmpfs".as_ptr();
        check(libc::mount(kind, PLACE.as_ptr(), kind, flags, none.cast()))?;
        check(libc::chdir(PLACE.as_ptr()))?;
        check(libc::syscall(libc::SYS_pivot_root, here, here) as libc::c_int)?;
        check(libc::umount2(here, libc::MNT_DETACH))?;
        check(libc::chdir(c"/".as_ptr()))
    }
}

/// Another user than the superuser, in no group: one that no other process has.
fn become_unused_user() -> bool {
    let locked = libc::rlimit { rlim_cur: LOCKED, rlim_max: LOCKED };
    // SAFETY: the structure is complete, and no group is named.
    unsafe {
        // Without it, buffers that the host takes out of memory are read back.
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &locked);
        libc::setgroups(0, std::ptr::null());
    }
    [NOBODY + std::process::id(), NOBODY_IN_CONTAINERS].into_iter().any(|id| {
        // SAFETY: plain system calls.
        unsafe { libc::setresgid(id, id, id) == 0 && libc::setresuid(id, id, id) == 0 }
    })
}

/// Gives up every capability, also those that a user namespace came with.
fn drop_capabilities() -> io::Result<()> {
    for capability in 0..CAPABILITY_END {
        // Without a program to start there is none to gain, so this may fail.
        // SAFETY: a plain system call.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    let (header, none) = ([CAPABILITIES, 0], [0_u32; 6]);
    // SAFETY: a header of this version and the two structures that belong to it, of three numbers each (capget(2)).
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) } as libc::c_int)
}

/// No path leads anywhere from here on, no port and no process outside, as far as the host's Landlock knows these. Gives the version
/// that is used; none where there is no Landlock.
fn leave_files() -> Option<i64> {
    const VERSION: u32 = 1;
    // SAFETY: asks for a number only.
    let newest =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Ruleset>(), 0, VERSION) };
    let &(version, files, network, scopes, size) = LANDLOCK.iter().rfind(|row| row.0 <= newest)?;
    let every = |count: u32| (1_u64 << count) - 1;
    let ruleset = Ruleset { files: every(files), network: every(network), scopes: every(scopes) };
    // SAFETY: the structure has at least `size` bytes.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &ruleset, size, 0) };
    if fd < 0 {
        return None;
    }
    // SAFETY: plain system calls with the descriptor just made, which no other process has.
    let restricted = unsafe {
        let restricted = libc::syscall(libc::SYS_landlock_restrict_self, fd, 0);
        libc::close(fd as i32);
        restricted
    };
    (restricted == 0).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// What of this process is visible to its parent: users, groups, capabilities, namespaces, and whether a path leads anywhere.
    fn traits(before: &[String]) -> Vec<(&'static str, bool)> {
        let status = before.concat();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        vec![
            (
                "no capability",
                ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"]
                    .iter()
                    .all(|name| field(name).iter().all(|set| set.trim_start_matches('0').is_empty())),
            ),
            ("nothing to gain", field("NoNewPrivs:") == ["1"]),
            ("no group", field("Groups:").is_empty()),
            ("no superuser", !field("Uid:").contains(&"0".to_owned())),
        ]
    }

    #[test]
    fn the_host_is_left() {
        const IS_CHILD: &str = "OUTRIGGER_TEST_ISOLATED";
        if std::env::var_os(IS_CHILD).is_some() {
            // Opened before, for no path leads there later.
            let status = File::open("/proc/thread-self/status").expect("the status");
            enter().expect("it is left");
            let text = io::read_to_string(status).expect("a text");
            for (what, is_so) in traits(&[text]) {
                println!("{what}: {is_so}");
            }
            println!("no path: {}", fs::metadata("/proc/self").is_err() && File::open("/").is_err());
            println!("no port: {}", std::net::TcpListener::bind("127.0.0.1:0").is_err());
            return;
        }
        // SAFETY: a plain system call.
        if unsafe { libc::geteuid() } != 0 {
            println!("SKIPPED: needs root");
            return;
        }
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "isolation::tests::the_host_is_left", "--test-threads=1", "--nocapture"]);
        let output = command.env(IS_CHILD, "1").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let expected = ["no capability", "nothing to gain", "no group", "no superuser", "no path", "no port"];
        for what in expected {
            assert!(said.contains(&format!("{what}: true")), "{what}: {said}");
        }
    }
}
