// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many trees under one root, as a mount of them sees them.

use crate::context::Context;
use crate::messages::warn;
use crate::status::Failure;
use outrigger_core::runtime::until;
use outrigger_core::{Cancel, Clock};
use outrigger_layer_demux::{Control, Left, TreeStatus};
use outrigger_runtime::Threads;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// What is stored in the end is soon stored; after that it is said what is waited for.
const SOON: Duration = Duration::from_secs(2);

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
        let left = runtime.handle().block_on(self.control.close(patience, &Cancel::default()));
        if left.is_empty() { Ok(()) } else { Err(Failure::new(told(left, shown))) }
    }

    /// The same for a command, which says what takes long, and gives it up when it is cancelled.
    ///
    /// # Errors
    /// What is lost, or was not stored until then.
    pub fn close_unless_cancelled(
        &self,
        context: &Context,
        patience: Duration,
        shown: impl Fn(&str) -> String,
    ) -> Result<(), Failure> {
        let runtime = &*context.trees.runtime;
        let left = runtime.handle().block_on(async {
            let mut closing = pin!(self.control.close(patience, &context.cancel));
            if let Some(left) = until(runtime, runtime.monotonic() + SOON, &mut closing).await {
                return left;
            }
            let waits = match self.control.unwritten() {
                left if left.is_empty() => "trees are being closed".to_owned(),
                left => format!("what was written is being stored ({})", told(left, &shown)),
            };
            warn(format_args!("outrigger {}: {waits}; Ctrl-C gives up", context.command));
            closing.await
        });
        if left.is_empty() { Ok(()) } else { Err(Failure::new(told(left, shown))) }
    }
}

/// What is left, by the paths that users know.
fn told(left: Vec<Left>, shown: impl Fn(&str) -> String) -> String {
    let each = left.iter().map(|Left { path, what }| format!("{}: {what}", shown(path)));
    each.collect::<Vec<_>>().join("; ")
}
