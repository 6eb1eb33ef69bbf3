// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories of other hosts as trees.

use super::DriverOptions;
use crate::context::Context;
use crate::status::Failure;
use outrigger_client::Client;
use outrigger_core::Runtime;
use outrigger_driver_sftp::{Options, Sftp};
use outrigger_layer_cache::{Options as CacheOptions, Writes};
use std::sync::Arc;

/// A tree that a command has opened.
#[derive(Clone)]
pub struct Opened {
    /// The tree.
    pub client: Client,
    /// Its driver, when it is all of a host's.
    pub(super) sftp: Option<Sftp>,
}

impl Opened {
    /// A path in the tree from the one a LOCATION names: on another host it is relative to the home of the user.
    ///
    /// # Errors
    /// A sentence about a home that is not known.
    pub fn path(&self, context: &Context, path: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let Some(sftp) = self.sftp.as_ref().filter(|_| !path.starts_with(b"/")) else { return Ok(path) };
        let absolute = context.runtime.handle().block_on(sftp.absolute(&path));
        absolute.map_err(|error| Failure::serious(format!("{}: {error}", String::from_utf8_lossy(&path))))
    }
}

/// How a mount of a host is cached, as the options among `options` say that are about that; they are taken out.
///
/// # Errors
/// A sentence about a value that makes no sense.
pub(super) fn cached(options: &mut DriverOptions) -> Result<CacheOptions, Failure> {
    let mut cache = CacheOptions::default();
    cache.policy.writes = Writes::Close;
    // The driver does that by itself, and knows what its connection carries.
    cache.read_ahead = 0;
    options.take(CacheOptions::knows).apply(|key, value| cache.set(key, value))?;
    Ok(cache)
}

/// All of a host.
///
/// # Errors
/// A sentence that says what ssh said.
pub(super) fn whole(
    context: &Context,
    host: &str,
    port: Option<u16>,
    options: &DriverOptions,
) -> Result<Sftp, Failure> {
    at(context, host, port, b"/", options)
}

/// The directory of a host at `path`, which may be relative to the home of the user.
///
/// # Errors
/// As [`whole`].
pub(super) fn at(
    context: &Context,
    host: &str,
    port: Option<u16>,
    path: &[u8],
    options: &DriverOptions,
) -> Result<Sftp, Failure> {
    let mut sftp = Options { port, ..Options::default() };
    if let Some(timeout) = context.options().timeout.filter(|timeout| !timeout.is_zero()) {
        (sftp.timeout, sftp.connect_timeout) = (timeout, timeout);
    }
    options.apply(|key, value| sftp.set(key, value))?;
    let runtime = Arc::clone(&context.runtime) as Arc<dyn Runtime>;
    let connect = Sftp::connect(host, path, sftp, runtime);
    context.runtime.handle().block_on(connect).map_err(|error| {
        let why = error.reason.as_deref().map_or_else(|| error.to_string(), str::to_owned);
        Failure::serious(format!("cannot open {host}: {why}"))
    })
}
