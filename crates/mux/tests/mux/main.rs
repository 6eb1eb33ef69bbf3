// SPDX-License-Identifier: MIT OR Apache-2.0
//! A multiplexer and the other side of its connection, in simulated time.

mod endings;
mod lanes;
mod requests;
mod support;
