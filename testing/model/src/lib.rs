// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reference model of a file system, compared with real ones by random operations.
//!
//! [`Model`] is a file system made of plain maps and vectors. [`check`] runs a list of random [`Op`]s on it and on a
//! [`Subject`] and compares every result, and after every operation the whole tree: names, kinds, permissions, link
//! counts, content, targets and extended attributes, also of open files that have no name any more.
//!
//! Operations name files by wrapping indexes into what exists, so nearly every one does something, and taking some out
//! of a failing list leaves a list that still makes sense. [`explore`] tries many lists; a failure prints the seed
//! (`MODEL_SEED=n` repeats the run) and the shortest list that fails.
#![forbid(unsafe_code)]

mod compare;
mod model;
mod ops;

pub use compare::{check, explore};
pub use model::{Body, Facts, File, Id, Model};
pub use ops::{Op, Pick, Range, ops};

#[cfg(doc)]
use outrigger_conformance::Subject;
