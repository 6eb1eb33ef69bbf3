// SPDX-License-Identifier: MIT OR Apache-2.0
//! A line for each operation of the program on the trees.

use crate::status::Failure;
use crate::trees::Tree;
use outrigger_core::{Error, Runtime, Stack};
use outrigger_door_intercept::Prefix;
use outrigger_layer_trace::{Format, Trace, TraceControl};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write, stderr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// What is written down about trees.
pub(super) struct Audit {
    control: Arc<TraceControl>,
    runtime: Arc<dyn Runtime>,
    file: String,
}

impl Audit {
    /// Begins to write lines to `file`.
    ///
    /// # Errors
    /// A sentence about the file that cannot be made.
    pub(super) fn to(file: &Path, runtime: Arc<dyn Runtime>) -> Result<Self, Failure> {
        let file_shown = file.display().to_string();
        let refused = |error: Error| Failure::serious(format!("--audit '{file_shown}': {error}"));
        let out: Box<dyn Write + Send> = if file == Path::new("-") {
            Box::new(stderr())
        } else {
            Box::new(private(file).map_err(|error| refused(error.into()))?)
        };
        let control = Arc::new(TraceControl::new(Arc::clone(&runtime)));
        control.start_waiting(out, Format::Ended);
        Ok(Audit { control, runtime, file: file_shown })
    }

    /// Writes down what is asked of a tree, whose directories stand under these prefixes.
    ///
    /// # Errors
    /// A sentence about a tree that this cannot be put on.
    pub(super) fn watch(&self, tree: &mut Tree, prefixes: &[Prefix]) -> Result<(), Failure> {
        let places = prefixes.iter().map(|Prefix { path, name }| {
            ([b"/", name.as_bytes()].concat(), path.as_os_str().as_bytes().to_vec())
        });
        let trace = Trace::controlled(Arc::clone(&self.control), Arc::clone(&self.runtime));
        let stack = Stack::new(Arc::clone(&tree.service)).push(trace.with_places(places.collect()));
        tree.service = stack.map(Stack::service).map_err(|error| Failure::serious(error.to_string()))?;
        Ok(())
    }

    /// Whether all operations were written down.
    ///
    /// # Errors
    /// A sentence when some were not.
    pub(super) fn end(self) -> Result<(), Failure> {
        match self.control.dropped() {
            0 => Ok(()),
            lost => Err(Failure::serious(format!("--audit '{}': {lost} operations are missing", self.file))),
        }
    }
}

/// An empty file that others cannot read; or what reads lines, as a pipe.
fn private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}
