// SPDX-License-Identifier: MIT OR Apache-2.0
//! zip (PKWARE APPNOTE.TXT 6.3.10), with zip64 and the Info-ZIP extra fields. The central directory is the index;
//! sizes come from there, so data descriptors need no attention.

use crate::{
    Kind, Limits, Progress, Result, Watch,
    entry::{Entry, Packed, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, Time},
    index::Warning,
    source::Origin,
    tree::Tree,
};

mod recover;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
const END_LEN: usize = 22;
const CENTRAL_LEN: usize = 46;
const LOCAL_LEN: usize = 30;
/// Longest symbolic link target read while indexing (PATH_MAX of Linux).
const MAX_TARGET: u64 = 4096;
const CHUNK: usize = 256 << 10;

/// Reads little-endian numbers from the front; zeros once the bytes have run out (the callers check lengths).
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    fn number(&mut self, n: usize) -> Option<u64> {
        Some(self.take(n)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    }
    fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|v| v as u16)
    }
    fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|v| v as u32)
    }
    fn u64(&mut self) -> Option<u64> {
        self.number(8)
    }
}

/// Whether `head` begins a zip file (an empty one has only its end record).
pub(crate) fn is_head(head: &[u8]) -> bool {
    matches!(Fields(head).u32(), Some(LOCAL | END))
}

/// Where the central directory is.
#[derive(Debug)]
struct Directory {
    /// Offset in the file.
    at: u64,
    size: u64,
    entries: u64,
    /// What to add to the offsets in the directory: the bytes put before the zip file (self-extracting programs).
    shift: u64,
}

/// Whether the file ends like a zip file; for those that begin with a program.
pub(crate) fn has_end(origin: &Origin) -> bool {
    find_end(origin).is_ok_and(|(at, end)| directory(origin, at, &end).is_ok())
}

/// The end record: its offset and its bytes.
fn find_end(origin: &Origin) -> Result<(u64, Vec<u8>)> {
    let size = origin.source.size();
    // The record ends with a comment of at most 65535 bytes.
    let tail_len = size.min((END_LEN + 0xffff) as u64) as usize;
    let base = size - tail_len as u64;
    let mut tail = vec![0; tail_len];
    origin.exact(&mut tail, base, "the zip end record")?;
    let fits = |i: &usize| {
        let mut f = Fields(&tail[*i..]);
        let comment = f.0.get(20..22).map(|c| usize::from(c[0]) | usize::from(c[1]) << 8);
        f.u32() == Some(END) && comment.is_some_and(|c| i + END_LEN + c <= tail_len)
    };
    match (0..(tail_len + 1).saturating_sub(END_LEN)).rev().find(fits) {
        Some(i) => Ok((base + i as u64, tail.split_off(i))),
        None => {
            let what =
                "no zip end record: the file is cut or damaged, and the list of its entries is at the end";
            Err(origin.error(Kind::Truncated, size, what))
        }
    }
}

fn directory(origin: &Origin, end_at: u64, end: &[u8]) -> Result<Directory> {
    let corrupt = |what: &str| origin.error(Kind::Corrupt, end_at, format!("zip: {what}"));
    let mut f = Fields(end.get(4..END_LEN).unwrap_or_default());
    let mut parse = || Some((f.u16()?, f.u16()?, f.u16()?, f.u16()?, f.u32()?, f.u32()?));
    let (disk, dir_disk, _, entries, size, offset) = parse().ok_or_else(|| corrupt("short end record"))?;
    let (mut size, mut offset, mut entries) = (u64::from(size), u64::from(offset), u64::from(entries));
    let mut dir_end = end_at;
    let mut split = disk != dir_disk || disk != 0 && disk != 0xffff;
    if let Some((at64, rest)) = find_end64(origin, end_at)? {
        let mut f = Fields(&rest);
        let mut parse = || Some((f.u32()?, f.u32()?, f.u64()?, f.u64()?, f.u64()?, f.u64()?));
        let (disk, dir_disk, _, n, s, o) = parse().ok_or_else(|| corrupt("short zip64 end record"))?;
        (size, offset, entries, dir_end, split) = (s, o, n, at64, disk != dir_disk);
    }
    if split {
        return Err(origin.error(Kind::Unsupported, end_at, "zip: one part of a split archive"));
    }
    let at = dir_end.checked_sub(size).ok_or_else(|| corrupt("central directory larger than the file"))?;
    let shift = at.checked_sub(offset).ok_or_else(|| corrupt("central directory offset beyond its place"))?;
    Ok(Directory { at, size, entries, shift })
}

