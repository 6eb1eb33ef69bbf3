// SPDX-License-Identifier: MIT OR Apache-2.0
//! tar: v7, ustar and pax (POSIX.1-2024, `pax`, "EXTENDED DESCRIPTION"), GNU (GNU tar manual, "Basic Tar Format") and
//! star variants.

use crate::{
    Kind, Result,
    cursor::Cursor,
    entry::{Entry, Extra, Run, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, Time},
    index::Warning,
    pax::Pax,
    sparse,
    tree::Tree,
};

pub(crate) const BLOCK: usize = 512;
/// Longest GNU long name or pax header; larger ones would only be made to use up memory.
const MAX_META: u64 = 8 << 20;

type Header = [u8; BLOCK];

/// Whether `head` is a tar header: its checksum must match.
pub(crate) fn is_head(head: &[u8]) -> bool {
    head.first_chunk::<BLOCK>().is_some_and(|h| h[0] != 0 && checksum_ok(h) && number(&h[124..136]).is_some())
}

/// The sum of all bytes with the checksum field as spaces; old programs summed signed bytes.
fn checksum_ok(h: &Header) -> bool {
    let Some(stored) = number(&h[148..156]) else { return false };
    let field = 148..156;
    let (mut unsigned, mut signed) = (0i64, 0i64);
    for (i, b) in h.iter().enumerate() {
        let b = if field.contains(&i) { b' ' } else { *b };
        unsigned += i64::from(b);
        signed += i64::from(b.cast_signed());
    }
    stored == unsigned || stored == signed
}

/// A numeric field: octal digits between spaces and NULs, or base 256 when the top bit is set (GNU, star).
pub(crate) fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // 0x80 begins a positive number, 0xff a negative one; the rest is big-endian two's complement.
        let mut v: i64 = if first == 0xff { -1 } else { i64::from(first & 0x7f) };
        for b in &field[1..] {
            v = v.checked_mul(256)?.checked_add(i64::from(*b))?;
        }
        return Some(v);
    }
    let text = field.split(|b| *b == 0).next().unwrap_or_default().trim_ascii();
    let mut v: i64 = 0;
    for b in text {
        if !matches!(b, b'0'..=b'7') {
            return None;
        }
        v = v.checked_mul(8)?.checked_add(i64::from(b - b'0'))?;
    }
    Some(v)
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

/// Parses the archive into `tree`.
pub(crate) fn parse(c: &mut Cursor<'_>, tree: &mut Tree) -> Result<()> {
    let mut p = Parser { c, tree, global: Pax::default(), local: Pax::default() };
    let mut zeros = 0;
    loop {
        let at = p.c.pos();
        let mut h = [0; BLOCK];
        let n = p.c.read_up_to(&mut h)?;
        if n < BLOCK {
            // tar(1) accepts an archive without the two zero blocks at its end.
            if h[..n].iter().all(|b| *b == 0) && p.local.is_empty() {
                return Ok(());
            }
            return Err(p.c.truncated("a tar header"));
        }
        if h.iter().all(|b| *b == 0) {
            zeros += 1;
            if zeros == 2 {
                return p.end();
            }
            continue;
        }
        zeros = 0;
        if !checksum_ok(&h) {
            return Err(p.c.corrupt(format!("the checksum of the tar header at {at} does not match")));
        }
        p.header(at, &h)?;
    }
}

struct Parser<'p, 'c> {
    c: &'p mut Cursor<'c>,
    tree: &'p mut Tree,
    global: Pax,
    /// Applies to the next entry only; GNU long names are kept here too.
    local: Pax,
}

impl Parser<'_, '_> {
    fn end(&mut self) -> Result<()> {
        if !self.local.is_empty() {
            return Err(self.c.corrupt("an extended header at the end of the archive describes nothing"));
        }
        Ok(())
    }

    fn field(&self, h: &Header, range: std::ops::Range<usize>, what: &str) -> Result<i64> {
        number(&h[range]).ok_or_else(|| self.c.corrupt(format!("invalid {what} in a tar header")))
    }

