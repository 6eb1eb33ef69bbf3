// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mount's side of its control socket.

use super::directory::{directory, hash_number};
use super::{Answer, Ask, MountStatus, Unwritten};
use outrigger_core::Keep;
use outrigger_core::survive::{Layout, Reads, Stored};
use outrigger_guard::Seat;
use outrigger_layer_fault::{Acted, FaultControl};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What a mount lets others do with it.
pub trait Controlled: Send + Sync {
    /// What it is and what it does now.
    fn status(&self) -> MountStatus;

    /// Drops all caches.
    fn flush(&self);

    /// Waits until what programs have written is written, up to `marks` or else up to now, for at most `patience`.
    fn written(&self, marks: Vec<u64>, patience: Duration) -> Unwritten;

    /// Prepares for another program, which reads these layouts of surviving state, to take over; [`Controlled::upgrade`] follows.
    ///
    /// # Errors
    /// Why that cannot be; then this process continues to serve.
    fn prepare_upgrade(&self, layouts: &[Reads]) -> Result<(), String>;

    /// Lets that program take over. Returns only when that fails.
    fn upgrade(&self, program: &Path);

    /// Replaces the FUSE program by another one, whose word number `argument` names the mount.
    ///
    /// # Errors
    /// Why not; then the old program continues.
    fn replace(
        &self,
        command: Vec<OsString>,
        directory: PathBuf,
        argument: Option<usize>,
    ) -> Result<(), String>;

    /// The control of its layer `fault`, if it has one.
    fn fault(&self) -> Option<&FaultControl>;

    /// Answers on `out`, then writes messages to it as they pass, until the client hangs up.
    fn trace(&self, out: UnixStream);
}

/// A listening control socket; dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
}

/// The longest request in bytes: a command may be long.
const ASK_MAX: u64 = 1 << 20;
/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait after accept(2) has failed.
const BACK_OFF: Duration = Duration::from_millis(100);
/// The most clients at once; more are turned away.
const CLIENTS_MAX: usize = 16;

const LAYOUT: Layout = Layout::of("control");

outrigger_core::fields! {
    /// What the first process of a mount leaves to its successors.
    struct Noted {
        /// The hash in the name of the socket, never 0: the mount may be moved later.
        hash: u64,
        /// The process in the name of the socket: a service manager may start another keeper.
        owner: u64,
        /// The descriptor of the socket, plus one. It stays open between a process and its successor, so that clients wait in its
        /// backlog.
        listener: u64,
    }
}

/// Suffix of the files that hold final errors: see [`Server::leave`].
pub const WORDS: &str = "end";
/// Suffix of sockets that do not listen yet.
const UNFINISHED: &str = "new";
/// How long the final error of a mount is kept for `umount` to read.
const KEPT: Duration = Duration::from_secs(600);

impl Server {
    /// Binds a socket named after `mountpoint`, the number of its FUSE connection and its keeper, or else of this process.
    /// With a `seat`, takes over the socket of the predecessor. Clients wait until [`Server::answer`].
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn bind(mountpoint: &Path, connection: u32, seat: Option<&Seat>) -> io::Result<Self> {
        let owner = seat.map_or_else(std::process::id, Seat::owner);
        let directory = directory()?;
        forget_words(&directory);
        let hash = hash_number(mountpoint);
        let place = |hash: u64, owner: u64| directory.join(format!("{hash:016x}-{connection}-{owner}.sock"));
        let Some(seat) = seat else {
            let path = place(hash, owner.into());
            return Ok(Server { listener: bind(&path)?, path });
        };
        let noted = LAYOUT.attach(seat, Noted::WORDS)?.area;
        let noted = noted.view::<Noted<'_>>();
        let first = noted.hash().atomic().compare_exchange(0, hash, AcqRel, Acquire);
        let named = |owner| place(first.err().unwrap_or(hash), owner);
        let listener = kept(named, owner.into(), noted, seat)?;
        let path = named(owner.into());
        Ok(Server { path, listener })
    }

    /// Answers for `mount` from now on.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn answer(&self, mount: Arc<dyn Controlled>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        thread::Builder::new().name("control".into()).spawn(move || accept(&listener, &mount)).map(drop)
    }
}

/// Removes final errors that were not read in time, and unfinished sockets of processes that were killed.
fn forget_words(directory: &Path) {
    let is_old = |path: &Path| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
        modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT))
    };
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours = |path: &Path| path.extension().is_some_and(|end| end == WORDS || end == UNFINISHED);
    for path in files.filter(|path| is_ours(path) && is_old(path)) {
        // Another mount may have removed it.
        let _ = fs::remove_file(path);
    }
}

/// A socket that listens at `path`. It is bound under another name and renamed when it listens: before that it refuses
/// connections, as the socket of a dead mount does, and `status` would remove it.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let unfinished = path.with_extension(UNFINISHED);
    // A former process of this number may have left its socket.
    let _ = fs::remove_file(&unfinished);
    let listener = UnixListener::bind(&unfinished)?;
    // Which replaces what a former process may have left.
    fs::rename(&unfinished, path)?;
    Ok(listener)
}

