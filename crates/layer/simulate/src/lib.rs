// SPDX-License-Identifier: MIT OR Apache-2.0
//! Supplies operations a driver lacks from those it has.
#![forbid(unsafe_code)]
