// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets from a server's side and from a client's: none may panic, and what was read says the same when it is written.
#![no_main]
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outrigger_proto_sftp::{Limits, PersonNames, Reply, Request, StatVfs, Version, number, packet_len};

fuzz_target!(|bytes: &[u8]| {
    let _ = (packet_len(bytes), number(bytes));
    let packet = Bytes::copy_from_slice(bytes);
    if let Ok((number, reply)) = Reply::decode(&packet) {
        let again = reply.encode(number).freeze().slice(4..);
        assert_eq!(Reply::decode(&again), Ok((number, reply)));
    }
    if let Ok((number, request)) = Request::decode(&packet) {
        let again = request.encode(number).freeze().slice(4..);
        let expected = if request == Request::Init { outrigger_proto_sftp::VERSION } else { number };
        assert_eq!(Request::decode(&again), Ok((expected, request)));
    }
    if let Ok(version) = Version::decode(&packet) {
        let _ = version.promised();
        assert_eq!(Version::decode(&version.encode().freeze().slice(4..)), Ok(version));
    }
    let _ = (StatVfs::decode(bytes), Limits::decode(bytes), PersonNames::decode(&packet));
});
