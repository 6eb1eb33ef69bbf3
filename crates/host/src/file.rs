// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of the host whose content stands for a tree: what is read is what was there when it was opened, or an error.

use rustix::fs::{OFlags, SeekFrom, seek};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A regular file or block device of the host, for reading.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    name: String,
    size: u64,
    /// What a regular file was and had when it was opened.
    opened: Option<Opened>,
}

#[derive(Debug)]
struct Opened {
    key: String,
    version: i128,
    content: Content,
}

/// By what a change of content is noticed.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    size: u64,
    mtime: (i64, i64),
}

impl Content {
    fn of(m: &Metadata) -> Self {
        Content { size: m.len(), mtime: (m.mtime(), m.mtime_nsec()) }
    }
}

impl HostFile {
    /// Opens `path`. Never waits for the other end of a pipe or for a terminal.
    ///
    /// # Errors
    /// Those of `open(2)`, and `InvalidInput` for anything but a regular file or block device.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_as(path, path)
    }

    /// As [`HostFile::open`], with another name in messages.
    ///
    /// # Errors
    /// As [`HostFile::open`].
    pub fn open_as(path: &Path, name: &Path) -> io::Result<Self> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        Self::new(file, name.to_string_lossy().into_owned())
    }

    /// Uses an already open file; `name` is for messages.
    ///
    /// # Errors
    /// Those of `fstat(2)`, and `InvalidInput` for anything but a regular file or block device.
    pub fn new(file: File, name: String) -> io::Result<Self> {
        let m = file.metadata()?;
        if !m.is_file() && !m.file_type().is_block_device() {
            let what = if m.is_dir() { "it is a directory" } else { "it is not a regular file" };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let size = if m.is_file() { m.len() } else { seek(&file, SeekFrom::End(0))? };
        let opened = m.is_file().then(|| Opened {
            key: format!("file:{}:{}", m.dev(), m.ino()),
            version: i128::from(m.ctime()) * 1_000_000_000 + i128::from(m.ctime_nsec()),
            content: Content::of(&m),
        });
        Ok(HostFile { file, name, size, opened })
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What names a regular file among all files, and its version: the time of the last change of content or attributes (`ctime`,
    /// which no program can set back), in nanoseconds since the epoch.
    pub fn version(&self) -> Option<(String, i128)> {
        self.opened.as_ref().map(|opened| (opened.key.clone(), opened.version))
    }

    /// Reads at most `buf.len()` bytes at byte `offset` and returns how many; 0 only at the end.
    ///
    /// # Errors
    /// Those of pread(2), and when the file was changed since it was opened.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.file.read_at(buf, offset)?;
        // Looked at after the read: what was read before a change is what was there.
        if let Some(opened) = &self.opened
            && Content::of(&self.file.metadata()?) != opened.content
        {
            return Err(io::Error::other("the file was changed after it was opened"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_changed_since_it_was_opened_is_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, b"content").expect("written");
        let file = HostFile::open_as(&path, Path::new("shown")).expect("opened");
        assert_eq!((file.name(), file.size(), file.version().is_some()), ("shown", 7, true));
        let mut buffer = [0; 10];
        assert_eq!((file.read_at(&mut buffer, 3).expect("read"), &buffer[..4]), (4, &b"tent"[..]));
        fs::write(&path, b"other content").expect("written");
        let error = file.read_at(&mut buffer, 0).expect_err("another one");
        assert!(error.to_string().contains("was changed"), "{error}");
        assert_eq!(HostFile::open(dir.path()).expect_err("a directory").kind(), io::ErrorKind::InvalidInput);
    }
}
