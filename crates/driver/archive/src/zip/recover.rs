// SPDX-License-Identifier: MIT OR Apache-2.0
//! The members of a zip file whose end, with the central directory, is missing: what their local headers say (APPNOTE 4.3.7).

use super::{Central, Directory, Fields, LOCAL, LOCAL_LEN, Parser};
use crate::source::Origin;
use crate::tree::Tree;
use crate::{Kind, Limits, Progress, Result, Watch};

/// Flag: sizes and checksum follow the data, and are not in the header.
const SIZES_FOLLOW: u16 = 1 << 3;

/// Adds the members from the beginning on, as far as they are whole. Modes and links are in the central directory only: all are files
/// or directories with usual permissions. Without sizes in the header the next one cannot be found.
pub(super) fn members(origin: &Origin, tree: &mut Tree, limits: &Limits, watch: &dyn Watch) -> Result<()> {
    let dir = Directory { at: 0, size: 0, entries: 0, shift: 0 };
    let (buf, used) = (Vec::new(), Vec::new());
    let mut parser = Parser { origin, tree, limits, dir, buf, head: 0, next: 0, used, unpacked: 0 };
    let size = origin.source.size();
    let mut entries = 0;
    while parser.next.saturating_add(LOCAL_LEN as u64) <= size {
        if watch.cancelled() {
            return Err(parser.error(Kind::Cancelled, "opening was cancelled"));
        }
        watch.progress(Progress { read: parser.next, size, entries });
        let Some(end) = member(&mut parser, size)? else { break };
        parser.next = end;
        entries += 1;
    }
    Ok(())
}

/// Adds the member whose header is next, and gives where it ends; nothing where there is none, or not all of it.
fn member(parser: &mut Parser<'_>, size: u64) -> Result<Option<u64>> {
    let (origin, at) = (parser.origin, parser.next);
    let mut fixed = [0; LOCAL_LEN];
    origin.exact(&mut fixed, at, "a zip local header")?;
    let Some((mut head, [name_len, extra_len])) = local(&fixed, at) else { return Ok(None) };
    let mut names = vec![0; usize::from(name_len) + usize::from(extra_len)];
    let data = at + (LOCAL_LEN + names.len()) as u64;
    if data > size {
        return Ok(None);
    }
    origin.exact(&mut names, at + LOCAL_LEN as u64, "a zip local header")?;
    let extra = names.split_off(usize::from(name_len));
    let name = parser.describe(at, &mut head, names, &extra)?;
    let is_known = head.flags & SIZES_FOLLOW == 0 || head.packed != 0;
    match data.checked_add(head.packed).filter(|end| is_known && *end <= size) {
        Some(end) => parser.add(at, &head, &name, &extra).map(|()| Some(end)),
        None => Ok(None),
    }
}

/// The fixed fields, and the lengths of name and extra fields.
fn local(fixed: &[u8], offset: u64) -> Option<(Central, [u16; 2])> {
    let mut f = Fields(fixed);
    if f.u32()? != LOCAL {
        return None;
    }
    f.u16()?;
    let (flags, method, time, date) = (f.u16()?, f.u16()?, f.u16()?, f.u16()?);
    let (crc, packed, size) = (f.u32()?, u64::from(f.u32()?), u64::from(f.u32()?));
    let lengths = [f.u16()?, f.u16()?];
    let (made_by, attributes) = (0, 0);
    Some((Central { made_by, flags, method, time, date, crc, packed, size, attributes, offset }, lengths))
}
