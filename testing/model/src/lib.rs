// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reference model of a file system, compared with real ones by random operations.
#![forbid(unsafe_code)]
