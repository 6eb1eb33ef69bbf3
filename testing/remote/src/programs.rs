// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the host.

use anyhow::{Result, bail, ensure};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
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

/// Waits until this server, and no other program, listens at `port`: the system has no event for that. What it says is in `log`. It gets no
/// connection from here, which not every server takes well.
///
/// # Errors
/// When it ends, or does not listen in time, with what it said.
pub fn listens(server: &mut Child, port: u16, log: &Path) -> Result<()> {
    let said = || fs::read_to_string(log).unwrap_or_default();
    let until = Instant::now() + LIMIT;
    while !has_listening_socket(server.id(), port) {
        if let Some(status) = server.try_wait()? {
            bail!("the server ended with {status}: {}", said());
        }
        ensure!(Instant::now() < until, "the server does not listen: {}", said());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether one of the descriptors of a process is a TCP socket that listens at `port`.
fn has_listening_socket(pid: u32, port: u16) -> bool {
    let tables = ["tcp", "tcp6"]
        .map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    let sockets: Vec<String> = tables
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(|line| listening_inode(line, port))
        .collect();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors
        .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
        .any(|file| sockets.iter().any(|inode| file.as_os_str() == format!("socket:[{inode}]").as_str()))
}

/// The inode of the socket in a line of `/proc/net/tcp`, if it listens at `port`.
fn listening_inode(line: &str, port: u16) -> Option<String> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, at) = fields.get(1)?.rsplit_once(':')?;
    let listens = u16::from_str_radix(at, 16) == Ok(port) && *fields.get(3)? == LISTEN;
    listens.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
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
