// SPDX-License-Identifier: MIT OR Apache-2.0
//! One conformance suite for every driver and every door.
#![forbid(unsafe_code)]
