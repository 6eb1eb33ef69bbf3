// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deterministic simulation of whole stacks.
//!
//! [`Sim`] is a [`outrigger_core::Runtime`] without threads and without the host's clock: a seed decides which ready
//! task runs next and how long each step takes. The same seed gives the same run, event by event, which
//! [`Sim::digest`] proves; a failure found with seed 4711 happens again with seed 4711.
//!
//! * [`explore`] runs a scenario with many seeds and names the seed that failed; `SIM_SEED=n` repeats that one.
//! * [`Scripted`] is a driver that answers whatever its script says, when its script says.
//! * [`sample`] makes a random request or reply of any kind from the [`layout`] of its encoding, which
//!   docs/PROTOCOL.md shows as well: what the document says is what the tests decode.
//!
//! Limits: everything runs on one thread, so data races are not found here, and a blocking job that waits for
//! another one never ends.
#![forbid(unsafe_code)]

mod explore;
pub mod layout;
pub mod sample;
mod script;
mod sim;

pub use explore::explore;
pub use script::{Scripted, Step};
pub use sim::Sim;
