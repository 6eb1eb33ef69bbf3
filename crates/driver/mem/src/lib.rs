// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree in memory with complete POSIX semantics.
#![forbid(unsafe_code)]
