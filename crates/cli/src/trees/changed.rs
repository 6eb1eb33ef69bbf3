// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trees in files that a command may change, and closes in the end.

use crate::status::Failure;
use outrigger_core::registry::Control;
use std::cell::RefCell;
use std::sync::Arc;

/// The trees in files that a command has opened for writing.
#[derive(Default)]
pub struct Changed(RefCell<Vec<Arc<dyn Control>>>);

impl Changed {
    /// Takes note of one.
    pub(super) fn add(&self, tree: &Arc<dyn Control>) {
        self.0.borrow_mut().push(Arc::clone(tree));
    }

    /// Closes them: returns when everything is written and other processes can open the files. A process that serves a tree would do
    /// that by itself after this one has ended, too late for a caller that waits for this one only.
    ///
    /// # Errors
    /// Why that is not so.
    pub fn close(&self) -> Result<(), Failure> {
        let closed: Vec<_> = self.0.take().iter().map(|tree| tree.close()).collect();
        closed.into_iter().collect::<Result<(), _>>().map_err(|error| Failure::serious(error.why()))
    }
}
