// SPDX-License-Identifier: MIT OR Apache-2.0
//! An SSH server of our own, on a port of the loopback device, with keys of its own.

use crate::processes;
use crate::programs::{find, free_port, tool};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Dropping it ends it and its sessions.
#[derive(Debug)]
pub struct Sshd {
    dir: PathBuf,
    port: u16,
    process: Child,
}

/// What [`Sshd::configuration`] calls it.
pub const HOST: &str = "remote";

/// What it takes.
const NEEDS: &[&str] = &["sshd", "ssh", "ssh-keygen", "setpriv"];

/// sshd(8) wants this directory, and only the boot scripts make it. It stays: another server may need it.
const PRIVSEP: &str = "/run/sshd";
const PATIENCE: Duration = Duration::from_secs(30);
/// How many ports are tried: between being found free and being taken, another program may take one.
const ATTEMPTS: usize = 5;

impl Sshd {
    /// A program it takes that is not here.
    pub fn missing() -> Option<&'static str> {
        NEEDS.iter().copied().find(|name| find(name).is_none())
    }

    /// Starts it; its files go to `dir`, which is empty.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen before the deadline, with its output.
    pub fn start(dir: PathBuf) -> Result<Self> {
        for key in ["host", "client"] {
            tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &file(&dir, key)])?;
        }
        let _ = fs::create_dir(PRIVSEP);
        let mut failure = None;
        for _ in 0..ATTEMPTS {
            let port = free_port()?;
            match listen(&dir, port) {
                Ok(process) => return Ok(Sshd { dir, port, process }),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.context("no port was tried")?)
    }

    /// The file for `ssh -F` that knows it as [`HOST`].
    pub fn configuration(&self) -> PathBuf {
        self.dir.join("ssh_config")
    }

    /// The same for another port, as of a [`crate::Line`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn configuration_by(&self, port: u16) -> Result<PathBuf> {
        configure(&self.dir, &format!("ssh_config.{port}"), port)
    }

    /// The private key that it lets in.
    pub fn key(&self) -> PathBuf {
        self.dir.join("client")
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The command that mounts the directory `store` of this server with sshfs, without the mountpoint.
    pub fn sshfs(&self, store: &Path) -> Vec<String> {
        let configuration = self.configuration().display().to_string();
        let source = format!("{HOST}:{}", store.display());
        ["sshfs", "-F", &configuration, &source].map(str::to_owned).to_vec()
    }

    /// The processes that talk to clients.
    pub fn sessions(&self) -> Vec<Pid> {
        processes::descendants(self.process.id() as i32)
    }

    /// Sends a signal to every session.
    pub fn signal_sessions(&self, signal: Signal) {
        for session in self.sessions() {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process(session, signal);
        }
    }

    /// Ends it and its sessions; its port refuses connections then.
    pub fn stop(&mut self) {
        self.signal_sessions(Signal::KILL);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.stop();
    }
}

fn file(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

/// Writes what ssh has to know to reach the server by a port.
fn configure(dir: &Path, name: &str, port: u16) -> Result<PathBuf> {
    let client = format!(
        "Host {HOST}\nHostName 127.0.0.1\nHostKeyAlias {HOST}\nPort {port}\nIdentityFile {}\nIdentitiesOnly yes\n\
         UserKnownHostsFile {}\nGlobalKnownHostsFile none\nStrictHostKeyChecking yes\nBatchMode yes\n",
        file(dir, "client"),
        file(dir, "known")
    );
    let path = dir.join(name);
    fs::write(&path, client)?;
    Ok(path)
}

/// Starts a server and waits until it listens.
fn listen(dir: &Path, port: u16) -> Result<Child> {
    let path = |name: &str| file(dir, name);
    let host = fs::read_to_string(path("host.pub"))?;
    fs::write(path("known"), format!("{HOST} {host}"))?;
    // The user's shell reads no start file of the machine there: one that waits for something would make every command wait.
    let home = path("home");
    fs::create_dir_all(&home)?;
    let server = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
         PidFile none\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 1000\n\
         Subsystem sftp internal-sftp\nSetEnv HOME={home}\n",
        path("host"),
        path("client.pub")
    );
    fs::write(path("configuration"), server)?;
    configure(dir, "ssh_config", port)?;
    // It must not outlive us, however we end.
    let mut process = Command::new("setpriv")
        .args(["--pdeathsig", "TERM"])
        .arg(find("sshd").context("there is no sshd")?)
        .args(["-D", "-e", "-f", &path("configuration")])
        .stdin(Stdio::null())
        .stderr(fs::File::create(path("log"))?)
        .spawn()?;
    let log = || fs::read_to_string(path("log")).unwrap_or_default();
    let until = Instant::now() + PATIENCE;
    // Another program may listen there, and then ours has ended.
    while !log().contains("Server listening") || TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > until {
            let _ = process.kill();
            let _ = process.wait();
            bail!("sshd does not listen: {}", log());
        }
        ensure!(process.try_wait()?.is_none(), "sshd does not listen: {}", log());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(process)
}
