// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disk that is in a file: its bytes one after the other, or a qcow2 image with those it is based on.

use crate::detect::container;
use crate::lock::Held;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_disk::qcow2::{Backing, Header, Qcow2};
use outrigger_proto_disk::{DiskError, Medium};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;

/// The most images that one may be based on, one on the other.
const DEEPEST: usize = 16;

/// A file, or a block device, as a medium.
pub(crate) struct Plain {
    file: File,
    size: u64,
}

impl Plain {
    pub(crate) fn new(mut file: File) -> io::Result<Self> {
        // Of a block device the metadata says nothing.
        let size = file.seek(SeekFrom::End(0))?;
        Ok(Plain { file, size })
    }
}

impl Medium for Plain {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

/// A disk, open.
pub(crate) struct Disk {
    /// The file it is in.
    pub(crate) file: Held,
    medium: Box<dyn Medium + Send + Sync>,
    /// What a qcow2 image says about itself.
    pub(crate) qcow2: Option<Header>,
    /// What it is based on, the nearest first.
    pub(crate) chain: Vec<Link>,
}

/// A file that a qcow2 image is based on; it is never written.
pub(crate) struct Link {
    pub(crate) file: Held,
    pub(crate) is_qcow2: bool,
}

impl Disk {
    /// The disk in `file`, which was opened as `path`. `anywhere`: it may be based on files outside of its own directory.
    ///
    /// # Errors
    /// Those of reading; `EINVAL` for a damaged qcow2 image; `EOPNOTSUPP` for a form that is not served; `EACCES` when it is
    /// based on a file that is not allowed.
    pub(crate) fn open(file: Held, path: &Path, anywhere: bool) -> Result<Self> {
        match container(&file) {
            None => {
                let medium = Box::new(Plain::new(file.try_clone()?)?);
                return Ok(Disk { file, medium, qcow2: None, chain: Vec::new() });
            }
            Some("qcow2") => {}
            Some(name) => {
                return Err(Errno::EOPNOTSUPP.because(format!("{name} images are not served{CONVERT}")));
            }
        }
        let header = header(&file)?;
        let chain = chain(path, header.backing.clone(), anywhere)?;
        let medium = Qcow2::open(Plain::new(file.try_clone()?)?, layered(&chain)?).map_err(explained)?;
        Ok(Disk { file, medium: Box::new(Mutex::new(medium)), qcow2: Some(header), chain })
    }
}

impl Medium for Disk {
    fn size(&self) -> u64 {
        self.medium.size()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.medium.read(buffer, offset)
    }
}

/// What helps with images that are not served.
const CONVERT: &str = ": `qemu-img convert -O raw` makes a plain one, with holes where nothing is";

/// The same error for those who use the image.
pub(crate) fn explained(error: DiskError) -> Error {
    match error {
        DiskError::Io(error) => error.into(),
        DiskError::Damaged(what) => Errno::EINVAL.because(what),
        DiskError::Unsupported(what) => Errno::EOPNOTSUPP.because(format!("{what}{CONVERT}")),
    }
}

fn header(file: &File) -> Result<Header> {
    let header = Header::read(&Plain::new(file.try_clone()?)?).map_err(explained)?;
    header.ok_or_else(|| Errno::EINVAL.because("it says it is a qcow2 image and is none"))
}

/// Opens what the image in the file `path` is based on, and what that is based on.
///
/// Names in an image that nobody vouches for must not lead to just any file: they may lead to what is beside the image
/// or below, links followed, unless the user says otherwise.
fn chain(path: &Path, backing: Option<Backing>, anywhere: bool) -> Result<Vec<Link>> {
    let (mut chain, mut next) = (Vec::new(), backing);
    let mut folder = match &next {
        Some(_) => parent(&path.canonicalize()?),
        None => return Ok(chain),
    };
    let top = folder.clone();
    let within = open_dir(CWD, &top)?;
    while let Some(backing) = next.take() {
        let shown = String::from_utf8_lossy(&backing.name).escape_debug().to_string();
        let about = |errno: Errno, what: &str| errno.because(format!("it is based on \"{shown}\": {what}"));
        if chain.len() == DEEPEST {
            return Err(about(Errno::ELOOP, "these are too many images, one based on the other"));
        }
        let place = folder.join(OsStr::from_bytes(&backing.name)).canonicalize();
        let place =
            place.map_err(|error| about(Errno(error.raw_os_error().unwrap_or(5)), "no such file is here"))?;
        if !anywhere && !place.starts_with(&top) {
            let what = "that is outside of the image's directory, and an image may name any file: \
                        if you trust this one, use the option backing=allow";
            return Err(about(Errno::EACCES, what));
        }
        let opened = match place.strip_prefix(&top) {
            Ok(below) => open_below(&within, below),
            Err(_) => openat(CWD, &place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| io::Error::from(error).into()),
        };
        let link = opened
            .and_then(|place| Link::open(&place, backing.format.as_deref()))
            .map_err(|error| about(error.errno, error.reason.as_deref().unwrap_or(error.errno.message())))?;
        if link.is_qcow2 {
            next = header(&link.file)?.backing;
        }
        folder = parent(&place);
        chain.push(link);
    }
    Ok(chain)
}

fn open_dir(at: impl AsFd, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty()).map_err(io::Error::from)?)
}

