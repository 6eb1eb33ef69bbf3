// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that becomes the program, or moves another one: it has no other threads, so that it can enter a user namespace.

use crate::attach::{Target, detach};
use crate::failed;
use crate::given::{Given, give_up_capabilities};
use crate::launch::{Filter, Prefix};
use crate::mover::move_process;
use crate::namespace::isolate;
use crate::notify::{Injected, inject, keep, shown};
use crate::proc::status;
use crate::root::{Root, SOURCE, clear};
use crate::whole::Whole;
use crate::{
    ATTACH, DETACH, EXECUTE, GO, INJECT, KEEP, KEEPER, LISTENING, MESSAGE_MAX, MOUNTED, MOVE, NAME,
    NOT_EXECUTABLE, NOT_FOUND, NOT_STARTED, STOPS_AT_ALL, STOPS_AT_PATHS, TRACE, TRACE_APART, WHOLE,
};
use outrigger_host::{MountEntry, receive_with, send_with};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, mount};
use rustix::net::RecvFlags;
use rustix::process::{getegid, geteuid};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::iter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Whether this program was started under this name to become another one, or to move one.
pub fn is_enter(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == NAME || name == KEEPER)
}

/// Does what the arguments, after the name, say. Executing a program returns only if that fails.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some((socket, order)) = Order::parse(arguments) else { return ExitCode::from(NOT_STARTED) };
    let Err((status, why)) = order.obey(&socket) else { return ExitCode::SUCCESS };
    // The server says it; without one, the status has to do.
    let _ = send_with(&socket, &why.as_bytes()[..why.len().min(MESSAGE_MAX)], &[]);
    ExitCode::from(status)
}

/// What the server wants.
struct Order {
    prefixes: Vec<Prefix>,
    wanted: Wanted,
}

/// Who is to see the trees.
enum Wanted {
    /// A program that is executed.
    Program { program: OsString, arguments: Vec<OsString> },
    /// The same, where the tree is the root directory; this directory is empty there.
    Whole { empty: PathBuf, program: OsString, arguments: Vec<OsString> },
    /// A program whose system calls the server answers.
    Filtered { filter: Filter, program: OsString, arguments: Vec<OsString> },
    /// A program that the server traces.
    Traced { filter: Filter, program: OsString, arguments: Vec<OsString> },
    /// A process that runs. If it is to be moved, another process is asked for that.
    Process(u32),
    /// The same process, which is to enter the namespaces of another one.
    Move(u32, u32),
    /// The same process, whose calls the server is to answer.
    Inject(u32),
    /// A program that the server has started: its listener is to be kept.
    Keep(u32),
    /// A process that runs is to see them no more: those of a connection, or all.
    Detach(u32, Option<u32>),
}

impl Order {
    /// The socket to the server, and what stands behind it.
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<(OwnedFd, Self)> {
        let mut number = || arguments.next()?.to_str()?.parse::<usize>().ok();
        let socket = own(RawFd::try_from(number()?).ok()?)?;
        let mut prefixes = Vec::new();
        for _ in 0..number()? {
            let (path, name) = (PathBuf::from(arguments.next()?), arguments.next()?);
            prefixes.push(Prefix { path, name });
        }
        let (what, first) = (arguments.next()?, arguments.next()?);
        let pid = || first.to_str()?.parse().ok();
        let wanted = match what.to_str()? {
            EXECUTE => Wanted::Program { program: first, arguments: arguments.collect() },
            order if Filter::of(order).is_some() => Wanted::Filtered {
                filter: Filter::of(order)?,
                program: first,
                arguments: arguments.collect(),
            },
            TRACE | TRACE_APART => Wanted::Traced {
                filter: if what == TRACE { Filter::Plain } else { Filter::Apart },
                program: first,
                arguments: arguments.collect(),
            },
            WHOLE => {
                let program = arguments.next()?;
                Wanted::Whole { empty: first.into(), program, arguments: arguments.collect() }
            }
            ATTACH => Wanted::Process(pid()?),
            MOVE => Wanted::Move(pid()?, arguments.next()?.to_str()?.parse().ok()?),
            INJECT => Wanted::Inject(pid()?),
            KEEP => Wanted::Keep(pid()?),
            DETACH => {
                let connection = arguments.next().map(|number| number.to_str()?.parse().ok());
                Wanted::Detach(pid()?, connection.map_or(Some(None), |number| number.map(Some))?)
            }
            _ => return None,
        };
        Some((socket, Order { prefixes, wanted }))
    }

