// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages as bytes: for the journal, a worker process and a remote site.
//!
//! Integers are little-endian and of fixed width; a sequence is its length (`u32`) and its items; an option is a
//! byte 0 or 1 and the value; a message starts with its number (`u16`) from the operation or reply table.
//! A stream starts with [`Hello`], which carries [`VERSION`]; then come frames: length (`u32`), kind (`u8`),
//! request id (`u64`), message. `docs/PROTOCOL.md` has the whole description.

mod collections;
pub mod peer;

use crate::attr::FileKind;
use crate::cx::{Credentials, Groups};
use crate::error::{Errno, Error, Result};
use crate::name::{Name, Target, XattrName};
use crate::node::{Generation, Handle, LockOwner, Node};
use crate::notify::Notice;
use crate::ops::Request;
use crate::payload::{Backing, Payload};
use crate::reply::Reply;
use bytes::{Buf, Bytes};
use std::fmt;
use std::num::NonZeroU64;

/// Version of the encoding. Peers with different versions refuse each other.
pub const VERSION: u16 = 4;
/// The most bytes one frame may have after its length field: 1 MiB of content and room for the rest.
pub const FRAME_MAX: usize = (1 << 20) + (64 << 10);
/// The first bytes of every stream.
pub const MAGIC: [u8; 4] = *b"ORIG";

/// The bytes a value is decoded from.
pub type Input = Bytes;

/// The bytes are not an encoding of the type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    expected: &'static str,
    /// The innermost field, with its type; empty outside of any.
    field: &'static str,
}

impl Malformed {
    /// Something other than what is `expected`.
    pub const fn new(expected: &'static str) -> Self {
        Malformed { expected, field: "" }
    }

    /// The same in this field, unless it is in one of that.
    #[must_use]
    pub const fn in_field(self, field: &'static str) -> Self {
        if self.field.is_empty() { Malformed { field, ..self } } else { self }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.expected, self.field) {
            (expected, "") => write!(f, "a message with a malformed {expected}"),
            (expected, field) => {
                write!(f, "a message with a malformed field {field}: {expected} is expected")
            }
        }
    }
}

impl fmt::Debug for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Errno::EPROTO.because(malformed.to_string())
    }
}

/// A type with an encoding.
pub trait Wire: Sized {
    /// Appends the encoding of `self`.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes a value off the front of `input`.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no such value; never panics, never allocates more than the input has.
    fn get(input: &mut Input) -> Result<Self, Malformed>;
}

/// A number that stands for how values of a type are encoded: peers that have the same one for a message understand each
/// other in it, whatever else their releases disagree about.
pub trait Layout {
    /// The number.
    const LAYOUT: u32;
}

/// The number of what consists of parts with these numbers (FNV-1a over their bytes).
pub const fn layout_of(parts: &[u32]) -> u32 {
    let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
    while at < 4 * parts.len() {
        let byte = parts[at / 4].to_le_bytes()[at % 4];
        hash = (hash ^ byte as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

macro_rules! layouts {
    ($($type:ty: $number:literal),* $(,)?) => {
        $(impl Layout for $type {
            const LAYOUT: u32 = $number;
        })*
    };
}
// Each number is as good as any other, but must stay.
layouts! {
    u8: 1, u16: 2, u32: 3, u64: 4, i32: 5, i64: 6, bool: 7, (): 8, Bytes: 9, Payload: 9, Name: 10, Target: 11, XattrName: 12,
    FileKind: 13, Error: 14, NonZeroU64: 15, Node: 4, Generation: 4, Handle: 4, LockOwner: 4, Backing: 8,
}

impl<A: Layout, B: Layout> Layout for (A, B) {
    const LAYOUT: u32 = layout_of(&[A::LAYOUT, B::LAYOUT]);
}

impl<T: Layout> Layout for Option<T> {
    const LAYOUT: u32 = layout_of(&[16, T::LAYOUT]);
}

impl<T: Layout> Layout for Box<T> {
    const LAYOUT: u32 = T::LAYOUT;
}

impl<T: Layout> Layout for Vec<T> {
    const LAYOUT: u32 = layout_of(&[17, T::LAYOUT]);
}

macro_rules! integers {
    ($($type:ty: $get:ident),*) => {
        $(impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()) }
            fn get(input: &mut Input) -> Result<Self, Malformed> {
                input.$get().map_err(|_| Malformed::new(stringify!($type)))
            }
        })*
    };
}
integers!(u8: try_get_u8, u16: try_get_u16_le, u32: try_get_u32_le, u64: try_get_u64_le,
    i32: try_get_i32_le, i64: try_get_i64_le);

