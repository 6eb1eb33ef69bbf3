// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of an FTP server: none may panic, and a listed name can always be asked for.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_ftp::{Features, Replies, command, epsv, list, mlsx, pasv, pwd, timestamp};

fuzz_target!(|bytes: &[u8]| {
    let mut replies = Replies::default();
    replies.push(bytes);
    while let Ok(Some(reply)) = replies.take_next() {
        let _ = Features::of(&reply).with_site(&reply).has("SIZE");
    }
    let _ = (epsv(bytes), pasv(bytes), pwd(bytes), timestamp(bytes), mlsx(bytes, true));
    for line in bytes.split(|&byte| byte == b'\n') {
        for listed in [mlsx(line, false), list(line, 1_795_595_400)].into_iter().flatten().flatten() {
            assert!(command("RETR", &listed.name).is_ok() && !listed.name.contains(&b'/'));
        }
    }
});
