// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories of SSH servers, as the registry opens them.

use crate::{Options, Sftp};
use outrigger_core::registry::{Address, Given, HostTree, Site};
use outrigger_core::{Result, Serve, Service};
use std::sync::Arc;

/// Connects, and opens the directory.
pub(crate) fn open(at: &Address<'_>, given: &dyn Given, site: &Site<'_>) -> Result<Arc<dyn HostTree>> {
    let mut options = Options { port: at.port, ..Options::default() };
    options.timeout = site.limit(options.timeout);
    options.connect_timeout = site.limit(options.connect_timeout);
    given.apply(&mut |key, value| options.set(key, value))?;
    let (host, path, settings) = (at.host.to_owned(), at.path.to_vec(), options.clone());
    let (runtime, keep) = (Arc::clone(site.runtime), site.keep.cloned());
    let connected = site.wait_for(async move { Sftp::connect(&host, &path, settings, runtime, keep).await });
    let (host, path) = (at.host.to_owned(), at.path.to_vec());
    Ok(Arc::new(Directory { sftp: connected?, host, path, options }))
}

/// A directory that is open.
struct Directory {
    sftp: Sftp,
    host: String,
    path: Vec<u8>,
    options: Options,
}

impl HostTree for Directory {
    fn service(&self) -> Arc<dyn Service> {
        Arc::new(Serve(self.sftp.clone()))
    }

    fn absolute(&self, path: &[u8], site: &Site<'_>) -> Result<Vec<u8>> {
        let (sftp, path) = (self.sftp.clone(), path.to_vec());
        site.wait_for(async move { sftp.absolute(&path).await })
    }

    fn key(&self, site: &Site<'_>) -> Result<String> {
        let path = self.absolute(&self.path, site)?;
        let Options { command, ssh_command, ssh, config, port, server, .. } = &self.options;
        let reached = (&self.host, port, command, ssh_command, ssh, config, server);
        Ok(format!("sftp {reached:?} {}", path.escape_ascii()))
    }
}
