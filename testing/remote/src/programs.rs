// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the host.

use anyhow::{Result, bail, ensure};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Ports that Linux gives to no connection by itself (`net.ipv4.ip_local_port_range` begins at 32768): one of them is still free when a
/// server is started again.
const PORTS: Range<u16> = 15_000..32_000;
/// How long a server may take to listen.
const LIMIT: Duration = Duration::from_secs(30);

/// Where a command is, also among those of the administrator.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|dir| Path::new(dir).join(name))
        .find(|file| file.is_file())
}

/// Runs a command to its end.
pub fn tool(name: &str, arguments: &[&str]) -> Result<()> {
    let command = find(name).unwrap_or_else(|| name.into());
    let output = Command::new(command).args(arguments).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Waits until a server listens at `port`: the system has no event for that. What it says is in `log`.
///
/// # Errors
/// When it ends, or does not listen in time, with what it said.
pub fn listens(server: &mut Child, port: u16, log: &Path) -> Result<()> {
    let said = || fs::read_to_string(log).unwrap_or_default();
    let until = Instant::now() + LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = server.try_wait()? {
            bail!("the server ended with {status}: {}", said());
        }
        ensure!(Instant::now() < until, "the server does not listen: {}", said());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A port of the loopback device at which nothing listens. Another program may take it before a server does.
///
/// # Errors
/// When none is found.
pub fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let chance = RandomState::new().build_hasher().finish() % PORTS.len() as u64;
        let port = PORTS.start + chance as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}
