// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's Runtime on tokio.
#![forbid(unsafe_code)]