    fn header(&mut self, at: u64, h: &Header) -> Result<()> {
        let size = self.field(h, 124..136, "size")?;
        let size = u64::try_from(size).map_err(|_| self.c.corrupt("negative size in a tar header"))?;
        match h[156] {
            b'L' => self.local.path = Some(self.long_name(size)?),
            b'K' => self.local.link = Some(self.long_name(size)?),
            b'x' | b'X' => {
                let data = self.meta(size, "a pax header")?;
                let mut local = std::mem::take(&mut self.local);
                local.parse(&data).map_err(|w| self.c.corrupt(w))?;
                self.local = local;
            }
            b'g' => {
                let data = self.meta(size, "a pax global header")?;
                let mut global = std::mem::take(&mut self.global);
                global.parse(&data).map_err(|w| self.c.corrupt(w))?;
                self.global = global;
            }
            // Volume labels, parts of other volumes, old long names, Solaris ACLs: nothing to show.
            b'V' | b'M' | b'N' | b'A' | b'I' => {
                if h[156] != b'V' {
                    self.tree.warnings.add(Warning::UnknownKind, text(&h[..100]));
                }
                self.skip_data(size)?;
                self.local = Pax::default();
            }
            kind => self.entry(at, h, kind, size)?,
        }
        Ok(())
    }

