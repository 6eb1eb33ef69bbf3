// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of the host as a tree, never left.
#![forbid(unsafe_code)]
