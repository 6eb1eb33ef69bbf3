// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the tree a LOCATION names. The only place that knows which drivers and layers there are.

use crate::context::Context;
use crate::location::{Base, Location};
use crate::status::Failure;
use outrigger_client::Client;
use outrigger_core::{Inline, Service};
use outrigger_driver_local::{Local, LocalOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Takes the path inside the innermost tree off `location`, which then names just that tree.
///
/// For a host path the tree is the whole host, so that symbolic links lead where they lead elsewhere.
///
/// # Errors
/// When the working directory cannot be found out.
pub fn path_within(location: &mut Location) -> Result<Vec<u8>, Failure> {
    if let Some(path) = location.nested.pop() {
        return Ok(path);
    }
    match &mut location.base {
        Base::Host(path) => {
            let absolute = absolute(std::mem::replace(path, PathBuf::from("/")))?;
            Ok(absolute.into_os_string().as_bytes().to_vec())
        }
        Base::Remote { path, .. } => Ok(std::mem::take(path)),
        Base::Url { .. } => Ok(Vec::new()),
    }
}

fn absolute(path: PathBuf) -> Result<PathBuf, Failure> {
    if path.is_absolute() || path.as_os_str().is_empty() {
        return Ok(path);
    }
    let here = std::env::current_dir()
        .map_err(|error| Failure::serious(format!("cannot find out the working directory: {error}")))?;
    Ok(here.join(path))
}

/// Opens the tree `location` names.
///
/// # Errors
/// A sentence that names the part which cannot be opened, and why.
pub fn open(context: &Context, location: &Location) -> Result<Client, Failure> {
    let service = base(context, &location.base)?;
    let client = Client::new(service, context.runtime.clone(), context.settings());
    Ok(client)
}

fn base(context: &Context, base: &Base) -> Result<Arc<dyn Service>, Failure> {
    match base {
        Base::Host(path) => local(context, path),
        Base::Url { scheme, .. } => {
            Err(Failure::serious(format!("no driver for {scheme}: see `outrigger drivers`")))
        }
        Base::Remote { host, .. } => Err(Failure::serious(format!("{host}: no driver for sftp yet"))),
    }
}

fn local(context: &Context, path: &Path) -> Result<Arc<dyn Service>, Failure> {
    let driver = Local::open(path, LocalOptions::default())
        .map_err(|error| Failure::serious(format!("cannot open '{}': {error}", path.display())))?;
    Ok(Arc::new(Inline::new(driver, context.runtime.clone())))
}
