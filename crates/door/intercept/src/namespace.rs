// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mount namespaces: a new one, and that of another process.

use crate::failed;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Pid, PidfdFlags, getegid, geteuid, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};
use std::fs;
use std::io;
use std::os::fd::AsFd;

/// Enters a mount namespace whose changes others do not see: for users without privileges in a user namespace of their own, in which
/// they are the users that they were.
pub(crate) fn isolate() -> Result<(), String> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    if unshare(UnshareFlags::NEWNS).is_err() {
        unshare(UnshareFlags::NEWNS | UnshareFlags::NEWUSER)
            .map_err(|error| failed("no user namespace")(error) + &advice())?;
        let maps = [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("{uid} {uid} 1")),
            ("/proc/self/gid_map", format!("{gid} {gid} 1")),
        ];
        for (file, text) in maps {
            fs::write(file, text).map_err(|error| failed(file)(error) + &advice())?;
        }
    }
    // What is mounted outside later shows up inside.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|error| failed("the mounts cannot be separated")(error) + &advice())
}

/// Settings of the system that forbid this.
fn advice() -> String {
    let is = |file: &str, value: &str| fs::read_to_string(file).is_ok_and(|text| text.trim() == value);
    let known = [
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ];
    let found = known.into_iter().find(|(file, value)| is(file, value));
    found.map_or_else(String::new, |(file, value)| {
        format!(" ({file} is {value}: an administrator can change that)")
    })
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: without `FILES`, the flags concern no descriptors.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// The namespaces that `pid` has and this process does not, of those that the names of files depend on.
pub(crate) fn differing(pid: u32) -> Result<ThreadNameSpaceType, String> {
    let kinds = [("user", ThreadNameSpaceType::USER), ("mnt", ThreadNameSpaceType::MOUNT)];
    kinds.into_iter().try_fold(ThreadNameSpaceType::empty(), |found, (name, kind)| {
        let link = |process: &str| fs::read_link(format!("/proc/{process}/ns/{name}"));
        let theirs = link(&pid.to_string()).map_err(|error| not_seen(pid, error))?;
        let ours = link("self").map_err(failed("/proc/self/ns"))?;
        Ok(if theirs == ours { found } else { found | kind })
    })
}

/// A sentence about why a process cannot be looked at.
pub fn not_seen(pid: u32, error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no process {pid}"),
        io::ErrorKind::PermissionDenied => {
            format!("process {pid} belongs to another user, or has privileges")
        }
        _ => failed(format_args!("process {pid}"))(error),
    }
}

/// Enters the namespaces of a process.
pub(crate) fn join(pid: u32) -> Result<(), String> {
    let what = format!("process {pid}");
    let number =
        i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| format!("{what}: there is none"))?;
    let process = pidfd_open(number, PidfdFlags::empty()).map_err(failed(&what))?;
    let kinds = differing(pid)?;
    if kinds.is_empty() {
        return Ok(());
    }
    move_into_thread_name_spaces(process.as_fd(), kinds)
        .map_err(failed(format_args!("the file system of {what} cannot be entered")))
}
