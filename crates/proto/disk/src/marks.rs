// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known by name and nothing more: containers of disks, members of arrays and volume groups, encrypted volumes and file
//! systems that are not described here. Sources: the headers of the programs that make them, and the magics of blkid(8)
//! (util-linux, `libblkid/src/superblocks`) and of QEMU's `block/`.

use crate::bytes::{be16, le32};
use crate::{Medium, vhd};
use std::io;

/// What a medium holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// What it is called.
    pub name: &'static str,
    /// What makes a block device of it on the host, where something does.
    pub tool: Option<&'static str>,
}

/// Bytes that are always at a place, and what else must hold of all that follows there.
struct Mark {
    place: u64,
    bytes: &'static [u8],
    also: Option<fn(&[u8]) -> bool>,
    content: Content,
}

/// How many bytes from a mark on are looked at.
const LOOK: usize = 64;

const fn mark(place: u64, bytes: &'static [u8], name: &'static str) -> Mark {
    Mark { place, bytes, also: None, content: Content { name, tool: None } }
}

impl Mark {
    const fn also(self, also: fn(&[u8]) -> bool) -> Self {
        Mark { also: Some(also), ..self }
    }

    const fn by(self, tool: &'static str) -> Self {
        Mark { content: Content { tool: Some(tool), ..self.content }, ..self }
    }

    fn is_in(&self, medium: &dyn Medium, place: u64) -> io::Result<bool> {
        let there = medium.size().saturating_sub(place).min(LOOK as u64) as usize;
        if there < self.bytes.len() {
            return Ok(false);
        }
        let mut bytes = [0; LOOK];
        medium.read(&mut bytes[..there], place)?;
        Ok(bytes.starts_with(self.bytes) && self.also.is_none_or(|also| also(&bytes)))
    }
}

/// Forms of images in which blocks are not where they are on the disk.
const FORMS: &[Mark] = &[
    mark(0, b"QFI\xfb", "qcow2"),
    mark(0, b"QED\0", "QED"),
    mark(0, b"KDMV", "VMDK"),
    mark(0, b"COWD", "VMDK"),
    mark(0, b"# Disk DescriptorFile", "VMDK"),
    mark(0, b"vhdxfile", "VHDX"),
    mark(0, b"conectix", "VHD"),
    mark(0x40, b"\x7f\x10\xda\xbe", "VDI"),
    mark(0, b"WithoutFreeSpace", "Parallels"),
    mark(0, b"WithouFreSpacExt", "Parallels"),
];

/// The form that an image has instead of being the bytes of a disk, if it is one of those that are known.
///
/// # Errors
/// Those of reading.
pub fn form(medium: &dyn Medium) -> io::Result<Option<&'static str>> {
    for mark in FORMS {
        if mark.is_in(medium, mark.place)? {
            return Ok(Some(mark.content.name));
        }
    }
    // One of fixed size has its mark at the end only.
    Ok(vhd::has_footer(medium)?.then_some("VHD"))
}

const LVM: &str = "vgchange -ay";
const MD: &str = "mdadm --assemble";
const CRYPT: &str = "cryptsetup open";
const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";

