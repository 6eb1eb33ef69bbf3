// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a format parser says about one entry, and the encoding of its rarer parts.

/// `S_IF*` of `<sys/stat.h>`.
pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFIFO: u32 = 0o010_000;
pub(crate) const S_IFCHR: u32 = 0o020_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFBLK: u32 = 0o060_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;
pub(crate) const S_IFSOCK: u32 = 0o140_000;

/// Seconds since the epoch and nanoseconds (below 10^9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC; negative before.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

impl Time {
    /// Whole seconds.
    pub fn seconds(sec: i64) -> Time {
        Time { sec, nsec: 0 }
    }
}

/// How the bytes of a zip member are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    /// APPNOTE 4.4.5.
    pub method: u16,
    /// General purpose bit 0.
    pub encrypted: bool,
    pub crc: u32,
    /// Compressed size.
    pub size: u64,
}

/// A run of data in a sparse file: offset in the file, and length.
pub(crate) type Run = (u64, u64);

/// The rarer parts of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Extra {
    pub atime: Option<Time>,
    pub ctime: Option<Time>,
    pub btime: Option<Time>,
    /// Major and minor number of a device.
    pub rdev: Option<(u32, u32)>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where a sparse file has data; the data lies without gaps in the archive.
    pub sparse: Option<Vec<Run>>,
    pub packed: Option<Packed>,
}

/// One entry as its format describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    /// Type and permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: Time,
    /// Where the data starts in the (decompressed) archive.
    pub data: u64,
    pub extra: Extra,
}

// Tags of the encoded extra parts.
const ATIME: u8 = 1;
const CTIME: u8 = 2;
const BTIME: u8 = 3;
const RDEV: u8 = 4;
const TARGET: u8 = 5;
const XATTR: u8 = 6;
const SPARSE: u8 = 7;
const PACKED: u8 = 8;
const END: u8 = 0;

impl Extra {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == Extra::default()
    }

    /// Bytes of link target and extended attributes, which count as names against the limits.
    pub fn name_bytes(&self) -> u64 {
        let x: usize = self.xattrs.iter().map(|(n, v)| n.len() + v.len()).sum();
        let runs = self.sparse.as_ref().map_or(0, |s| s.len() * 8);
        (x + runs + self.target.as_ref().map_or(0, Vec::len)) as u64
    }

    /// Appends the tagged parts to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for (tag, time) in [(ATIME, self.atime), (CTIME, self.ctime), (BTIME, self.btime)] {
            if let Some(t) = time {
                out.push(tag);
                put(out, t.sec.cast_unsigned());
                put(out, u64::from(t.nsec));
            }
        }
        if let Some((major, minor)) = self.rdev {
            out.push(RDEV);
            put(out, u64::from(major));
            put(out, u64::from(minor));
        }
        if let Some(t) = &self.target {
            out.push(TARGET);
            put_bytes(out, t);
        }
        for (name, value) in &self.xattrs {
            out.push(XATTR);
            put_bytes(out, name);
            put_bytes(out, value);
        }
        if let Some(runs) = &self.sparse {
            out.push(SPARSE);
            put(out, runs.len() as u64);
            for (offset, len) in runs {
                put(out, *offset);
                put(out, *len);
            }
        }
        if let Some(p) = &self.packed {
            out.push(PACKED);
            put(out, u64::from(p.method) << 1 | u64::from(p.encrypted));
            put(out, u64::from(p.crc));
            put(out, p.size);
        }
        out.push(END);
    }

    /// Reads what [`Extra::encode`] wrote at the start of `from`; `None` when it is damaged.
    pub fn decode(mut from: &[u8]) -> Option<Extra> {
        let i = &mut from;
        let mut e = Extra::default();
        loop {
            let (tag, rest) = i.split_first()?;
            *i = rest;
            match *tag {
                END => return Some(e),
                ATIME => e.atime = Some(get_time(i)?),
                CTIME => e.ctime = Some(get_time(i)?),
                BTIME => e.btime = Some(get_time(i)?),
                RDEV => e.rdev = Some((get(i)?.try_into().ok()?, get(i)?.try_into().ok()?)),
                TARGET => e.target = Some(get_bytes(i)?),
                XATTR => e.xattrs.push((get_bytes(i)?, get_bytes(i)?)),
                SPARSE => {
                    let n = usize::try_from(get(i)?).ok().filter(|n| *n <= i.len() / 2)?;
                    let mut runs = Vec::with_capacity(n);
                    for _ in 0..n {
                        runs.push((get(i)?, get(i)?));
                    }
                    e.sparse = Some(runs);
                }
                PACKED => {
                    let m = get(i)?;
                    let method = u16::try_from(m >> 1).ok()?;
                    let (crc, size) = (get(i)?.try_into().ok()?, get(i)?);
                    e.packed = Some(Packed { method, encrypted: m & 1 == 1, crc, size });
                }
                _ => return None,
            }
        }
    }
}

fn put(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn put_bytes(out: &mut Vec<u8>, b: &[u8]) {
    put(out, b.len() as u64);
    out.extend_from_slice(b);
}

fn get(i: &mut &[u8]) -> Option<u64> {
    let mut v = 0u64;
    for shift in (0..64).step_by(7) {
        let (b, rest) = i.split_first()?;
        *i = rest;
        v |= u64::from(b & 0x7f) << shift;
        if b & 0x80 == 0 {
            return Some(v);
        }
    }
    None
}

fn get_bytes(i: &mut &[u8]) -> Option<Vec<u8>> {
    let n = usize::try_from(get(i)?).ok()?;
    let (bytes, rest) = i.split_at_checked(n)?;
    *i = rest;
    Some(bytes.to_vec())
}

fn get_time(i: &mut &[u8]) -> Option<Time> {
    let sec = get(i)?.cast_signed();
    let nsec = u32::try_from(get(i)?).ok().filter(|n| *n < 1_000_000_000)?;
    Some(Time { sec, nsec })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_round_trips_and_damage_is_noticed() {
        let e = Extra {
            atime: Some(Time { sec: -1, nsec: 999_999_999 }),
            btime: Some(Time::seconds(i64::MAX)),
            rdev: Some((8, 1 << 20)),
            target: Some(b"../x\xff".to_vec()),
            xattrs: vec![(b"user.a".to_vec(), vec![]), (b"user.b".to_vec(), vec![0; 300])],
            sparse: Some(vec![(0, 512), (1 << 40, u64::MAX)]),
            packed: Some(Packed { method: 93, encrypted: true, crc: u32::MAX, size: 1 << 33 }),
            ..Extra::default()
        };
        let mut bytes = Vec::new();
        e.encode(&mut bytes);
        assert_eq!(Extra::decode(&bytes), Some(e));
        for n in 0..bytes.len() {
            assert_eq!(Extra::decode(&bytes[..n]), None, "cut at {n}");
        }
    }
}
