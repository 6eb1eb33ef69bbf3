// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that costs nothing to serve, for measuring everything around it.
#![forbid(unsafe_code)]
