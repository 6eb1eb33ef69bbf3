// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two sides that may be of different releases tell each other before the first request: version 0 of a stream, whose messages
//! are agreed on one by one.
//!
//! The client sends a [`Wanted`], the server answers with an [`Offered`], each in a control message with the id 0. An operation is
//! spoken when both have the same number for how it is encoded ([`OpCode::layout`]). A later release may add fields at the end of
//! either message, and facts: what a reader does not know it skips.

use super::{Body, Frame, Input, Layout, MAGIC, Malformed};
use crate::Wire;
use crate::error::{Errno, Error, Result};
use crate::node::Node;
use crate::notify::Notice;
use crate::ops::OpCode;
use crate::opset::OpSet;
use crate::reply::Ttl;
use crate::service::{Abilities, Identity};
use bytes::{Buf, Bytes};

/// The version of a stream whose messages are agreed on one by one.
pub const SINGLY: u16 = 0;

/// The TCP port of such streams over TLS. IANA has assigned it to nothing.
pub const PORT: u16 = 4564;
/// The name of the protocol in TLS (ALPN, RFC 7301).
pub const ALPN: &str = "outrigger";

/// The greeting of such a stream.
pub fn greeting() -> [u8; 6] {
    let mut greeting = [0; 6];
    greeting[..4].copy_from_slice(&MAGIC);
    greeting[4..].copy_from_slice(&SINGLY.to_le_bytes());
    greeting
}

/// Checks the greeting of the other side.
///
/// # Errors
/// `EPROTO` that says what came instead.
pub fn check_greeting(theirs: &[u8; 6]) -> Result<()> {
    if theirs[..4] != MAGIC {
        let shown = theirs.escape_ascii();
        return Err(
            Errno::EPROTO.because(format!("it does not speak Outrigger's protocol: it says '{shown}'"))
        );
    }
    match (&theirs[4..]).get_u16_le() {
        SINGLY => Ok(()),
        other => Err(Errno::EPROTO.because(format!(
            "it speaks version {other} of Outrigger's protocol, and this release speaks version {SINGLY} between sites"
        ))),
    }
}

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
pub struct Wanted {
    /// Its release, for messages.
    pub release: Bytes,
    /// How it encodes notices.
    pub notices: u32,
    /// The operations that it may ask for, and how each is encoded.
    pub operations: Vec<(u16, u32)>,
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Wire)]
pub struct Offered {
    /// Why it serves nothing; the rest does not matter then, but for the release.
    pub refusal: Option<Error>,
    /// Its release, for messages.
    pub release: Bytes,
    /// What the tree is called.
    pub tree: Bytes,
    /// How it encodes notices.
    pub notices: u32,
    /// What the tree is like, by the numbers of [`facts_of`].
    pub facts: Vec<(u16, u64)>,
    /// The operations that it does, and how each is encoded.
    pub operations: Vec<(u16, u32)>,
}

/// What a client says of the names in a directory, to a server that grants leases (fact 14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Wire)]
pub struct Lease {
    /// The directory.
    pub dir: Node,
    /// Whether the lease is asked for, or given back.
    pub wanted: bool,
}

/// A server wants a lease back, in a control message with the id 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Wire)]
pub struct Recall {
    /// The directory.
    pub dir: Node,
}

/// What a client says in a control message with an id: the number of a request, and what comes after 0, which no request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The request with this number is to be cancelled.
    Cancel(u64),
    /// Of a directory.
    Lease(Lease),
}

impl Said {
    /// The bytes of the message.
    pub fn bytes(self) -> Bytes {
        let mut bytes = Vec::new();
        match self {
            Said::Cancel(number) => number.put(&mut bytes),
            Said::Lease(lease) => (0_u64, lease).put(&mut bytes),
        }
        bytes.into()
    }

    /// What the bytes of a message say.
    ///
    /// # Errors
    /// [`Malformed`] when they say nothing. Bytes that are left over are those of a later release.
    pub fn of(mut bytes: Input) -> Result<Self, Malformed> {
        match u64::get(&mut bytes)? {
            0 if bytes.has_remaining() => Lease::get(&mut bytes).map(Said::Lease),
            number => Ok(Said::Cancel(number)),
        }
    }
}

impl Wanted {
    /// What a client of `release` says that may ask for `ops`.
    pub fn new(release: &str, ops: OpSet) -> Self {
        let release = Bytes::copy_from_slice(release.as_bytes());
        Wanted { release, notices: Notice::LAYOUT, operations: operations(ops) }
    }
}