    /// Does it. If that fails: the exit status, and why.
    fn obey(&self, socket: &OwnedFd) -> Result<(), (u8, String)> {
        let not_started = |why| (NOT_STARTED, why);
        match &self.wanted {
            Wanted::Program { program, arguments } => {
                enter(|| self.show(socket, Root::make(&self.prefixes)?)).map_err(not_started)?;
                Err(execute(program, arguments))
            }
            Wanted::Whole { empty, program, arguments } => {
                let given = Given::look().map_err(failed("/proc/self/fd")).map_err(not_started)?;
                let show = || {
                    give_up_capabilities()?;
                    show_whole(socket, empty, &self.prefixes)
                };
                enter(show).map_err(not_started)?;
                given.open_again();
                Err(execute(program, arguments))
            }
            Wanted::Filtered { filter, program, arguments } => {
                enter_filter(socket, *filter).map_err(not_started)?;
                Err(execute(program, arguments))
            }
            Wanted::Traced { filter, program, arguments } => {
                enter_trace(socket, *filter).map_err(not_started)?;
                Err(execute(program, arguments))
            }
            Wanted::Process(pid) => self.attach(socket, *pid).map_err(not_started),
            Wanted::Move(pid, namespace) => move_process(*pid, *namespace).map_err(not_started),
            Wanted::Inject(pid) => inject_and_keep(socket, *pid).map_err(not_started),
            Wanted::Keep(pid) => keep_sent(socket, *pid).map_err(not_started),
            Wanted::Detach(pid, connection) => detach(*pid, *connection).map_err(not_started),
        }
    }

    /// Shows the trees to a process that runs.
    fn attach(&self, socket: &OwnedFd, pid: u32) -> Result<(), String> {
        let target = Target::new(pid)?;
        self.show(socket, target.enter(&self.prefixes)?)?;
        match target {
            Target::There(_) => Ok(()),
            Target::Moved => {
                send_with(socket, MOVE.as_bytes(), &[]).map_err(failed("the server is gone"))?;
                // The namespace is there as long as this process, until the other one is in it.
                receive_with(socket, &mut [0; 1], RecvFlags::empty()).map(drop).map_err(failed("the server"))
            }
        }
    }

    /// Mounts the trees, and shows them under their prefixes when they answer. If that fails nothing is left of it.
    fn show(&self, socket: &OwnedFd, root: Root) -> Result<(), String> {
        let (device, connection) = mount_at(root.trees(), MountFlags::NOSUID | MountFlags::NODEV)?;
        pass_on(socket, connection, &[device.as_fd()])?;
        drop(device);
        let shown = wait(socket).and_then(|()| root.show(&self.prefixes));
        shown.inspect_err(|_| {
            // The first error says what is wrong.
            let _ = clear(Some(connection));
        })
    }
}

/// Enters a namespace, and has the trees shown there.
fn enter(show: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // One that was removed stays what it is.
    let here = std::env::current_dir().ok();
    isolate()?;
    show()?;
    return_to(here)
}

/// Changes to the working directory again: its path may lead to a tree now.
fn return_to(here: Option<PathBuf>) -> Result<(), String> {
    here.map_or(Ok(()), |here| {
        std::env::set_current_dir(&here)
            .map_err(failed(format_args!("the working directory '{}'", here.display())))
    })
}

/// Has the server answer the system calls of this process, from the moment when it says so.
fn enter_filter(socket: &OwnedFd, filter: Filter) -> Result<(), String> {
    let here = std::env::current_dir().ok();
    if filter == Filter::Apart {
        give_up_core_files()?;
    }
    let listener = crate::notify::install(filter)?;
    send_with(socket, LISTENING, &[listener.as_fd()]).map_err(failed("the server is gone"))?;
    drop(listener);
    wait(socket)?;
    return_to(here)
}

/// The kernel would write what is left of a program that crashes to the real directory.
fn give_up_core_files() -> Result<(), String> {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none)
        .map_err(failed("the size of core files"))
}

