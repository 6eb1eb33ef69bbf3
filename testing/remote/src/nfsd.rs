// SPDX-License-Identifier: MIT OR Apache-2.0
//! NFS servers on ports of the loopback device: our own door in this process, and nfs-ganesha.

use crate::programs::{find, free_port};
use anyhow::{Context, Result, bail};
use outrigger_core::{Inline, Runtime, Service, Stack};
use outrigger_door_nfs::{Callers, KEY_LEN, Options, Server, Squash, Tree};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_layer_closesim::{CloseSim, Options as Opens};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_simulate::Simulate;
use outrigger_runtime::Threads;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(30);
/// Numbers of programs (RFC 1813).
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
/// How many ports are tried: between being found free and being taken, another program may take one.
const ATTEMPTS: usize = 5;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nfsd {
    /// Our own door over a directory: NFS and MOUNT at one port.
    Own,
    /// nfs-ganesha, whose MOUNT has a port of its own.
    Ganesha,
}

/// A server in use. Dropping it ends it.
pub struct NfsServer {
    kind: Nfsd,
    dir: PathBuf,
    /// Of NFS and of MOUNT.
    ports: [u16; 2],
    running: Option<Running>,
}

enum Running {
    Own { _runtime: Arc<Threads>, task: JoinHandle<()> },
    Program(Child),
}

impl Nfsd {
    /// A program it takes that is not here.
    pub fn missing(self) -> Option<&'static str> {
        let needs: &[&str] = match self {
            Nfsd::Own => &[],
            Nfsd::Ganesha => &["ganesha.nfsd", "rpcbind", "unshare", "mount"],
        };
        needs.iter().copied().find(|name| find(name).is_none())
    }

    /// Starts it for the directory `root` below `dir`, which is empty, and gets the other files. It is exported to every user of this
    /// machine as `/export`, and not squashed. Root only.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen before the deadline, with its output.
    pub fn start(self, dir: &Path) -> Result<NfsServer> {
        fs::create_dir(dir.join("root"))?;
        let mut server = NfsServer { kind: self, dir: dir.to_owned(), ports: [0; 2], running: None };
        for _ in 0..ATTEMPTS {
            server.ports = [free_port()?, free_port()?];
            match server.start() {
                Ok(()) => return Ok(server),
                Err(error) if error.to_string().contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("no port was free")
    }
}

/// In a mount namespace with a `/run` of its own, so that the server has a portmapper for itself: it does not start without.
/// That listens in a network namespace of its own, and is reached by a socket in `/run`.
const GANESHA: &str = "mount -t tmpfs tmpfs /run && mkdir /run/rpcbind && { unshare --net rpcbind -f -w & } && \
    until [ -S /run/rpcbind.sock ]; do sleep 0.05; done && exec \"$1\" -F -L \"$2/log\" -f \"$2/conf\" -p \"$2/pid\" -N EVENT";

impl NfsServer {
    /// The directory that it serves.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The path of the export.
    pub fn export(&self) -> String {
        match self.kind {
            Nfsd::Own => "/export".to_owned(),
            Nfsd::Ganesha => self.root().display().to_string(),
        }
    }

    /// The port of NFS.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The port of MOUNT.
    pub fn mount_port(&self) -> u16 {
        if self.kind == Nfsd::Own { self.ports[0] } else { self.ports[1] }
    }

    /// Starts it again, on the same ports.
    ///
    /// # Errors
    /// As [`Nfsd::start`].
    pub fn start(&mut self) -> Result<()> {
        self.running = Some(if self.kind == Nfsd::Own { self.own()? } else { self.ganesha()? });
        Ok(())
    }

    /// Ends it, as a crash would.
    pub fn stop(&mut self) {
        match self.running.take() {
            None => {}
            Some(Running::Own { _runtime: runtime, task }) => {
                task.abort();
                let _ = runtime.handle().block_on(task);
            }
            Some(Running::Program(mut child)) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn own(&self) -> Result<Running> {
        let runtime = Arc::new(Threads::new());
        let clock = Arc::clone(&runtime) as Arc<dyn Runtime>;
        let tree = Local::open(self.root(), LocalOptions::default())?;
        let stack = Stack::new(Arc::new(Inline::new(tree, Arc::clone(&clock))) as Arc<dyn Service>);
        let stack = stack.push(Simulate::new())?.push(CloseSim::new(Opens::default(), Arc::clone(&clock)))?;
        let service = stack.push(Permissions::new(clock).lenient_owner())?.service();
        let tree = Tree {
            name: "/export".to_owned(),
            identity: b"root".to_vec(),
            service,
            is_lasting: true,
            callers: None,
            paths: None,
        };
        let callers = Callers { any_port: true, squash: Squash::None, ..Callers::default() };
        let options = Options { callers, key: [7; KEY_LEN], held: 1000 };
        let listener = listener(self.ports[0])?;
        let server = runtime.handle().block_on(async { Server::on(listener, vec![tree], options) })?;
        let task = runtime.handle().spawn(async move { server.run().await });
        Ok(Running::Own { _runtime: runtime, task })
    }

    fn ganesha(&self) -> Result<Running> {
        let [nfs, mount] = self.ports;
        let (dir, root) = (self.dir.display(), self.root());
        let root = root.display();
        let configuration = format!(
            "NFS_CORE_PARAM {{ NFS_Protocols = 3; NFS_Port = {nfs}; MNT_Port = {mount}; Enable_NLM = false; Enable_RQUOTA = false; \
             Enable_UDP = false; Bind_addr = 127.0.0.1; }}\nNFSv4 {{ Graceless = true; RecoveryRoot = {dir}/recovery; }}\n\
             EXPORT {{ Export_Id = 1; Path = {root}; Pseudo = /export; Access_Type = RW; Squash = None; SecType = sys; \
             Transports = TCP; FSAL {{ Name = VFS; }} }}\n"
        );
        fs::write(self.dir.join("conf"), configuration)?;
        let log = fs::File::create(self.dir.join("log"))?;
        let ganesha = find("ganesha.nfsd").context("there is no ganesha.nfsd")?;
        let mut child = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", GANESHA, "sh"])
            .arg(ganesha)
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let begun = Instant::now();
        while !(serves(nfs, NFS) && serves(mount, MOUNT)) {
            if child.try_wait()?.is_some() || begun.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                bail!("nfs-ganesha: {}", fs::read_to_string(self.dir.join("log")).unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Running::Program(child))
    }
}

/// Whether a server answers the call of version 3 of a program that does nothing: it may listen before it has the program.
fn serves(port: u16, program: u32) -> bool {
    // The mark of the record, its number, a call of RPC 2, program, version and procedure, no credentials.
    let words: [u32; 11] = [1 << 31 | 40, 1, 0, 2, program, 3, 0, 0, 0, 0, 0];
    let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut reply = [0; 28];
    let mut asked = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&call)?;
        stream.read_exact(&mut reply)
    };
    // The last word is the status.
    asked().is_ok() && reply[24..] == [0; 4]
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Listens at a port. Between fork(2) and execve(2), a process that another test starts has a copy of the socket that a former server of
/// this process has closed: the port is free when that is over.
fn listener(port: u16) -> std::io::Result<TcpListener> {
    let until = Instant::now() + Duration::from_secs(1);
    loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < until => {
                thread::yield_now();
            }
            bound => return bound,
        }
    }
}
