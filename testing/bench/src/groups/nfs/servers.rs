// SPDX-License-Identifier: MIT OR Apache-2.0
//! The servers that are compared, each with a port of its own on the loopback device.

use super::super::Bench;
use super::client::Client;
use super::{GANESHA, OURS};
use crate::programs::Process;
use crate::{priority, watch};
use anyhow::{Context, Result, anyhow, bail, ensure};
use outrigger_proto_nfs3::mount::{DirPath, procedure as mount};
use outrigger_proto_nfs3::types::FileHandle;
use outrigger_remote::Diod;
use outrigger_remote::programs::find;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// In these parts of a second the kernel tells processor times (`USER_HZ`).
const TICKS: f64 = 100.0;

/// How long a server may take to start.
const DEADLINE: Duration = Duration::from_secs(60);
const SHORT_WAIT: Duration = Duration::from_millis(20);
/// The port of rpcbind(8).
const PORTMAP: u16 = 111;
/// Where Debian has the parts of nfs-ganesha.
const PLUGINS: &str = "/usr/lib/x86_64-linux-gnu/ganesha";

/// A server in use. Dropping it ends it.
pub struct Server {
    /// The column of the table.
    pub name: &'static str,
    /// Where it answers.
    pub address: SocketAddr,
    /// Where it answers calls of MOUNT, if it is one of NFS.
    pub mount: SocketAddr,
    /// What it exports.
    pub path: String,
    process: Process,
    /// What it needs beside it.
    _helper: Option<Process>,
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A port that nothing uses.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(local(0))?.local_addr()?.port())
}

/// `outrigger serve` by this protocol, with these further arguments.
///
/// # Errors
/// When it does not start.
pub fn outrigger(bench: &Bench, protocol: &str, arguments: &[&Path]) -> Result<Server> {
    watch::step("starting outrigger serve", DEADLINE);
    let mut command = Command::new(&bench.outrigger);
    command.args(["serve", protocol, "--listen", "127.0.0.1:0", "--insecure", "--squash", "none"]);
    let mut process = Process::start(command.args(arguments).stdout(Stdio::piped()))?;
    let mut line = String::new();
    let out = process.stdout().context("standard output is a pipe")?;
    BufReader::new(out).read_line(&mut line)?;
    let address = line.split(' ').next().and_then(|address| address.parse().ok());
    let address = address.with_context(|| format!("{command:?} says {line:?}"))?;
    priority::raise_sessions(process.id());
    Ok(Server { name: OURS, address, mount: address, path: "/".to_owned(), process, _helper: None })
}

/// diod, with the directory `store`.
///
/// # Errors
/// When it does not start.
pub fn diod(program: &Path, store: &Path) -> Result<Server> {
    watch::step("starting diod", DEADLINE);
    let address = local(free_port()?);
    let mut command = Diod::command(program, address.port(), store);
    let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    until_it_listens(&mut process, address, "diod")?;
    priority::raise_sessions(process.id());
    let path = store.to_string_lossy().into_owned();
    Ok(Server { name: "diod", address, mount: address, path, process, _helper: None })
}

/// nfs-ganesha, with its files in `dir`.
///
/// # Errors
/// When it does not start, with the end of its log.
pub fn ganesha(program: &Path, store: &Path, dir: &Path) -> Result<Server> {
    watch::step("starting nfs-ganesha", DEADLINE);
    let helper = portmap()?;
    let (port, mount_port) = (free_port()?, free_port()?);
    let (log, configuration) = (dir.join("ganesha.log"), dir.join("ganesha.conf"));
    fs::write(&configuration, configuration_of(port, mount_port, store))?;
    let mut command = Command::new(program);
    command
        .arg("-F")
        .arg("-f")
        .arg(&configuration)
        .arg("-L")
        .arg(&log)
        .arg("-p")
        .arg(dir.join("ganesha.pid"));
    let output = File::create(dir.join("ganesha.out"))?;
    let process = Process::start(command.stdout(output.try_clone()?).stderr(output))?;
    let path = store.to_string_lossy().into_owned();
    let (address, mount) = (local(port), local(mount_port));
    let mut server = Server { name: GANESHA, address, mount, path, process, _helper: helper };
    let start = Instant::now();
    loop {
        let said = || last_lines(&log);
        if let Some(status) = server.process.try_wait()? {
            bail!("{command:?}: {status}: {}", said());
        }
        match server.mount() {
            Ok(_) => break,
            Err(error) => ensure!(start.elapsed() < DEADLINE, "{command:?}: {error:#}: {}", said()),
        }
        thread::sleep(SHORT_WAIT);
    }
    priority::raise_sessions(server.process.id());
    Ok(server)
}

fn configuration_of(port: u16, mount_port: u16, store: &Path) -> String {
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; MNT_Port = {mount_port}; Protocols = 3; Bind_addr = 127.0.0.1; Clustered = false;\n\
         \x20 Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; Plugins_Dir = \"{PLUGINS}\"; }}\n\
         NFSv4 {{ Graceless = true; }}\n\
         NFS_KRB5 {{ Active_krb5 = false; }}\n\
         LOG {{ Default_Log_Level = WARN; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{store}\"; Pseudo = /store; Protocols = 3; Transports = TCP; SecType = sys;\n\
         \x20 Access_Type = RW; Squash = No_Root_Squash; PrivilegedPort = false; FSAL {{ Name = VFS; }} }}\n",
        store = store.display(),
    )
}

/// nfs-ganesha registers its ports; `None` where rpcbind(8) runs already.
fn portmap() -> Result<Option<Process>> {
    if TcpStream::connect(local(PORTMAP)).is_ok() {
        return Ok(None);
    }
    let rpcbind: PathBuf = find("rpcbind").context("nfs-ganesha needs rpcbind (make bench-deps)")?;
    let mut process = Process::start(Command::new(rpcbind).arg("-f"))?;
    until_it_listens(&mut process, local(PORTMAP), "rpcbind")?;
    Ok(Some(process))
}

/// Waits for a server: the system has no event for that.
fn until_it_listens(process: &mut Process, address: SocketAddr, name: &str) -> Result<()> {
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        let ended = process.try_wait()?;
        ensure!(ended.is_none() && start.elapsed() < DEADLINE, "{name} does not start: {ended:?}");
        thread::sleep(SHORT_WAIT);
    }
    Ok(())
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

impl Server {
    /// The directory that it exports.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub fn mount(&self) -> Result<FileHandle> {
        let path = DirPath::new(self.path.clone()).map_err(|error| anyhow!("{}: {error:?}", self.path))?;
        let mounted = Client::connect(self.mount)?.call::<mount::Mnt>(&path)?;
        Ok(mounted.map_err(|status| anyhow!("{}: {status}", self.path))?.handle)
    }

    /// Seconds that it has run on a processor, in hundredths. Threads that have ended count.
    ///
    /// # Errors
    /// When it has ended.
    pub fn processor_time(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let (_, fields) = text.rsplit_once(')').context("no name in /proc/PID/stat")?;
        // utime and stime, the 14th and 15th field.
        let ticks =
            fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(ticks as f64 / TICKS)
    }
}
