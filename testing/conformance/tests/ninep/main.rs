// SPDX-License-Identifier: MIT OR Apache-2.0
//! The 9P door over real drivers, asked by a client that can say anything.

mod driver;
mod flushes;
mod hostile;
mod plain;
mod requests;
mod support;
