// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of an HTTP server: none may panic, and a listed name stays in its directory when it is asked for.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_http::{Index, Told, Url, decode_path, encode_path};

fuzz_target!(|bytes: &[u8]| {
    let base = Url::parse("http://h:8080/pub/a%20b/").expect("a URL");
    let mut lines = bytes.split(|&byte| byte == b'\n').map(|line| std::str::from_utf8(line).ok());
    let fields: [Option<&str>; 4] = std::array::from_fn(|_| lines.next().flatten());
    let names = ["content-range", "content-length", "last-modified", "content-encoding"];
    let field = |name: &str| names.iter().position(|known| *known == name).and_then(|at| fields[at]);
    let told = Told::by(b"/pub/a.gz", field);
    if let Ok(part) = told.part((5, 1000)) {
        assert!(part.first == 5 && part.first < part.end && part.end <= 1001 && part.end <= part.size);
    }
    for index in [Some(Index::of_html(&base, bytes)), Index::of_json(bytes)].into_iter().flatten() {
        for file in index.names {
            assert!(
                !file.name.is_empty()
                    && file.name != b".."
                    && !file.name.contains(&b'/')
                    && !file.name.contains(&0)
            );
            let asked = encode_path(&file.name);
            assert_eq!(decode_path(asked.as_bytes()), file.name);
            let url = base.join(&format!("/pub/a%20b/{asked}")).expect("a URL");
            assert!(url.query().is_none() && url.path().matches('/').count() == 3);
        }
    }
});