/// The zip64 end record, found through its locator before the end record: its offset and its fields from "number of
/// this disk" on.
fn find_end64(origin: &Origin, end_at: u64) -> Result<Option<(u64, [u8; 40])>> {
    let Some(locator_at) = end_at.checked_sub(20) else { return Ok(None) };
    let mut locator = [0; 20];
    origin.exact(&mut locator, locator_at, "the zip64 locator")?;
    let mut f = Fields(&locator);
    if f.u32() != Some(LOCATOR64) {
        return Ok(None);
    }
    let listed = Fields(&locator[8..16]).u64().unwrap_or(0);
    let mut record = [0; 56];
    // With bytes put before the archive the listed offset is too low; the record usually has no extensions.
    for at in [listed, locator_at.saturating_sub(56)] {
        if at.checked_add(56).is_none_or(|e| e > locator_at) {
            continue;
        }
        origin.exact(&mut record, at, "the zip64 end record")?;
        if Fields(&record).u32() == Some(END64) {
            let mut fields = [0; 40];
            fields.copy_from_slice(&record[16..]);
            return Ok(Some((at, fields)));
        }
    }
    Err(origin.error(Kind::Corrupt, locator_at, "zip: no zip64 end record where the locator says"))
}

/// Parses the central directory into `tree`.
///
/// # Errors
/// What is wrong with it; without an end record `partial` adds the members whose local headers are whole all the same.
pub(crate) fn parse(
    origin: &Origin,
    tree: &mut Tree,
    (limits, partial): (&Limits, bool),
    watch: &dyn Watch,
) -> Result<()> {
    let found = find_end(origin);
    if partial && found.as_ref().is_err_and(crate::Error::is_damage) {
        recover::members(origin, tree, limits, watch)?;
    }
    let (end_at, end) = found?;
    let dir = directory(origin, end_at, &end)?;
    if dir.entries > u64::from(limits.entries) {
        let what = format!("{} entries: more than max_entries allows", dir.entries);
        return Err(origin.error(Kind::Limit, dir.at, what));
    }
    let (buf, used) = (Vec::new(), Vec::new());
    let mut p = Parser { origin, tree, limits, dir, buf, head: 0, next: 0, used, unpacked: 0 };
    p.next = p.dir.at;
    let mut entries = 0;
    while p.pos() < p.dir.at + p.dir.size {
        if entries % 1024 == 0 {
            if watch.cancelled() {
                return Err(p.error(Kind::Cancelled, "opening was cancelled"));
            }
            watch.progress(Progress { read: p.pos(), size: origin.source.size(), entries });
        }
        if !p.entry()? {
            break;
        }
        entries += 1;
    }
    // The count is 16 bits wide in old archives with more entries.
    if entries & 0xffff != p.dir.entries & 0xffff {
        let what = format!("the central directory has {entries} entries instead of {}", p.dir.entries);
        return Err(p.error(Kind::Corrupt, &what));
    }
    p.check_overlap()
}

struct Parser<'a> {
    origin: &'a Origin,
    tree: &'a mut Tree,
    limits: &'a Limits,
    dir: Directory,
    buf: Vec<u8>,
    head: usize,
    /// File offset after `buf`.
    next: u64,
    /// Where the data of members begins and ends, local headers included.
    used: Vec<(u64, u64)>,
    /// What all members together unpack to, as they say.
    unpacked: u64,
}

/// The fixed part of a central directory header.
struct Central {
    made_by: u16,
    flags: u16,
    method: u16,
    time: u16,
    date: u16,
    crc: u32,
    packed: u64,
    size: u64,
    attributes: u32,
    offset: u64,
}

