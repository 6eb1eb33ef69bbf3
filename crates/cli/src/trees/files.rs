// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees in files, of this machine and of other trees: the first driver that recognises the content opens it.

use super::Trees;
use crate::control::{self, Locker};
use crate::drivers::{DRIVERS, DriverOptions, GivenTo};
use crate::location::{Base, Location};
use crate::say::quoted;
use crate::status::{Failure, Status};
use outrigger_client::{File, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::registry::{Content, DriverInfo, Files, Identity, Lasts, Opened, Recognised};
use outrigger_core::{Attr, Errno, Error, Runtime};
use outrigger_host::HostFile;
use outrigger_runtime::Threads;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long the process of a mount that was unmounted may take to finish with its file, if nothing else is said.
const PREDECESSOR: Duration = Duration::from_secs(10);
/// Interval between two attempts to open a file that is not free yet.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// For how long a file of another tree counts as unchanged.
const UNCHANGED: Duration = Duration::from_secs(1);

/// Opens the tree in a file of this machine.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
pub fn on_host(trees: &Trees, path: &Path, options: &DriverOptions) -> Result<Opened, Failure> {
    let reached = trees.reach(path);
    let source = source(&reached, path).map_err(|error| {
        // Errors of ours have no number, and say it all.
        let why =
            if error.raw_os_error().is_some() { Error::from(error).to_string() } else { error.to_string() };
        Failure::serious(format!("cannot open '{}': {why}", path.display()))
    })?;
    let content: Arc<dyn Content> =
        Arc::new(OnHost { source, path: reached, may_write: trees.may_write(path) });
    let (driver, files) = chosen(&content, options)?;
    let (patience, since) = (trees.options().timeout.unwrap_or(PREDECESSOR), Instant::now());
    let mut opened = open(trees, driver, files, &content, options);
    let is_busy =
        |opened: &Result<Opened, Error>| opened.as_ref().is_err_and(|error| error.errno == Errno::EBUSY);
    if is_busy(&opened) && control::wait_for_predecessors(path, patience) {
        opened = open(trees, driver, files, &content, options);
    }
    // What a server that was killed has left writes to the end, and ends.
    let mut was_free = false;
    while is_busy(&opened) && since.elapsed() < patience {
        match control::locker(path) {
            Locker::Dead => thread::sleep(LOOK_AGAIN),
            Locker::None if !was_free => was_free = true,
            // It is busy for another reason.
            Locker::None | Locker::Living => break,
        }
        opened = open(trees, driver, files, &content, options);
    }
    opened.map_err(|error| refused(&path.display().to_string(), &error))
}

/// Opens the tree in a file of another tree.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
pub fn in_tree(
    trees: &Trees,
    inode: &Inode,
    location: &Location,
    options: &DriverOptions,
) -> Result<Opened, Failure> {
    let content = content(trees, inode, location)?;
    let (driver, files) = chosen(&content, options)?;
    if files.lasts == Lasts::Process {
        trees.end_with_process();
    }
    open(trees, driver, files, &content, options).map_err(|error| refused(content.name(), &error))
}

/// The content of a file of another tree.
///
/// # Errors
/// A sentence naming the file, when it cannot be opened or has no places to read at.
pub fn content(trees: &Trees, inode: &Inode, location: &Location) -> Result<Arc<dyn Content>, Failure> {
    let name = location.to_string();
    let file = inode.open(OpenFlags::empty()).map_err(|error| super::cannot_open(&name, &error))?;
    if file.is_stream() {
        return Err(Failure::serious(format!(
            "cannot open '{name}': it is a stream, which cannot be read at any place: `outrigger cp '{name}' .` takes it out first"
        )));
    }
    let attr = inode.attr();
    let version = i128::from(attr.ctime.secs) * 1_000_000_000 + i128::from(attr.ctime.nanos);
    let identity = identity(trees, location, attr.size, version);
    let looked = Mutex::new(Instant::now());
    let found = inode.attr().clone();
    Ok(Arc::new(InTree { file, name, found, identity, looked }))
}

/// Opens a file of this machine. While a mount has a lease on it, open(2) has to wait until the mount gives that up; without waiting
/// it fails with `EAGAIN`. Opening a pipe could wait for ever.
fn source(reached: &Path, path: &Path) -> io::Result<HostFile> {
    let is_file = |metadata: std::fs::Metadata| metadata.is_file() || metadata.file_type().is_block_device();
    match std::fs::metadata(reached).is_ok_and(is_file) {
        true => HostFile::new(std::fs::File::open(reached)?, path.to_string_lossy().into_owned()),
        false => HostFile::open_as(reached, path),
    }
}

/// How long the tree in a file of this machine lasts.
pub fn lasts(trees: &Trees, path: &Path, options: &DriverOptions) -> Option<Lasts> {
    let reached = trees.reach(path);
    let source = source(&reached, path).ok()?;
    let content: Arc<dyn Content> = Arc::new(OnHost { source, path: reached, may_write: false });
    Some(chosen(&content, options).ok()?.1.lasts)
}

/// The driver that opens a file.
///
/// # Errors
/// That none does, and what the file is if one knows that.
fn chosen(
    content: &Arc<dyn Content>,
    options: &DriverOptions,
) -> Result<(&'static DriverInfo, Files), Failure> {
    let name = content.name();
    let mut what = Vec::new();
    let mut not_served = None;
    let mut drivers: Vec<_> = DRIVERS.iter().filter_map(|driver| Some((driver, driver.files?))).collect();
    let is_here = content.path().is_some();
    drivers.sort_by_key(|(_, files)| files.reads_all && !is_here);
    for (driver, files) in drivers {
        if is_here && options.has(files.chosen_by) {
            return Ok((driver, files));
        }
        match (files.recognise)(content).map_err(|error| refused(content.name(), &error))? {
            Recognised::Yes => return Ok((driver, files)),
            Recognised::NotServed(why) => not_served = not_served.or(Some(why)),
            Recognised::No => what.push(files.what),
        }
    }
    Err(Failure::serious(match not_served {
        Some(why) => format!("cannot open '{name}': {why}"),
        None => format!("cannot open '{name}': neither {}", what.join(" nor ")),
    }))
}

fn open(
    trees: &Trees,
    driver: &'static DriverInfo,
    files: Files,
    content: &Arc<dyn Content>,
    options: &DriverOptions,
) -> Result<Opened, Error> {
    // Threads of its own: reads of a file wait for the tree it lies in, and must not take that tree's threads.
    let runtime = Arc::new(Threads::new()) as Arc<dyn Runtime>;
    let site = trees.site(&runtime, None);
    let opened = (files.open)(Arc::clone(content), &GivenTo { options, driver }, &site)?;
    for warning in &opened.warnings {
        // A command that continues without the lost files has failed in part; a mount shows what there is.
        let is_failure = warning.is_loss && !trees.is_for_a_mount();
        let status = if is_failure { Status::Minor } else { Status::Success };
        let name = warning.name.as_ref().map(quoted).unwrap_or_default();
        trees.report.complain(status, format_args!("{}: {}{name}", content.name(), warning.text));
    }
    // A tree that was only read loses nothing when it is closed.
    opened.control.iter().filter(|_| content.may_write()).for_each(|tree| trees.changed.add(tree));
    Ok(opened)
}

/// An error whose reason names the file already, or one that does not.
fn refused(name: &str, error: &Error) -> Failure {
    match &error.reason {
        Some(reason) if reason.contains(name) => Failure::serious(&**reason),
        Some(_) | None => super::cannot_open(name, error),
    }
}

/// Two packages may hold files of the same name, size and time, so the identity names the host's file too.
fn identity(trees: &Trees, location: &Location, size: u64, version: i128) -> Option<Identity> {
    let Base::Host(path) = &location.base else { return None };
    let outer = std::fs::metadata(trees.reach(path)).ok()?;
    let (dev, ino, len, sec, nsec) =
        (outer.dev(), outer.ino(), outer.len(), outer.ctime(), outer.ctime_nsec());
    let nested: Vec<String> = location.nested.iter().map(|path| path.escape_ascii().to_string()).collect();
    let key = format!("file:{dev}:{ino}:{len}:{sec}:{nsec}::{}:{size}", nested.join("::"));
    Some(Identity { key, version })
}

/// A file of this machine.
struct OnHost {
    source: HostFile,
    path: PathBuf,
    may_write: bool,
}

impl Content for OnHost {
    fn name(&self) -> &str {
        self.source.name()
    }
    fn size(&self) -> u64 {
        self.source.size()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.source.read_at(buffer, offset)
    }
    fn identity(&self) -> Option<Identity> {
        self.source.version().map(|(key, version)| Identity { key, version })
    }
    fn is_prompt(&self) -> bool {
        true
    }
    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }
    fn may_write(&self) -> bool {
        self.may_write
    }
}

