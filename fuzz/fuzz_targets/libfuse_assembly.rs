// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies of a FUSE program, whole and in pieces: each input is a sequence of messages, a byte of length before each.
//! Whatever arrives, no reply is made up: each is one that was begun or came whole, and as long as it said.
#![no_main]

// Neither is public.
#[allow(dead_code)]
#[path = "../../crates/driver/libfuse/src/assembly.rs"]
mod assembly;
#[allow(dead_code)]
#[path = "../../crates/driver/libfuse/src/message.rs"]
mod message;

use assembly::{Arrived, Assembly};
use libfuzzer_sys::fuzz_target;
use outrigger_proto_fuse::OutHeader;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

/// Where messages come from.
static ENDS: LazyLock<(OwnedFd, OwnedFd)> = LazyLock::new(|| {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair of sockets")
});
/// The largest message: less than the length before it can say, so that too long ones come, too.
const LIMIT: usize = 200;

fuzz_target!(|data: &[u8]| {
    let mut assembly = Assembly::new(LIMIT);
    let mut rest = data;
    // The numbers of replies that were begun or came whole, with the lengths they named.
    let mut named: Vec<(u64, usize)> = Vec::new();
    while let Some((&length, after)) = rest.split_first() {
        let (message, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        if message.is_empty() {
            continue;
        }
        if let Ok((header, _)) = OutHeader::decode(message) {
            named.push((header.unique, header.len as usize));
        }
        send(&ENDS.0, message, SendFlags::empty()).expect("room for a message");
        let (_, length) = recv(&ENDS.1, assembly.room(), RecvFlags::TRUNC).expect("the message");
        match assembly.add(length, |unique| unique < 16) {
            Ok(Arrived::Reply { unique, reply }) => {
                let length = OutHeader::SIZE + reply.body.len();
                let failed = reply.errno != 0 && reply.body.is_empty();
                assert!(named.iter().any(|&(one, long)| one == unique && (failed || long == length)));
            }
            Ok(Arrived::Notice { body, .. }) => assert_eq!(OutHeader::SIZE + body.len(), message.len()),
            Ok(Arrived::Part) => {
                while let Some(unique) = assembly.garbled() {
                    assert!(named.iter().any(|&(one, _)| one == unique));
                }
            }
            Err(_) => return,
        }
        assert!(assembly.garbled().is_none());
    }
});
