// SPDX-License-Identifier: MIT OR Apache-2.0
//! A real server, and this driver connected to it.

use outrigger_conformance::Direct;
use outrigger_core::{Keep, Result, Runtime, Serve};
use outrigger_driver_ninep::{NineP, Options};
use outrigger_remote::Diod;
use outrigger_runtime::Threads;
use std::sync::Arc;
use tempfile::TempDir;

/// A server that runs. The directory goes last.
pub struct Far {
    pub server: Diod,
    pub runtime: Arc<Threads>,
    _dir: TempDir,
}

/// Connects to the tree called `aname` of a server at a port of this machine, with these options.
pub fn connect(
    runtime: &Arc<Threads>,
    (port, aname): (u16, String),
    options: &[(&str, &str)],
    keep: Option<Arc<dyn Keep>>,
) -> Result<NineP> {
    let mut set = Options { aname: Some(aname), ..Options::default() };
    for (key, value) in options {
        set.set(key, value).expect("an option");
    }
    let clock = Arc::clone(runtime) as Arc<dyn Runtime>;
    let connected = NineP::connect(format!("127.0.0.1:{port}"), set, clock, keep);
    runtime.handle().block_on(connected)
}

/// Starts a server; `None` where it cannot be, and says so.
pub fn far() -> Option<Far> {
    let missing = Diod::missing().or((!rustix::process::geteuid().is_root()).then_some("right to be root"));
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        println!("SKIPPED: there is no {missing}");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    // Users without privileges must get there.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("its owner");
    let server = Diod::start(dir.path()).expect("a server");
    Some(Far { server, runtime: Arc::new(Threads::new()), _dir: dir })
}

impl Far {
    /// Connects to its tree by way of `port`, with these options.
    pub fn connect_to(
        &self,
        port: u16,
        options: &[(&str, &str)],
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<NineP> {
        connect(&self.runtime, (port, self.server.root().display().to_string()), options, keep)
    }

    /// Connects, as programs have it.
    pub fn direct(&self) -> Direct {
        let connected = self.connect_to(self.server.port(), &[], None).expect("connected");
        Direct::new(Arc::new(Serve(connected)))
    }
}
