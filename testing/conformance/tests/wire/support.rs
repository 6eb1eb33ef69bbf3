// SPDX-License-Identifier: MIT OR Apache-2.0
//! A served tree, and clients of it.

use outrigger_conformance::Direct;
use outrigger_core::{Inline, Keep, Notice, Notify, Result, Runtime, Service, Stack, lock};
use outrigger_door_wire::{Options as Serving, Server};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_wire::{Options, Wire};
use outrigger_layer_closesim::CloseSim;
use outrigger_layer_simulate::Simulate;
use outrigger_runtime::Threads;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// For as long as something that has to come is waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// A directory that is served at a socket. The directory goes last.
pub struct Far {
    pub runtime: Arc<Threads>,
    pub server: Server,
    listening: Option<JoinHandle<std::io::Result<()>>>,
    dir: TempDir,
}

/// The driver with what a door without opens needs above it.
pub fn stacked(driver: Arc<dyn Service>, runtime: &Arc<Threads>) -> Arc<dyn Service> {
    let opens = CloseSim::new(Default::default(), runtime.clone());
    Stack::new(driver).push(Simulate::new()).unwrap().push(opens).unwrap().service()
}

/// Serves a directory of this machine.
fn serve(tree: &Path, runtime: &Arc<Threads>) -> Server {
    let local = Local::open(tree, LocalOptions::default()).unwrap();
    let service = stacked(Arc::new(Inline::new(local, runtime.clone())), runtime);
    let serving = Serving {
        service,
        runtime: runtime.clone(),
        release: "test".into(),
        one_user: None,
        directory: Some(tree.to_owned()),
    };
    let _inside = runtime.handle().enter();
    Server::new(serving).unwrap()
}

impl Far {
    /// A directory of this machine.
    pub fn local() -> Far {
        let (runtime, dir) = (Arc::new(Threads::new()), tempfile::tempdir().unwrap());
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        let server = serve(&dir.path().join("tree"), &runtime);
        let mut far = Far { runtime, server, listening: None, dir };
        far.listen();
        far
    }

    /// Takes connections.
    pub fn listen(&mut self) {
        let (server, socket) = (self.server.clone(), self.socket());
        let _ = std::fs::remove_file(&socket);
        let _inside = self.runtime.handle().enter();
        let listener = UnixListener::bind(socket).unwrap();
        self.listening = Some(self.runtime.handle().spawn(async move { server.listen(listener).await }));
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// What is served.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("tree").join(name)
    }

    /// A client with these options.
    pub fn connect(&self, options: Options, keep: Option<Arc<dyn Keep>>) -> Result<Wire> {
        let at = format!("unix:{}", self.socket().display().to_string().replace('/', "%2F"));
        let runtime = Arc::clone(&self.runtime) as Arc<dyn Runtime>;
        self.runtime
            .handle()
            .block_on(async move { Wire::connect("wire", &at, options, runtime, keep).await })
    }

    /// A client, as programs have it.
    pub fn direct(&self) -> Direct {
        Direct::new(Arc::new(self.connect(Options::default(), None).unwrap()))
    }

    /// A client, and what it is told.
    pub fn told(&self) -> (Direct, Arc<Told>) {
        let (wire, told) = (self.connect(Options::default(), None).unwrap(), Arc::<Told>::default());
        wire.attach(told.clone());
        (Direct::new(Arc::new(wire)), told)
    }
}

/// Notices that have come.
#[derive(Default)]
pub struct Told(Mutex<Vec<Notice>>, Condvar);

impl Notify for Told {
    fn notify(&self, notice: Notice) {
        lock(&self.0).push(notice);
        self.1.notify_all();
    }
}

impl Told {
    /// Waits for a notice that is like this.
    pub fn wait(&self, is_it: impl Fn(&Notice) -> bool) {
        let (until, mut told) = (Instant::now() + LIMIT, lock(&self.0));
        while !told.iter().any(&is_it) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it was not told, but {:?}", *told);
            told = self.1.wait_timeout(told, left).unwrap().0;
        }
    }

    pub fn clear(&self) {
        lock(&self.0).clear();
    }

    pub fn all(&self) -> Vec<Notice> {
        lock(&self.0).clone()
    }
}

impl Far {
    /// Ends all connections, as a crash of the server would, and takes new ones: the tree stays.
    pub fn cut(&mut self) {
        self.stop();
        self.server = self.again();
        self.listen();
    }

    /// Has the socket lead to the tree of another one.
    pub fn replace(&mut self, other: &Far) {
        self.stop();
        self.server = other.server.clone();
        self.listen();
    }

    fn stop(&mut self) {
        self.listening.take().iter().for_each(JoinHandle::abort);
        self.runtime.handle().block_on(self.server.close(LIMIT));
    }

    fn again(&self) -> Server {
        serve(&self.at(""), &self.runtime)
    }
}
