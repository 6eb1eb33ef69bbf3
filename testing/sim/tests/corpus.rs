// SPDX-License-Identifier: MIT OR Apache-2.0
//! The corpus of the fuzz target `wire` has a frame of each kind. `UPDATE=1` writes those that are missing or stale.

use bytes::Bytes;
use outrigger_core::wire::{Body, Frame, Hello};
use outrigger_core::{Credentials, OpCode, Reply, Wire};
use outrigger_sim::{layout, sample};
use std::collections::BTreeMap;
use std::path::Path;

/// File names and contents: frames without their length field, as the target decodes them.
fn corpus() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::from([("hello".to_owned(), Hello::bytes())]);
    let mut put = |name: String, body| {
        let frame = Frame { id: 7, body }.encode().expect("a small frame");
        files.insert(name, frame[4..].to_vec());
    };
    put("cancel".into(), Body::Cancel);
    put("control".into(), Body::Control(Bytes::from_static(b"order")));
    for (index, (_, row)) in layout::NOTICES.iter().enumerate() {
        put(
            format!("notice-{}", row.0),
            Body::Notice(sample::notice(index, &mut sample::Random::with_seed(1))),
        );
    }
    for &op in OpCode::ALL {
        // A seed of its own for each, so that a new operation leaves the other files as they are.
        let request = sample::request(op, &mut sample::Random::with_seed(op as u64));
        put(
            format!("request-{}", op.name()),
            Body::Request { cred: Credentials::new(1000, 100), within: None, request },
        );
    }
    for (number, (name, ..)) in layout::REPLIES {
        let mut random = sample::Random::with_seed(u64::from(*number) + 1000);
        let mut bytes = Bytes::from(sample::reply_bytes(name, &mut random));
        let reply = Reply::get(&mut bytes).expect("a reply");
        put(format!("reply-{}", name.to_lowercase()), Body::Reply(reply));
    }
    files
}

#[test]
fn the_corpus_has_every_kind_of_frame() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wire");
    let update = std::env::var_os("UPDATE").is_some();
    for (name, content) in corpus() {
        let path = dir.join(&name);
        if update {
            std::fs::create_dir_all(&dir)
                .and_then(|()| std::fs::write(&path, &content))
                .expect("a writable corpus");
        }
        let found = std::fs::read(&path).ok();
        assert!(
            found.as_ref() == Some(&content),
            "fuzz/corpus/wire/{name} is stale: UPDATE=1 cargo test -p outrigger-sim --test corpus"
        );
    }
}
