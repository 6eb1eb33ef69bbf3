// SPDX-License-Identifier: MIT OR Apache-2.0
//! The root directory of this machine with an overlay on it.

use crate::context::Context;
use crate::cow::Overlay;
use crate::status::Failure;
use crate::trees::{Tree, directory_of_machine};
use outrigger_core::{Attr, Error, Runtime, Service, Stack};
use outrigger_door_intercept::OneUser;
use outrigger_layer_permissions::Permissions;
use outrigger_layer_union::{Options, Union};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The tree that the program sees. Below a user namespace, the kernel knows of one user; what the others' files permit is decided here
/// then.
///
/// # Errors
/// A sentence about what cannot be opened.
pub(super) fn tree(context: &Context, overlay: &Overlay) -> Result<Tree, Failure> {
    let failed = |why: String| Failure::serious(format!("the overlay cannot be used: {why}"));
    let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
    let lower = directory_of_machine(&context.trees, Path::new("/"))?;
    let upper = directory_of_machine(&context.trees, &overlay.upper())?;
    let is_of_one = OneUser::is_needed();
    let options = Options { own_copies: is_of_one };
    let union =
        Union::new(upper, options, Arc::clone(&runtime), None).map_err(|error| failed(error.to_string()))?;
    let union = union.telling(
        Box::new(overlay.recorder()?),
        &root().map_err(|error| failed(Error::from(error).to_string()))?,
    );
    let mut stack = Stack::new(lower).push(union);
    if is_of_one {
        stack = stack.and_then(|stack| stack.push(Permissions::new(runtime)));
    }
    let service: Arc<dyn Service> = stack.map(Stack::service).map_err(|error| failed(error.to_string()))?;
    Ok(Tree::of_machine(service))
}

/// Owner and permissions of the root directory.
fn root() -> std::io::Result<Attr> {
    let found = fs::metadata("/")?;
    Ok(Attr { mode: found.mode(), uid: found.uid(), gid: found.gid(), ..Attr::default() })
}
