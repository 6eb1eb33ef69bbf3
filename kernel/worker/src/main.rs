// SPDX-License-Identifier: GPL-2.0-only
//! `outrigger-kernel`: Linux' own file-system code in an ordinary process, serving one disk image over the core's wire
//! protocol. `kernel/README.md` explains how.
//!
//! It is started by the driver `kernel` with the words that [`Arguments`] describes, gives up every right it does not
//! need, and only then reads the image. It ends when the driver hangs up, after unmounting.

mod abi;
mod arguments;
mod attr;
mod control;
mod crash;
mod disk;
mod guard;
mod host;
mod kernel;
mod listing;
mod log;
mod mapped;
mod marks;
mod medium;
mod nodes;
mod overlay;
mod sandbox;
mod serve;
mod task;
mod transfer;
mod tree;
mod watchdog;
mod xattr;

use arguments::Arguments;
use control::Control;
use disk::{Disk, Image};
use guard::Guard;
use kernel::Kernel;
use medium::{Form, ImageFile};
use outrigger_core::{Errno, Error, Result};
use serve::Connection;
use std::ffi::CStr;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use task::{Fd, Task};
use tree::Tree;

/// Where the image is mounted and which block device it is, in the kernel's own tree.
const MOUNTPOINT: &CStr = c"/mnt";
const DEVICE: &CStr = c"/disk";
/// The unit of disks, in bytes.
const SECTOR: u32 = 512;

fn main() -> ExitCode {
    match Arguments::from_command_line().map_err(io::Error::other).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::append(format!("outrigger-kernel: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> io::Result<()> {
    let Arguments { socket, log, control, image, start, size, write, kind, options, .. } = arguments;
    let Arguments { memory, patience, sandbox, io, form, .. } = arguments;
    let control = match (&log, control) {
        (Some(file), Some(place)) if write => Some(Arc::new(Control::at(file.try_clone()?, place))),
        _ => None,
    };
    if let Some(log) = log {
        log::keep_in(log);
    }
    watchdog::watch(&socket, patience)?;
    let image = ImageFile::new(image)?;
    let transfer = transfer::named(&io, &image.file, write)?;
    let image = image.moved_by(transfer);
    let (image, grows) = match form {
        Form::Plain => (Image::Plain(image), false),
        Form::Qcow2(below) => (Image::Qcow2(Box::new(medium::qcow2(image, &below, &socket)?)), true),
    };
    let mut connection = Connection::open(socket)?;
    let kernel = Kernel::start(host::machine(memory)?, c"loglevel=6")?;
    crash::report()?;
    let mut disk = Disk::new(image, start, size, write)?;
    if let Some(control) = &control {
        disk = disk.kept_apart(Arc::clone(control))?;
        marks::take_away(&disk, &kind, control)?;
    }
    let number = disk::add(disk)?;
    let guard = control.map(|control| Rc::new(Guard::new(control, number)));
    if sandbox {
        sandbox::enter(if grows { &sandbox::GROWING } else { &[] })?;
    }

    let mounted = kernel.call(move |task| mount(task, number, &kind, &options).map(Rc::new));
    connection.announce(mounted.as_ref().map(drop).map_err(Error::clone))?;
    let Ok(tree) = mounted else { return Ok(()) };
    let served = connection.serve(&kernel, &tree, guard.as_ref());
    kernel.call(move |task| unmount(task, &tree))?;
    disk::get(number)?.checkpoint()?;
    served
}

/// Mounts disk `number`.
fn mount(task: &Task, number: u32, kind: &CStr, options: &CStr) -> Result<Tree> {
    let disk = disk::get(number)?;
    task.add_disk(&abi::Disk {
        number,
        sector_size: SECTOR,
        size: disk.size(),
        read_only: !disk.writable(),
        discards: disk.discards(),
    })?;
    task.mknod(Fd::CWD, DEVICE, libc::S_IFBLK | 0o600, attr::device(abi::DISK_MAJOR, number))?;
    task.mkdir(Fd::CWD, MOUNTPOINT, 0o755)?;
    task.mount(DEVICE, MOUNTPOINT, kind, libc::MS_RDONLY, options)?;
    let (writable, options) = (disk.writable(), options.to_owned());
    let remount = move |task: &Task| match writable {
        true => task.mount(c"", MOUNTPOINT, c"", libc::MS_REMOUNT, &options),
        false => Err(Errno::EROFS.into()),
    };
    Tree::at(task, MOUNTPOINT, Rc::new(remount))
}

/// Puts everything on the medium and leaves the image as after an orderly unmount.
fn unmount(task: &Task, tree: &Tree) -> Result<()> {
    tree.close(task);
    task.sync();
    task.umount(MOUNTPOINT, 0)
}
