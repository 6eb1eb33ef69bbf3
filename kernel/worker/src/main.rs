// SPDX-License-Identifier: GPL-2.0-only
//! `outrigger-kernel`: Linux' own file-system code in an ordinary process, serving one disk image over the core's wire
//! protocol. `kernel/README.md` explains how.
//!
//! It is started by the driver `kernel` with the words that [`Arguments`] describes, gives up every right it does not
//! need, and only then reads the image. It ends when the driver hangs up, after unmounting. A mount may be handed over to it
//! ([`direct`]): then it takes requests from the host's kernel by itself.

mod abi;
mod arguments;
mod attr;
mod control;
mod crash;
mod devices;
mod direct;
mod disk;
mod exchange;
mod fixed;
mod guard;
mod host;
mod isolation;
mod kept;
mod kernel;
mod listing;
mod log;
mod machine;
mod mapped;
mod marks;
mod medium;
mod memory;
mod nodes;
mod overlay;
mod removed;
mod ring;
mod sandbox;
mod serve;
mod served;
mod socket;
mod source;
mod task;
mod tasks;
mod transfer;
mod tree;
mod watchdog;
mod xattr;

use arguments::Arguments;
use control::Control;
use devices::Devices;
use disk::{Disk, Image};
use guard::Guard;
use kernel::Kernel;
use medium::Arrived;
use outrigger_core::{Errno, Error, Result};
use serve::{Connection, Keeps};
use source::Source;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use task::{Fd, Task};
use tree::Tree;

/// Where the image is mounted, in the kernel's own tree.
const MOUNTPOINT: &CStr = c"/mnt";
/// Where HFS+ keeps files with several names, and those that are open and have none; the zeroes of its name are shown so.
const PRIVATE: &CStr = c"/mnt/\u{2400}\u{2400}\u{2400}\u{2400}HFS+ Private Data";

/// Which of the processes that serve a mount this one is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// There are no others.
    Alone,
    /// The image is as the first one has found it: what removed files have kept in it is not in use any more.
    First,
    /// It goes on with what another one has changed.
    Later,
}

impl Standing {
    fn of(control: Option<&Control>) -> io::Result<Self> {
        Ok(match control {
            Some(control) if control.checkpoints()? == 0 => Standing::First,
            Some(_) => Standing::Later,
            None => Standing::Alone,
        })
    }
}

