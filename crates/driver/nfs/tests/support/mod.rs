// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real servers, and this driver connected to them.

use outrigger_core::{Keep, Result, Runtime};
use outrigger_driver_nfs::{Nfs, Options};
use outrigger_remote::{NfsServer, Nfsd};
use outrigger_runtime::Threads;
use std::sync::Arc;
use tempfile::TempDir;

/// A server that runs. The directory goes last.
pub struct Far {
    pub server: NfsServer,
    pub runtime: Arc<Threads>,
    _dir: TempDir,
}

/// Starts a server; `None` where it cannot be, and says so.
pub fn far(kind: Nfsd) -> Option<Far> {
    let missing = kind.missing().or((!rustix::process::geteuid().is_root()).then_some("right to be root"));
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        println!("SKIPPED: there is no {missing}, for {kind:?}");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    // Users without privileges must get there.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("its owner");
    let server = kind.start(dir.path()).expect("a server");
    Some(Far { server, runtime: Arc::new(Threads::new()), _dir: dir })
}

impl Far {
    /// Connects to its export by way of `port`, with these options.
    pub fn connect_to(
        &self,
        port: u16,
        options: &[(&str, &str)],
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Nfs> {
        let mut set =
            Options { port: Some(port), mountport: Some(self.server.mount_port()), ..Options::default() };
        for (key, value) in options {
            set.set(key, value).expect("an option");
        }
        let (host, export) = ("127.0.0.1".to_owned(), self.server.export());
        let runtime = Arc::clone(&self.runtime) as Arc<dyn Runtime>;
        let connected = Nfs::connect(host, Some(export.as_bytes()), set, runtime, keep);
        self.runtime.handle().block_on(connected)
    }

    /// Connects, with these options.
    pub fn connect(&self, options: &[(&str, &str)]) -> Nfs {
        self.connect_to(self.server.port(), options, None).expect("connected")
    }
}
