// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers ETIMEDOUT when a driver takes too long.
#![forbid(unsafe_code)]
