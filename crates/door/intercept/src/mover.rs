// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has a process enter the namespaces of another one.

use crate::attach::{check, identity};
use crate::failed;
use crate::tracee::Tracee;
use nix::errno::Errno;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The version of the structures of capset(2).
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// What capset(2) gets: the version, the process itself, and three sets of 64 capabilities, all empty.
const NO_CAPABILITIES: [u32; 8] = [CAPABILITY_VERSION, 0, 0, 0, 0, 0, 0, 0];
/// Where the sets begin in that, in bytes.
const SETS: u64 = 8;

/// Has the process `pid` enter the namespaces of the process `namespace`.
///
/// # Errors
/// A sentence about why it cannot; then it is where it was.
pub(crate) fn move_process(pid: u32, namespace: u32) -> Result<(), String> {
    let what = format!("process {pid}");
    let mut process = Tracee::stop(pid)?;
    // What was so before may have changed until it was stopped.
    check(pid)?;
    let link = |process: u32, name: &str| {
        fs::read_link(format!("/proc/{process}/{name}")).map_err(failed(format_args!("process {process}")))
    };
    let user_namespace = link(pid, "ns/user")? != link(namespace, "ns/user")?;
    let here = link(pid, "cwd")?;
    let there = Path::new(&format!("/proc/{namespace}/root")).join(here.strip_prefix("/").unwrap_or(&here));
    let is_there = identity(&there).is_some_and(|there| identity(format!("/proc/{pid}/cwd")) == Some(there));
    let moved = follow(&mut process, namespace, user_namespace, is_there.then_some(&here));
    moved.map_err(failed(format_args!("{what} cannot enter the namespace")))
}

/// Has a process enter the namespaces, without the capabilities that this gives. Its working directory stays: by its path where that
/// leads there, otherwise as it is.
fn follow(
    process: &mut Tracee,
    namespace: u32,
    user_namespace: bool,
    here: Option<&PathBuf>,
) -> Result<(), Errno> {
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    let current = libc::AT_FDCWD as u64;
    let dot = process.call_with(libc::SYS_openat, b".\0", |path| [current, path, flags, 0, 0, 0])?;
    let mut result = enter(process, namespace, user_namespace);
    if result.is_ok() && user_namespace {
        let bytes: Vec<u8> = NO_CAPABILITIES.iter().flat_map(|word| word.to_ne_bytes()).collect();
        result = process
            .call_with(libc::SYS_capset, &bytes, |header| [header, header + SETS, 0, 0, 0, 0])
            .map(drop);
    }
    if result.is_ok() {
        let by_path = here.map(|here| {
            let path = [here.as_os_str().as_bytes(), b"\0"].concat();
            process.call_with(libc::SYS_chdir, &path, |path| [path, 0, 0, 0, 0, 0])
        });
        if !matches!(by_path, Some(Ok(_))) {
            result = process.call(libc::SYS_fchdir, [dot, 0, 0, 0, 0, 0]).map(drop);
        }
    }
    process.call(libc::SYS_close, [dot, 0, 0, 0, 0, 0])?;
    result
}

/// Has a process enter the namespaces of another one.
fn enter(process: &mut Tracee, namespace: u32, user_namespace: bool) -> Result<(), Errno> {
    let user = if user_namespace { libc::CLONE_NEWUSER } else { 0 };
    let file = process.call(libc::SYS_pidfd_open, [u64::from(namespace), 0, 0, 0, 0, 0])?;
    let kinds = (libc::CLONE_NEWNS | user) as u64;
    let entered = process.call(libc::SYS_setns, [file, kinds, 0, 0, 0, 0]);
    process.call(libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
    entered.map(drop)
}
