// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NFS door over real drivers, asked by a client that can say anything.

mod exports;
mod hostile;
mod lasting;
mod procedures;
mod stand_in;
mod support;
