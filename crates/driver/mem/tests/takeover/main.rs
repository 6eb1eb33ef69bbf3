// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is taken over at any moment is the tree it was.

mod deadly;
mod garbage;
mod interrupted;
mod kill;
mod log;
mod support;
mod twin;
