// SPDX-License-Identifier: MIT OR Apache-2.0
//! pax extended headers (POSIX.1-2024, `pax`, "pax Header Block"): `LENGTH KEY=VALUE\n` records, with the keys of GNU
//! tar, star (`SCHILY.`) and libarchive.

use crate::entry::Time;

/// The values of extended headers that matter for a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pax {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<Time>,
    pub atime: Option<Time>,
    pub ctime: Option<Time>,
    pub btime: Option<Time>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// GNU.sparse: the name of the file (`path` is a substitute for programs that do not know sparse files).
    pub sparse_name: Option<Vec<u8>>,
    pub sparse_major: Option<u64>,
    /// GNU.sparse 0.0 and 0.1: `offset,length,...`.
    pub sparse_map: Option<Vec<u8>>,
    pub real_size: Option<u64>,
}

impl Pax {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Pax::default()
    }

    /// These values where `over` has none.
    pub fn overlaid(&self, over: &Pax) -> Pax {
        let mut p = over.clone();
        let g = self;
        p.path = p.path.or_else(|| g.path.clone());
        p.link = p.link.or_else(|| g.link.clone());
        p.size = p.size.or(g.size);
        p.uid = p.uid.or(g.uid);
        p.gid = p.gid.or(g.gid);
        p.mtime = p.mtime.or(g.mtime);
        p.atime = p.atime.or(g.atime);
        p.ctime = p.ctime.or(g.ctime);
        p.btime = p.btime.or(g.btime);
        for x in &g.xattrs {
            if !p.xattrs.iter().any(|(n, _)| *n == x.0) {
                p.xattrs.push(x.clone());
            }
        }
        p
    }

    /// Adds the records in `data`; on failure says what is wrong.
    pub fn parse(&mut self, mut data: &[u8]) -> Result<(), String> {
        while !data.is_empty() {
            // Some programs pad with NULs.
            if data.iter().all(|b| *b == 0) {
                break;
            }
            let (record, rest) = split_record(data).ok_or("a pax record with a wrong length")?;
            data = rest;
            let eq = record.iter().position(|b| *b == b'=').ok_or("a pax record without \"=\"")?;
            let (key, value) = (&record[..eq], &record[eq + 1..]);
            self.set(key, value).ok_or_else(|| {
                format!("invalid value for {} in a pax header", String::from_utf8_lossy(key))
            })?;
        }
        Ok(())
    }

    /// `None` when the value is not valid; unknown keys are ignored, as POSIX demands. An empty value unsets.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = unless_empty(value),
            b"linkpath" => self.link = unless_empty(value),
            b"size" => self.size = optional(value, decimal)?,
            b"uid" => self.uid = optional(value, id)?,
            b"gid" => self.gid = optional(value, id)?,
            b"mtime" => self.mtime = optional(value, time)?,
            b"atime" => self.atime = optional(value, time)?,
            b"ctime" => self.ctime = optional(value, time)?,
            b"LIBARCHIVE.creationtime" => self.btime = optional(value, time)?,
            b"GNU.sparse.name" => self.sparse_name = unless_empty(value),
            b"GNU.sparse.major" => self.sparse_major = Some(decimal(value)?),
            b"GNU.sparse.map" => self.sparse_map = Some(value.to_vec()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" | b"SCHILY.realsize" => {
                self.real_size = Some(decimal(value)?);
            }
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                decimal(value)?;
                let map = self.sparse_map.get_or_insert_default();
                if !map.is_empty() {
                    map.push(b',');
                }
                map.extend_from_slice(value);
            }
            b"RHT.security.selinux" => self.xattr(b"security.selinux".to_vec(), value.to_vec()),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattr(without_escapes(name), value.to_vec());
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    // The same attribute usually comes as SCHILY.xattr too, which is exact.
                    let name = percent_decode(name)?;
                    if !self.xattrs.iter().any(|(n, _)| *n == name) {
                        self.xattr(name, base64_decode(value)?);
                    }
                }
            }
        }
        Some(())
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        if name.is_empty() || name.len() > 255 || name.contains(&0) {
            return;
        }
        match self.xattrs.iter_mut().find(|(n, _)| *n == name) {
            Some((_, v)) => *v = value,
            None => self.xattrs.push((name, value)),
        }
    }
}

