// SPDX-License-Identifier: MIT OR Apache-2.0
//! ar (`ar(5)`), with the long names of GNU (`/N` into the `//` member) and BSD (`#1/N`, the name before the data). A
//! Debian package (`deb(5)`) is an ar archive and shows its members.

use crate::{
    Kind, Result,
    cursor::Cursor,
    entry::{Entry, S_IFREG, Time},
    pax::decimal,
    tree::Tree,
};

const MAGIC: &[u8] = b"!<arch>\n";
const THIN: &[u8] = b"!<thin>\n";
const HEADER: usize = 60;
const MAX_NAMES: u64 = 64 << 20;
const MAX_NAME: u64 = 64 << 10;

/// Whether `head` begins an ar archive; thin ones (without data) are recognised to be refused clearly.
pub(crate) fn is_head(head: &[u8]) -> bool {
    head.starts_with(MAGIC) || head.starts_with(THIN)
}

/// Parses the archive into `tree`.
pub(crate) fn parse(c: &mut Cursor<'_>, tree: &mut Tree) -> Result<()> {
    let magic = c.take(MAGIC.len(), "the ar magic")?;
    if magic == THIN {
        return Err(c.error(Kind::Unsupported, "a thin ar archive has no data of its own"));
    }
    let mut names = Vec::new();
    loop {
        let at = c.pos();
        let mut h = [0; HEADER];
        match c.read_up_to(&mut h)? {
            0 => return Ok(()),
            // Members are padded to even sizes with a newline, sometimes at the end too.
            1 if h[0] == b'\n' => return Ok(()),
            HEADER => {}
            _ => return Err(c.truncated("an ar header")),
        }
        if h[58..] != *b"`\n" {
            return Err(c.corrupt(format!("no ar header at {at}")));
        }
        member(c, tree, at, &h, &mut names)?;
        if (c.pos() - at) % 2 == 1 {
            // The last padding may be missing.
            let n = c.fill()?.len().min(1);
            c.consume(n);
        }
    }
}

fn field(c: &Cursor<'_>, text: &[u8], what: &str) -> Result<u64> {
    let text = text.trim_ascii();
    // Symbol tables and Windows libraries leave fields blank.
    if text.is_empty() || text == b"-1" {
        return Ok(0);
    }
    decimal(text).ok_or_else(|| c.corrupt(format!("invalid {what} in an ar header")))
}

fn member(c: &mut Cursor<'_>, tree: &mut Tree, at: u64, h: &[u8; HEADER], names: &mut Vec<u8>) -> Result<()> {
    let mut size = field(c, &h[48..58], "size")?;
    let short = h[..16].trim_ascii_end();
    let name = if short == b"//" {
        if size > MAX_NAMES {
            return Err(c.error(Kind::Limit, "a name table larger than 64 MiB"));
        }
        *names = c.take(size as usize, "the ar name table")?;
        return Ok(());
    } else if matches!(short, b"/" | b"/SYM64/" | b"__.SYMDEF" | b"__.SYMDEF SORTED") {
        return c.skip(size, "the symbol table");
    } else if let Some(len) = short.strip_prefix(b"#1/") {
        let len = field(c, len, "name length")?;
        if len > size || len > MAX_NAME {
            return Err(c.corrupt("an ar name longer than its member"));
        }
        size -= len;
        let name = c.take(len as usize, "an ar name")?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        name[..end].to_vec()
    } else if let Some(offset) = short.strip_prefix(b"/") {
        let offset = usize::try_from(field(c, offset, "name offset")?).unwrap_or(usize::MAX);
        let rest = names.get(offset..).ok_or_else(|| c.corrupt("an ar name outside of the name table"))?;
        let end = rest.iter().position(|b| matches!(b, b'\n' | 0)).unwrap_or(rest.len());
        let name = &rest[..end];
        name.strip_suffix(b"/").unwrap_or(name).to_vec()
    } else {
        short.strip_suffix(b"/").unwrap_or(short).to_vec()
    };
    if name.starts_with(b"__.SYMDEF") {
        return c.skip(size, "the symbol table");
    }
    let mode = octal(&h[40..48]).ok_or_else(|| c.corrupt("invalid mode in an ar header"))?;
    let id = |v: u64| u32::try_from(v).unwrap_or(0);
    let entry = Entry {
        // Everything in ar is a file, whatever the type bits say.
        mode: S_IFREG | if mode == 0 { 0o644 } else { mode & 0o7777 },
        uid: id(field(c, &h[28..34], "owner")?),
        gid: id(field(c, &h[34..40], "group")?),
        size,
        mtime: Time::seconds(field(c, &h[16..28], "time")?.cast_signed()),
        data: c.pos(),
        ..Entry::default()
    };
    tree.add(at, &name, &entry)?;
    c.count();
    c.skip(size, "the data of a member")
}

fn octal(text: &[u8]) -> Option<u32> {
    let text = text.trim_ascii();
    text.iter().try_fold(0u32, |v, b| Some(v.checked_mul(8)? + char::from(*b).to_digit(8)?))
}
