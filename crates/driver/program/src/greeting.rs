// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the two sides tell each other before the first request.

use crate::in_one_line;
use bytes::{Buf, Bytes};
use outrigger_core::wire::{Body, Frame, MAGIC};
use outrigger_core::{Errno, Error, OpCode, OpSet, Result, Wire};
use outrigger_mux::{Framed, Protocol};
use std::fmt::Display;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The version of a stream whose messages are agreed on one by one.
const SINGLY: u16 = 0;

/// What this side offers.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
pub struct Offer {
    /// What follows the colon of the LOCATION.
    pub location: Bytes,
    /// Options that a user gave for the program, as keys and values.
    pub options: Vec<(Bytes, Bytes)>,
    /// Operations that may be asked for, and how each is encoded.
    pub operations: Vec<(u16, u32)>,
}

/// What the program answers.
#[derive(Debug, Clone, PartialEq, Eq, Wire)]
pub struct Answer {
    /// Why it does not serve that location; the rest does not matter then.
    pub refusal: Option<Error>,
    /// The name of the tree, as df(1) shows it.
    pub tree: Bytes,
    /// Node numbers mean the same file for as long as it exists, in each process of the program.
    pub persistent: bool,
    /// Every change is refused.
    pub read_only: bool,
    /// The most bytes of one read or write.
    pub max_io: u32,
    /// Operations that it does, and how each is encoded.
    pub operations: Vec<(u16, u32)>,
}

/// The operations that both sides encode alike.
pub(crate) fn spoken(offered: OpSet, answer: &Answer) -> OpSet {
    let is_spoken = |op: &OpCode| answer.operations.contains(&(*op as u16, op.layout()));
    let all: Vec<OpCode> = offered.iter().filter(is_spoken).collect();
    OpSet::of(&all)
}

impl Offer {
    pub(crate) fn new(location: &[u8], passed: &[(String, String)], ops: OpSet) -> Self {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        Offer {
            location: Bytes::copy_from_slice(location),
            options: passed.iter().map(|(key, value)| (bytes(key), bytes(value))).collect(),
            operations: ops.iter().map(|op| (op as u16, op.layout())).collect(),
        }
    }
}

/// Greets the program on a stream on which nothing was said.
///
/// # Errors
/// What it refuses, and what it does not understand.
pub(crate) async fn greet<P, R, W>(
    protocol: P,
    (mut reader, mut writer): (R, W),
    offer: &Offer,
) -> Result<(Framed<P, R, W>, Answer)>
where
    P: Protocol,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let mut greeting = MAGIC.to_vec();
    SINGLY.put(&mut greeting);
    // A program that does not listen may have said why; one that has ended has not.
    let _ = writer.write_all(&greeting).await;
    let mut theirs = [0; 6];
    reader.read_exact(&mut theirs).await.map_err(|_| Errno::EPROTO.because("it ended without a greeting"))?;
    if theirs[..4] != MAGIC || (&theirs[4..]).get_u16_le() != SINGLY {
        let shown = theirs.escape_ascii();
        return Err(
            Errno::EPROTO.because(format!("it greeted with '{shown}' instead of ORIG and two zero bytes"))
        );
    }
    let mut framed = Framed::new(protocol, reader, writer);
    let mut offered = Vec::new();
    offer.put(&mut offered);
    framed.send(&Frame { id: Frame::UNANSWERED, body: Body::Control(offered.into()) }.encode()?).await?;
    let ended = || Errno::EPROTO.because("it ended without an answer to the offer");
    let answer = framed.receive().await?.ok_or_else(ended)?;
    match decoded(answer)? {
        Answer { refusal: Some(refusal), .. } => Err(in_one_line(&refusal)),
        answer => Ok((framed, answer)),
    }
}

/// The answer in a whole frame.
fn decoded(frame: Bytes) -> Result<Answer> {
    let refused = |why: &dyn Display| Errno::EPROTO.because(format!("its answer to the offer is {why}"));
    let mut answer = match Frame::decode(frame.slice(4..)) {
        Ok(Frame { body: Body::Control(answer), .. }) => answer,
        Ok(_) => return Err(refused(&"no control message (frame kind 4)")),
        Err(malformed) => return Err(refused(&malformed)),
    };
    let decoded = Answer::get(&mut answer).map_err(|malformed| refused(&malformed))?;
    match answer.len() {
        0 => Ok(decoded),
        rest => Err(refused(&format!("{rest} bytes too long: a list or a byte string says a wrong length"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(bytes: Vec<u8>) -> Bytes {
        let frame = Frame { id: Frame::UNANSWERED, body: Body::Control(bytes.into()) };
        frame.encode().expect("a small frame").into()
    }

    fn answer(operations: Vec<(u16, u32)>) -> Answer {
        Answer {
            refusal: None,
            tree: Bytes::from_static(b"tree"),
            persistent: true,
            read_only: false,
            max_io: 1 << 20,
            operations,
        }
    }

    #[test]
    fn only_what_both_encode_alike_is_spoken() {
        let offered = OpSet::of(&[OpCode::Lookup, OpCode::Read]);
        let (lookup, read) = (OpCode::Lookup, OpCode::Read);
        let told = vec![
            (lookup as u16, lookup.layout()),
            (read as u16, read.layout() + 1),
            (OpCode::Write as u16, OpCode::Write.layout()),
            (9999, 1),
        ];
        assert_eq!(spoken(offered, &answer(told)), OpSet::of(&[lookup]));
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_refused_with_its_field() {
        let mut bytes = Vec::new();
        answer(vec![]).put(&mut bytes);
        let refused = |bytes: &[u8]| decoded(framed(bytes.to_vec())).unwrap_err().to_string();
        let (cut, long) = (refused(&bytes[..bytes.len() - 1]), refused(&[&bytes[..], b"xy"].concat()));
        assert!(
            cut.contains("its answer to the offer is a message with a malformed field Answer.operations"),
            "{cut}"
        );
        assert!(long.contains("2 bytes too long"), "{long}");
    }

    #[test]
    fn layouts_tell_operations_apart_that_are_encoded_differently() {
        assert_eq!(
            OpCode::Unlink.layout(),
            OpCode::RmDir.layout(),
            "a directory and a name, and nothing back"
        );
        assert_ne!(OpCode::Access.layout(), OpCode::ReadLink.layout());
        assert_ne!(OpCode::Lookup.layout(), OpCode::Unlink.layout(), "the replies differ");
    }

    proptest! {
        #[test]
        fn an_answer_is_read_whole_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(answer) = decoded(framed(bytes.clone())) {
                let mut again = Vec::new();
                answer.put(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
