// SPDX-License-Identifier: MIT OR Apache-2.0
//! Agreeing on a dialect.
//!
//! A server answers with what it was asked for, with a lesser dialect, or with `unknown` (version(5) of Plan 9). Real ones differ in that:
//! u9fs and the libraries of Plan 9 take everything that begins with `9P` for 9P2000; npfs and py9p, which have 9P2000.u, answer 9P2000 to
//! any name but that; others say `unknown`, that it is an error, or nothing, and hang up. So the next dialect is asked for where the answer leaves it
//! open: by another connection, since py9p speaks 9P2000 after it has answered that, whatever it is asked for and answers then.

use crate::convert;
use crate::wire::{IO_MAX, MESSAGE_MIN, Tags};
use bytes::Bytes;
use outrigger_core::{Errno, Error, Result};
use outrigger_mux::Framed;
use outrigger_proto_ninep::{
    Dialect, IO_HEAD, NO_TAG, Reply, Request, Rerror, Rlerror, Rversion, Text, Tversion,
};
use outrigger_toolkit_remote::Stream;
use tokio::io::{ReadHalf, WriteHalf};

/// A connection before there are requests with tags.
type Wire = Framed<Tags, ReadHalf<Box<dyn Stream>>, WriteHalf<Box<dyn Stream>>>;

/// What a server and this client speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) dialect: Dialect,
    /// The longest message, in bytes.
    pub(crate) msize: u32,
}

/// Asks for the dialect at the place `at` of those that are offered, one after the other, each by a connection of its own. The inner error
/// leaves the next one open.
pub(crate) async fn agree(framed: &mut Wire, offers: &[Dialect], at: usize) -> Result<Result<Agreed>> {
    let version = Text::new(offers[at].name()).unwrap_or_default();
    let question = Tversion { msize: IO_MAX + IO_HEAD, version };
    framed.send(&Request::from(question).encode(NO_TAG, Dialect::Plain)).await?;
    match framed.receive().await? {
        Some(answer) => understood(&answer, offers, at),
        None => Ok(Err(Errno::EPROTO.because("the server hangs up: it may not speak 9P"))),
    }
}

/// What the answer to the offer at the place `at` comes to; the inner error is for the case that nothing else can be offered.
fn understood(answer: &Bytes, offers: &[Dialect], at: usize) -> Result<Result<Agreed>> {
    let odd = |why: String| Errno::EPROTO.because(why);
    // No field of these replies depends on the dialect but the number of an error, which is behind what is wanted of it.
    let (version, msize) = match Reply::decode(answer, Dialect::Plain) {
        Ok((_, Reply::Rversion(Rversion { msize, version }))) => (version, msize),
        Ok((_, Reply::Rlerror(Rlerror { ecode }))) => {
            let (asked, why) = (offers[at].name(), convert::error(ecode));
            return Ok(Err(odd(format!("the server answers '{}' when asked for {asked}", why.why()))));
        }
        Ok((_, Reply::Rerror(Rerror { ename, .. }))) => {
            return Ok(Err(odd(format!("the server says '{}'", shown(&ename)))));
        }
        Ok(_) => return Err(odd("the server does not answer the question for a version".into())),
        Err(error) => return Err(odd(format!("the server does not speak 9P: {error}"))),
    };
    let Some(dialect) = Dialect::of(&version).filter(|told| offers.contains(told)) else {
        return Ok(Err(unwanted(&version, offers)));
    };
    // A dialect between the one that was asked for and the answer may be had, too.
    if dialect != offers[at] && offers.get(at + 1) != Some(&dialect) {
        return Ok(Err(odd(format!("the server answers {} to all that it is asked for", dialect.name()))));
    }
    match (MESSAGE_MIN..=IO_MAX + IO_HEAD).contains(&msize) {
        true => Ok(Ok(Agreed { dialect, msize })),
        false => Err(odd(format!("the server wants messages of {msize} bytes, which is not possible"))),
    }
}

fn unwanted(version: &[u8], offers: &[Dialect]) -> Error {
    let wanted: Vec<_> = offers.iter().map(|offer| offer.name()).collect();
    let (version, wanted) = (shown(version), wanted.join(", "));
    Errno::EPROTO.because(format!("the server speaks {version}, and was asked for {wanted}"))
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(100)]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Dialect::{Linux, Plain, Unix};

    const ALL: &[Dialect] = &[Linux, Unix, Plain];

    fn answer(version: &'static str, msize: u32) -> Bytes {
        let version = Text::new(version).unwrap();
        Reply::from(Rversion { msize, version }).encode(NO_TAG, Plain).freeze()
    }

    fn said(version: &'static str, offers: &[Dialect], at: usize) -> Option<Dialect> {
        understood(&answer(version, 8192), offers, at).unwrap().ok().map(|agreed| agreed.dialect)
    }

    #[test]
    fn the_first_dialect_that_a_server_agrees_to_is_spoken() {
        for (version, at, expected) in [
            ("9P2000.L", 0, Some(Linux)),
            ("9P2000.u", 0, Some(Unix)),
            // u9fs, npfs, py9p: the one between may be had.
            ("9P2000", 0, None),
            ("9P2000", 1, Some(Plain)),
            ("9P2000.u", 1, Some(Unix)),
            ("9P2000", 2, Some(Plain)),
            ("unknown", 0, None),
            ("unknown", 2, None),
            ("9P2000.e", 0, None),
            // More than it was asked for.
            ("9P2000.L", 2, None),
        ] {
            assert_eq!(said(version, ALL, at), expected, "{version} {at}");
        }
        assert_eq!(said("9P2000", &[Unix], 0), None, "another one than the user wants");
        assert_eq!(said("9P2000.u", &[Unix], 0), Some(Unix));
    }

    #[test]
    fn what_is_no_answer_ends_it_and_a_refusal_does_not() {
        assert!(understood(&answer("9P2000", 100), &[Plain], 0).is_err(), "no room for a name");
        assert!(understood(&answer("9P2000", u32::MAX), &[Plain], 0).is_err());
        assert!(understood(&Bytes::from_static(b"\x07\0\0\0\x79\0\0"), ALL, 0).is_err());
        assert!(understood(&Bytes::from_static(b"SSH-2.0-OpenSSH"), ALL, 0).is_err());
        for errno in [None, Some(5)] {
            let dialect = if errno.is_some() { Unix } else { Plain };
            let refused = Reply::from(Rerror { ename: Text::new("\x1b[2J").unwrap(), errno });
            let refused = understood(&refused.encode(NO_TAG, dialect).freeze(), ALL, 0).unwrap().unwrap_err();
            assert!(refused.to_string().contains("\\u{1b}"), "{refused}");
        }
    }
}
