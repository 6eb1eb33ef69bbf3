// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of WebDAV servers: Apache's, and one that refuses and lies.

mod hostile;
mod server;
#[path = "../support/mod.rs"]
mod support;