    /// The data of a header that describes the next one.
    fn meta(&mut self, size: u64, what: &str) -> Result<Vec<u8>> {
        if size > MAX_META {
            return Err(self.c.error(Kind::Limit, format!("{what} of {size} bytes: more than {MAX_META}")));
        }
        let data = self.c.take(size as usize, what)?;
        self.skip_padding(size)?;
        Ok(data)
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut name = self.meta(size, "a long name")?;
        if let Some(end) = name.iter().position(|b| *b == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    /// Data of the last entry may lack its padding at the end of the file.
    fn skip_padding(&mut self, size: u64) -> Result<()> {
        let mut pad = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        while pad > 0 {
            let n = self.c.fill()?.len().min(pad as usize);
            if n == 0 {
                break;
            }
            self.c.consume(n);
            pad -= n as u64;
        }
        Ok(())
    }

    fn skip_data(&mut self, size: u64) -> Result<()> {
        self.c.skip(size, "the data of an entry")?;
        self.skip_padding(size)
    }

    fn entry(&mut self, at: u64, h: &Header, kind: u8, size: u64) -> Result<()> {
        let local = std::mem::take(&mut self.local);
        let pax = self.global.overlaid(&local);
        let path = match pax.sparse_name.as_ref().or(pax.path.as_ref()) {
            Some(p) => p.clone(),
            None => name(h),
        };
        let link = pax.link.clone().unwrap_or_else(|| text(&h[157..257]).to_vec());
        let mode = self.field(h, 100..108, "mode")? as u32 & 0o7777;
        let file_type = match kind {
            b'0' | 0 | b'7' | b'S' | b'1' if !(kind != b'1' && path.ends_with(b"/")) => S_IFREG,
            b'2' => S_IFLNK,
            b'3' => S_IFCHR,
            b'4' => S_IFBLK,
            b'6' => S_IFIFO,
            b'5' | b'D' | 0 | b'0' => S_IFDIR,
            other => {
                // POSIX: unknown kinds are to be treated as regular files.
                self.tree.warnings.add(Warning::UnknownKind, &[other]);
                S_IFREG
            }
        };
        let mut entry = self.attributes(h, &pax, mode | file_type)?;
        let has_data = matches!(kind, b'0' | 0 | b'7' | b'S' | b'D') || file_type == S_IFREG && kind != b'1';
        let stored = if has_data { pax.size.unwrap_or(size) } else { 0 };
        let mut stored_left = stored;
        entry.size = stored;
        if kind == b'S' {
            self.old_sparse(h, &mut entry)?;
        }
        let data_start = self.c.pos();
        if file_type == S_IFREG && kind != b'1' {
            self.pax_sparse(&pax, stored, &mut entry)?;
        }
        entry.data = self.c.pos();
        stored_left -= (entry.data - data_start).min(stored_left);
        self.check_sparse(&entry, stored_left)?;
        match kind {
            b'1' => self.tree.hard_link(at, &path, &link)?,
            _ => {
                if file_type == S_IFLNK {
                    entry.extra.target = Some(link);
                }
                self.tree.add(at, &path, &entry)?;
            }
        }
        self.c.count();
        self.c.skip(stored_left, "the data of an entry")?;
        self.skip_padding(stored)
    }

    fn attributes(&self, h: &Header, pax: &Pax, mode: u32) -> Result<Entry> {
        // Owners beyond 32 bits do not exist on Linux.
        let id = |v: i64| u32::try_from(v).unwrap_or(u32::MAX - 1);
        let mut extra = Extra { xattrs: pax.xattrs.clone(), ..Extra::default() };
        if matches!(mode & S_IFMT, S_IFCHR | S_IFBLK) {
            let part = |r, what| Ok(self.field(h, r, what)? as u32);
            extra.rdev = Some((part(329..337, "device major")?, part(337..345, "device minor")?));
        }
        if h[257..265] == *b"ustar  \0" {
            // GNU keeps times here, where ustar has its prefix.
            let time = |r: std::ops::Range<usize>| number(&h[r]).filter(|t| *t > 0).map(Time::seconds);
            (extra.atime, extra.ctime) = (time(345..357), time(357..369));
        }
        extra.atime = pax.atime.or(extra.atime);
        extra.ctime = pax.ctime.or(extra.ctime);
        extra.btime = pax.btime;
        Ok(Entry {
            mode,
            uid: pax.uid.map_or_else(|| self.field(h, 108..116, "owner").map(id), Ok)?,
            gid: pax.gid.map_or_else(|| self.field(h, 116..124, "group").map(id), Ok)?,
            mtime: match pax.mtime {
                Some(t) => t,
                None => Time::seconds(self.field(h, 136..148, "time")?),
            },
            extra,
            ..Entry::default()
        })
    }

    /// GNU's old sparse format: four runs in the header, more in extension blocks of 21.
    fn old_sparse(&mut self, h: &Header, entry: &mut Entry) -> Result<()> {
        let mut runs = Vec::new();
        self.runs(&h[386..482], &mut runs)?;
        let real = self.field(h, 483..495, "real size")?;
        let mut more = h[482] != 0;
        while more {
            let mut e = [0; BLOCK];
            self.c.exact(&mut e, "a sparse map")?;
            self.runs(&e[..504], &mut runs)?;
            if runs.len() > sparse::MAX_RUNS {
                return Err(self.c.error(Kind::Limit, "a sparse map with too many runs"));
            }
            more = e[504] != 0;
        }
        entry.size = u64::try_from(real).map_err(|_| self.c.corrupt("negative size of a sparse file"))?;
        entry.extra.sparse = Some(runs);
        Ok(())
    }

    fn runs(&self, fields: &[u8], runs: &mut Vec<Run>) -> Result<()> {
        for f in fields.chunks_exact(24).take_while(|f| f[12] != 0) {
            let value = |f: &[u8]| number(f).and_then(|v| u64::try_from(v).ok());
            let run = value(&f[..12]).zip(value(&f[12..]));
            let run = run.ok_or_else(|| self.c.corrupt("invalid number in a sparse map"))?;
            if run.1 > 0 {
                runs.push(run);
            }
        }
        Ok(())
    }

    /// The pax sparse formats 0.0, 0.1 (map in the header) and 1.0 (map before the data).
    fn pax_sparse(&mut self, pax: &Pax, stored: u64, entry: &mut Entry) -> Result<()> {
        if pax.sparse_major == Some(1) {
            let runs = sparse::read_map(self.c, stored)?;
            entry.extra.sparse = Some(runs);
        } else if let Some(map) = &pax.sparse_map {
            entry.extra.sparse =
                Some(sparse::parse_map(map).ok_or_else(|| self.c.corrupt("invalid sparse map"))?);
        }
        if let (Some(size), Some(_)) = (pax.real_size, &entry.extra.sparse) {
            entry.size = size;
        }
        Ok(())
    }

    fn check_sparse(&self, entry: &Entry, stored: u64) -> Result<()> {
        match &entry.extra.sparse {
            Some(runs) if !sparse::is_valid(runs, entry.size, stored) => {
                Err(self.c.corrupt("a sparse map that contradicts the size of its file"))
            }
            _ => Ok(()),
        }
    }
}

/// The name in a header, with the ustar prefix.
fn name(h: &Header) -> Vec<u8> {
    let name = text(&h[..100]);
    // "ustar\0" has 155 bytes of prefix; star ("tar\0" at the end) keeps times in the last 24 of them.
    let prefix_end = if h[508..512] == *b"tar\0" { 345 + 131 } else { 345 + 155 };
    let prefix = if h[257..263] == *b"ustar\0" { text(&h[345..prefix_end]) } else { b"" };
    if prefix.is_empty() { name.to_vec() } else { [prefix, name].join(&b'/') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let table: &[(&[u8], Option<i64>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"644\0junk", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"    ", Some(0)),
            (b"0009\0", None),
            (b"-1\0", None),
            (b"\x80\0\0\x01\0", Some(0x100)),
            (b"\xff\xff\xff\xfe", Some(-2)),
            (&[0xff; 12], Some(-1)),
            (b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"777777777777", Some(0o777_777_777_777)),
            (b"", None),
        ];
        for (field, value) in table {
            assert_eq!(number(field), *value, "{field:?}");
        }
    }
}