impl Parser<'_> {
    fn pos(&self) -> u64 {
        self.next - (self.buf.len() - self.head) as u64
    }

    fn error(&self, kind: Kind, what: &str) -> crate::Error {
        self.origin.error(kind, self.pos(), format!("zip: {what}"))
    }

    /// The next `n` bytes of the directory.
    fn take(&mut self, n: usize) -> Result<Vec<u8>> {
        if self.buf.len() - self.head < n {
            self.buf.drain(..self.head);
            self.head = 0;
            let have = self.buf.len();
            let left = (self.dir.at + self.dir.size - self.next).min((CHUNK.max(n) - have) as u64) as usize;
            if have + left < n {
                return Err(self.error(Kind::Corrupt, "the central directory ends inside an entry"));
            }
            self.buf.resize(have + left, 0);
            self.origin.exact(&mut self.buf[have..], self.next, "the zip central directory")?;
            self.next += left as u64;
        }
        let v = self.buf[self.head..self.head + n].to_vec();
        self.head += n;
        Ok(v)
    }

    /// Reads one entry; `false` at the end of the directory.
    fn entry(&mut self) -> Result<bool> {
        let at = self.pos();
        let fixed = self.take(CENTRAL_LEN)?;
        if Fields(&fixed).u32() != Some(CENTRAL) {
            // A digital signature may follow the entries.
            return Ok(false);
        }
        let short = || self.origin.error(Kind::Corrupt, at, "zip: short central directory entry");
        let (mut head, [name_len, extra_len, comment_len]) = central(&fixed).ok_or_else(short)?;
        let name = self.take(usize::from(name_len))?;
        let extra = self.take(usize::from(extra_len))?;
        self.take(usize::from(comment_len))?;
        let name = self.describe(at, &mut head, name, &extra)?;
        self.add(at, &head, &name, &extra)?;
        Ok(true)
    }

    /// Applies the extra fields that change sizes and the name; returns the name.
    fn describe(&self, at: u64, head: &mut Central, name: Vec<u8>, extra: &[u8]) -> Result<Vec<u8>> {
        let mut unicode = None;
        for (id, data) in extra_fields(extra) {
            let mut f = Fields(data);
            match id {
                1 => {
                    let short = || self.origin.error(Kind::Corrupt, at, "zip: short zip64 field");
                    for v in [&mut head.size, &mut head.packed, &mut head.offset] {
                        if *v == 0xffff_ffff {
                            *v = f.u64().ok_or_else(short)?;
                        }
                    }
                }
                // Info-ZIP Unicode path: version, CRC of the plain name, UTF-8 name.
                0x7075 if f.number(1) == Some(1) && f.u32() == Some(crc32fast::hash(&name)) => {
                    unicode = Some(f.0.to_vec());
                }
                _ => {}
            }
        }
        let from_unix = head.made_by >> 8 == 3;
        let mut name = match unicode {
            Some(u) => u,
            None if head.flags & 1 << 11 != 0 || name.is_ascii() => name,
            // Unix programs store names as they are, in whatever encoding.
            None if from_unix || std::str::from_utf8(&name).is_ok() => name,
            None => cp437(&name),
        };
        if !from_unix && !name.contains(&b'/') {
            // Some Windows programs write backslashes against the specification.
            name.iter_mut().filter(|b| **b == b'\\').for_each(|b| *b = b'/');
        }
        Ok(name)
    }

    fn add(&mut self, at: u64, head: &Central, name: &[u8], extra: &[u8]) -> Result<()> {
        let is_dir = name.ends_with(b"/");
        let mut entry = Entry {
            mode: mode(head, is_dir),
            size: head.size,
            mtime: dos_time(head.date, head.time),
            data: head.offset.saturating_add(self.dir.shift),
            ..Entry::default()
        };
        unix_fields(extra, &mut entry);
        let packed =
            Packed { method: head.method, encrypted: head.flags & 1 != 0, crc: head.crc, size: head.packed };
        if entry.data.checked_add(packed.size).is_none_or(|e| e > self.origin.source.size()) {
            return Err(self.error(Kind::Corrupt, "an entry whose data lies beyond the end of the file"));
        }
        self.spend(&entry, &packed)?;
        match entry.mode & S_IFMT {
            S_IFREG => entry.extra.packed = Some(packed),
            S_IFLNK => match self.target(&entry, &packed) {
                Ok(t) => entry.extra.target = Some(t),
                Err(e) if e.kind() == Kind::Io => return Err(e),
                Err(_) => {
                    self.tree.warnings.add(Warning::BadLink, name);
                    return Ok(());
                }
            },
            _ => {}
        }
        self.tree.add(at, name, &entry)?;
        Ok(())
    }

    /// Counts what a member unpacks to, and notes where it is.
    fn spend(&mut self, entry: &Entry, packed: &Packed) -> Result<()> {
        self.unpacked = self.unpacked.saturating_add(entry.size);
        let (unpacked, size) = (self.unpacked, self.origin.source.size());
        let allowed = self.limits.free_output.saturating_add(self.limits.ratio.saturating_mul(size));
        if unpacked > allowed {
            let what = format!(
                "members of {unpacked} bytes and more in {size}: a decompression bomb? If not, raise max_ratio"
            );
            return Err(self.error(Kind::Limit, &what));
        }
        if packed.size > 0 {
            self.used.push((entry.data, entry.data + packed.size + LOCAL_LEN as u64));
        }
        Ok(())
    }

    /// Refuses members that have data in common, as unzip(1) does: a few bytes would unpack as often as they are named.
    fn check_overlap(&mut self) -> Result<()> {
        self.used.sort_unstable();
        match self.used.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            Some(pair) => {
                let what = "zip: members that have data in common: a decompression bomb, which is not opened";
                Err(self.origin.error(Kind::Limit, pair[1].0, what))
            }
            None => Ok(()),
        }
    }

    /// The target of a symbolic link, which is stored like the content of a file.
    fn target(&self, entry: &Entry, packed: &Packed) -> Result<Vec<u8>> {
        if entry.size > MAX_TARGET || packed.size > 2 * MAX_TARGET || packed.encrypted {
            return Err(self.error(Kind::Corrupt, "an impossible link target"));
        }
        let start = data_start(self.origin, entry.data)?;
        let mut target = vec![0; entry.size as usize];
        match codec(packed.method) {
            Some(None) => self.origin.exact(&mut target, start, "a link target")?,
            Some(Some(codec)) => {
                let range = (start, start.saturating_add(packed.size).min(self.origin.source.size()));
                let setup = crate::decode::Setup::new(self.origin.clone(), codec, range, self.limits);
                let mut decoder = setup.decoder(None)?;
                let mut done = 0;
                while done < target.len() {
                    match decoder.read(&mut target[done..])? {
                        0 => return Err(self.error(Kind::Corrupt, "a short link target")),
                        n => done += n,
                    }
                }
            }
            None => return Err(self.error(Kind::Unsupported, "an unknown method for a link target")),
        }
        if crc32fast::hash(&target) != packed.crc {
            return Err(self.error(Kind::Corrupt, "a link target whose checksum does not match"));
        }
        if target.is_empty() || target.contains(&0) {
            return Err(self.error(Kind::Corrupt, "an impossible link target"));
        }
        Ok(target)
    }
}

