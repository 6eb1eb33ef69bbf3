// SPDX-License-Identifier: MIT OR Apache-2.0
//! What several parts ask of the host and must ask for in the same careful way.
//!
//! * [`Confined`] starts processes: none gets a descriptor or a variable that was meant for us.
//! * [`PrivateDir`] keeps files where other users can neither put nor exchange any.

mod private;
mod start;

pub use private::{PrivateDir, own_dir};
pub use start::{Confined, allow_descriptors, close_inherited, named_descriptors, seal_descriptors};
