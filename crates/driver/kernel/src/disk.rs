// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disk that is in a file: its bytes one after the other, or an image of another form with the files it needs.

use crate::lock::Held;
use crate::served::{Served, Shared};
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_disk::form::{self, Form, Other};
use outrigger_proto_disk::qcow2::Header;
use outrigger_proto_disk::{Bytes, DiskError, Medium};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most images that one may be based on, one on the other.
const DEEPEST: usize = 16;
/// The most files that belong to a disk beside its own: so many descriptors pass a socket at once (unix(7)).
const FILES: usize = 240;

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

/// What the bytes of an image are in.
pub(crate) enum Place {
    /// A file of the host, or a block device.
    Host(Held),
    /// A file of another tree.
    Tree(Arc<Served>),
}

impl Place {
    /// The file of the host, if it is one.
    pub(crate) fn host(&self) -> Option<&Held> {
        match self {
            Place::Host(file) => Some(file),
            Place::Tree(_) => None,
        }
    }

    /// The file of another tree, if it is one.
    pub(crate) fn served(&self) -> Option<&Arc<Served>> {
        match self {
            Place::Host(_) => None,
            Place::Tree(served) => Some(served),
        }
    }

    fn bytes(&self) -> Result<Bytes> {
        Ok(match self {
            Place::Host(file) => Box::new(Plain::new(file.try_clone()?)?),
            Place::Tree(served) => Box::new(Shared(Arc::clone(served))),
        })
    }

    /// What the image in it needs beside it.
    fn chain(&self, form: Form, anywhere: bool) -> Result<Vec<Link>> {
        match self {
            Place::Host(file) => chain(file, form, anywhere),
            Place::Tree(served) => alone(served, form).map(|()| Vec::new()),
        }
    }

    /// A descriptor for a worker: the file, or a connection by which it asks for the bytes.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn hand_out(&self) -> Result<OwnedFd> {
        match self {
            Place::Host(file) => Ok(file.try_clone()?.into()),
            Place::Tree(served) => served.connect(),
        }
    }
}

/// Refuses an image of another tree that needs further files: names in it are looked up on the host only.
fn alone(served: &Arc<Served>, form: Form) -> Result<()> {
    let others = form.others(&**served).map_err(explained)?;
    let Some(other) = others.extents.first().or(others.below.as_ref()) else { return Ok(()) };
    let name = String::from_utf8_lossy(&other.name).escape_debug().to_string();
    Err(Errno::EOPNOTSUPP.because(format!(
        "it needs \"{name}\" beside it, which is only looked for on this machine: `outrigger cp` takes both out of the tree first"
    )))
}

/// A disk, open.
pub(crate) struct Disk {
    /// What it is in.
    pub(crate) place: Place,
    medium: Bytes,
    /// What the file is.
    pub(crate) form: Form,
    /// Why it is not written, if it is not.
    pub(crate) read_only: Option<&'static str>,
    /// What a qcow2 image says about itself.
    pub(crate) qcow2: Option<Header>,
    /// The files it needs, as [`outrigger_proto_disk::form`] lists them.
    pub(crate) chain: Vec<Link>,
}

/// A file that an image needs beside its own; it is never written.
pub(crate) struct Link {
    pub(crate) file: Held,
    pub(crate) form: Form,
}

