// SPDX-License-Identifier: GPL-2.0-only
//! The mark that an image is in use. A file system that finds it set leaves it set, and fsck complains: but a successor of
//! the process that set it knows better.

use crate::control::Control;
use crate::disk::Disk;
use std::ffi::CStr;
use std::io;

/// What the first process notes in [`Control::note_found`].
const CLEAN: u64 = 1;
const MARKED: u64 = 2;

/// Where the byte with the mark is, and the mark: see `struct fat_boot_sector` in `include/uapi/linux/msdos_fs.h` and
/// `struct boot_sector` in `fs/exfat/exfat_raw.h`.
fn mark(kind: &CStr, head: &[u8; 512]) -> Option<(u64, u8)> {
    // FAT32 has no length of its tables where the others have it.
    let is_fat32 = head[22..24] == [0, 0];
    match kind.to_bytes() {
        b"vfat" if is_fat32 => Some((65, 1)),
        b"vfat" => Some((37, 1)),
        b"exfat" => Some((106, 2)),
        _ => None,
    }
}

/// Takes the mark away if the first process found none; and notes what it finds if this is the first.
///
/// # Errors
/// Those of reading and writing the disk.
pub fn take_away(disk: &Disk, kind: &CStr, control: &Control) -> io::Result<()> {
    let mut head = [0; 512];
    if disk.size() < head.len() as u64 {
        return Ok(());
    }
    disk.read(&mut head, 0)?;
    let Some((place, mark)) = mark(kind, &head) else { return Ok(()) };
    let byte = head[place as usize];
    match control.found()? {
        0 => control.note_found(if byte & mark == 0 { CLEAN } else { MARKED }),
        CLEAN if byte & mark != 0 => disk.write(&[byte & !mark], place),
        _ => Ok(()),
    }
}
