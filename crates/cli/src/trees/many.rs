// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many trees under one root, as a mount of them sees them.

use crate::status::Failure;
use outrigger_layer_demux::{Control, Left, TreeStatus};
use outrigger_runtime::Threads;
use std::sync::Arc;
use std::time::Duration;

/// What can be done with the trees of a [`Tree`](super::Tree) that is made of many.
pub struct Many {
    /// The trees.
    pub control: Control,
    /// Where the names come from.
    pub names: Arc<dyn Reread>,
}

/// Names that can be read again.
pub trait Reread: Send + Sync {
    /// Reads them again.
    fn reread(&self);

    /// Why they are not those that their file has now, if they are not.
    fn wrong(&self) -> Option<String>;
}

impl Many {
    /// The trees in use.
    pub fn status(&self) -> Vec<TreeStatus> {
        self.control.status()
    }

    /// Reads the names again, has the trees drop what they have cached, and lets those that could not be opened be tried at once.
    pub fn flush(&self) {
        self.names.reread();
        self.control.flush();
    }

    /// Stores what programs have written, within `patience`, and closes the trees, of whose paths users know what is `shown`.
    ///
    /// # Errors
    /// What is lost, or was not stored within that time.
    pub fn close(
        &self,
        runtime: &Threads,
        patience: Duration,
        shown: impl Fn(&str) -> String,
    ) -> Result<(), Failure> {
        let left = runtime.handle().block_on(self.control.close(patience));
        let told: Vec<String> =
            left.iter().map(|Left { path, what }| format!("{}: {what}", shown(path))).collect();
        if told.is_empty() { Ok(()) } else { Err(Failure::new(told.join("; "))) }
    }
}
