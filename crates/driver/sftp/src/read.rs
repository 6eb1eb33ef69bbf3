// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a range of a file: in pieces that suit the connection, all asked for at once.

use crate::fault::Fault;
use crate::session::Pending;
use crate::slots::Held;
use bytes::{Bytes, BytesMut};
use outrigger_proto_sftp::{Extensions, Request};

/// A piece of a file that was asked for.
struct Piece {
    offset: u64,
    len: usize,
    data: Pending,
}

/// Reads `len` bytes at `offset`, fewer at the end of the file.
///
/// # Errors
/// Why they cannot be read.
pub(crate) async fn read_range(held: &Held, offset: u64, len: usize) -> Result<Vec<Bytes>, Fault> {
    // A server that states its limits answers fewer bytes at the end of the file only; from others, nothing but an empty answer
    // says that it ends there. So the last byte, which may be after the end, is asked for by itself.
    let short_is_the_end = held.session.has(Extensions::LIMITS);
    let end = offset + len as u64;
    let last = if short_is_the_end || len < 2 { end } else { end - 1 };
    let mut pieces = ask(held, offset, last).await;
    pieces.extend(ask(held, last, end).await);
    let mut read = Vec::with_capacity(pieces.len());
    for Piece { offset, len, mut data } in pieces {
        // All are waited for: when this fails, none of them is on its way any more.
        read.push((offset, len, data.data().await.and_then(|data| within(data, len))));
    }
    let mut content = Vec::with_capacity(read.len());
    let mut read = read.into_iter().peekable();
    while let Some((offset, len, data)) = read.next() {
        let data = data?;
        let got = data.len();
        content.push(data);
        if got == len {
            continue;
        }
        let follows =
            read.peek().is_some_and(|(_, _, next)| next.as_ref().is_ok_and(|next| !next.is_empty()));
        if (short_is_the_end || got == 0) && !follows {
            break;
        }
        let rest = read_on(held, offset + got as u64, len - got).await?;
        let is_all = rest.len() == len - got;
        content.push(rest);
        if !is_all {
            break;
        }
    }
    Ok(content)
}

async fn ask(held: &Held, start: u64, end: u64) -> Vec<Piece> {
    let Held { session, handle, .. } = held;
    let chunk = session.chunk(session.max_read) as u64;
    let mut pieces = Vec::new();
    let mut offset = start;
    while offset < end {
        let len = chunk.min(end - offset) as usize;
        let data = session.begin(&Request::Read { handle, offset, len: len as u32 }).await;
        pieces.push(Piece { offset, len, data });
        offset += len as u64;
    }
    pieces
}

fn within(data: Bytes, len: usize) -> Result<Bytes, Fault> {
    match data.len() {
        got if got <= len => Ok(data),
        got => Err(Fault::Odd(format!("it answered {got} bytes where {len} were asked for"))),
    }
}

/// Reads until there is enough or nothing more.
async fn read_on(held: &Held, offset: u64, len: usize) -> Result<Bytes, Fault> {
    let mut content = BytesMut::new();
    while content.len() < len {
        let (offset, len) = (offset + content.len() as u64, len - content.len());
        let request = Request::Read { handle: &held.handle, offset, len: len as u32 };
        let data = within(held.session.begin(&request).await.data().await?, len)?;
        if data.is_empty() {
            break;
        }
        content.extend_from_slice(&data);
    }
    Ok(content.freeze())
}