/// The first record without its length and newline, and what follows it.
fn split_record(data: &[u8]) -> Option<(&[u8], &[u8])> {
    // 20 digits hold any length.
    let space = data.iter().take(20).position(|b| *b == b' ')?;
    let len = usize::try_from(decimal(&data[..space])?).ok()?;
    let record = data.get(space + 1..len)?;
    Some((record.strip_suffix(b"\n")?, &data[len..]))
}

fn unless_empty(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

/// An empty value is `Some(None)`: it unsets.
fn optional<T>(value: &[u8], parse: impl Fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    if value.is_empty() { Some(None) } else { parse(value).map(Some) }
}

/// An unsigned decimal number.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn id(text: &[u8]) -> Option<u32> {
    decimal(text)?.try_into().ok()
}

/// Seconds with an optional fraction and sign. `-1.25` is 1.25 seconds before the epoch.
fn time(text: &[u8]) -> Option<Time> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(t) => (true, t),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |b| *b == b'.');
    let sec = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nsec = 0u32;
    if let Some(fraction) = parts.next() {
        if !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        for i in 0..9 {
            nsec = nsec * 10 + fraction.get(i).map_or(0, |d| u32::from(d - b'0'));
        }
    }
    Some(match (negative, nsec) {
        (false, _) => Time { sec, nsec },
        (true, 0) => Time { sec: -sec, nsec },
        (true, n) => Time { sec: -sec - 1, nsec: 1_000_000_000 - n },
    })
}

/// The name of an attribute in a key, as GNU tar writes it: the `=` that would end the key, and `%`, are escapes. Other signs stay as they are.
fn without_escapes(name: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(name.len()), name);
    while let Some((&byte, tail)) = rest.split_first() {
        let (byte, tail) = match (byte, tail.split_at_checked(2)) {
            (b'%', Some((b"3D", tail))) => (b'=', tail),
            (b'%', Some((b"25", tail))) => (b'%', tail),
            _ => (byte, tail),
        };
        plain.push(byte);
        rest = tail;
    }
    plain
}

fn percent_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((b, tail)) = rest.split_first() {
        rest = tail;
        if *b == b'%' {
            let (hex, tail) = rest.split_at_checked(2)?;
            out.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
            rest = tail;
        } else {
            out.push(*b);
        }
    }
    Some(out)
}

/// Base 64 (RFC 4648, 4), with or without padding.
fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for b in text.iter().filter(|b| !matches!(b, b'=' | b'\n')) {
        let v = match b {
            b'A'..=b'Z' => b - b'A',
            b'a'..=b'z' => b - b'a' + 26,
            b'0'..=b'9' => b - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(v);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let t = |sec, nsec| Some(Time { sec, nsec });
        let table: &[(&str, Option<Time>)] = &[
            ("1", t(1, 0)),
            ("1.5", t(1, 500_000_000)),
            ("1.1234567891", t(1, 123_456_789)),
            ("-1.25", t(-2, 750_000_000)),
            ("-3", t(-3, 0)),
            ("1.", t(1, 0)),
            ("", None),
            ("x", None),
            ("1.x", None),
            ("99999999999999999999", None),
        ];
        for (text, value) in table {
            assert_eq!(time(text.as_bytes()), *value, "{text}");
        }
    }

    #[test]
    fn records() {
        let mut p = Pax::default();
        p.parse(b"9 path=a\n19 SCHILY.xattr.u=\n30 LIBARCHIVE.xattr.a%2Fb=AQI\n\0\0").unwrap();
        assert_eq!(p.path.as_deref(), Some(&b"a"[..]));
        assert_eq!(p.xattrs, [(b"u".to_vec(), vec![]), (b"a/b".to_vec(), vec![1, 2])]);
        for bad in
            ["9 path=ab\n", "5 x=", "999 path=a\n", "9 path=a", " path=a\n", "4 x\n", "9 size=x\n", "0 "]
        {
            assert!(Pax::default().parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
