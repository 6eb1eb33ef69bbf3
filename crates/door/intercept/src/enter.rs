// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that becomes the program: it has no other threads, so that it can enter a user namespace.

use crate::failed;
use crate::launch::Prefix;
use crate::root::{Root, TREES};
use crate::whole::Whole;
use crate::{GO, MESSAGE_MAX, MOUNTED, NAME, NOT_EXECUTABLE, NOT_FOUND, NOT_STARTED};
use outrigger_host::{receive_with, send_with};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::RecvFlags;
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Whether this program was started under this name to become another one.
pub fn is_enter(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME)
}

/// Becomes the program that the arguments, after the name, say. Returns only if that fails, with the exit status.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some((socket, order)) = Order::parse(arguments) else { return ExitCode::from(NOT_STARTED) };
    let entered = order.enter(&socket);
    let (status, why) = match entered {
        Err(why) => (NOT_STARTED, why),
        Ok(()) => order.execute(),
    };
    // The server says it; without one, the status has to do.
    let _ = send_with(&socket, &why.as_bytes()[..why.len().min(MESSAGE_MAX)], &[]);
    ExitCode::from(status)
}

/// What the server wants.
struct Order {
    prefixes: Vec<Prefix>,
    whole: Option<PathBuf>,
    program: OsString,
    arguments: Vec<OsString>,
}

impl Order {
    /// The socket to the server, and what stands behind it.
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<(OwnedFd, Self)> {
        let mut number = || arguments.next()?.to_str()?.parse::<usize>().ok();
        let socket = own(RawFd::try_from(number()?).ok()?)?;
        let (count, is_whole) = (number()?, number()? == 1);
        let whole = if is_whole { Some(PathBuf::from(arguments.next()?)) } else { None };
        let mut prefixes = Vec::new();
        for _ in 0..count {
            let (path, name) = (PathBuf::from(arguments.next()?), arguments.next()?);
            prefixes.push(Prefix { path, name });
        }
        let program = arguments.next()?;
        Some((socket, Order { prefixes, whole, program, arguments: arguments.collect() }))
    }

    /// Enters a namespace in which the trees stand under their prefixes.
    fn enter(&self, socket: &OwnedFd) -> Result<(), String> {
        // One that was removed stays what it is.
        let here = std::env::current_dir().ok();
        isolate()?;
        match &self.whole {
            Some(empty) => {
                let whole = Whole::new()?;
                serve_at(whole.place(), whole.flags(), socket)?;
                whole.enter(empty)?;
            }
            None => {
                let root = Root::make(&self.prefixes)?;
                serve_at(TREES, MountFlags::NOSUID | MountFlags::NODEV, socket)?;
                root.show(&self.prefixes)?;
            }
        }
        here.map_or(Ok(()), |here| {
            std::env::set_current_dir(&here)
                .map_err(failed(format_args!("the working directory '{}'", here.display())))
        })
    }

    /// Executes the program; why that failed, and the exit status.
    fn execute(&self) -> (u8, String) {
        let error = Command::new(&self.program).args(&self.arguments).exec();
        let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        (status, failed(format_args!("'{}' cannot be executed", self.program.display()))(error))
    }
}

/// The descriptor of this number, which the process was started with; execve(2) closes it.
fn own(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the borrow lasts for one fcntl(2), which says EBADF when nothing is open under the number.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, as fcntl(2) has just shown, and was given to this process, which has nothing else of its own yet.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Enters a mount namespace whose changes others do not see: for users without privileges in a user namespace of their own, in which
/// they are the users that they were.
fn isolate() -> Result<(), String> {
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
            std::fs::write(file, text).map_err(|error| failed(file)(error) + &advice())?;
        }
    }
    // What is mounted outside later shows up inside.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|error| failed("the mounts cannot be separated")(error) + &advice())
}

/// Settings of the system that forbid this.
fn advice() -> String {
    let is = |file: &str, value: &str| std::fs::read_to_string(file).is_ok_and(|text| text.trim() == value);
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

/// Mounts the trees, and waits until they answer.
fn serve_at(place: &str, flags: MountFlags, socket: &OwnedFd) -> Result<(), String> {
    let device = mount_fuse(place, flags)?;
    send_with(socket, MOUNTED, &[device.as_fd()]).map_err(failed("the server is gone"))?;
    drop(device);
    wait(socket)
}

/// Mounts the trees where only this process finds them.
fn mount_fuse(place: &str, flags: MountFlags) -> Result<OwnedFd, String> {
    let device =
        open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed("/dev/fuse"))?;
    let (uid, gid) = (geteuid(), getegid());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    if uid.is_root() {
        // The program may become another user.
        data.push_str(",allow_other,default_permissions");
    }
    let data = CString::new(data).map_err(|error| error.to_string())?;
    mount("outrigger-run", place, "fuse.outrigger", flags, &*data)
        .map_err(failed("a FUSE mount is refused"))?;
    Ok(device)
}

/// Waits until the trees answer.
fn wait(socket: &OwnedFd) -> Result<(), String> {
    let mut message = [0; GO.len()];
    match receive_with(socket, &mut message, RecvFlags::empty()) {
        Ok((length, _)) if &message[..length] == GO => Ok(()),
        Ok(_) => Err("the server has ended".to_owned()),
        Err(error) => Err(failed("the server")(error)),
    }
}
