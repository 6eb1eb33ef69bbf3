// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream of remote procedure calls, as an NFS server reads it: records, headers, credentials, and the arguments of whatever program is
//! called. Nothing may panic, memory is bounded, and what was read says the same when it is written.
#![no_main]
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outrigger_proto_nfs3::xdr::record::{Records, contents, frame_len};
use outrigger_proto_nfs3::xdr::rpc::{self, Body, Message};
use outrigger_proto_nfs3::xdr::{Decoder, Encoder, Messages, Xdr};
use outrigger_proto_nfs3::xdr::{portmap, rpcbind};
use outrigger_proto_nfs3::{mount, nfs, nlm};

const RECORD_MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let mut records = Records::new(RECORD_MAX);
    for piece in bytes.chunks(100) {
        records.space().extend_from_slice(piece);
        while let Ok(Some(record)) = records.next() {
            message(record);
        }
        assert!(records.space().capacity() <= 4 * RECORD_MAX);
    }
    if let Ok(Some(len)) = frame_len(bytes, RECORD_MAX)
        && let Some(frame) = bytes.get(..len)
    {
        assert!(contents(Bytes::copy_from_slice(frame)).is_some());
    }
});

fn message(record: Bytes) {
    let _ = (rpc::xid(&record), rpc::is_call(&record));
    let mut input = Decoder::new(record);
    let Ok(header) = Message::decode(&mut input) else { return };
    let mut out = Encoder::new(0);
    header.encode(&mut out);
    assert_eq!(Message::decode(&mut Decoder::new(out.finish().into_bytes())).as_ref(), Ok(&header));
    assert!(!header.to_string().contains(char::is_control));
    let Body::Call(call) = header.body else { return };
    let _ = (call.credential.sys(), call.verifier.sys());
    match call.program {
        nfs::PROGRAM => arguments::<nfs::Call>(call.procedure, input),
        mount::PROGRAM => arguments::<mount::Call>(call.procedure, input),
        nlm::PROGRAM => arguments::<nlm::Call>(call.procedure, input),
        portmap::PROGRAM if call.version == portmap::VERSION => {
            arguments::<portmap::Call>(call.procedure, input)
        }
        rpcbind::PROGRAM => arguments::<rpcbind::Call>(call.procedure, input),
        _ => {}
    }
}

fn arguments<C: Messages>(procedure: u32, mut input: Decoder) {
    let before = input.remaining();
    if let Ok(call) = C::decode(procedure, &mut input) {
        assert_eq!(call.encoded_len(), before - input.remaining());
        assert!(!call.to_string().contains(char::is_control));
    }
}
