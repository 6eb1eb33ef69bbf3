// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the columns are made of: trees that are named, opened as a service and mounted.

use outrigger_conformance::mount::Exceptions;
use outrigger_core::{Inline, Prompt, Result, Runtime, Serve, Service};
use outrigger_runtime::Threads;
use rustix::fs::Mode;
use std::any::Any;
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

pub type Outcome<T> = std::result::Result<T, Box<dyn Error>>;

/// Opens a service whose tasks run on these threads.
type Opening = dyn FnOnce(&Arc<Threads>) -> Outcome<Arc<dyn Service>>;

/// A tree, whose server runs as long as this is there.
pub struct Tree {
    /// What `outrigger mount` is asked to mount.
    pub location: String,
    /// Further options of that, each with a comma before it.
    pub options: String,
    /// Opens it as a service.
    pub open: Box<Opening>,
    _server: Box<dyn Any>,
}

/// A kind of tree.
pub struct Subject {
    /// Its name in the matrix.
    pub name: &'static str,
    /// A program that it takes, and is not here.
    pub missing: fn() -> Option<String>,
    /// Makes a new one, whose files go to an empty directory.
    pub start: fn(&Path) -> Outcome<Tree>,
    /// Whether it has the sample tree, and is only read.
    pub has_sample: bool,
    /// Whether it is also asked as a service.
    pub is_service: bool,
    /// What does not hold on the service.
    pub direct: &'static [Exceptions],
    /// What does not hold through a mount.
    pub mounted: &'static [Exceptions],
}

impl Subject {
    /// One that can be changed, where everything holds and nothing is missing: the rest of a description after `..`.
    pub const fn new(name: &'static str, start: fn(&Path) -> Outcome<Tree>) -> Self {
        Subject {
            name,
            missing: || None,
            start,
            has_sample: false,
            is_service: true,
            direct: &[],
            mounted: &[],
        }
    }
}

impl Tree {
    pub fn new(
        location: impl Into<String>,
        server: impl Any,
        open: impl FnOnce(&Arc<Threads>) -> Outcome<Arc<dyn Service>> + 'static,
    ) -> Self {
        let (location, options) = (location.into(), String::new());
        Tree { location, options, open: Box::new(open), _server: Box::new(server) }
    }

    /// The same, mounted with these options.
    pub fn with(self, options: impl Into<String>) -> Self {
        Tree { options: options.into(), ..self }
    }
}

/// The service of a driver that answers at once, on this machine.
pub fn prompt(threads: &Arc<Threads>, driver: impl Prompt + 'static) -> Arc<dyn Service> {
    Arc::new(Inline::new(driver, Arc::clone(threads) as Arc<dyn Runtime>))
}

/// The service of a driver that connects on `threads`.
pub fn connected<D>(
    threads: &Threads,
    connecting: impl Future<Output = Result<D>>,
) -> Outcome<Arc<dyn Service>>
where
    Serve<D>: Service + 'static,
{
    let driver = threads.handle().block_on(connecting).map_err(|error| error.to_string())?;
    Ok(Arc::new(Serve(driver)))
}

/// A new directory that users without privileges can enter.
pub fn directory() -> Outcome<TempDir> {
    // What is started here must not inherit the mask of the cases before, which is empty.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    Ok(dir)
}

/// A new directory in another one.
pub fn below(dir: &Path, name: &str) -> Outcome<std::path::PathBuf> {
    let path = dir.join(name);
    std::fs::create_dir(&path)?;
    Ok(path)
}
