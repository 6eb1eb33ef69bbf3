// SPDX-License-Identifier: MIT OR Apache-2.0
//! 9P2000 as others speak it: pyroute2, a library for Python, has a server of files in memory.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::{Driver, Errno, OpCode, Runtime, Serve};
use outrigger_driver_ninep::{NineP, Options};
use outrigger_remote::programs::free_port;
use outrigger_runtime::Threads;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The server: it says when it listens.
const SERVER: &str = "
import asyncio, sys
from pyroute2 import Plan9ServerSocket
server = Plan9ServerSocket(address=('127.0.0.1', int(sys.argv[1])))
files = server.filesystem
files.create('f', mode=0o640, data='content')
files.create('d', qtype=0x80, mode=0o755)
files.create('d/large', data='0123456789' * 3000)
async def main():
    task = await server.async_run()
    print('ready', flush=True)
    await task
asyncio.run(main())
";

/// A server in use. Dropping it ends it.
struct Python {
    process: Child,
    port: u16,
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the server; `None` where it cannot be, and says so.
fn start() -> Option<Python> {
    // What `make deps` has installed, beside what the tests are built in.
    let own = std::env::current_exe().expect("a path");
    let installed =
        own.ancestors().map(|dir| dir.join("test-tools/venv/bin/python3")).find(|path| path.exists());
    let python = installed.unwrap_or_else(|| PathBuf::from("python3"));
    let mut has_it = Command::new(&python);
    has_it.args(["-c", "from pyroute2 import Plan9ServerSocket"]).stderr(Stdio::null());
    if !has_it.status().is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "pyroute2 must be here");
        println!("SKIPPED: there is no pyroute2");
        return None;
    }
    let port = free_port().expect("a port");
    let mut command = Command::new(python);
    command.args(["-c", SERVER, &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("started");
    let mut said = String::new();
    BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut said).expect("read");
    assert_eq!(said, "ready\n");
    Some(Python { process, port })
}

#[test]
fn files_of_a_server_in_python_are_listed_read_and_written() {
    let Some(server) = start() else { return };
    let runtime = Arc::new(Threads::new());
    let options = Options { aname: Some(String::new()), ..Options::default() };
    let clock = Arc::clone(&runtime) as Arc<dyn Runtime>;
    let nine = NineP::connect(format!("127.0.0.1:{}", server.port), options, clock, None);
    let nine = runtime.handle().block_on(nine).expect("connected");
    assert!(!nine.abilities().ops.has(OpCode::SymLink), "it speaks 9P2000");
    let near = Direct::new(Arc::new(Serve(nine)));
    let dir = near.open(Path::new(""), Flags::READ | Flags::DIRECTORY, 0).expect("opened");
    let listed = near.read_dir(dir, 0, 1 << 16).expect("listed").entries;
    let mut names: Vec<_> = listed.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
    names.sort();
    assert_eq!(names, ["d", "f"]);
    near.close(dir).expect("closed");
    let told = near.stat(Path::new("f")).expect("told");
    assert_eq!((told.size, told.mode, told.uid), (7, 0o100_640, rustix::process::geteuid().as_raw()));
    let file = near.open(Path::new("f"), Flags::BOTH, 0).expect("opened");
    assert_eq!(near.read_at(file, 3, 100).expect("read"), b"tent");
    assert_eq!(near.write_at(file, 7, b" and more"), Ok(9));
    near.fsync(file, false).expect("stored");
    assert_eq!(near.read_at(file, 0, 100).expect("read"), b"content and more");
    assert_eq!(near.fstat(file).expect("told").size, 16);
    near.close(file).expect("closed");
    let large = near.open(Path::new("d/large"), Flags::READ, 0).expect("opened");
    let content = near.read_at(large, 0, 1 << 20).expect("read");
    assert!(content.len() == 30_000 && content.chunks(10).all(|part| part == b"0123456789"));
    near.close(large).expect("closed");
    assert_eq!(near.unlink(Path::new("f")), Err(Errno::EACCES), "its 'permission denied'");
    assert_eq!(near.rename(Path::new("f"), Path::new("d/f"), Default::default()), Err(Errno::EXDEV));
}
