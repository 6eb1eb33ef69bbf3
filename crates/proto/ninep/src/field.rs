// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fields one after the other.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::fmt;

/// Which fields messages have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// 9P2000.
    Plain,
    /// 9P2000.u.
    Unix,
    /// 9P2000.L.
    Linux,
}

impl Dialect {
    /// Its name in [`crate::Tversion`].
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::Plain => "9P2000",
            Dialect::Unix => "9P2000.u",
            Dialect::Linux => "9P2000.L",
        }
    }

    /// The dialect of this name.
    pub fn of(name: &[u8]) -> Option<Self> {
        [Dialect::Plain, Dialect::Unix, Dialect::Linux]
            .into_iter()
            .find(|known| known.name().as_bytes() == name)
    }
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends before a field does.
    #[error("a message ends in the middle of its fields")]
    Short,
    /// It has a kind that is none of the protocol, or not one that may come from this side.
    #[error("a message of the unknown kind {0}")]
    Kind(u8),
    /// It says that it is this long, in bytes.
    #[error("a message of {0} bytes")]
    Length(usize),
    /// It has more names, or identities of files, than a message may have.
    #[error("a message with {0} names")]
    Count(usize),
}

/// Bytes that are a string: a name, mostly. The protocol wants UTF-8; servers on Unix have any bytes.
#[derive(Clone, PartialEq, Eq, Default, Hash)]
pub struct Text(Bytes);

impl Text {
    /// `None` for more than 65,535 bytes.
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() <= u16::MAX.into()).then_some(Text(bytes))
    }

    /// The bytes.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// At most [`crate::WALK_MAX`] names, or identities of files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List<T>(Vec<T>);

impl<T> List<T> {
    /// `None` for more than there may be.
    pub fn new(items: Vec<T>) -> Option<Self> {
        (items.len() <= crate::WALK_MAX).then_some(List(items))
    }
}

impl<T> std::ops::Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// What is left of a message.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) rest: Bytes,
    pub(crate) dialect: Dialect,
}

impl Input {
    pub(crate) fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if len > self.rest.len() { Err(DecodeError::Short) } else { Ok(self.rest.split_to(len)) }
    }
}

/// A message that is written.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) bytes: BytesMut,
    pub(crate) dialect: Dialect,
}

/// A field of a message.
pub(crate) trait Field: Sized {
    fn get(input: &mut Input) -> Result<Self, DecodeError>;
    fn put(&self, out: &mut Output);
}

macro_rules! integers {
    ($($integer:ident $get:ident $put:ident),*) => { $(
        impl Field for $integer {
            fn get(input: &mut Input) -> Result<Self, DecodeError> {
                input.rest.$get().map_err(|_| DecodeError::Short)
            }
            fn put(&self, out: &mut Output) {
                out.bytes.$put(*self);
            }
        }
    )* };
}

integers!(u8 try_get_u8 put_u8, u16 try_get_u16_le put_u16_le, u32 try_get_u32_le put_u32_le, u64 try_get_u64_le put_u64_le);

impl Field for Text {
    fn get(input: &mut Input) -> Result<Self, DecodeError> {
        let len = u16::get(input)?;
        input.take(len.into()).map(Text)
    }

    fn put(&self, out: &mut Output) {
        (self.len() as u16).put(out);
        out.bytes.put_slice(self);
    }
}

/// Content, after its length in four bytes.
impl Field for Bytes {
    fn get(input: &mut Input) -> Result<Self, DecodeError> {
        let len = u32::get(input)?;
        input.take(len as usize)
    }

    fn put(&self, out: &mut Output) {
        (self.len() as u32).put(out);
        out.bytes.put_slice(self);
    }
}

impl<T: Field> Field for List<T> {
    fn get(input: &mut Input) -> Result<Self, DecodeError> {
        let count = usize::from(u16::get(input)?);
        if count > crate::WALK_MAX {
            return Err(DecodeError::Count(count));
        }
        (0..count).map(|_| T::get(input)).collect::<Result<_, _>>().map(List)
    }

    fn put(&self, out: &mut Output) {
        (self.len() as u16).put(out);
        self.iter().for_each(|item| item.put(out));
    }
}

/// The number of a user, or of an error: 9P2000 has no such field.
impl Field for Option<u32> {
    fn get(input: &mut Input) -> Result<Self, DecodeError> {
        if input.dialect == Dialect::Plain { Ok(None) } else { u32::get(input).map(Some) }
    }

    fn put(&self, out: &mut Output) {
        if out.dialect != Dialect::Plain {
            self.unwrap_or(crate::NO_UID).put(out);
        }
    }
}

/// What a special file is, which only 9P2000.u has a field for.
impl Field for Option<Text> {
    fn get(input: &mut Input) -> Result<Self, DecodeError> {
        if input.dialect == Dialect::Unix { Text::get(input).map(Some) } else { Ok(None) }
    }

    fn put(&self, out: &mut Output) {
        if out.dialect == Dialect::Unix {
            self.clone().unwrap_or_default().put(out);
        }
    }
}
