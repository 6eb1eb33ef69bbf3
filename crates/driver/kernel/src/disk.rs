// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disk that is in a file: its bytes one after the other, or a qcow2 image with those it is based on.

use crate::detect::container;
use crate::lock::Held;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_disk::qcow2::{Backing, Header, Qcow2};
use outrigger_proto_disk::{DiskError, Medium};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
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
    /// The disk in `file`. `anywhere`: it may be based on files outside of its own directory.
    ///
    /// # Errors
    /// Those of reading; `EINVAL` for a damaged qcow2 image; `EOPNOTSUPP` for a form that is not served; `EACCES` when it is
    /// based on a file that is not allowed.
    pub(crate) fn open(file: Held, anywhere: bool) -> Result<Self> {
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
        let chain = chain(&file, header.backing.clone(), anywhere)?;
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

/// Opens what the image in `file` is based on, and what that is based on.
///
/// Names in an untrusted image must not lead to just any file: they may lead to what is beside the image
/// or below, links followed, unless the user says otherwise.
fn chain(file: &File, backing: Option<Backing>, anywhere: bool) -> Result<Vec<Link>> {
    let (mut chain, mut next) = (Vec::new(), backing);
    if next.is_none() {
        return Ok(chain);
    }
    let (within, top) = directory(file)?;
    let mut folder = top.clone();
    while let Some(backing) = next.take() {
        let shown = String::from_utf8_lossy(&backing.name).escape_debug().to_string();
        let about = |errno: Errno, what: &str| errno.because(format!("it is based on \"{shown}\": {what}"));
        if chain.len() == DEEPEST {
            return Err(about(Errno::ELOOP, "these are too many images, one based on the other"));
        }
        let place = folder.join(OsStr::from_bytes(&backing.name)).canonicalize();
        let place =
            place.map_err(|error| about(Errno(error.raw_os_error().unwrap_or(5)), "no such file is here"))?;
        let opened = match place.strip_prefix(&top) {
            _ if anywhere => open_path(CWD, &place),
            Ok(below) => open_beneath(&within, below),
            Err(_) => {
                let what = "that is outside of the image's directory, and an image may name any file: \
                            if you trust this one, use the option backing=allow";
                return Err(about(Errno::EACCES, what));
            }
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

/// The directory that an open file is in, and its path without links.
///
/// It is that of the file itself, whatever the path it was opened with leads to by now.
///
/// # Errors
/// `ESTALE` when the file is moved meanwhile, or is in no directory any more.
fn directory(file: &File) -> Result<(OwnedFd, PathBuf)> {
    let path = fs::read_link(descriptor(file))?;
    let (dir, name) = (parent(&path), path.file_name().unwrap_or_default());
    let opened = open_path(CWD, &dir)?;
    let (own, found) = (file.metadata()?, statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW));
    match found {
        Ok(found) if (found.st_dev, found.st_ino) == (own.dev(), own.ino()) => Ok((opened, dir)),
        _ => Err(Errno::ESTALE.because("the image is moved or removed while what it is based on is opened")),
    }
}

/// What stands for an open descriptor in `/proc`.
fn descriptor(open: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", open.as_raw_fd())
}

/// An `O_PATH` descriptor of what is at a path.
fn open_path(at: impl AsFd, path: &Path) -> Result<OwnedFd> {
    Ok(openat(at, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from)?)
}

/// The same of what is at a path without links below a directory (openat2(2)): a name that is exchanged for a symbolic link
/// meanwhile does not lead out of it, nor anywhere else.
fn open_beneath(top: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let opened = openat2(top, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    Ok(opened.map_err(io::Error::from)?)
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

impl Link {
    /// The file that `place`, an `O_PATH` descriptor, stands for.
    fn open(place: &OwnedFd, format: Option<&str>) -> Result<Self> {
        let place = descriptor(place);
        let kind = fs::metadata(&place)?.file_type();
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
        let (within, over) = (open_path(CWD, &top).unwrap(), AtomicBool::new(false));
        let exchange = || {
            use rustix::fs::{RenameFlags, renameat_with};
            while !over.load(Ordering::Relaxed) {
                renameat_with(&within, "real", &within, "link", RenameFlags::EXCHANGE).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(exchange);
            for _ in 0..2000 {
                if let Ok(place) = open_beneath(&within, Path::new("real/disk")) {
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
        assert!(open_beneath(&within, Path::new("../secret/disk")).is_err());
    }
    /// What an image that has been opened is based on, which names "base", after `meanwhile` was done to its directory, the first,
    /// with another one beside it, the second.
    fn based_on(meanwhile: impl FnOnce(&Path, &Path)) -> Result<String> {
        let dir = tempfile::tempdir().unwrap();
        let [own, secret] = ["images", "secret"].map(|name| dir.path().join(name));
        for (place, content) in [(&own, "own"), (&secret, "secret")] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("base"), content).unwrap();
            fs::write(place.join("image"), "").unwrap();
        }
        let image = File::open(own.join("image")).unwrap();
        meanwhile(&own, &secret);
        let backing = Backing { name: b"base".to_vec(), format: Some("raw".into()) };
        let mut chain = chain(&image, Some(backing), false)?;
        Ok(fs::read_to_string(descriptor(&*chain.remove(0).file))?)
    }

    #[test]
    fn the_directory_is_that_of_the_open_image_not_of_its_path() {
        assert_eq!(based_on(|_, _| {}).unwrap(), "own");
        let exchanged = based_on(|own, secret| {
            fs::rename(own.join("image"), own.join("before")).unwrap();
            symlink(secret.join("image"), own.join("image")).unwrap();
        });
        assert_eq!(exchanged.unwrap(), "own");
        let removed = based_on(|own, _| fs::remove_file(own.join("image")).unwrap());
        assert_eq!(removed.unwrap_err().errno, Errno::ESTALE);
        let linked = based_on(|own, secret| {
            fs::remove_file(own.join("base")).unwrap();
            symlink(secret.join("base"), own.join("base")).unwrap();
        });
        assert_eq!(linked.unwrap_err().errno, Errno::EACCES);
    }
}