/// The fixed fields, and the lengths of name, extra fields and comment.
fn central(fixed: &[u8]) -> Option<(Central, [u16; 3])> {
    let mut f = Fields(fixed);
    f.u32()?;
    let made_by = f.u16()?;
    f.u16()?;
    let (flags, method, time, date) = (f.u16()?, f.u16()?, f.u16()?, f.u16()?);
    let (crc, packed, size) = (f.u32()?, f.u32()?, f.u32()?);
    let lengths = [f.u16()?, f.u16()?, f.u16()?];
    f.u32()?;
    let (attributes, offset) = (f.u32()?, f.u32()?);
    let (packed, size, offset) = (u64::from(packed), u64::from(size), u64::from(offset));
    Some((Central { made_by, flags, method, time, date, crc, packed, size, attributes, offset }, lengths))
}

/// Where the data of the entry with the local header at `at` starts.
pub(crate) fn data_start(origin: &Origin, at: u64) -> Result<u64> {
    let mut h = [0; LOCAL_LEN];
    origin.exact(&mut h, at, "a zip local header")?;
    if Fields(&h).u32() != Some(LOCAL) {
        return Err(origin.error(Kind::Corrupt, at, "zip: no local header where the central directory says"));
    }
    let len = |i: usize| u64::from(h[i]) | u64::from(h[i + 1]) << 8;
    Ok(at + LOCAL_LEN as u64 + len(26) + len(28))
}

