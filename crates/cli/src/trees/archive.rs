// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives as trees, wherever the archive itself lies.

use super::Trees;
use crate::drivers::DriverOptions;
use crate::location::Location;
use crate::say::quoted;
use crate::status::{Failure, Status};
use outrigger_client::{File, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Cancel, Error, Inline, Service};
use outrigger_driver_archive::{
    Archive, ArchiveDriver, CacheConfig, FileSource, Format, Identity, Kind, Options, Progress, ReadAt,
    Source, Watch, detect,
};
use outrigger_driver_kernel::{Medium, is_disk};
use outrigger_runtime::Threads;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Opens the archive in a file of the host.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
pub fn on_host(trees: &Trees, path: &Path, options: &DriverOptions) -> Result<Arc<dyn Service>, Failure> {
    let source = FileSource::open_as(&trees.reach(path), path).map_err(|error| {
        // Errors of ours have no number, and say it all.
        let why =
            if error.raw_os_error().is_some() { Error::from(error).to_string() } else { error.to_string() };
        Failure::serious(format!("cannot open '{}': {why}", path.display()))
    })?;
    open(trees, Arc::new(source), options, |source| match beginning(source) {
        Some((kind, instead)) => format!("but {kind}, which is not served: {instead}"),
        None => "nor a disk image with a file system or partitions that are known".to_owned(),
    })
}

/// What a file of the host is, if it is an archive or compressed file that is known and not served, and what unpacks it.
pub fn unserved(path: &Path) -> Option<(&'static str, &'static str)> {
    beginning(&FileSource::open(path).ok()?)
}

fn beginning(source: &dyn Source) -> Option<(&'static str, &'static str)> {
    let mut bytes = [0; 13];
    let size = source.size().min(bytes.len() as u64) as usize;
    Bytes(source).read(&mut bytes[..size], 0).ok()?;
    known_unserved(&bytes)
}

/// How archives and compressed files begin that are not served, what they are called, and what unpacks them.
const UNSERVED: &[(&[u8], &str, &str)] = &[
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "`7z x` unpacks it"),
    (b"Rar!\x1a\x07", "a RAR archive", "`unrar x` or `bsdtar x` unpacks it"),
    (b"MSCF\0\0\0\0", "a cabinet", "`cabextract` or `bsdtar x` unpacks it"),
    (b"xar!\0", "a xar archive", "`bsdtar x` unpacks it"),
    (b"\x04\x22\x4d\x18", "a file compressed by lz4", "`lz4 -d` decompresses it"),
    (b"LZIP", "a file compressed by lzip", "`lzip -d` decompresses it"),
    (b"\x89LZO\0\r\n\x1a\n", "a file compressed by lzop", "`lzop -d` decompresses it"),
    (b"\x1f\x9d", "a file compressed by compress (.Z)", "`gzip -d` decompresses it"),
];

fn known_unserved(bytes: &[u8; 13]) -> Option<(&'static str, &'static str)> {
    // This one has no magic number: usual parameters, and a size that is not known or below 16 TiB.
    let is_lzma = bytes.starts_with(b"\x5d\0\0")
        && (bytes[5..] == [0xff; 8] || bytes[11..] == [0; 2] && bytes[5..] != [0; 8]);
    if is_lzma {
        return Some(("a file compressed by lzma", "`xz -d` decompresses it"));
    }
    UNSERVED.iter().find(|(magic, ..)| bytes.starts_with(magic)).map(|&(_, kind, instead)| (kind, instead))
}

/// What kind of archive a file of the host is, if it is one.
pub fn kind(path: &Path) -> Option<String> {
    let source: Arc<dyn Source> = Arc::new(FileSource::open(path).ok()?);
    detect(&source).ok().flatten().map(Format::name)
}

/// Opens the archive in a file of another tree.
///
/// # Errors
/// A sentence naming the file and what is wrong with it.
pub fn in_tree(
    trees: &Trees,
    inode: &Inode,
    location: &Location,
    options: &DriverOptions,
) -> Result<Arc<dyn Service>, Failure> {
    let cannot = |error| Failure::serious(format!("cannot open '{location}': {error}"));
    let file = inode.open(OpenFlags::empty()).map_err(cannot)?;
    let attr = inode.attr();
    let identity = identity(
        trees,
        location,
        attr.size,
        i128::from(attr.ctime.secs) * 1_000_000_000 + i128::from(attr.ctime.nanos),
    );
    open(
        trees,
        Arc::new(TreeSource { file, name: location.to_string(), size: attr.size, identity }),
        options,
        |source| match is_disk(&Bytes(source)) {
            Ok(true) => format!(
                "but a disk image, which cannot be opened inside of another tree: `outrigger cp '{location}' .` takes it out first"
            ),
            _ => "nor a disk image".to_owned(),
        },
    )
}