impl Offered {
    /// What a server of `release` answers that serves a tree like this one with `ops`.
    pub fn new(release: &str, tree: &Abilities, ops: OpSet) -> Self {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Offered {
            refusal: None,
            release: bytes(release),
            tree: bytes(&tree.tree),
            notices: Notice::LAYOUT,
            facts: facts_of(tree),
            operations: operations(ops),
        }
    }
}

/// Operations with how this release encodes them.
pub fn operations(ops: OpSet) -> Vec<(u16, u32)> {
    ops.iter().map(|op| (op as u16, op.layout())).collect()
}

/// Those of `ops` that the other side encodes as this one does.
pub fn spoken(ops: OpSet, theirs: &[(u16, u32)]) -> OpSet {
    let is_spoken = |op: &OpCode| theirs.contains(&(*op as u16, op.layout()));
    let all: Vec<OpCode> = ops.iter().filter(is_spoken).collect();
    OpSet::of(&all)
}

/// What no tree can be without.
const NEEDED: [OpCode; 5] =
    [OpCode::Lookup, OpCode::GetAttr, OpCode::ReadDirPlus, OpCode::Forget, OpCode::Walk];

/// Whether peers of these releases understand each other in what is needed.
///
/// # Errors
/// `EPROTO` that names both releases and the first operation which one of them lacks or encodes differently.
pub fn check_spoken(spoken: OpSet, (ours, theirs): (&str, &[u8])) -> Result<()> {
    let Some(missing) = NEEDED.into_iter().find(|&op| !spoken.has(op)) else { return Ok(()) };
    let theirs = String::from_utf8_lossy(theirs);
    let theirs: String = theirs.chars().filter(|letter| !letter.is_control()).take(40).collect();
    Err(Errno::EPROTO.because(format!(
        "the other side is outrigger {theirs}, this one outrigger {ours}, and they do not encode {} alike: use releases that are \
         closer to each other",
        missing.name()
    )))
}

/// A message of the beginning as a frame.
///
/// # Errors
/// `EMSGSIZE` when it is too long for one.
pub fn framed(message: &impl Wire) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    message.put(&mut bytes);
    Frame { id: Frame::UNANSWERED, body: Body::Control(bytes.into()) }.encode()
}

/// The message in a frame, without its length.
///
/// # Errors
/// [`Malformed`] when it is another one. Bytes that are left over are those of a later release.
pub fn unframed<T: Wire>(frame: Input) -> Result<T, Malformed> {
    match Frame::decode(frame)?.body {
        Body::Control(mut bytes) => T::get(&mut bytes),
        _ => Err(Malformed::new("control message")),
    }
}

/// A switch of [`Abilities`] that crosses, by its number.
type Switch = (u16, fn(&mut Abilities) -> &mut bool);

const SWITCHES: &[Switch] = &[
    (2, |tree| &mut tree.read_only),
    (3, |tree| &mut tree.stateless_files),
    (4, |tree| &mut tree.cookies_by_name),
    (5, |tree| &mut tree.lasting_cookies),
    (6, |tree| &mut tree.initial_attrs),
    (7, |tree| &mut tree.whole_files),
    (8, |tree| &mut tree.attrs_may_fail),
    (9, |tree| &mut tree.close_to_open),
    (10, |tree| &mut tree.acl),
    (11, |tree| &mut tree.hides_names),
    (12, |tree| &mut tree.anonymous_io),
    (13, |tree| &mut tree.in_order),
    (14, |tree| &mut tree.leases),
    (15, |tree| &mut tree.opens_streams),
    (16, |tree| &mut tree.decides_at_open),
    (17, |tree| &mut tree.refuses_at_close),
    (18, |tree| &mut tree.plus_asks_each),
];
const PERSISTENT: u16 = 1;
const TIME_UNIT: u16 = 20;
const NEGATIVE_TTL: u16 = 21;
const MAX_IO: u16 = 22;

/// What crosses of the abilities of a tree, as numbers and values. The numbers are never used again for something else.
pub fn facts_of(tree: &Abilities) -> Vec<(u16, u64)> {
    let mut tree = tree.clone();
    let mut facts: Vec<(u16, u64)> =
        SWITCHES.iter().map(|(number, of)| (*number, u64::from(*of(&mut tree)))).collect();
    facts.push((PERSISTENT, u64::from(tree.identity == Identity::Persistent)));
    facts.push((TIME_UNIT, tree.time_unit.into()));
    facts.push((NEGATIVE_TTL, tree.negative_ttl.0.into()));
    facts.push((MAX_IO, tree.max_io.into()));
    facts
}

