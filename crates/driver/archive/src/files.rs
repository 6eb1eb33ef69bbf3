// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives in files, wherever those lie, as the registry knows them.

use crate::source::read_full;
use crate::{
    Archive, ArchiveDriver, CacheConfig, Error, Identity, Kind, Options, Progress, ReadAt, Source,
    Warning as Unusual, Watch, detect,
};
use outrigger_core::registry::{Content, Files, Given, Lasts, Opened, Recognised, Site, Warning};
use outrigger_core::{Cancel, Errno, Inline};
use std::io;
use std::sync::Arc;

/// What the registry knows of archives in files.
pub(crate) const FILES: Files = Files {
    what: "an archive (tar, zip, cpio, ar) or a compressed file (gzip, bzip2, xz, zstd)",
    chosen_by: &[],
    reads_all: false,
    recognise,
    lasts: Lasts::Stored,
    open,
};

fn recognise(content: &Arc<dyn Content>) -> outrigger_core::Result<Recognised> {
    let source: Arc<dyn Source> = Arc::new(Held(Arc::clone(content)));
    Ok(match detect(&source).map_err(|error| said(&error))? {
        Some(_) => Recognised::Yes,
        None => match unserved(&*source) {
            Some((kind, instead)) => Recognised::NotServed(format!("{kind}, which is not served: {instead}")),
            None => Recognised::No,
        },
    })
}

fn open(content: Arc<dyn Content>, given: &dyn Given, site: &Site<'_>) -> outrigger_core::Result<Opened> {
    let mut options = Options { cache: CacheConfig::user(), ..Options::default() };
    given.apply(&mut |key, value| options.set(key, value))?;
    let archive =
        Archive::open(Arc::new(Held(content)), options, &Interrupt(site.cancel.cloned().unwrap_or_default()));
    let archive = archive.map_err(|error| said(&error))?;
    let warnings = losses(&archive);
    let driver = Inline::new(ArchiveDriver::new(archive), Arc::clone(site.runtime));
    Ok(Opened { service: Arc::new(driver), control: None, warnings })
}

/// What is in the archive and not in the tree.
fn losses(archive: &Archive) -> Vec<Warning> {
    let skipped = archive.warnings().iter().filter(|(warning, ..)| warning.is_loss()).map(
        |(warning, count, example)| {
            let (entries, first) = if count == 1 { ("entry", "") } else { ("entries", "the first is ") };
            let text = format!("{count} {entries} {}: {first}", warning.text());
            Warning { text, name: Some(example.to_vec()), is_loss: true }
        },
    );
    let damaged =
        archive.warnings().iter().filter(|(warning, ..)| *warning == Unusual::Damaged).map(|(.., why)| {
            let why = String::from_utf8_lossy(why);
            let why = why.strip_prefix(&format!("{}: ", archive.name())).unwrap_or(&why).escape_debug();
            let count = archive.inodes() - 1;
            let shown = match count {
                0 => "none of its entries could".to_owned(),
                1 => "only 1 entry could".to_owned(),
                _ => format!("only {count} entries could"),
            };
            let text = format!("the archive is damaged: {shown} be read, all else in it is missing ({why})");
            Warning { text, name: None, is_loss: true }
        });
    damaged.chain(skipped).collect()
}

/// As the user gets it, who can see what comes before the damage.
fn said(error: &Error) -> outrigger_core::Error {
    match error.kind() {
        Kind::Truncated | Kind::Corrupt => {
            Errno::EIO.because(format!("{error}; --opt partial (mount: -o partial) shows what can be read"))
        }
        _ => Errno::EIO.because(error.to_string()),
    }
}

/// A file as the bytes of an archive.
struct Held(Arc<dyn Content>);

impl ReadAt for Held {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
}

impl Source for Held {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn identity(&self) -> Option<Identity> {
        let identity = self.0.identity()?;
        Some(Identity { key: identity.key, size: self.0.size(), version: identity.version })
    }
    fn is_prompt(&self) -> bool {
        self.0.is_prompt()
    }
}

struct Interrupt(Cancel);

impl Watch for Interrupt {
    fn progress(&self, _: Progress) {}
    fn cancelled(&self) -> bool {
        self.0.is_raised()
    }
}

/// What a file is, if it is an archive or compressed file that is known and not served, and what unpacks it.
pub fn unserved(source: &dyn Source) -> Option<(&'static str, &'static str)> {
    let mut bytes = [0; 13];
    read_full(source, &mut bytes, 0).ok()?;
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