/// Two packages may hold files of the same name, size and time, so the identity names the host's file too.
fn identity(trees: &Trees, location: &Location, size: u64, version: i128) -> Option<Identity> {
    use crate::location::Base;
    use std::os::unix::fs::MetadataExt;
    let Base::Host(path) = &location.base else { return None };
    let outer = std::fs::metadata(trees.reach(path)).ok()?;
    let (dev, ino, len, sec, nsec) =
        (outer.dev(), outer.ino(), outer.len(), outer.ctime(), outer.ctime_nsec());
    let nested: Vec<String> = location.nested.iter().map(|path| path.escape_ascii().to_string()).collect();
    let key = format!("file:{dev}:{ino}:{len}:{sec}:{nsec}::{}", nested.join("::"));
    Some(Identity { key, size, version })
}

/// `what_else` says what is known of a source that is no archive.
fn open(
    trees: &Trees,
    source: Arc<dyn Source>,
    options: &DriverOptions,
    what_else: impl FnOnce(&dyn Source) -> String,
) -> Result<Arc<dyn Service>, Failure> {
    let mut archive_options = Options { cache: CacheConfig::user(), ..Options::default() };
    options.apply(|key, value| archive_options.set(key, value))?;
    let watch = Interrupt(trees.cancel.clone());
    let archive =
        Archive::open(Arc::clone(&source), archive_options, &watch).map_err(|error| match error.kind() {
            Kind::Truncated | Kind::Corrupt => {
                Failure::serious(format!("{error}; --opt partial (mount: -o partial) shows what can be read"))
            }
            Kind::NotAnArchive => Failure::serious(format!("{error}, {}", what_else(&*source))),
            _ => Failure::serious(error.to_string()),
        })?;
    tell_losses(trees, source.name(), &archive);
    // Threads of its own: reads of an archive wait for the tree it lies in, and must not take that tree's threads.
    Ok(Arc::new(Inline::new(ArchiveDriver::new(archive), Arc::new(Threads::new()))))
}

/// Names what is in the archive and cannot be in a tree. A command that goes on without it has not done everything; a mount
/// shows what there is.
fn tell_losses(trees: &Trees, name: &str, archive: &Archive) {
    let status = if trees.is_for_a_mount() { Status::Success } else { Status::Minor };
    for (warning, count, example) in archive.warnings().iter().filter(|(warning, ..)| warning.is_loss()) {
        let (entries, first) = if count == 1 { ("entry", "") } else { ("entries", "the first is ") };
        let example = quoted(example);
        trees
            .report
            .complain(status, format_args!("{name}: {count} {entries} {}: {first}{example}", warning.text()));
    }
}

/// A source as a disk.
struct Bytes<'a>(&'a dyn Source);

impl Medium for Bytes<'_> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.0.read_at(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => (buffer, offset) = (&mut buffer[count..], offset + count as u64),
            }
        }
        Ok(())
    }
}

struct Interrupt(Cancel);

impl Watch for Interrupt {
    fn progress(&self, _: Progress) {}
    fn cancelled(&self) -> bool {
        self.0.is_raised()
    }
}

/// A file of a tree as the bytes of an archive.
struct TreeSource {
    file: File,
    name: String,
    size: u64,
    identity: Option<Identity>,
}

impl ReadAt for TreeSource {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.file.read_at(offset, buf.len()).map_err(io::Error::from)?;
        // A tree that answers more than was asked for is broken; what does not fit is dropped.
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }
}

impl Source for TreeSource {
    fn size(&self) -> u64 {
        self.size
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn identity(&self) -> Option<Identity> {
        self.identity.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_served_is_recognised_by_how_it_begins() {
        let known = |bytes: &[u8]| {
            let mut head = [0; 13];
            head[..bytes.len()].copy_from_slice(bytes);
            known_unserved(&head).map(|(kind, _)| kind)
        };
        for (magic, kind, _) in UNSERVED {
            assert_eq!(known(magic), Some(*kind));
        }
        let lzma = Some("a file compressed by lzma");
        assert_eq!(known(b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff"), lzma);
        assert_eq!(known(b"\x5d\0\0\x80\0\x05\0\0\0\0\0\0\0"), lzma);
        for other in [&b""[..], b"PK\x03\x04", b"\x5d\0\0\0", b"]\0\0abcdefghij", b"Rar"] {
            assert_eq!(known(other), None, "{other:?}");
        }
    }
}
