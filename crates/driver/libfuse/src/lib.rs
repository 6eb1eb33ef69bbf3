// SPDX-License-Identifier: MIT OR Apache-2.0
//! An unmodified FUSE program as a tree.

pub mod launch;