/// Programs are made to open files of the overlay by openat2(2), which follows no link then.
fn must_have_openat2() -> Result<(), String> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map(drop)
        .map_err(failed("openat2(2), which Linux has from 5.6 on, and a filter of system calls may refuse"))
}

/// Has the server trace this process, and answer its system calls from the moment when it says so. Where there is a filter already, its answer
/// would come before that of another one: then this process stops at all calls.
fn enter_trace(socket: &OwnedFd, filter: Filter) -> Result<(), String> {
    let here = std::env::current_dir().ok();
    if filter == Filter::Apart {
        give_up_core_files().and_then(|()| must_have_openat2())?;
    }
    let is_first = status("self", "Seccomp:").is_ok_and(|mode| mode == "0");
    let is_filtered = is_first && crate::notify::install_for_tracer(filter).is_ok();
    if !is_filtered {
        crate::notify::give_up_privileges()?;
    }
    let stops = if is_filtered { STOPS_AT_PATHS } else { STOPS_AT_ALL };
    send_with(socket, stops, &[]).map_err(failed("the server is gone"))?;
    wait(socket)?;
    return_to(here)
}

/// Has the server answer the calls of a process that runs, and keeps its listener.
fn inject_and_keep(socket: &OwnedFd, pid: u32) -> Result<(), String> {
    let Injected { listener, newest } = inject(pid)?;
    keep(pid, (listener, Some(newest)), socket.try_clone().map_err(failed("the server"))?)
}

/// Keeps the listener that the server sends.
fn keep_sent(socket: &OwnedFd, pid: u32) -> Result<(), String> {
    let received = receive_with(socket, &mut [0; LISTENING.len()], RecvFlags::empty());
    let (_, mut files) = received.map_err(failed("the server"))?;
    let listener = files.pop().ok_or("the server has ended")?;
    keep(pid, (listener, None), socket.try_clone().map_err(failed("the server"))?)
}

/// Mounts the tree that is the root directory, and the trees that stand in it, and enters it when they answer.
fn show_whole(socket: &OwnedFd, empty: &Path, prefixes: &[Prefix]) -> Result<(), String> {
    let whole = Whole::new()?;
    let (device, connection) = mount_at(&whole.tree(), whole.flags())?;
    let trees = match prefixes {
        [] => None,
        _ => Some(mount_at(&whole.trees(), Whole::FLAGS_OF_TREES)?.0),
    };
    let devices: Vec<_> = iter::once(&device).chain(&trees).map(AsFd::as_fd).collect();
    pass_on(socket, connection, &devices)?;
    drop((device, trees));
    wait(socket)?;
    whole.enter(empty, prefixes)
}

/// Mounts what the server will answer for: the device, and the number of the connection.
fn mount_at(place: &Path, flags: MountFlags) -> Result<(OwnedFd, u32), String> {
    let device = mount_fuse(place, flags)?;
    let mount = MountEntry::at(place).map_err(failed("/proc/self/mountinfo"))?;
    Ok((device, mount.ok_or("the mount is gone")?.minor))
}

/// Gives devices to the server. This process keeps none: a connection would not end with the server.
fn pass_on(socket: &OwnedFd, connection: u32, devices: &[BorrowedFd<'_>]) -> Result<(), String> {
    send_with(socket, format!("{MOUNTED}{connection}").as_bytes(), devices)
        .map(drop)
        .map_err(failed("the server is gone"))
}

/// Executes a program. If that fails: the exit status, and why.
fn execute(program: &OsStr, arguments: &[OsString]) -> (u8, String) {
    let error = Command::new(program).args(arguments).exec();
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    (status, failed(format_args!("'{}' cannot be executed", shown(program.as_bytes())))(error))
}

/// The descriptor of this number, which the process was started with; execve(2) closes it.
fn own(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the borrow lasts for one fcntl(2), which says EBADF when nothing is open under the number.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, as fcntl(2) has just shown, and was given to this process, which has nothing else of its own yet.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Mounts the trees where only this process finds them.
fn mount_fuse(place: &Path, flags: MountFlags) -> Result<OwnedFd, String> {
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
    mount(SOURCE, place, "fuse.outrigger", flags, &*data).map_err(failed("a FUSE mount is refused"))?;
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
