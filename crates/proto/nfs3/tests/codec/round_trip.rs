// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every call and every reply of every program: what is encoded decodes to the same, no beginning of it decodes, and nothing that
//! arrives does harm.

use crate::support::{self, Words};
use bytes::Bytes;
use outrigger_proto_nfs3::xdr::{DecodeError, Decoder, Messages};
use outrigger_proto_nfs3::xdr::{portmap, rpcbind};
use outrigger_proto_nfs3::{mount, nfs, nlm};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// Calls `$test` for the calls and the replies of every program.
macro_rules! for_each_direction {
    ($test:ident($($argument:expr),*)) => {{
        $test::<nfs::Call>($($argument),*)?;
        $test::<nfs::Reply>($($argument),*)?;
        $test::<mount::Call>($($argument),*)?;
        $test::<mount::Reply>($($argument),*)?;
        $test::<portmap::Call>($($argument),*)?;
        $test::<portmap::Reply>($($argument),*)?;
        $test::<rpcbind::Call>($($argument),*)?;
        $test::<rpcbind::Reply>($($argument),*)?;
        $test::<nlm::Call>($($argument),*)?;
        $test::<nlm::Reply>($($argument),*)?;
    }};
}

fn round_trip<M: Messages + PartialEq + Debug + Clone>(words: &mut Words) -> Result<(), TestCaseError> {
    for &procedure in M::PROCEDURES {
        let message = words.value(|input| M::decode(procedure, input));
        prop_assert_eq!(message.procedure(), procedure);
        let bytes = support::bytes(|out| message.encode(out));
        prop_assert_eq!(message.encoded_len(), bytes.len());
        let mut input = Decoder::new(bytes.clone());
        prop_assert_eq!(M::decode(procedure, &mut input), Ok(message.clone()));
        prop_assert_eq!(input.remaining(), 0);
        for cut in 0..bytes.len() {
            let error = M::decode(procedure, &mut Decoder::new(bytes.slice(..cut)));
            prop_assert!(matches!(error, Err(DecodeError::Short { .. })), "{} cut at {}", message, cut);
        }
        let followed = Bytes::from([&bytes[..], &[1; 5]].concat());
        prop_assert_eq!(M::decode(procedure, &mut Decoder::new(followed)), Ok(message.clone()));
        let line = message.to_string();
        prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
    }
    Ok(())
}

/// Whatever the bytes are, they are a message or none.
fn harmless<M: Messages + PartialEq + Debug + Clone>(bytes: &Bytes) -> Result<(), TestCaseError> {
    for &procedure in M::PROCEDURES {
        if let Ok(message) = M::decode(procedure, &mut Decoder::new(bytes.clone())) {
            let _ = message.to_string();
            prop_assert!(message.encoded_len() <= bytes.len());
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn messages_round_trip(seed: u64) {
        let mut words = Words(seed);
        for_each_direction!(round_trip(&mut words));
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300), words in vec(0_u8..6, 0..80)) {
        let small = words.iter().flat_map(|&word| [0, 0, 0, word]).collect::<Vec<_>>();
        for bytes in [Bytes::from(bytes), Bytes::from(small)] {
            for_each_direction!(harmless(&bytes));
        }
    }
}

/// The generator reaches both sides of every decision, or the tests above would prove little.
#[test]
fn the_messages_that_are_tried_have_everything_in_them() {
    let mut words = Words(1);
    let mut seen = BTreeSet::new();
    for _ in 0..400 {
        for procedure in 0..22 {
            let call = words.value(|input| nfs::Call::decode(procedure, input)).to_string();
            let reply = words.value(|input| nfs::Reply::decode(procedure, input)).to_string();
            seen.extend(
                [call, reply].iter().flat_map(|line| line.split([' ', '=', '{', '}']).map(str::to_owned)),
            );
        }
    }
    let expected = "Unchecked Guarded Exclusive Keep Now To Unstable DataSync FileSync Regular Directory Block Char Symlink \
        Socket Fifo OK NOENT 39 - true false READ READ|LOOKUP|EXTEND";
    for word in expected.split_whitespace() {
        assert!(seen.contains(word), "{word} is missing");
    }
}

#[test]
fn procedures_that_there_are_not() {
    let mut input = Decoder::new(Bytes::new());
    assert_eq!(nfs::Call::decode(22, &mut input), Err(DecodeError::Procedure(22)));
    assert_eq!(mount::Call::decode(6, &mut input), Err(DecodeError::Procedure(6)));
    assert_eq!(portmap::Call::decode(5, &mut input), Err(DecodeError::Procedure(5)), "CALLIT");
    assert_eq!(rpcbind::Call::decode(5, &mut input), Err(DecodeError::Procedure(5)), "BCAST");
    assert_eq!(nlm::Reply::decode(16, &mut input), Err(DecodeError::Procedure(16)));
}
