// SPDX-License-Identifier: MIT OR Apache-2.0
//! A 9P server of our own, the door in this process, on a port of the loopback device.

use anyhow::Result;
use outrigger_core::{Inline, Runtime, Service, Stack};
use outrigger_door_ninep::{Account, Callers, Listener, Server, Squash, Tree, Users};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_simulate::Simulate;
use outrigger_runtime::Threads;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The name of the superuser.
const ROOT: &str = "root";

/// The users that the server knows, each with its group. Only the superuser has a name.
struct Known(Vec<(u32, u32)>);

impl Users for Known {
    fn by_number(&self, uid: u32) -> Option<Account> {
        let (uid, gid) = *self.0.iter().chain([&(0, 0)]).find(|(known, _)| *known == uid)?;
        Some(Account { uid, gid, groups: vec![gid] })
    }
    fn by_name(&self, name: &[u8]) -> Option<Account> {
        if name == ROOT.as_bytes() { self.by_number(0) } else { None }
    }
    fn user_name(&self, uid: u32) -> Option<String> {
        (uid == 0).then(|| ROOT.to_owned())
    }
    fn group_name(&self, gid: u32) -> Option<String> {
        (gid == 0).then(|| ROOT.to_owned())
    }
    fn group_number(&self, name: &[u8]) -> Option<u32> {
        (name == ROOT.as_bytes()).then_some(0)
    }
}

/// A server in use. Dropping it ends it.
#[derive(Debug)]
pub struct NinepServer {
    root: PathBuf,
    port: u16,
    task: JoinHandle<()>,
    runtime: Arc<Threads>,
}

impl NinepServer {
    /// Starts it for the directory `root` below `dir`, which is empty. It believes the numbers of users, and
    /// knows the groups of these; the superuser has a name, too. Root only.
    ///
    /// # Errors
    /// When the directory cannot be made or opened, or no port is free.
    pub fn start(dir: &Path, users: &[(u32, u32)]) -> Result<Self> {
        let root = dir.join("root");
        fs::create_dir(&root)?;
        let runtime = Arc::new(Threads::new());
        let clock = Arc::clone(&runtime) as Arc<dyn Runtime>;
        let tree = Local::open(&root, LocalOptions::default())?;
        let stack = Stack::new(Arc::new(Inline::new(tree, Arc::clone(&clock))) as Arc<dyn Service>);
        let service = stack.push(Simulate::new())?.push(Permissions::new(clock))?.service();
        let callers = Callers { any_port: true, squash: Squash::None, ..Callers::default() };
        let tree = Tree { name: root.display().to_string(), service, callers };
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let users = Known(users.to_vec());
        let made = async { Server::on(Listener::Tcp(listener), vec![tree], Arc::new(users)) };
        let server = runtime.handle().block_on(made)?;
        let task = runtime.handle().spawn(async move { server.run().await });
        Ok(NinepServer { root, port, task, runtime })
    }

    /// The directory that it serves, which is also what it calls the tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for NinepServer {
    fn drop(&mut self) {
        self.task.abort();
        let _ = self.runtime.handle().block_on(&mut self.task);
    }
}
