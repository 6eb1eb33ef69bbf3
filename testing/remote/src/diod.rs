// SPDX-License-Identifier: MIT OR Apache-2.0
//! diod, a 9P server, on a port of the loopback device.

use crate::programs::{find, free_port, listens};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// How many ports are tried: between being found free and being taken, another program may take one.
const ATTEMPTS: usize = 5;

/// A server in use. Dropping it ends it.
#[derive(Debug)]
pub struct Diod {
    dir: PathBuf,
    port: u16,
    process: Option<Child>,
}

impl Diod {
    /// A program it takes that is not here.
    pub fn missing() -> Option<&'static str> {
        ["diod"].into_iter().find(|name| find(name).is_none())
    }

    /// The command that serves a directory at a port of the loopback device, in the foreground. It ignores SIGPIPE, as under systemd: else it
    /// would end when a client closes a connection before it has its replies.
    pub fn command(program: &Path, port: u16, root: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' PIPE; exec \"$0\" \"$@\""]).arg(program);
        command.args(["-f", "-n", "-N", "-c", "/dev/null", "-L", "stderr", "-l"]);
        command.arg(format!("127.0.0.1:{port}")).arg("-e").arg(root);
        command
    }

    /// Starts it for the directory `root` below `dir`, which is empty, and gets the other files. It believes the numbers of users.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen before the deadline, with its output.
    pub fn start(dir: &Path) -> Result<Self> {
        fs::create_dir(dir.join("root"))?;
        let mut server = Diod { dir: dir.to_owned(), port: 0, process: None };
        for _ in 0..ATTEMPTS {
            server.port = free_port()?;
            match server.again() {
                Ok(()) => return Ok(server),
                Err(error) if error.to_string().contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("no port was free")
    }

    /// The directory that it serves, which is also what it calls the tree.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts it again, at the same port.
    ///
    /// # Errors
    /// As [`Diod::start`].
    pub fn again(&mut self) -> Result<()> {
        let log = self.dir.join("log");
        let program = find("diod").context("there is no diod")?;
        let mut process = Diod::command(&program, self.port, &self.root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()?;
        let listening = listens(&mut process, self.port, &log);
        self.process = Some(process);
        if listening.is_err() {
            self.stop();
        }
        listening
    }

    /// Ends it, as a crash would.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Diod {
    fn drop(&mut self) {
        if thread::panicking() {
            let ended = self.process.as_mut().map(Child::try_wait);
            let said = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            eprintln!("diod at port {}: ended: {ended:?}, said: {said}", self.port);
        }
        self.stop();
    }
}