macro_rules! numbers {
    ($($type:ident),*) => {
        $(impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) { self.0.put(out) }
            fn get(input: &mut Input) -> Result<Self, Malformed> { u64::get(input).map($type) }
        })*
    };
}
numbers!(Node, Generation, Handle, LockOwner);

macro_rules! names {
    ($($type:ident),*) => {
        $(impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) { put_bytes(self, out) }
            fn get(input: &mut Input) -> Result<Self, Malformed> {
                $type::new(Bytes::get(input)?).map_err(|_| Malformed::new(stringify!($type)))
            }
        })*
    };
}
names!(Name, Target, XattrName);

fn put_len(len: usize, out: &mut Vec<u8>) {
    // Frames are bounded far below 4 GiB, so a longer value can only be refused as a whole frame.
    u32::try_from(len).unwrap_or(u32::MAX).put(out);
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_len(bytes.len(), out);
    out.extend_from_slice(bytes);
}

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        let len = u32::get(input)? as usize;
        if len > input.len() {
            return Err(Malformed::new("byte string"));
        }
        Ok(input.split_to(len))
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        match u8::get(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::new("bool")),
        }
    }
}

impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn get(_: &mut Input) -> Result<Self, Malformed> {
        Ok(())
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Ok((A::get(input)?, B::get(input)?))
    }
}

impl Wire for NonZeroU64 {
    fn put(&self, out: &mut Vec<u8>) {
        self.get().put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        NonZeroU64::new(u64::get(input)?).ok_or(Malformed::new("number"))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Ok(if bool::get(input)? { Some(T::get(input)?) } else { None })
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        T::get(input).map(Box::new)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        let count = u32::get(input)? as usize;
        // Every item takes a byte or more, so this bounds the allocation by the input.
        let mut items = Vec::with_capacity(count.min(input.len()).min(1024));
        for _ in 0..count {
            if input.is_empty() {
                return Err(Malformed::new("sequence"));
            }
            items.push(T::get(input)?);
        }
        Ok(items)
    }
}

impl Wire for Credentials {
    fn put(&self, out: &mut Vec<u8>) {
        self.uid.put(out);
        self.gid.put(out);
        self.groups.known().is_some().put(out);
        if let Some(groups) = self.groups.known() {
            put_len(groups.len(), out);
            groups.iter().for_each(|group| group.put(out));
        }
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        let (uid, gid) = <(u32, u32)>::get(input)?;
        let groups = Option::<Vec<u32>>::get(input)?.map_or(Groups::UNKNOWN, |groups| Groups::of(&groups));
        Ok(Credentials { uid, gid, groups })
    }
}

impl Wire for FileKind {
    fn put(&self, out: &mut Vec<u8>) {
        self.dirent_type().put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        match u8::get(input)? {
            kind @ ..=0o17 => FileKind::of_mode(u32::from(kind) << 12).ok_or(Malformed::new("FileKind")),
            _ => Err(Malformed::new("FileKind")),
        }
    }
}

impl Wire for Error {
    fn put(&self, out: &mut Vec<u8>) {
        self.errno.0.put(out);
        self.reason.as_ref().map(|reason| Bytes::copy_from_slice(reason.as_bytes())).put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        let errno = Errno(i32::get(input)?);
        let reason = Option::<Bytes>::get(input)?;
        Ok(Error { errno, reason: reason.map(|bytes| String::from_utf8_lossy(&bytes).into()) })
    }
}

impl Wire for Payload {
    /// Encodes the content; a piece of a file is read, so materialise it first where a read error must be reported.
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(&self.clone().into_bytes().unwrap_or_default(), out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Bytes::get(input).map(Payload::Bytes)
    }
}

impl Wire for Backing {
    fn put(&self, _: &mut Vec<u8>) {}
    fn get(_: &mut Input) -> Result<Self, Malformed> {
        Ok(Backing::NONE)
    }
}

