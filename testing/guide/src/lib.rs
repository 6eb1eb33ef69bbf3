// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles and runs the examples of docs/GUIDE.md and docs/SEMANTICS.md: `cargo test -p outrigger-guide --doc`.
//!
//! The documents are included as documentation of empty types, so each block of Rust in them is a test. [`tree`] is
//! what the examples that need a tree begin with.
#![forbid(unsafe_code)]

use outrigger_client::{Client, Settings};
use outrigger_core::{Inline, Runtime, Service};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::sync::Arc;

/// An empty tree in memory of at most 64 MiB, and the runtime it lives on.
pub fn service() -> (Arc<dyn Service>, Arc<dyn Runtime>) {
    let runtime = Arc::new(Threads::new());
    let options = Options { size: 64 << 20, inodes: 10_000, ..Options::default() };
    let mem = Mem::new(options, runtime.clone());
    (Arc::new(Inline::new(mem, runtime.clone())), runtime)
}

/// A client of an empty tree in memory.
pub fn tree() -> Client {
    let (service, runtime) = service();
    Client::new(service, runtime, Settings::default())
}

/// The examples of docs/GUIDE.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/GUIDE.md")]
pub struct Guide;

/// The statements of docs/SEMANTICS.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/SEMANTICS.md")]
pub struct Semantics;
