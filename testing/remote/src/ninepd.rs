// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our own 9P door over a directory, in this process.

use anyhow::Result;
use outrigger_core::{Inline, Runtime, Service, Stack};
use outrigger_door_ninep::{Callers, Listener, NoUsers, Server, Squash, Tree};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_simulate::Simulate;
use outrigger_runtime::Threads;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A server in use. Dropping it ends it.
pub struct Ninepd {
    root: PathBuf,
    port: u16,
    runtime: Arc<Threads>,
    task: JoinHandle<()>,
}

impl Ninepd {
    /// Starts it for the directory `root` below `dir`, which is empty. Every user of this machine may attach, as whom they say.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(dir: &Path) -> Result<Self> {
        let root = dir.join("root");
        fs::create_dir(&root)?;
        let runtime = Arc::new(Threads::new());
        let clock = Arc::clone(&runtime) as Arc<dyn Runtime>;
        let tree = Local::open(&root, LocalOptions::default())?;
        let stack = Stack::new(Arc::new(Inline::new(tree, Arc::clone(&clock))) as Arc<dyn Service>);
        let service = stack.push(Simulate::new())?.push(Permissions::new(clock))?.service();
        let callers = Callers { any_port: true, squash: Squash::None, ..Callers::default() };
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let trees = vec![Tree { name: "/".to_owned(), service, callers }];
        let server = runtime
            .handle()
            .block_on(async { Server::on(Listener::Tcp(listener), trees, Arc::new(NoUsers)) })?;
        let task = runtime.handle().spawn(async move { server.run().await });
        Ok(Ninepd { root, port, runtime, task })
    }

    /// The directory that it serves.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Ninepd {
    fn drop(&mut self) {
        self.task.abort();
        let _ = self.runtime.handle().block_on(&mut self.task);
    }
}