/// Puts what a peer says of its tree in the place of what is there. Facts that are not known, and values that cannot be, are skipped.
pub fn take_facts(tree: &mut Abilities, facts: &[(u16, u64)]) {
    for &(number, value) in facts {
        let small = u32::try_from(value).unwrap_or(u32::MAX);
        match number {
            PERSISTENT if value != 0 => tree.identity = Identity::Persistent,
            TIME_UNIT => tree.time_unit = small.clamp(1, 2_000_000_000),
            NEGATIVE_TTL => tree.negative_ttl = Ttl(small),
            MAX_IO => tree.max_io = small.clamp(4 << 10, 1 << 20),
            _ => {
                if let Some((_, of)) = SWITCHES.iter().find(|(known, _)| *known == number) {
                    *of(tree) = value != 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree() -> Abilities {
        Abilities {
            identity: Identity::Persistent,
            lasting_cookies: true,
            acl: true,
            time_unit: 100,
            max_io: 1 << 16,
            ..Abilities::new("test", "t", OpSet::all())
        }
    }

    #[test]
    fn what_a_tree_is_like_crosses_and_what_is_not_known_is_skipped() {
        let mut told = Abilities::new("test", "t", OpSet::all());
        let mut facts = facts_of(&tree());
        facts.extend([(999, 7), (TIME_UNIT + 1000, u64::MAX)]);
        take_facts(&mut told, &facts);
        assert_eq!(told, tree());
        take_facts(&mut told, &[(MAX_IO, u64::MAX), (TIME_UNIT, 0)]);
        assert_eq!((told.max_io, told.time_unit), (1 << 20, 1));
    }

    #[test]
    fn messages_of_a_later_release_are_read_as_far_as_they_are_known() {
        let wanted = Wanted::new("1.2.3", OpSet::all());
        let frame = framed(&wanted).unwrap();
        assert_eq!(unframed::<Wanted>(Bytes::from(frame[4..].to_vec())), Ok(wanted.clone()));
        let mut longer = Vec::new();
        wanted.put(&mut longer);
        longer.extend_from_slice(b"more");
        let frame = Frame { id: 0, body: Body::Control(longer.into()) }.encode().unwrap();
        assert_eq!(unframed::<Wanted>(Bytes::from(frame[4..].to_vec())), Ok(wanted));
    }

    #[test]
    fn releases_that_do_not_understand_each_other_say_so_with_both_names() {
        let mut theirs = operations(OpSet::all());
        assert_eq!(spoken(OpSet::all(), &theirs), OpSet::all());
        theirs.iter_mut().for_each(|(number, layout)| *layout += u32::from(*number == OpCode::Walk as u16));
        let spoken = spoken(OpSet::all(), &theirs);
        assert_eq!(spoken, OpSet::all().without(OpSet::of(&[OpCode::Walk])));
        let refused = check_spoken(spoken, ("1.0", b"2.0\x1b[31m")).unwrap_err().to_string();
        assert!(["1.0", "2.0", "walk"].iter().all(|part| refused.contains(part)), "{refused}");
        assert!(!refused.contains('\x1b'));
        let other = check_greeting(b"ORIG\x04\x00").unwrap_err().to_string();
        assert!(other.contains("version 4") && other.contains("version 0"), "{other}");
        assert!(check_greeting(b"SSH-2.").unwrap_err().to_string().contains("SSH-2."));
        assert_eq!(check_greeting(&greeting()), Ok(()));
    }

    #[test]
    fn cancelling_and_leases_are_told_apart() {
        let lease = Lease { dir: Node(7), wanted: true };
        for said in [Said::Cancel(0), Said::Cancel(9), Said::Lease(lease)] {
            assert_eq!(Said::of(said.bytes()), Ok(said));
        }
        let longer = [&Said::Lease(lease).bytes()[..], b"more"].concat();
        assert_eq!(Said::of(longer.into()), Ok(Said::Lease(lease)), "of a later release");
        assert!(Said::of(Said::Lease(lease).bytes().slice(..12)).is_err());
    }

    proptest! {
        #[test]
        fn nonsense_is_refused_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Said::of(bytes.clone().into());
            let _ = unframed::<Wanted>(bytes.clone().into());
            let _ = unframed::<Offered>(bytes.into());
        }
    }
}
