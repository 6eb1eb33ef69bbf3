// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments and results of every procedure of NFS and the programs beside it. The first byte chooses program and direction, the second
//! one the procedure. Nothing may panic, and what was read says the same when it is written.
#![no_main]
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outrigger_proto_nfs3::xdr::{Decoder, Encoder, Messages};
use outrigger_proto_nfs3::xdr::{portmap, rpcbind};
use outrigger_proto_nfs3::{mount, nfs, nlm};
use std::fmt::Debug;

fuzz_target!(|bytes: &[u8]| {
    let [which, procedure, body @ ..] = bytes else { return };
    let (procedure, body) = (u32::from(*procedure), Bytes::copy_from_slice(body));
    match which {
        0 => message::<nfs::Call>(procedure, body),
        1 => message::<nfs::Reply>(procedure, body),
        2 => message::<mount::Call>(procedure, body),
        3 => message::<mount::Reply>(procedure, body),
        4 => message::<nlm::Call>(procedure, body),
        5 => message::<nlm::Reply>(procedure, body),
        6 => message::<portmap::Call>(procedure, body),
        7 => message::<portmap::Reply>(procedure, body),
        8 => message::<rpcbind::Call>(procedure, body),
        9 => message::<rpcbind::Reply>(procedure, body),
        _ => {}
    }
});

fn message<M: Messages + PartialEq + Debug>(procedure: u32, body: Bytes) {
    let mut input = Decoder::new(body);
    let Ok(message) = M::decode(procedure, &mut input) else { return };
    assert!(!message.to_string().contains(char::is_control));
    let mut out = Encoder::new(0);
    message.encode(&mut out);
    let again = out.finish().into_bytes();
    assert_eq!(again.len(), input.at());
    assert_eq!(again.len(), message.encoded_len());
    assert_eq!(M::decode(procedure, &mut Decoder::new(again)), Ok(message));
}
