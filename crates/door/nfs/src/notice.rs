// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is said about clients that are refused.

use outrigger_toolkit_serve::Seldom;

/// The reasons to refuse a client that has connected.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    pub(crate) network: Seldom,
    pub(crate) port: Seldom,
    pub(crate) export: Seldom,
    pub(crate) lock: Seldom,
}