/// A file of a tree.
struct InTree {
    file: File,
    name: String,
    /// Its attributes when it was opened.
    found: Attr,
    identity: Option<Identity>,
    /// When it was last known to be unchanged.
    looked: Mutex<Instant>,
}

impl InTree {
    /// Looks whether the file is still the one that was opened, unless that was known a moment ago.
    ///
    /// # Errors
    /// `ESTALE` when its size, a time of change or its change number is another one, from then on.
    fn check(&self) -> Result<(), Error> {
        // Somebody else is just looking.
        let Ok(mut looked) = self.looked.try_lock() else { return Ok(()) };
        if looked.elapsed() < UNCHANGED {
            return Ok(());
        }
        let now = self.file.attr()?;
        if now.size != self.found.size || now.version() != self.found.version() {
            return Err(Errno::ESTALE.because("it was changed since it was opened"));
        }
        *looked = Instant::now();
        Ok(())
    }
}

impl Content for InTree {
    fn name(&self) -> &str {
        &self.name
    }
    fn size(&self) -> u64 {
        self.found.size
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.file.read_at(offset, buffer.len()).map_err(io::Error::from)?;
        // A tree that answers more than was asked for is broken; what does not fit is dropped.
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.check()?;
        Ok(count)
    }
    fn identity(&self) -> Option<Identity> {
        self.identity.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use outrigger_client::{Client, Settings};
    use outrigger_core::{Inline, Name, SetAttrs, SetTime};
    use outrigger_driver_mem::{Mem, Options};

    #[test]
    fn a_file_that_was_changed_and_got_its_time_back_is_stale() {
        let runtime = Arc::new(Threads::new());
        let mem = Inline::new(Mem::new(Options::default(), runtime.clone()), runtime.clone());
        let root = Client::new(Arc::new(mem), runtime, Settings::default()).root().unwrap();
        let name = Name::try_from("file").unwrap();
        let (mut inode, file) = root.create(&name, 0o644, OpenFlags::READ_WRITE).unwrap();
        file.write_all_at(0, Bytes::from_static(b"before")).unwrap();
        let found = inode.refresh().unwrap().clone();
        let mtime = found.mtime;
        let long_ago = Instant::now().checked_sub(2 * UNCHANGED).unwrap();
        let content = InTree { file, name: "file".into(), found, identity: None, looked: long_ago.into() };
        let mut buffer = [0; 6];
        assert_eq!(content.read_at(&mut buffer, 0).unwrap(), 6);
        *content.looked.lock().unwrap() = long_ago;
        content.file.write_all_at(0, Bytes::from_static(b"after!")).unwrap();
        content.file.set(SetAttrs { mtime: Some(SetTime::To(mtime)), ..SetAttrs::default() }).unwrap();
        let error = content.read_at(&mut buffer, 0).unwrap_err();
        assert!(error.to_string().contains("it was changed since it was opened"), "{error}");
    }
}
