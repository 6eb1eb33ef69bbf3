// SPDX-License-Identifier: MIT OR Apache-2.0
//! Automounted trees: the map that names them, and the threads that open them.

mod hosted;
mod map;
mod names;
mod used;

pub use map::{Leads, Map, schemes};
pub use names::MapNames;
pub use used::detector;
