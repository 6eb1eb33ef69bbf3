// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mount's side of its control socket.

use super::{Answer, Ask, MountStatus, directory, socket_prefix};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What a mount lets others do with it.
pub trait Controlled: Send + Sync {
    /// What it is and what it does now.
    fn status(&self) -> MountStatus;

    /// Stops believing what was cached.
    fn flush(&self);

    /// Writes messages to `out` as they pass, until writing fails.
    fn trace(&self, json: bool, out: UnixStream);
}

/// A listening control socket; dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
}

/// The longest request in bytes.
const ASK_MAX: u64 = 4096;
/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most clients at once; more are turned away.
const CLIENTS_MAX: usize = 16;

impl Server {
    /// Listens for `mount` on a socket named after `mountpoint` and this process.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(mount: Arc<dyn Controlled>, mountpoint: &Path) -> io::Result<Self> {
        let path = directory()?.join(format!("{}{}.sock", socket_prefix(mountpoint), std::process::id()));
        // A former process of this number may have left its socket.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &mount))?;
        Ok(Server { path })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, mount: &Arc<dyn Controlled>) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming().flatten() {
        if clients.load(Ordering::Relaxed) >= CLIENTS_MAX {
            continue;
        }
        clients.fetch_add(1, Ordering::Relaxed);
        let (mount, done) = (Arc::clone(mount), Arc::clone(&clients));
        let serve = move || {
            // A client that hangs up early is its own affair.
            let _ = serve(&*mount, stream);
            done.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("control".into()).spawn(serve).is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn serve(mount: &dyn Controlled, stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(ASK_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(Ask::Status) => Answer::Status(Box::new(mount.status())),
        Ok(Ask::Flush) => {
            mount.flush();
            Answer::Done
        }
        Ok(Ask::Trace { json }) => {
            mount.trace(json, stream);
            return Ok(());
        }
        Err(error) => Answer::Failed(format!("the request was not understood: {error}")),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    (&stream).write_all(&text)
}
