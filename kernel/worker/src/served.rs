// SPDX-License-Identifier: GPL-2.0-only
//! Images that are no files of the host: the process that opened one answers what this one asks for
//! ([`outrigger_proto_disk::served`]).

use crate::transfer::Transfer;
use outrigger_core::lock;
use outrigger_proto_disk::served::Question;
use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::sync::Mutex;

/// Asks at a connection, which stands for the file.
#[derive(Default)]
pub struct Served {
    /// Held from a question to the end of its answer.
    asking: Mutex<()>,
}

impl Served {
    /// Asks for `length` bytes from `offset` on, and leaves them in the connection for `take`.
    fn ask<T>(
        &self,
        mut connection: &File,
        (offset, length): (u64, u32),
        take: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        let _asking = lock(&self.asking);
        connection.write_all(&Question { offset, length }.encode())?;
        let mut errno = [0; 4];
        connection.read_exact(&mut errno)?;
        match i32::from_le_bytes(errno) {
            0 => take(connection),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Transfer for Served {
    fn read(&self, file: &File, buffer: &mut [u8], place: u64) -> io::Result<()> {
        let most = Question::MOST as usize;
        buffer.chunks_mut(most).zip((place..).step_by(most)).try_for_each(|(part, offset)| {
            self.ask(file, (offset, part.len() as u32), |mut connection| connection.read_exact(part))
        })
    }

    fn write(&self, _: &File, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn read_pieces(&self, file: &File, pieces: &mut [IoSliceMut<'_>], mut place: u64) -> io::Result<()> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        if length <= Question::MOST as usize {
            return self.ask(file, (place, length as u32), |mut connection| {
                pieces.iter_mut().try_for_each(|piece| connection.read_exact(piece))
            });
        }
        for piece in pieces {
            self.read(file, piece, place)?;
            place += piece.len() as u64;
        }
        Ok(())
    }
}
