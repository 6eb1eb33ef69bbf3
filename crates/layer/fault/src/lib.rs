// SPDX-License-Identifier: MIT OR Apache-2.0
//! Injects errors, delays and short reads.
#![forbid(unsafe_code)]
