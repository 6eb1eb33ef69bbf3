// SPDX-License-Identifier: MIT OR Apache-2.0
//! What doors for clients of a network share.
//!
//! | file | what it does |
//! |---|---|
//! | `callers.rs` | which clients may ask, and as which user |
//! | `places.rs` | how many connections there may be |
//! | `budget.rs`, `threads.rs` | what requests may take: memory, and threads that they hold |
//! | `sending.rs` | replies, to clients that may not take them |
//! | `dots.rs` | `.` and `..` in listings, which the core's have not |
//! | `notice.rs` | what is said about clients that are refused |
#![forbid(unsafe_code)]

mod budget;
mod callers;
pub mod dots;
mod notice;
mod places;
mod sending;
mod threads;

pub use budget::{Budget, Claim, Share};
pub use callers::{Callers, NOBODY, Network, NotANetwork, Squash, User};
pub use notice::{More, Seldom};
pub use places::{Places, taken};
pub use sending::{PATIENCE, Unsent, send};
pub use threads::{Caught, Inside};
