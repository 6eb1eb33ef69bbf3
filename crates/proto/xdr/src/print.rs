// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values for people: on one line, whatever a peer has put into them.

use crate::value::Xdr;
use std::fmt::{Formatter, Result, Write};

/// A list prints this many of its elements, and how many more there are.
const ELEMENTS: usize = 16;

/// In quotes; what is not printable, or not UTF-8, is escaped.
pub(crate) fn text(f: &mut Formatter<'_>, bytes: &[u8]) -> Result {
    f.write_char('"')?;
    for chunk in bytes.utf8_chunks() {
        write!(f, "{}{}", chunk.valid().escape_debug(), chunk.invalid().escape_ascii())?;
    }
    f.write_char('"')
}

/// In hexadecimal; `-` when there are none.
pub(crate) fn hex(f: &mut Formatter<'_>, bytes: &[u8]) -> Result {
    if bytes.is_empty() {
        return f.write_char('-');
    }
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// How many there are.
pub(crate) fn data(f: &mut Formatter<'_>, bytes: &[u8]) -> Result {
    write!(f, "<{} bytes>", bytes.len())
}

/// In brackets.
pub(crate) fn elements<T: Xdr>(f: &mut Formatter<'_>, elements: &[T]) -> Result {
    f.write_char('[')?;
    for (index, element) in elements.iter().take(ELEMENTS).enumerate() {
        f.write_str(if index == 0 { "" } else { " " })?;
        element.print(f)?;
    }
    match elements.len().saturating_sub(ELEMENTS) {
        0 => f.write_char(']'),
        more => write!(f, " and {more} more]"),
    }
}
