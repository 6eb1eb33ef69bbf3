// SPDX-License-Identifier: MIT OR Apache-2.0
//! Refuses every change.
#![forbid(unsafe_code)]
