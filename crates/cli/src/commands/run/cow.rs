// SPDX-License-Identifier: MIT OR Apache-2.0
//! The root directory of this machine with an overlay on it.

use super::{failed, via};
use crate::context::Context;
use crate::cow::Overlay;
use crate::status::Failure;
use crate::trees::{Tree, directory_of_machine};
use outrigger_client::{Client, Follow};
use outrigger_core::{Attr, Clock, Errno, Error, Groups, Runtime, Service, Stack};
use outrigger_door_intercept::{Apart, Mountpoints, OneUser, Prefix, no_directory};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_union::{Options, Union};
use rustix::process::getgroups;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
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

/// The same tree for a program whose calls are answered.
///
/// # Errors
/// A sentence about what is not known of this user.
pub(super) fn apart(context: &Context, overlay: &Overlay, tree: &Tree) -> Result<Apart, Failure> {
    let groups = getgroups().map_err(|error| failed(error.into()))?;
    let groups: Vec<u32> = groups.into_iter().map(|group| group.as_raw()).collect();
    let client = via::client(context, tree, Groups::of(&groups));
    let (dir, upper) = (overlay.path().to_owned(), overlay.upper());
    Ok(Apart { client, dir, upper, own_copies: OneUser::is_needed(), copies: overlay.copies()? })
}

/// What to add to an error of a program that cannot be started, after `--cow` without a directory: it may be one that was meant as such.
///
/// # Errors
/// When it is none but a directory, or options of this command end behind it.
pub(super) fn hint(command: &[OsString]) -> Result<String, Failure> {
    let [first, second, ..] = command else { return Ok(String::new()) };
    let written = || format!("an overlay is named with '=': --cow={}", first.display());
    if second == "--" || Path::new(first).is_dir() {
        return Err(Failure::serious(format!("'{}' is no program: {}", first.display(), written())));
    }
    let mut dirs =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    dirs.push(PathBuf::new());
    let is_there = dirs.iter().any(|dir| dir.join(first).exists());
    Ok(if is_there { String::new() } else { format!(" ({})", written()) })
}

/// The names in the root directory that the program sees, and directories for trees in it.
pub(super) struct Machine<'a> {
    context: &'a Context,
    overlay: &'a Overlay,
    client: Client,
}

impl<'a> Machine<'a> {
    /// That of a tree that [`tree`] has opened.
    pub(super) fn of(context: &'a Context, overlay: &'a Overlay, tree: &Tree) -> Self {
        let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
        let client = Client::new(Arc::clone(&tree.service), runtime, context.trees.settings());
        Machine { context, overlay, client }
    }

    /// Whether something has the name in the root.
    pub(super) fn has(&self, name: &str) -> bool {
        // What cannot be looked at is there.
        !matches!(self.client.walk(name.as_bytes(), Follow::No), Err(error) if error.errno == Errno::ENOENT)
    }

    /// Adds to the tree what it lacks for the prefixes: names in the root, which are never a change.
    ///
    /// # Errors
    /// A sentence about a prefix where a tree cannot stand.
    pub(super) fn prepare(self, tree: &mut Tree, prefixes: &[Prefix]) -> Result<(), Failure> {
        let missing = prefixes.iter().map(|prefix| self.is_missing(prefix, prefixes));
        let missing = missing.collect::<Result<Vec<bool>, Failure>>()?;
        let paths = prefixes.iter().zip(missing).filter(|(_, missing)| *missing);
        let now = self.context.trees.runtime.wall();
        let refused = |why: String| Failure::serious(format!("no place for the trees: {why}"));
        let layer = Mountpoints::new(paths.map(|(prefix, _)| &*prefix.path), now)
            .map_err(|error| refused(error.to_string()))?;
        let stack = Stack::new(Arc::clone(&tree.service)).push(layer);
        tree.service = stack.map(Stack::service).map_err(|error| refused(error.to_string()))?;
        Ok(())
    }

    /// Whether the root has to get a directory for a prefix.
    fn is_missing(&self, prefix: &Prefix, all: &[Prefix]) -> Result<bool, Failure> {
        let path = &prefix.path;
        if path.starts_with(self.overlay.path()) {
            return Err(Failure::serious(format!(
                "'{}' is in the overlay itself, which is empty for the program: choose another prefix",
                path.display()
            )));
        }
        let found = |path: &Path, follow| self.client.walk(path.as_os_str().as_bytes(), follow);
        let top: PathBuf = path.components().take(2).collect();
        if matches!(found(&top, Follow::No), Err(error) if error.errno == Errno::ENOENT) {
            return Ok(true);
        }
        let is_in_another = all.iter().any(|other| other.path != *path && path.starts_with(&other.path));
        let is_there = is_in_another || found(path, Follow::Yes).is_ok_and(|found| found.is_dir());
        if is_there { Ok(false) } else { Err(Failure::serious(no_directory(path))) }
    }
}

/// Owner and permissions of the root directory.
fn root() -> std::io::Result<Attr> {
    let found = fs::metadata("/")?;
    Ok(Attr { mode: found.mode(), uid: found.uid(), gid: found.gid(), ..Attr::default() })
}