/// The socket of the predecessor, or a new one that successors inherit. `named` gives its name for `owner`, the keeper.
fn kept(
    named: impl Fn(u64) -> PathBuf,
    owner: u64,
    noted: Noted<'_>,
    keep: &dyn Keep,
) -> io::Result<UnixListener> {
    let former = match noted.owner().atomic().swap(owner, AcqRel) {
        0 => owner,
        former => former,
    };
    let path = named(owner);
    if let Some(number) = noted.listener().get().checked_sub(1)
        // Clients that were waiting for the former keeper's mount stay in line.
        && fs::rename(named(former), &path).is_ok()
        && let Ok(listener) = keep.adopt(number as RawFd)
    {
        return Ok(listener.into());
    }
    let listener = bind(&path)?;
    keep.hold(listener.as_fd())?;
    noted.listener().set(listener.as_raw_fd() as u64 + 1);
    Ok(listener)
}

impl Server {
    /// Leaves the final error of the mount for the command that unmounts.
    pub fn leave(&self, words: &str) {
        // The error is in the log as well.
        let _ = fs::write(self.path.with_extension(WORDS), words);
    }

    /// Removes the socket; connected clients stay connected.
    pub fn remove(&self) {
        // It may have been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remove();
    }
}

fn accept(listener: &UnixListener, mount: &Arc<dyn Controlled>) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Without a free descriptor the next accept(2) fails at once, too.
            thread::sleep(BACK_OFF);
            continue;
        };
        let Some(place) = ClientPlace::take(&clients) else { continue };
        let mount = Arc::clone(mount);
        let serve = move || {
            let _place = place;
            // A client that hangs up early is its own affair.
            let _ = serve(&*mount, stream);
        };
        // Without a thread the client is turned away.
        let _ = thread::Builder::new().name("control".into()).spawn(serve);
    }
}

/// One of the places of clients, until it is dropped: also when serving the client panics.
struct ClientPlace(Arc<AtomicUsize>);

impl ClientPlace {
    /// None when all are taken. Only one thread takes places.
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        if taken.load(Ordering::Relaxed) >= CLIENTS_MAX {
            return None;
        }
        taken.fetch_add(1, Ordering::Relaxed);
        Some(ClientPlace(Arc::clone(taken)))
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(mount: &dyn Controlled, stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(ASK_MAX)).read_line(&mut line)?;
    let said = match serde_json::from_str(&line) {
        Ok(Ask::Status) => Answer::Status(Box::new(mount.status())),
        Ok(Ask::Flush) => {
            mount.flush();
            Answer::Done
        }
        Ok(Ask::Written { patience, marks }) => {
            Answer::Unwritten(mount.written(marks, Duration::from_millis(patience.min(1000))))
        }
        Ok(Ask::Upgrade { program, layouts }) => match mount.prepare_upgrade(&layouts) {
            Ok(()) => {
                // The client may have hung up; the mount is ready nevertheless.
                let said = answer(&stream, &Answer::Done);
                mount.upgrade(&program);
                return said;
            }
            Err(reason) => Answer::Failed(reason),
        },
        Ok(Ask::Replace { command, directory, argument }) => {
            match mount.replace(command, directory, argument) {
                Ok(()) => Answer::Done,
                Err(reason) => Answer::Failed(reason),
            }
        }
        Ok(Ask::Fault { rules }) => {
            faults(mount.fault(), rules.as_deref()).map_or_else(Answer::Failed, Answer::Faults)
        }
        Ok(Ask::Trace) => {
            mount.trace(stream);
            return Ok(());
        }
        Err(error) => Answer::Failed(format!("the request was not understood: {error}")),
    };
    answer(&stream, &said)
}

/// The rules in force, after replacing them by `rules` if given.
fn faults(fault: Option<&FaultControl>, rules: Option<&str>) -> Result<Vec<Acted>, String> {
    let fault =
        fault.ok_or("it has no layer fault: mount it with `--layer fault`, and set the rules then")?;
    if let Some(rules) = rules {
        fault.replace(rules).map_err(|error| error.to_string())?;
    }
    Ok(fault.rules())
}

/// Writes the line that every answer starts with.
///
/// # Errors
/// When the client has gone or does not read.
pub fn answer(mut out: impl Write, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    out.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
    use std::mem::MaybeUninit;

    #[test]
    fn a_client_that_makes_the_server_panic_gives_its_place_back() {
        let taken = Arc::new(AtomicUsize::new(0));
        let others: Vec<_> = (1..CLIENTS_MAX).filter_map(|_| ClientPlace::take(&taken)).collect();
        let last = ClientPlace::take(&taken).unwrap();
        assert!(others.len() == CLIENTS_MAX - 1 && ClientPlace::take(&taken).is_none());
        let served = thread::spawn(move || {
            let _place = last;
            std::panic::resume_unwind(Box::new("as serve() might"));
        });
        assert!(served.join().is_err() && ClientPlace::take(&taken).is_some());
    }

    #[test]
    fn a_socket_listens_before_it_has_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0-1-2.sock");
        fs::write(&path, "left by a former process").unwrap();
        let events = inotify::init(CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&events, dir.path(), WatchFlags::CREATE | WatchFlags::MOVED_TO).unwrap();
        let _listener = bind(&path).unwrap();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&events, &mut buffer);
        let mut came = Vec::new();
        while let Ok(event) = reader.next() {
            if event.file_name().is_some_and(|name| name.to_bytes() == b"0-1-2.sock") {
                came.push(event.events());
            }
        }
        assert_eq!(came, [ReadFlags::MOVED_TO], "bound under another name and renamed");
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }
}
