// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entries in an [`Rreaddir`](crate::Rreaddir), and those in the content of a directory of 9P2000.

use crate::field::{DecodeError, Dialect, Field, Input, Output};
use crate::{Qid, Stat, Text};
use bytes::{Bytes, BytesMut};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it leads to; servers may leave all but the kind 0.
    pub qid: Qid,
    /// Where the listing goes on after it.
    pub offset: u64,
    /// The kind of file as readdir(3) tells it (`DT_*`); 0 where the server does not know.
    pub kind: u8,
    /// The name.
    pub name: Text,
}

/// The entries that are in `data`.
///
/// # Errors
/// [`DecodeError::Short`] where the last one is not whole.
pub fn entries(data: Bytes) -> Result<Vec<Entry>, DecodeError> {
    let mut input = Input { rest: data, dialect: Dialect::Linux };
    let mut entries = Vec::new();
    while !input.rest.is_empty() {
        entries.push(Entry {
            qid: Field::get(&mut input)?,
            offset: Field::get(&mut input)?,
            kind: Field::get(&mut input)?,
            name: Field::get(&mut input)?,
        });
    }
    Ok(entries)
}

/// What is in the content of a directory, as 9P2000 and 9P2000.u have it: the attributes of each file, with its name (read(5) of Plan 9).
///
/// # Errors
/// [`DecodeError::Short`] where the last one is not whole.
pub fn stats(data: Bytes, dialect: Dialect) -> Result<Vec<Stat>, DecodeError> {
    let mut input = Input { rest: data, dialect };
    let mut stats = Vec::new();
    while !input.rest.is_empty() {
        stats.push(Field::get(&mut input)?);
    }
    Ok(stats)
}

/// Appends an entry to what is to be sent.
pub fn put_entry(data: &mut BytesMut, entry: &Entry) {
    let mut out = Output { bytes: std::mem::take(data), dialect: Dialect::Linux };
    entry.qid.put(&mut out);
    entry.offset.put(&mut out);
    entry.kind.put(&mut out);
    entry.name.put(&mut out);
    *data = out.bytes;
}
