// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does not hold of a tree that another process serves.

use crate::mount::Exceptions;

/// Of a directory of the host.
pub const LOCAL: Exceptions = &[];