const CONTENTS: &[Mark] = &[
    mark(0, b"LUKS\xba\xbe", "LUKS1").also(|bytes| be16(bytes, 6) == 1).by(CRYPT),
    mark(0, b"LUKS\xba\xbe", "LUKS2").also(|bytes| be16(bytes, 6) == 2).by(CRYPT),
    // The second header alone, where the first is damaged.
    mark(0x4000, b"SKUL\xba\xbe", "LUKS2").by(CRYPT),
    mark(3, b"-FVE-FS-", "BitLocker").by("cryptsetup bitlkOpen"),
    mark(0, b"LABELONE", "LVM2").also(is_lvm).by(LVM),
    mark(512, b"LABELONE", "LVM2").also(is_lvm).by(LVM),
    mark(1024, b"LABELONE", "LVM2").also(is_lvm).by(LVM),
    mark(1536, b"LABELONE", "LVM2").also(is_lvm).by(LVM),
    mark(0, MD_MAGIC, "md").also(is_md).by(MD),
    mark(4096, MD_MAGIC, "md").also(is_md).by(MD),
    mark(4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
    mark(4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "bcachefs"),
    mark(32, b"NXSB", "APFS").also(|bytes| (4096..=65_536).contains(&le32(bytes, 4))),
    mark(3, b"ReFS\0\0\0\0", "ReFS"),
    mark(0x1_0034, b"ReIsErFs", "reiserfs"),
    mark(0x1_0034, b"ReIsEr2Fs", "reiserfs"),
    mark(0x1_0034, b"ReIsEr3Fs", "reiserfs"),
    mark(0x1_0000, b"\x01\x16\x19\x70\0\0\0\x01", "GFS2"),
    mark(0x1000, b"OCFSV2", "OCFS2"),
];

/// `pv_header`'s type in a label of LVM2 (`lib/format_text/layout.h`).
fn is_lvm(label: &[u8]) -> bool {
    label[24..].starts_with(b"LVM2 001")
}

/// A superblock of md with metadata of version 1 (`struct mdp_superblock_1` of `linux/raid/md_p.h`).
fn is_md(superblock: &[u8]) -> bool {
    le32(superblock, 4) == 1
}

/// What a medium holds that is known by name only. What is recognised otherwise ([`crate::volume`], [`crate::partition`]) counts
/// for more: of an array's members some look like what is in the array.
///
/// # Errors
/// Those of reading.
pub fn content(medium: &dyn Medium) -> io::Result<Option<Content>> {
    for mark in CONTENTS {
        if mark.is_in(medium, mark.place)? {
            return Ok(Some(mark.content));
        }
    }
    for (found, mark) in [
        (is_swap(medium)?, mark(0, b"", "swap")),
        (is_md_at_its_end(medium)?, mark(0, b"", "md").by(MD)),
        (is_zfs(medium)?, mark(0, b"", "ZFS").by("zpool import")),
    ] {
        if found {
            return Ok(Some(mark.content));
        }
    }
    Ok(None)
}

/// The mark is at the end of the first page, whose size is that of the machine that made it.
fn is_swap(medium: &dyn Medium) -> io::Result<bool> {
    let marks = [&b"SWAPSPACE2"[..], b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0"];
    any([4096, 8192, 16_384, 65_536], |page| any(marks, |bytes| mark(0, bytes, "").is_in(medium, page - 10)))
}

/// Metadata of version 0.90 and 1.0 (`drivers/md/md.c`).
fn is_md_at_its_end(medium: &dyn Medium) -> io::Result<bool> {
    let size = medium.size();
    let old = (size & !0xffff).saturating_sub(0x1_0000);
    let new = size.saturating_sub(0x2000) & !0xfff;
    let is = |place, version| -> io::Result<bool> {
        let mut number = [0; 4];
        if place == 0 || !mark(0, MD_MAGIC, "").is_in(medium, place)? {
            return Ok(false);
        }
        medium.read(&mut number, place + 4)?;
        Ok(u32::from_le_bytes(number) == version)
    };
    Ok(is(old, 0)? || is(new, 1)?)
}

/// The uberblocks of the first label (OpenZFS, `include/sys/uberblock_impl.h`), in either order of bytes.
fn is_zfs(medium: &dyn Medium) -> io::Result<bool> {
    let marks = [&b"\x0c\xb1\xba\0\0\0\0\0"[..], b"\0\0\0\0\0\xba\xb1\x0c"];
    any(0..128, |number| any(marks, |bytes| mark(0, bytes, "").is_in(medium, (128 << 10) + number * 1024)))
}

fn any<T>(
    all: impl IntoIterator<Item = T>,
    mut holds: impl FnMut(T) -> io::Result<bool>,
) -> io::Result<bool> {
    for one in all {
        if holds(one)? {
            return Ok(true);
        }
    }
    Ok(false)
}
