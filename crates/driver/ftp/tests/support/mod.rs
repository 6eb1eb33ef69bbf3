// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real servers, and this driver connected to them.

use outrigger_core::{Keep, Result, Runtime};
use outrigger_driver_ftp::{Ftp, Options, connect};
use outrigger_remote::{FtpServer, Ftpd};
use outrigger_runtime::Threads;
use outrigger_toolkit_remote::{Authority, FileOptions};
use std::sync::Arc;
use tempfile::TempDir;

/// A server that runs. The directory goes last.
pub struct Far {
    pub server: FtpServer,
    pub runtime: Arc<Threads>,
    _dir: TempDir,
}

/// Starts a server; `None` where it cannot be, and says so.
pub fn far(kind: Ftpd) -> Option<Far> {
    let missing = kind.missing().or((!rustix::process::geteuid().is_root()).then_some("right to be root"));
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        println!("SKIPPED: there is no {missing}, for {kind:?}");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let server = kind.start(dir.path()).expect("a server");
    Some(Far { server, runtime: Arc::new(Threads::new()), _dir: dir })
}

impl Far {
    /// Connects to `port`, with these options.
    pub fn connect_to(
        &self,
        place: &str,
        options: &[(&str, &str)],
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Ftp> {
        let files = FileOptions { netrc: None, ..FileOptions::default() };
        let mut set = Options { files, ..Options::default() };
        for (key, value) in options {
            set.set(key, value).expect("an option");
        }
        let server = Authority::parse(place).expect("a server");
        let runtime = Arc::clone(&self.runtime) as Arc<dyn Runtime>;
        self.runtime.handle().block_on(connect(server, set, runtime, keep))
    }

    /// Connects, with these options.
    pub fn connect(&self, options: &[(&str, &str)]) -> Ftp {
        self.connect_to(&self.server.place(self.server.port()), options, None).expect("connected")
    }
}
