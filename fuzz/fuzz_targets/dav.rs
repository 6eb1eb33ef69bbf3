// SPDX-License-Identifier: MIT OR Apache-2.0
//! Multi-Status answers of a WebDAV server: none may panic, and a listed name stays in its directory when it is asked for.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_http::{Multistatus, Url, decode_path, encode_path};

fuzz_target!(|bytes: &[u8]| {
    let asked = Url::parse("http://h:8080/pub/a%20b/").expect("a URL");
    let Ok(all) = Multistatus::of(&asked, bytes) else { return };
    for file in all.members {
        assert!(
            !file.name.is_empty()
                && file.name != b".."
                && !file.name.contains(&b'/')
                && !file.name.contains(&0)
        );
        let name = encode_path(&file.name);
        assert_eq!(decode_path(name.as_bytes()), file.name);
        let url = asked.join(&format!("/pub/a%20b/{name}")).expect("a URL");
        assert!(url.query().is_none() && url.path().matches('/').count() == 3);
    }
});
