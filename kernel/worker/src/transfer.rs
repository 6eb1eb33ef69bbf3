// SPDX-License-Identifier: GPL-2.0-only
//! How the bytes of an image get to this process and back (`io=`).
//!
//! | name | reads | writes |
//! |---|---|---|
//! | `buffered` | pread(2), preadv(2) | pwrite(2), pwritev(2) |
//! | `direct` | past the page cache of the host, where place and length allow it | the same |
//! | `mmap` | out of mapped windows | pwrite(2): storing into a hole of a file on a full disk would be a fault |
//! | `uring` | as `buffered`, while the kernel code goes on: see [`crate::ring`] | the same |
//!
//! All see what the others wrote, and fdatasync(2) covers all of them.

use crate::mapped::Mapped;
use outrigger_core::lock;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;

/// Moves bytes between memory and the file of an image.
pub trait Transfer: Send + Sync {
    /// Fills `buffer` from `place` on.
    ///
    /// # Errors
    /// Those of pread(2), and when the file ends before.
    fn read(&self, file: &File, buffer: &mut [u8], place: u64) -> io::Result<()>;

    /// Writes all of `data` at `place`.
    ///
    /// # Errors
    /// Those of pwrite(2).
    fn write(&self, file: &File, data: &[u8], place: u64) -> io::Result<()>;

