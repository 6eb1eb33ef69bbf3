// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wire door and the driver for it, over a socket.

mod hostile;
mod suite;
mod support;
mod together;
