// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session of the 9P door over a tree in memory, fed with arbitrary messages.
//!
//! The first byte chooses the dialect. What follows are messages, each as its kind, how long its fields are, and these; lengths and tags
//! are filled in, so that messages reach the requests and are not only refused. The client attaches to fid 0 first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_core::{Inline, Runtime, Service, Stack};
use outrigger_door_ninep::{Callers, Listener, NoUsers, Server, Squash, Tree};
use outrigger_driver_mem::{Mem, Options};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_simulate::Simulate;
use outrigger_proto_ninep::{Dialect, HEAD, NO_FID, NO_TAG, Request, Tattach, Text, Tversion};
use outrigger_runtime::Threads;
use std::sync::{Arc, LazyLock};

static CLOCK: LazyLock<Arc<Threads>> = LazyLock::new(|| Arc::new(Threads::new()));

/// The messages that the bytes stand for.
fn messages(data: &[u8]) -> Vec<u8> {
    let (&first, mut rest) = data.split_first().unwrap_or((&0, data));
    let dialect = [Dialect::Linux, Dialect::Plain, Dialect::Unix][usize::from(first) % 3];
    let version = Text::new(dialect.name()).unwrap_or_default();
    let mut out = Request::from(Tversion { msize: 1 << 16, version }).encode(NO_TAG, dialect).to_vec();
    let none = Text::default();
    let attach = Tattach { fid: 0, afid: NO_FID, uname: none.clone(), aname: none, n_uname: Some(0) };
    out.extend(Request::from(attach).encode(0, dialect));
    let mut tag = 0_u16;
    while let [kind, len, fields @ ..] = rest {
        let len = usize::from(*len).min(fields.len());
        tag = tag.wrapping_add(1) % NO_TAG;
        out.extend(((HEAD + len) as u32).to_le_bytes());
        out.push(*kind);
        out.extend(tag.to_le_bytes());
        out.extend(&fields[..len]);
        rest = &fields[len..];
    }
    out
}

fuzz_target!(|data: &[u8]| {
    let clock = Arc::clone(&CLOCK);
    let mem = Mem::new(Options { size: 1 << 24, ..Options::default() }, clock.clone());
    let tree = Arc::new(Inline::new(mem, clock.clone())) as Arc<dyn Service>;
    let stack = Stack::new(tree).push(Simulate::new()).expect("the lowest layer");
    let service = stack.push(Permissions::new(clock as Arc<dyn Runtime>)).expect("above it").service();
    let callers = Callers { squash: Squash::None, ..Callers::default() };
    let messages = messages(data);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let trees = vec![Tree { name: "/".to_owned(), service, callers }];
        let server = Server::on(Listener::None, trees, Arc::new(NoUsers)).expect("a server");
        server.converse(&messages[..], tokio::io::sink()).await;
    });
});