fn main() -> ExitCode {
    // Further arenas look into a file before they shrink (glibc's arena.c), and in the sandbox there are no files.
    // SAFETY: a plain call.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    match Arguments::from_command_line().map_err(io::Error::other).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = Error::from(error);
            log::append(format!("outrigger-kernel: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Keeps the log in this file, and gives access to what `place` in it keeps for the next process.
fn keep_log(log: Option<File>, place: Option<u64>) -> io::Result<Option<Arc<Control>>> {
    let Some(log) = log else { return Ok(None) };
    let control =
        place.map(|place| io::Result::Ok(Arc::new(Control::at(log.try_clone()?, place)))).transpose()?;
    if control.is_none() {
        sandbox::seal(&log, log::LENGTH)?;
    }
    log::keep_in(log);
    Ok(control)
}

fn run(arguments: Arguments) -> io::Result<()> {
    let Arguments { socket, log, control, image, start, size, flash, write, kind, options, .. } = arguments;
    let Arguments { memory, files, patience, sandbox, io, forms, devices, served, fixed, .. } = arguments;
    if let Some((seconds, seed)) = fixed {
        fixed::fix(seconds, seed);
    }
    let control = keep_log(log, control.filter(|_| write))?;
    let image = image.map(|image| match served {
        Some(size) => Ok(Arrived::served(image, size, forms)),
        None => Arrived::with_files(image, forms, &io, write, &socket),
    });
    let image = image.transpose()?;
    let others = devices::receive(devices, &io, write, &socket)?;
    if sandbox {
        isolation::enter()?;
    }
    watchdog::watch(&socket, patience)?;
    let image = image.map(Arrived::image).transpose()?;
    let others = devices::images(others)?;
    let images = || image.iter().chain(others.iter().map(|(_, image)| image)).filter(|_| write);
    let grows = images().any(|image| matches!(image, Image::Qcow2(_)));
    let mut longest = images().map(Image::longest).collect::<io::Result<Vec<u64>>>()?.into_iter().max();
    let mut connection = Connection::open(socket)?;
    crash::report()?;
    let kernel = Kernel::start(host::machine(memory)?, c"loglevel=6")?;
    let mut source = Source::Memory;
    if let Some(image) = image {
        let room = overlay::room(memory, image.size());
        let mut disk = Disk::new(image, start, size, write)?;
        if let Some(control) = &control {
            longest = longest.max(Some(control.bounded(room)?));
            disk = disk.kept_apart(Arc::clone(control))?;
            marks::take_away(&disk, &kind, control)?;
        } else if !write {
            // A journal that has to be replayed is replayed, and the image stays as it is.
            disk = disk.kept_apart(Arc::new(Control::in_memory(room)?))?;
        }
        // Flash memory is what the kernel code does not wait for.
        if io == "uring" && flash.is_none() {
            disk = disk.with_ring()?;
        }
        let number = disk::add(disk)?;
        source = flash.map_or(Source::Disk(number), |erase_size| Source::Flash { number, erase_size });
    }
    let devices = Devices::add(others, memory, write)?;
    let standing = Standing::of(control.as_deref())?;
    let guard = control.zip(source.disk()).map(|(control, number)| Arc::new(Guard::new(control, number)));
    if sandbox {
        let ring = ring::descriptor().is_some();
        sandbox::enter(sandbox::Needs { growing: grows, ring, serving: !ring, memory, longest })?;
    }

    let named = devices.clone();
    let mounted = kernel.call(move |task| mount(task, source, &named, (&kind, &options), standing));
    connection.announce(mounted.as_ref().map(drop).map_err(Error::clone))?;
    let Ok(tree) = mounted else { return Ok(()) };
    let number = source.disk();
    let last = move |kernel: &Kernel, tree: &Rc<Tree>| finish(kernel, tree, &devices, number);
    let keeps = guard.as_ref().map_or(Keeps::Nothing(files), Keeps::Left);
    match connection.serve(&kernel, &tree, keeps) {
        Ok(Some(mount)) => direct::serve(connection, kernel, tree, !source.writable()?, mount, guard, last),
        served => {
            last(&kernel, &tree)?;
            served.map(drop)
        }
    }
}

/// Unmounts the image and puts everything on the medium.
fn finish(kernel: &Kernel, tree: &Rc<Tree>, devices: &Devices, disk: Option<u32>) -> io::Result<()> {
    let tree = Rc::clone(tree);
    let unmounted = kernel.call(move |task| unmount(task, &tree));
    let settled = devices.settle();
    let written = disk.map_or(Ok(()), |number| disk::get(number)?.checkpoint());
    disk::all_written()?;
    unmounted.and(settled)?;
    written
}

/// How a file system is mounted that nothing has changed yet. The code for F2FS gives up recovering what fsync(2) has stored when
/// the mount is a read-only one, and goes on without it.
fn unchanged(kind: &CStr) -> libc::c_ulong {
    if kind == c"f2fs" { 0 } else { libc::MS_RDONLY }
}

/// Mounts what is there, read-only until the first change.
fn mount(
    task: &Task,
    source: Source,
    devices: &Devices,
    (kind, options): (&CStr, &CStr),
    standing: Standing,
) -> Result<Rc<Tree>> {
    fixed::set_clock(task)?;
    let device = source.add(task)?;
    task.mkdir(Fd::CWD, MOUNTPOINT, 0o755)?;
    let writable = source.writable()?;
    if writable && kind == c"hfsplus" {
        prepare_hfsplus(task, &device, options)?;
    }
    // What it is on does not change later, so it is not named again.
    let all = devices.named(task, options)?;
    task.mount(&device, MOUNTPOINT, kind, unchanged(kind), &all)?;
    let options = options.to_owned();
    let remount = move |task: &Task| match writable {
        true => task.mount(c"", MOUNTPOINT, c"", libc::MS_REMOUNT, &options),
        false => Err(Errno::EROFS.into()),
    };
    let tree = Tree::at(task, MOUNTPOINT, Rc::new(remount), source, standing != Standing::Alone)?;
    if standing == Standing::First {
        remove_leftovers(task, &tree);
    }
    Ok(Rc::new(tree))
}

/// Removes what open files have kept. What is left does no harm, and the next mount tries again.
fn remove_leftovers(task: &Task, tree: &Tree) {
    if let Err(error) = tree.remove_leftovers(task) {
        log::append(format!("outrigger-kernel: removed files are left: {error}\n").as_bytes());
    }
}

/// Sees to it that there is [`PRIVATE`]. The code for HFS+ makes it when it mounts, not when a mount becomes a writable one,
/// and relies on it in both cases.
fn prepare_hfsplus(task: &Task, device: &CStr, options: &CStr) -> Result<()> {
    let mount_once = |flags| {
        task.mount(device, MOUNTPOINT, c"hfsplus", flags, options)?;
        let is_there = task.stat(Fd::CWD, PRIVATE).is_ok();
        task.umount(MOUNTPOINT, 0).map(|()| is_there)
    };
    if !mount_once(libc::MS_RDONLY)? {
        mount_once(0)?;
    }
    Ok(())
}

/// Puts everything on the medium and leaves the image as after an orderly unmount.
fn unmount(task: &Task, tree: &Tree) -> Result<()> {
    fixed::set_clock(task)?;
    remove_leftovers(task, tree);
    // umount(2) says nothing about writes that fail; syncfs(2) reports what was not reported yet.
    let synced = tree.sync_all(task);
    tree.close(task);
    task.umount(MOUNTPOINT, 0)?;
    synced
}