impl Disk {
    /// The disk in `place`. `anywhere`: it may need files outside of its own directory.
    ///
    /// # Errors
    /// Those of reading; `EINVAL` for a damaged image; `EOPNOTSUPP` for a form that is not served; `EACCES` when it
    /// needs a file that is not allowed.
    pub(crate) fn open(place: Place, anywhere: bool) -> Result<Self> {
        let plain = place.bytes()?;
        let form = Form::of(&plain).map_err(explained)?;
        let read_only = form.read_only(&plain).map_err(explained)?;
        let qcow2 = if form == Form::Qcow2 { Header::read(&plain).map_err(explained)? } else { None };
        let chain = place.chain(form, anywhere)?;
        let files = [Ok((form, plain))].into_iter().chain(chain.iter().map(Link::bytes));
        let medium = form::open(files.collect::<Result<_>>()?).map_err(explained)?;
        Ok(Disk { place, medium, form, read_only, qcow2, chain })
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

/// Whether the image in a file is of a form that is written.
///
/// # Errors
/// As [`Disk::open`].
pub(crate) fn is_written(file: &File) -> Result<bool> {
    let plain = Plain::new(file.try_clone()?)?;
    let form = Form::of(&plain).map_err(explained)?;
    Ok(form.read_only(&plain).map_err(explained)?.is_none())
}

/// Opens what the image in `file` needs, and what that needs.
///
/// Names in an untrusted image must not lead to just any file: they may lead to what is beside the image
/// or below, links followed, unless the user says otherwise.
fn chain(file: &File, form: Form, anywhere: bool) -> Result<Vec<Link>> {
    let mut chain = Vec::new();
    let mut others = form.others(&Plain::new(file.try_clone()?)?).map_err(explained)?;
    if others.extents.is_empty() && others.below.is_none() {
        return Ok(chain);
    }
    let (within, top) = directory(file)?;
    let (mut folder, mut depth) = (top.clone(), 0);
    loop {
        let opened = |other: &Other, is_extent: bool| -> Result<(Link, PathBuf)> {
            let shown = String::from_utf8_lossy(&other.name).escape_debug().to_string();
            let relation = if is_extent { "a part of it is in" } else { "it is based on" };
            let about = |errno: Errno, what: &str| errno.because(format!("{relation} \"{shown}\": {what}"));
            if depth == DEEPEST {
                return Err(about(Errno::ELOOP, "these are too many images, one based on the other"));
            }
            let place = folder.join(OsStr::from_bytes(&other.name)).canonicalize();
            let place = place
                .map_err(|error| about(Errno(error.raw_os_error().unwrap_or(5)), "no such file is here"))?;
            let opened = match place.strip_prefix(&top) {
                _ if anywhere => open_path(CWD, &place),
                Ok(below) => open_beneath(&within, below),
                Err(_) => {
                    let what = "that is outside of the image's directory, and an image may name any file: \
                                if you trust this one, use the option backing=allow";
                    return Err(about(Errno::EACCES, what));
                }
            };
            let link =
                opened.and_then(|place| Link::open(&place, other.form.as_deref(), is_extent)).map_err(
                    |error| about(error.errno, error.reason.as_deref().unwrap_or(error.errno.message())),
                )?;
            Ok((link, parent(&place)))
        };
        if chain.len() + others.extents.len() >= FILES {
            return Err(Errno::EOPNOTSUPP.because(format!("it is in more than {FILES} files{CONVERT}")));
        }
        for extent in &others.extents {
            chain.push(opened(extent, true)?.0);
        }
        let Some(below) = others.below else { return Ok(chain) };
        let (link, place) = opened(&below, false)?;
        others = link.form.others(&Plain::new(link.file.try_clone()?)?).map_err(explained)?;
        (folder, depth) = (place, depth + 1);
        chain.push(link);
    }
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
    fn open(place: &OwnedFd, format: Option<&str>, is_extent: bool) -> Result<Self> {
        let place = descriptor(place);
        let kind = fs::metadata(&place)?.file_type();
        // Opening a pipe would wait.
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Errno::EINVAL.because("neither a regular file nor a block device"));
        }
        let file = File::open(place)?;
        let found = || Form::of(&Plain::new(file.try_clone()?)?).map_err(explained);
        let form = match format {
            _ if is_extent => Form::Extent,
            Some("raw") => Form::Raw,
            None => found()?,
            Some(format) => {
                Form::named(format).filter(|form| found().is_ok_and(|found| found == *form)).ok_or_else(
                    || Errno::EOPNOTSUPP.because(format!("it is not of the form {}", format.escape_debug())),
                )?
            }
        };
        Ok(Link { file: Held::locked(file, false)?, form })
    }

    fn bytes(&self) -> Result<(Form, Bytes)> {
        Ok((self.form, Box::new(Plain::new(self.file.try_clone()?)?)))
    }
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
                    let link = Link::open(&place, Some("raw"), false).unwrap();
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

    /// A qcow2 image without content that names "base", as raw.
    fn image_on_base() -> Vec<u8> {
        let mut image = vec![0; 4 << 16];
        let words: [(usize, &[u8]); 11] = [
            (0, b"QFI\xfb\0\0\0\x02"),
            (14, &[1, 0x80, 0, 0, 0, 4, 0, 0, 0, 16]),
            (30, &[0, 1]),
            (36, &[0, 0, 0, 1]),
            (40, &[0, 0, 0, 0, 0, 3, 0, 0]),
            (48, &[0, 0, 0, 0, 0, 1, 0, 0]),
            (56, &[0, 0, 0, 1]),
            (72, &[0xe2, 0x79, 0x2a, 0xca, 0, 0, 0, 3]),
            (80, b"raw"),
            (88, &[0; 8]),
            (0x180, b"base"),
        ];
        for (place, bytes) in words {
            image[place..place + bytes.len()].copy_from_slice(bytes);
        }
        image
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
        fs::write(own.join("image"), image_on_base()).unwrap();
        let image = File::open(own.join("image")).unwrap();
        meanwhile(&own, &secret);
        let mut chain = chain(&image, Form::Qcow2, false)?;
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
