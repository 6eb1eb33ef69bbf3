// SPDX-License-Identifier: GPL-2.0-only
//! The further disks of a file system: of btrfs, or that of a journal.

use crate::arguments::Device;
use crate::control::Control;
use crate::disk::{self, Disk, Image};
use crate::medium::{self, Arrived};
use crate::overlay;
use crate::source::add_disk;
use crate::task::Task;
use outrigger_core::{Errno, Result};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Disks that are there, and the options of mount(8) that name each.
#[derive(Clone, Default)]
pub struct Devices(Vec<(String, u32)>);

/// Images, and the option for each.
pub type Named<T> = Vec<(String, T)>;

/// Takes the files of `wanted` from the socket, in this order. Their bytes are moved as `io` says.
///
/// # Errors
/// When they do not arrive, and those of [`Arrived::new`].
pub fn receive(
    wanted: Vec<Device>,
    io: &str,
    writable: bool,
    socket: &UnixStream,
) -> io::Result<Named<Arrived>> {
    let arrived = |Device { option, forms }: Device| {
        let mut files = medium::receive(socket)?.into_iter();
        let file =
            files.next().ok_or_else(|| io::Error::other(format!("the file of {option}= has not arrived")))?;
        // There is one ring, and the first disk has it.
        Ok((option, Arrived::new(file, forms, io, writable, files.collect())?))
    };
    wanted.into_iter().map(arrived).collect()
}

/// The images in these files.
///
/// # Errors
/// Those of [`Arrived::image`].
pub fn images(arrived: Named<Arrived>) -> io::Result<Named<Image>> {
    arrived.into_iter().map(|(option, arrived)| Ok((option, arrived.image()?))).collect()
}

impl Devices {
    /// Makes disks of images. Those that are not to be changed take what is written all the same, in memory.
    ///
    /// # Errors
    /// Those of looking at the images, and when there are too many.
    pub fn add(images: Named<Image>, memory: u64, writable: bool) -> io::Result<Self> {
        let added = |(option, image): (String, Image)| {
            let room = overlay::room(memory, image.size());
            let mut disk = Disk::new(image, 0, None, writable)?;
            if !writable {
                disk = disk.kept_apart(Arc::new(Control::in_memory(room)?))?;
            }
            Ok((option, disk::add(disk)?))
        };
        images.into_iter().map(added).collect::<io::Result<_>>().map(Devices)
    }

    /// Tells the kernel of them. Gives the options for mount(2): those in `options`, and what names the devices.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn named(&self, task: &Task, options: &CStr) -> Result<CString> {
        let mut list = options.to_bytes().to_vec();
        for (option, number) in &self.0 {
            let path = add_disk(task, *number, disk::get(*number)?)?;
            let separator: &[u8] = if list.is_empty() { b"" } else { b"," };
            list.extend([separator, option.as_bytes(), b"=", path.to_bytes()].concat());
        }
        CString::new(list).map_err(|_| Errno::EINVAL.into())
    }

    /// Returns when all that was written is on the media.
    ///
    /// # Errors
    /// Those of fdatasync(2).
    pub fn settle(&self) -> Result<()> {
        self.0.iter().try_for_each(|(_, number)| Ok(disk::get(*number)?.checkpoint()?))
    }
}
