// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a disk is in files: which form an image has, which other files it needs, and the disk that all of them make.
//!
//! The files of a disk are a list: the image, its extents, the image it is based on, the extents of that one, and so on.
//! [`Form::others`] says of each image what follows it; [`open`] makes a disk of the list.

use crate::qcow2::{Header, Qcow2};
use crate::vdi::Vdi;
use crate::vhd::{self, Vhd};
use crate::vhdx::Vhdx;
use crate::vmdk::{self, Vmdk};
use crate::{Bytes, DiskError, Medium, marks};
use std::sync::Mutex;

/// What a file of a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The bytes of the disk as they are.
    Raw,
    /// An image of QEMU.
    Qcow2,
    /// An image of VirtualBox.
    Vdi,
    /// An image of Virtual PC and Hyper-V.
    Vhd,
    /// An image of Hyper-V.
    Vhdx,
    /// An image of VMware, or the text that names its extents.
    Vmdk,
    /// A part of an image that is in several files.
    Extent,
}

/// The forms, how they are named in lists, in [`marks`], and by QEMU.
const NAMES: &[(Form, &str, &str, &str)] = &[
    (Form::Raw, "raw", "", "raw"),
    (Form::Qcow2, "qcow2", "qcow2", "qcow2"),
    (Form::Vdi, "vdi", "VDI", "vdi"),
    (Form::Vhd, "vhd", "VHD", "vpc"),
    (Form::Vhdx, "vhdx", "VHDX", "vhdx"),
    (Form::Vmdk, "vmdk", "VMDK", "vmdk"),
    (Form::Extent, "extent", "", ""),
];

/// What is said of images that are not written.
macro_rules! written {
    ($title:literal) => {
        concat!($title, " images are only read: `qemu-img convert -O qcow2` makes one that can be written")
    };
}

/// Another file that an image names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Its name, seen from the directory of the image.
    pub name: Vec<u8>,
    /// Its form, if the image says so: as in [`Form::name`], or what QEMU calls it.
    pub form: Option<String>,
}

/// What an image needs beside itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others {
    /// The files that its bytes are in.
    pub extents: Vec<Other>,
    /// The image it is based on.
    pub below: Option<Other>,
    /// The identifier of that image, unless it was exchanged.
    pub identity: Option<String>,
}

impl Form {
    /// Its name in lists.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(form, ..)| *form == self).map_or("", |(_, name, ..)| name)
    }

    /// The form with a name, as [`Form::name`] or QEMU have it.
    pub fn named(name: &str) -> Option<Self> {
        let fits = |(_, own, _, qemu): &&(Form, &str, &str, &str)| name == *own || name == *qemu;
        NAMES.iter().find(fits).map(|(form, ..)| *form)
    }

    /// The form of an image, by its content.
    ///
    /// # Errors
    /// Those of reading, and when the form is one that is not served.
    pub fn of(medium: &dyn Medium) -> Result<Self, DiskError> {
        let Some(title) = marks::form(medium)? else { return Ok(Form::Raw) };
        let known = NAMES.iter().find(|(_, _, known, _)| *known == title);
        known
            .map(|(form, ..)| *form)
            .ok_or_else(|| DiskError::Unsupported(format!("{title} images are not served")))
    }

    /// What an image of this form needs beside itself.
    ///
    /// # Errors
    /// Those of reading, and when it is damaged or not one that is served.
    pub fn others(self, medium: &dyn Medium) -> Result<Others, DiskError> {
        Ok(match self {
            Form::Qcow2 => {
                let backing = Header::read(medium)?.and_then(|header| header.backing);
                let below = backing.map(|backing| Other { name: backing.name, form: backing.format });
                Others { below, ..Others::default() }
            }
            Form::Vhd => vhd::others(medium)?,
            Form::Vmdk => vmdk::others(medium)?,
            Form::Raw | Form::Vdi | Form::Vhdx | Form::Extent => Others::default(),
        })
    }

    /// What tells an image from others, also from itself before it was changed, for those that are based on it.
    ///
    /// # Errors
    /// As [`Form::others`].
    fn identity(self, medium: &dyn Medium) -> Result<Option<String>, DiskError> {
        match self {
            Form::Vhd => vhd::identity(medium),
            Form::Vmdk => vmdk::identity(medium),
            Form::Raw | Form::Qcow2 | Form::Vdi | Form::Vhdx | Form::Extent => Ok(None),
        }
    }

    /// Why an image of this form is not written, if it is not.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_only(self, medium: &dyn Medium) -> Result<Option<&'static str>, DiskError> {
        Ok(match self {
            Form::Qcow2 => Header::read(medium)?.and_then(|header| header.read_only),
            Form::Raw => None,
            Form::Vhd if vhd::fixed(medium)?.is_some() => None,
            Form::Vdi => Some(written!("VDI")),
            Form::Vhd => Some(written!("dynamic VHD")),
            Form::Vhdx => Some(written!("VHDX")),
            Form::Vmdk => Some(written!("VMDK")),
            Form::Extent => Some("it is a part of an image"),
        })
    }
}

/// The disk in a list of files, the first of which is its image.
///
/// # Errors
/// Those of reading; when an image is damaged, not served, or based on one that was exchanged or is missing.
pub fn open(files: Vec<(Form, Bytes)>) -> Result<Bytes, DiskError> {
    let (mut below, mut extents) = (None, Vec::new());
    for (form, file) in files.into_iter().rev() {
        if form == Form::Extent {
            extents.insert(0, file);
            continue;
        }
        let (wanted, identity) = (form.others(&*file)?.identity, form.identity(&*file)?);
        if let Some((_, found)) = &below
            && wanted.is_some()
            && *found != wanted
        {
            return Err(DiskError::Damaged(
                "the image it is based on was changed since, or is another one".into(),
            ));
        }
        let lower = below.take().map(|(disk, _)| disk);
        below = Some((layer(form, file, std::mem::take(&mut extents), lower)?, identity));
    }
    below.map(|(disk, _)| disk).ok_or_else(|| DiskError::Damaged("there is no image".into()))
}

/// The disk in one image, with what it needs.
fn layer(form: Form, file: Bytes, extents: Vec<Bytes>, below: Option<Bytes>) -> Result<Bytes, DiskError> {
    Ok(match form {
        Form::Qcow2 => Box::new(Mutex::new(Qcow2::open(file, below)?)),
        Form::Vdi => Box::new(Mutex::new(Vdi::open(file)?)),
        Form::Vhd => Box::new(Mutex::new(Vhd::open(file, below)?)),
        Form::Vhdx => Box::new(Mutex::new(Vhdx::open(file)?)),
        Form::Vmdk => Box::new(Mutex::new(Vmdk::open(file, extents, below)?)),
        Form::Raw | Form::Extent => file,
    })
}

/// The name of a file as another system writes it: with `/`, and of an absolute one of Windows the last part.
pub(crate) fn portable(name: &str) -> String {
    let name = name.replace('\\', "/");
    let is_absolute = name.starts_with("//") || name.get(1..3) == Some(":/");
    match name.rsplit_once('/') {
        Some((_, last)) if is_absolute => last.to_owned(),
        _ => name,
    }
}