/// The first bytes on a stream, in both directions: [`MAGIC`] and [`VERSION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The version the peer speaks.
    pub version: u16,
}

impl Hello {
    /// Encoded length in bytes.
    pub const LEN: usize = 6;

    /// Checks a peer's greeting.
    ///
    /// # Errors
    /// `EPROTO` when it is not Outrigger's or has another version; the reason says which.
    pub fn check(mut greeting: Input) -> Result<()> {
        if greeting.len() < Hello::LEN || greeting.split_to(4)[..] != MAGIC {
            return Err(Errno::EPROTO.because("the peer does not speak Outrigger's protocol"));
        }
        match greeting.get_u16_le() {
            VERSION => Ok(()),
            other => Err(Errno::EPROTO.because(format!(
                "the peer speaks version {other} of Outrigger's protocol, this program version {VERSION}: \
                 use the same release on both sides"
            ))),
        }
    }

    /// This program's greeting.
    pub fn bytes() -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        VERSION.put(&mut out);
        out
    }
}

/// What a frame carries.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A request.
    Request {
        /// On whose behalf.
        cred: Credentials,
        /// For how many milliseconds after its arrival the answer is useful; `None` for ever.
        within: Option<u32>,
        /// The request.
        request: Request,
    },
    /// The answer to the request with the frame's id.
    Reply(Reply),
    /// The request with the frame's id is no longer wanted.
    Cancel,
    /// A request to the program at the other end, not to its tree: what the bytes mean is between the two.
    Control(Bytes),
    /// Something that the other side may have cached has changed; the frame's id is 0.
    Notice(Notice),
}

