// SPDX-License-Identifier: MIT OR Apache-2.0
//! An SSH server of our own, on a port of the loopback device, with keys of its own.

use crate::processes;
use crate::programs::{find, tool};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Dropping it ends it and its sessions.
#[derive(Debug)]
pub struct Sshd {
    dir: PathBuf,
    port: u16,
    process: Child,
}

/// sshd(8) wants this directory, empty, and only the boot scripts make it.
const PRIVSEP: &str = "/run/sshd";
static MADE_PRIVSEP: AtomicBool = AtomicBool::new(false);
const PATIENCE: Duration = Duration::from_secs(10);

impl Sshd {
    /// Starts it; its files go to `dir`, which is empty.
    pub fn start(dir: PathBuf) -> Result<Self> {
        let path = |name: &str| dir.join(name).display().to_string();
        for key in ["host", "client"] {
            tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &path(key)])?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let host = fs::read_to_string(path("host.pub"))?;
        fs::write(path("known"), format!("[127.0.0.1]:{port} {host}"))?;
        let configuration = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PidFile none\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 1000\n\
             Subsystem sftp internal-sftp\n",
            path("host"),
            path("client.pub")
        );
        fs::write(path("configuration"), configuration)?;
        MADE_PRIVSEP.store(fs::create_dir(PRIVSEP).is_ok(), Ordering::Relaxed);
        let log = fs::File::create(path("log"))?;
        // It must not outlive us, however we end.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(find("sshd").context("there is no sshd")?)
            .args(["-D", "-e", "-f", &path("configuration")])
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()?;
        let mut sshd = Sshd { dir, port, process };
        sshd.wait()?;
        Ok(sshd)
    }

    fn wait(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.process.try_wait()?;
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            ensure!(ended.is_none() && Instant::now() < until, "sshd does not listen: {}", log());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The command that mounts the directory `store` of this server, without the mountpoint.
    pub fn sshfs(&self, store: &Path) -> Result<Vec<String>> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let options = format!(
            "port={},IdentityFile={},UserKnownHostsFile={},BatchMode=yes",
            self.port,
            path("client"),
            path("known")
        );
        let source = format!("127.0.0.1:{}", store.display());
        Ok(["sshfs", "-F", "/dev/null", "-o", &options, &source].map(str::to_owned).to_vec())
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
}

/// Takes away what sshd(8) wanted, if it was not there before.
pub fn remove_privsep() {
    if MADE_PRIVSEP.swap(false, Ordering::Relaxed) {
        let _ = fs::remove_dir(PRIVSEP);
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.signal_sessions(Signal::KILL);
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove_privsep();
    }
}