/// How a method is decoded: `Some(None)` is stored, `None` is unknown (APPNOTE 4.4.5).
pub(crate) fn codec(method: u16) -> Option<Option<crate::Codec>> {
    use crate::Codec;
    match method {
        0 => Some(None),
        8 => Some(Some(Codec::Deflate)),
        12 => Some(Some(Codec::Bzip2)),
        93 => Some(Some(Codec::Zstd)),
        95 => Some(Some(Codec::Xz)),
        _ => None,
    }
}

/// The (id, data) extra fields; stops at the first that does not fit.
fn extra_fields(extra: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut f = Fields(extra);
    std::iter::from_fn(move || {
        let (id, len) = (f.u16()?, f.u16()?);
        Some((id, f.take(usize::from(len))?))
    })
}

/// Type and permissions from the external attributes (high half: Unix mode; low byte: DOS attributes).
fn mode(head: &Central, is_dir: bool) -> u32 {
    let unix = head.attributes >> 16;
    let kind = match unix & S_IFMT {
        _ if is_dir => S_IFDIR,
        S_IFLNK => S_IFLNK,
        S_IFDIR => S_IFDIR,
        // Pipes, sockets and devices are not stored in any agreed way.
        _ if head.attributes & 0x10 != 0 && head.size == 0 && unix == 0 => S_IFDIR,
        _ => S_IFREG,
    };
    // Host systems 3 (Unix) and 19 (OS X) have modes; others may put them there too.
    let perms = match unix & 0o7777 {
        0 if !matches!(head.made_by >> 8, 3 | 19) => {
            let read_only = head.attributes & 1 != 0;
            let all = if kind == S_IFDIR { 0o755 } else { 0o644 };
            if read_only { all & 0o555 } else { all }
        }
        p => p,
    };
    kind | perms
}

/// Owner and times: Info-ZIP UT (0x5455), ux (0x7875), Unix (0x000d, 0x5855, 0x7855) and NTFS (0x000a).
fn unix_fields(extra: &[u8], e: &mut Entry) {
    for (id, data) in extra_fields(extra) {
        let mut f = Fields(data);
        // A field too short for what it claims simply says no more.
        let _ = match id {
            0x5455 => ut(&mut f, e),
            0x7875 => ux(&mut f, e),
            0x000d | 0x5855 => old_unix(&mut f, e),
            0x7855 => owner16(&mut f, e),
            0x000a => ntfs(&mut f, e),
            _ => None,
        };
    }
}

/// Flags, then as many times as there are: the central copy has only the first.
fn ut(f: &mut Fields<'_>, e: &mut Entry) -> Option<()> {
    let flags = f.number(1)?;
    if flags & 1 != 0 {
        e.mtime = Time::seconds(i64::from(f.u32()?.cast_signed()));
    }
    if flags & 2 != 0 {
        e.extra.atime = Some(Time::seconds(i64::from(f.u32()?.cast_signed())));
    }
    if flags & 4 != 0 {
        e.extra.btime = Some(Time::seconds(i64::from(f.u32()?.cast_signed())));
    }
    Some(())
}