/// What goes before a request, with its length: a reader that has no use for it, or knows only a part, skips it.
fn put_envelope(cred: &Credentials, within: Option<u32>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    cred.put(out);
    within.put(out);
    let len = out.len() - start - 4;
    out[start..start + 4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn get_envelope(mut envelope: Input) -> Result<(Credentials, Option<u32>), Malformed> {
    let both = (Credentials::get(&mut envelope)?, Option::get(&mut envelope)?);
    if envelope.is_empty() {
        Ok(both)
    } else {
        Err(Malformed::new("request: bytes left over before the operation"))
    }
}

/// One message with the id that ties replies to requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Request id.
    pub id: u64,
    /// The message.
    pub body: Body,
}

impl Frame {
    /// The id of requests that are not answered, like [`Forget`](crate::ops::Forget): a sender of many of them need not
    /// read.
    pub const UNANSWERED: u64 = 0;

    /// Length field, kind, id, message.
    ///
    /// # Errors
    /// `EMSGSIZE` beyond [`FRAME_MAX`]; a read error when the payload is a piece of a file that cannot be read.
    pub fn encode(self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.encode_to(&mut out)?;
        Ok(out)
    }

    /// Appends what [`Frame::encode`] gives; nothing when that fails.
    ///
    /// # Errors
    /// As [`Frame::encode`].
    pub fn encode_to(mut self, out: &mut Vec<u8>) -> Result<()> {
        self.materialise()?;
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        let kind: u8 = match &self.body {
            Body::Request { .. } => 1,
            Body::Reply(_) => 2,
            Body::Cancel => 3,
            Body::Control(_) => 4,
            Body::Notice(_) => 5,
        };
        kind.put(out);
        self.id.put(out);
        match &self.body {
            Body::Request { cred, within, request } => {
                put_envelope(cred, *within, out);
                request.put(out);
            }
            Body::Reply(reply) => reply.put(out),
            Body::Cancel => {}
            Body::Control(order) => order.put(out),
            Body::Notice(notice) => notice.put(out),
        }
        let len = out.len() - start - 4;
        if len > FRAME_MAX {
            out.truncate(start);
            return Err(Errno::EMSGSIZE.because(format!("a frame of {len} bytes; at most {FRAME_MAX} fit")));
        }
        out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        Ok(())
    }

    /// Decodes what follows the length field.
    ///
    /// # Errors
    /// [`Malformed`] when it is no frame or bytes are left over.
    pub fn decode(mut input: Input) -> Result<Self, Malformed> {
        let kind = u8::get(&mut input)?;
        let id = u64::get(&mut input)?;
        let body = match kind {
            1 => {
                let (cred, within) = get_envelope(Bytes::get(&mut input)?)?;
                Body::Request { cred, within, request: Request::get(&mut input)? }
            }
            2 => Body::Reply(Reply::get(&mut input)?),
            3 => Body::Cancel,
            4 => Body::Control(Bytes::get(&mut input)?),
            5 => Body::Notice(Notice::get(&mut input)?),
            _ => return Err(Malformed::new("frame kind")),
        };
        if input.is_empty() { Ok(Frame { id, body }) } else { Err(Malformed::new("frame: bytes left over")) }
    }

    fn materialise(&mut self) -> Result<()> {
        let payload = match &mut self.body {
            Body::Request { request: Request::Write(write), .. } => &mut write.data,
            Body::Reply(Reply::Data(data)) => data,
            _ => return Ok(()),
        };
        let content = std::mem::replace(payload, Payload::EMPTY).into_bytes()?;
        *payload = Payload::Bytes(content);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Attr;
    use crate::ops::{Lookup, Read, Write};
    use proptest::prelude::*;

    fn round_trip(body: Body) -> Frame {
        let bytes = Frame { id: 7, body }.encode().unwrap();
        Frame::decode(Bytes::from(bytes).slice(4..)).unwrap()
    }

    #[test]
    fn frames_round_trip() {
        let lookup = Lookup { dir: Node(1), name: Name::try_from("n\u{e4}me").unwrap() };
        let write = Write {
            node: Node(2),
            handle: Handle(3),
            offset: 4,
            data: vec![1, 2, 3].into(),
            cached: true,
            kill_setid: false,
        };
        for request in [Request::from(lookup), Request::from(write)] {
            let body = Body::Request {
                cred: Credentials { groups: Groups::of(&[7, 8]), ..Credentials::new(5, 6) },
                within: Some(9),
                request,
            };
            assert_eq!(round_trip(body.clone()), Frame { id: 7, body });
        }
        let order = Body::Control(Bytes::from_static(b"status"));
        assert_eq!(round_trip(order.clone()).body, order);
        let failed = Body::Reply(Reply::Error(Errno::EIO.because("no route")));
        assert_eq!(round_trip(failed.clone()).body, failed);
    }

    #[test]
    fn a_name_with_a_slash_is_refused_when_decoded() {
        let mut bytes = Vec::new();
        Request::from(Read { node: Node(1), handle: Handle(0), offset: 0, len: 1 }).put(&mut bytes);
        assert!(Request::get(&mut Bytes::from(bytes)).is_ok());
        let mut bytes = 1_u16.to_le_bytes().to_vec();
        Node(1).put(&mut bytes);
        put_bytes(b"a/b", &mut bytes);
        let refused = Err(Malformed::new("Name").in_field("Lookup.name"));
        assert_eq!(Request::get(&mut Bytes::from(bytes)), refused);
    }

    #[test]
    fn an_error_names_the_field_and_what_is_expected() {
        let cut = Attr::get(&mut Bytes::from_static(&[0; 9])).unwrap_err().to_string();
        assert!(cut.starts_with("a message with a malformed field Attr."), "{cut}");
        assert!(cut.ends_with("u64 is expected"), "{cut}");
        let odd = Reply::get(&mut Bytes::from_static(&[0xff; 2])).unwrap_err().to_string();
        assert_eq!(odd, "a message with a malformed Reply");
    }

    #[test]
    fn a_file_kind_has_one_encoding() {
        let decoded = |byte: u8| FileKind::get(&mut Bytes::copy_from_slice(&[byte]));
        assert_eq!(decoded(6), Ok(FileKind::BlockDevice));
        assert_eq!(decoded(0x96), Err(Malformed::new("FileKind")));
    }

    #[test]
    fn another_version_is_refused_with_both_versions_named() {
        let mut greeting = Hello::bytes();
        assert_eq!(Hello::check(greeting.clone().into()), Ok(()));
        greeting[4] = 9;
        let error = Hello::check(greeting.into()).unwrap_err();
        assert!(error.to_string().contains("version 9"), "{error}");
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_what_decodes_encodes_again(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(frame) = Frame::decode(bytes.into()) {
                let again = frame.clone().encode().unwrap();
                prop_assert_eq!(Frame::decode(Bytes::from(again).slice(4..)).unwrap(), frame);
            }
        }
    }
}
