// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints each request and its reply.
#![forbid(unsafe_code)]