/// Version 1, then uid and gid, each after its size.
fn ux(f: &mut Fields<'_>, e: &mut Entry) -> Option<()> {
    f.number(1).filter(|v| *v == 1)?;
    for id in [&mut e.uid, &mut e.gid] {
        let n = f.number(1).filter(|n| *n <= 8)?;
        *id = u32::try_from(f.number(n as usize)?).ok()?;
    }
    Some(())
}

fn old_unix(f: &mut Fields<'_>, e: &mut Entry) -> Option<()> {
    e.extra.atime = Some(Time::seconds(i64::from(f.u32()?.cast_signed())));
    e.mtime = Time::seconds(i64::from(f.u32()?.cast_signed()));
    owner16(f, e)
}

fn owner16(f: &mut Fields<'_>, e: &mut Entry) -> Option<()> {
    let (uid, gid) = (f.u16()?, f.u16()?);
    (e.uid, e.gid) = (u32::from(uid), u32::from(gid));
    Some(())
}

/// Reserved, then attribute 1: three times in 100 ns since 1601.
fn ntfs(f: &mut Fields<'_>, e: &mut Entry) -> Option<()> {
    f.u32()?;
    while let Some(tag) = f.u16() {
        let len = usize::from(f.u16()?);
        let mut data = Fields(f.take(len)?);
        if tag == 1 {
            e.mtime = filetime(data.u64()?);
            e.extra.atime = Some(filetime(data.u64()?));
            e.extra.btime = Some(filetime(data.u64()?));
        }
    }
    Some(())
}

fn filetime(v: u64) -> Time {
    const EPOCH: i64 = 11_644_473_600;
    Time { sec: (v / 10_000_000) as i64 - EPOCH, nsec: (v % 10_000_000) as u32 * 100 }
}

/// An MS-DOS date and time, taken as UTC because the archive does not say where it was made.
fn dos_time(date: u16, time: u16) -> Time {
    let (year, month, day) = (i64::from(date >> 9) + 1980, i64::from(date >> 5 & 15), i64::from(date & 31));
    let (hour, minute, second) = (i64::from(time >> 11), i64::from(time >> 5 & 63), i64::from(time & 31) * 2);
    // Days since the epoch, counting years from March so that leap days come last.
    let y = if month <= 2 { year - 1 } else { year };
    let m = (month + 9) % 12;
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (m * 306 + 5) / 10 + day - 1 - 719_468;
    Time::seconds(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// IBM code page 437 as UTF-8.
fn cp437(name: &[u8]) -> Vec<u8> {
    const HIGH: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
    let high: Vec<char> = HIGH.chars().collect();
    let decode = |b: &u8| if *b < 0x80 { char::from(*b) } else { high[usize::from(*b - 0x80)] };
    name.iter().map(decode).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let dos = |y: u16, mo: u16, d: u16, h: u16, mi: u16, s: u16| {
            dos_time((y - 1980) << 9 | mo << 5 | d, h << 11 | mi << 5 | (s / 2)).sec
        };
        assert_eq!(dos(1980, 1, 1, 0, 0, 0), 315_532_800);
        assert_eq!(dos(2000, 2, 29, 12, 30, 58), 951_827_458);
        assert_eq!(dos(2024, 12, 31, 23, 59, 58), 1_735_689_598);
        // Zero month and day occur in real archives.
        dos_time(0, 0xffff);
        assert_eq!(filetime(116_444_736_000_000_000 + 15), Time { sec: 0, nsec: 1500 });
    }

    #[test]
    fn code_page_437_has_128_high_characters() {
        assert_eq!(cp437(b"a\x80\xe1\xff"), "aÇß\u{a0}".as_bytes());
    }

    #[test]
    fn short_fields_say_nothing() {
        let mut e = Entry { uid: 7, ..Entry::default() };
        unix_fields(b"ux\x03\0\x01\x04\x01UT\x01\0", &mut e);
        assert_eq!(e.uid, 7);
        unix_fields(b"ux\x0b\0\x01\x04\xe8\x03\0\0\x04\xe9\x03\0\0", &mut e);
        assert_eq!((e.uid, e.gid), (1000, 1001));
    }
}
