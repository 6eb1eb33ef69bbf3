// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages from the kernel's side and from a server's side: none may panic, and what was read must be usable.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_fuse::{
    Dialect, Dirents, DirentsPlus, InHeader, InitFlags, InitOut, Notification, Operation, OutHeader, Request,
};

fuzz_target!(|message: &[u8]| {
    for flags in [InitFlags::empty(), InitFlags::all()] {
        let Ok(request) = Request::decode(message, Dialect { minor: 45, flags }) else { continue };
        assert_eq!(request.header.len as usize, message.len());
        let _ = request.extensions.groups().count();
        let _ = request.extensions.count();
        if let Operation::BatchForget(forgets) = request.operation {
            assert!(forgets.count() * 16 <= message.len());
        }
    }
    // The same body under a correct length, so that the fuzzer need not find it.
    if let Ok((header, body)) = InHeader::decode(message) {
        let _ = Operation::decode(header.opcode, body, Dialect::default());
    }
    if let Ok((header, body)) = OutHeader::decode(message) {
        if let Ok(notification) = Notification::decode(header.error, body) {
            assert!(notification.encode().len() <= message.len());
        }
        let _ = InitOut::decode(body);
        let _ = Dirents::new(body).count();
        let _ = DirentsPlus::new(body).count();
    }
});
