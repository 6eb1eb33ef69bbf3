// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `cache` over a tree in memory that is 5 ms away: how many requests it sends, and what two clients see of each
//! other.

mod alone;
mod behind;
mod client;
mod content;
mod disk;
mod later;
mod lost;
mod making;
mod names;
mod reopened;
mod saved;
mod settings;
mod siblings;
mod successor;
mod xattrs;