/// Opens what is at a path without links and `..` below a directory, name by name: whoever exchanges a name for a symbolic link
/// meanwhile does not lead out of it.
fn open_below(top: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let mut dir = top.try_clone()?;
    let mut names = path.components().peekable();
    while let Some(name) = names.next() {
        let Component::Normal(name) = name else { return Err(Errno::EACCES.because("not a plain path")) };
        if names.peek().is_none() {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            return Ok(openat(&dir, name, flags, Mode::empty()).map_err(io::Error::from)?);
        }
        dir = open_dir(&dir, Path::new(name))?;
    }
    Ok(dir)
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

impl Link {
    /// The file that `place`, an `O_PATH` descriptor, stands for.
    fn open(place: &OwnedFd, format: Option<&str>) -> Result<Self> {
        let place = format!("/proc/self/fd/{}", place.as_raw_fd());
        let kind = std::fs::metadata(&place)?.file_type();
        // Opening a pipe would wait.
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Errno::EINVAL.because("neither a regular file nor a block device"));
        }
        let file = File::open(place)?;
        let is_qcow2 = match (format, container(&file)) {
            (Some("raw"), _) | (None, None) => false,
            (Some("qcow2") | None, Some("qcow2")) => true,
            (Some(format), _) => {
                return Err(
                    Errno::EOPNOTSUPP.because(format!("it is not of the form {}", format.escape_debug()))
                );
            }
            (None, Some(name)) => {
                return Err(Errno::EOPNOTSUPP.because(format!("{name} images are not served{CONVERT}")));
            }
        };
        Ok(Link { file: Held::locked(file, false)?, is_qcow2 })
    }
}

/// The images of a chain as one medium.
fn layered(chain: &[Link]) -> Result<Option<Box<dyn Medium + Send + Sync>>> {
    let mut below: Option<Box<dyn Medium + Send + Sync>> = None;
    for link in chain.iter().rev() {
        let plain = Plain::new(link.file.try_clone()?)?;
        below = Some(match link.is_qcow2 {
            true => Box::new(Mutex::new(Qcow2::open(plain, below).map_err(explained)?)),
            false => Box::new(plain),
        });
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_name_exchanged_for_a_link_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (top, secret) = (dir.path().join("images"), dir.path().join("secret"));
        fs::create_dir(&top).unwrap();
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("disk"), "secret").unwrap();
        fs::create_dir(top.join("real")).unwrap();
        fs::write(top.join("real/disk"), "own").unwrap();
        symlink(&secret, top.join("link")).unwrap();
        let (within, over) = (open_dir(CWD, &top).unwrap(), AtomicBool::new(false));
        let exchange = || {
            use rustix::fs::{RenameFlags, renameat_with};
            while !over.load(Ordering::Relaxed) {
                renameat_with(&within, "real", &within, "link", RenameFlags::EXCHANGE).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(exchange);
            for _ in 0..2000 {
                if let Ok(place) = open_below(&within, Path::new("real/disk")) {
                    let link = Link::open(&place, Some("raw")).unwrap();
                    assert_eq!(
                        link.file.metadata().unwrap().len(),
                        3,
                        "the file of the image's own directory"
                    );
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(open_below(&within, Path::new("../secret/disk")).is_err());
    }
}
