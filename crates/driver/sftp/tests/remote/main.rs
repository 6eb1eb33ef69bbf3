// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver and a server in simulated time: how many round trips things take, and what happens when things go wrong.

mod counts;
mod endings;
mod line;
mod newborn;
mod nonsense;
mod owners;
mod second;
mod server;
mod stale;
mod user;
