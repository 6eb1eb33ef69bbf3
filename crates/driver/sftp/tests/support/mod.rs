// SPDX-License-Identifier: MIT OR Apache-2.0
//! OpenSSH's server on a directory of its own, without ssh.

use outrigger_core::Runtime;
use outrigger_driver_sftp::{Options, Sftp};
use outrigger_runtime::Threads;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Where distributions put it.
const SERVERS: &[&str] =
    &["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server"];

/// A served directory. The directory goes last.
pub struct Served {
    pub sftp: Sftp,
    _runtime: Arc<Threads>,
    _dir: TempDir,
}

/// Serves an empty directory; `None` where there is no server.
pub fn serve() -> Option<Served> {
    let Some(server) = SERVERS.iter().find(|server| Path::new(server).exists()) else {
        println!("SKIPPED: there is no sftp-server of OpenSSH");
        return None;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = Options::default();
    options.set("command", server).expect("an option");
    let runtime = Arc::new(Threads::new());
    let path = dir.path().as_os_str().as_encoded_bytes();
    let connect = Sftp::connect("localhost", path, options, Arc::clone(&runtime) as Arc<dyn Runtime>, None);
    let sftp = runtime.handle().block_on(connect).expect("connected");
    Some(Served { sftp, _runtime: runtime, _dir: dir })
}