    /// Fills pieces of memory one after the other.
    ///
    /// # Errors
    /// As [`Transfer::read`].
    fn read_pieces(&self, file: &File, pieces: &mut [IoSliceMut<'_>], mut place: u64) -> io::Result<()> {
        for piece in pieces {
            self.read(file, piece, place)?;
            place += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes pieces of memory one after the other.
    ///
    /// # Errors
    /// As [`Transfer::write`].
    fn write_pieces(&self, file: &File, pieces: &mut [IoSlice<'_>], mut place: u64) -> io::Result<()> {
        for piece in pieces {
            self.write(file, piece, place)?;
            place += piece.len() as u64;
        }
        Ok(())
    }
}

/// preadv(2) until everything is there.
fn read_all(file: &File, mut pieces: &mut [IoSliceMut<'_>], mut place: u64) -> io::Result<()> {
    while pieces.iter().any(|piece| !piece.is_empty()) {
        let (start, count) = (pieces.as_mut_ptr().cast::<libc::iovec>(), pieces.len() as i32);
        // SAFETY: slices for I/O are what the call takes, and these are memory of our own.
        match unsafe { libc::preadv(file.as_raw_fd(), start, count, place as i64) } {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            done if done > 0 => {
                IoSliceMut::advance_slices(&mut pieces, done as usize);
                place += done as u64;
            }
            _ => unless_interrupted()?,
        }
    }
    Ok(())
}

/// pwritev(2) until nothing is left.
fn write_all(file: &File, mut pieces: &mut [IoSlice<'_>], mut place: u64) -> io::Result<()> {
    while pieces.iter().any(|piece| !piece.is_empty()) {
        let (start, count) = (pieces.as_ptr().cast::<libc::iovec>(), pieces.len() as i32);
        // SAFETY: slices for I/O are what the call takes.
        match unsafe { libc::pwritev(file.as_raw_fd(), start, count, place as i64) } {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            done if done > 0 => {
                IoSlice::advance_slices(&mut pieces, done as usize);
                place += done as u64;
            }
            _ => unless_interrupted()?,
        }
    }
    Ok(())
}

/// Why the last call has failed, unless it is to be made again.
fn unless_interrupted() -> io::Result<()> {
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

/// The one that `io=` names.
///
/// # Errors
/// When there is none of that name, or the host has not what it needs.
pub fn named(name: &str, file: &File, writable: bool) -> io::Result<Box<dyn Transfer>> {
    match name {
        // What the ring is not asked for goes the usual way.
        "buffered" | "uring" | "" => Ok(Box::new(Buffered)),
        "direct" => Ok(Box::new(Direct::new(file, writable)?)),
        "mmap" => Ok(Box::new(Mapped::new(file)?)),
        _ => Err(io::Error::other(format!("no io={name}; there are buffered, direct, mmap and uring"))),
    }
}

/// By way of the host's page cache.
pub struct Buffered;

impl Transfer for Buffered {
    fn read(&self, file: &File, buffer: &mut [u8], place: u64) -> io::Result<()> {
        file.read_exact_at(buffer, place)
    }

    fn write(&self, file: &File, data: &[u8], place: u64) -> io::Result<()> {
        file.write_all_at(data, place)
    }

    fn read_pieces(&self, file: &File, pieces: &mut [IoSliceMut<'_>], place: u64) -> io::Result<()> {
        read_all(file, pieces, place)
    }

    fn write_pieces(&self, file: &File, pieces: &mut [IoSlice<'_>], place: u64) -> io::Result<()> {
        write_all(file, pieces, place)
    }
}

/// What the host may ask for at most, in bytes.
const UNIT: usize = 4096;
/// The most bytes that are moved at once out of or into memory that is not aligned.
const BOUNCE: usize = 256 << 10;

/// Past the host's page cache (`O_DIRECT`). Ranges that are no whole units go through it; the host keeps both in step.
struct Direct {
    /// The image a second time: the flag belongs to an open file, and others have the first one too.
    file: File,
    /// What places and lengths must be a multiple of, in bytes.
    unit: u64,
    /// What addresses must be a multiple of, in bytes.
    memory_unit: usize,
    /// Memory that is aligned, and room to make it so.
    bounce: Mutex<Vec<u8>>,
}

impl Direct {
    fn new(file: &File, writable: bool) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = File::options().read(true).write(writable).custom_flags(libc::O_DIRECT).open(path);
        let direct = direct.map_err(|error| {
            io::Error::other(format!("io=direct: the file system the image is on does not have it: {error}"))
        })?;
        let (unit, memory_unit) = units(&direct);
        Ok(Direct { file: direct, unit, memory_unit, bounce: Mutex::new(vec![0; BOUNCE + UNIT]) })
    }

    /// Whether the range can be moved directly.
    fn takes(&self, length: usize, place: u64) -> bool {
        place.is_multiple_of(self.unit) && (length as u64).is_multiple_of(self.unit)
    }

    /// Does `work` with aligned memory.
    fn bounced<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut bounce = lock(&self.bounce);
        let skipped = bounce.as_ptr().addr().wrapping_neg() % UNIT;
        work(&mut bounce[skipped..skipped + BOUNCE])
    }
}

/// The units the host asks for: of places, and of addresses. [`UNIT`] where it does not say (before Linux 6.1).
fn units(file: &File) -> (u64, usize) {
    let mut said = MaybeUninit::<libc::statx>::zeroed();
    let (fd, flags) = (file.as_raw_fd(), libc::AT_EMPTY_PATH);
    // SAFETY: the path is a C string and the structure that of the call.
    let result = unsafe { libc::statx(fd, c"".as_ptr(), flags, libc::STATX_DIOALIGN, said.as_mut_ptr()) };
    // SAFETY: all zeroes is a value.
    let said = unsafe { said.assume_init() };
    let within = |unit: u32| (1..=UNIT as u32).contains(&unit) && unit.is_power_of_two();
    if result == 0 && within(said.stx_dio_offset_align) && within(said.stx_dio_mem_align) {
        (said.stx_dio_offset_align.into(), said.stx_dio_mem_align as usize)
    } else {
        (UNIT as u64, UNIT)
    }
}

impl Transfer for Direct {
    fn read(&self, file: &File, buffer: &mut [u8], place: u64) -> io::Result<()> {
        if !self.takes(buffer.len(), place) {
            return file.read_exact_at(buffer, place);
        }
        if buffer.as_ptr().addr().is_multiple_of(self.memory_unit) {
            return self.file.read_exact_at(buffer, place);
        }
        buffer.chunks_mut(BOUNCE).zip((place..).step_by(BOUNCE)).try_for_each(|(piece, place)| {
            self.bounced(|aligned| {
                let aligned = &mut aligned[..piece.len()];
                self.file.read_exact_at(aligned, place)?;
                piece.copy_from_slice(aligned);
                Ok(())
            })
        })
    }

    fn write(&self, file: &File, data: &[u8], place: u64) -> io::Result<()> {
        if !self.takes(data.len(), place) {
            return file.write_all_at(data, place);
        }
        if data.as_ptr().addr().is_multiple_of(self.memory_unit) {
            return self.file.write_all_at(data, place);
        }
        data.chunks(BOUNCE).zip((place..).step_by(BOUNCE)).try_for_each(|(piece, place)| {
            self.bounced(|aligned| {
                aligned[..piece.len()].copy_from_slice(piece);
                self.file.write_all_at(&aligned[..piece.len()], place)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range of any place and length, in memory of any alignment, is what was written there last.
    #[test]
    fn all_see_what_each_has_written() {
        let path = std::env::temp_dir().join(format!("outrigger-transfer-{}", std::process::id()));
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        let size = 20 << 20;
        file.set_len(size as u64).expect("a size");
        let all: Vec<Box<dyn Transfer>> =
            ["buffered", "direct", "mmap"].iter().filter_map(|name| named(name, &file, true).ok()).collect();
        std::fs::remove_file(path).expect("it is there");
        assert!(all.len() >= 2);
        let mut expected = vec![0_u8; size];
        let mut number = 1_u64;
        for round in 0..150 {
            let mut next = |bound: usize| {
                number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (number >> 33) as usize % bound
            };
            let unit = [1, 512, 4096][next(3)];
            let length = (1 + next(600_000 / unit)) * unit;
            let place = next((size - length) / unit + 1) * unit;
            let skipped = next(64);
            let data: Vec<u8> = (0..length + skipped).map(|at| (at * 7 + round) as u8).collect();
            expected[place..place + length].copy_from_slice(&data[skipped..]);
            let (first, second) = data[skipped..].split_at(next(length));
            let (writer, reader) = (&all[next(all.len())], &all[next(all.len())]);
            let mut pieces = [first, second].map(IoSlice::new);
            writer.write_pieces(&file, &mut pieces, place as u64).expect("a write");
            let mut found = vec![0; length + skipped];
            let (first, second) = found[skipped..].split_at_mut(next(length));
            let mut pieces = [first, second].map(IoSliceMut::new);
            reader.read_pieces(&file, &mut pieces, place as u64).expect("a read");
            assert!(found[skipped..] == data[skipped..], "{length} bytes at {place}");
        }
        for transfer in all {
            let mut found = vec![1; size];
            transfer.read(&file, &mut found, 0).expect("a read");
            assert!(found == expected);
            assert!(transfer.read(&file, &mut [0; 10], size as u64 - 5).is_err(), "the end of the file");
        }
    }
}
