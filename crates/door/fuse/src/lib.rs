// SPDX-License-Identifier: MIT OR Apache-2.0
//! The FUSE door: our own transport between the Linux kernel and a stack.
