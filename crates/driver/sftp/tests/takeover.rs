// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process finds that takes a tree over: each life has a runtime of its own that is never polled again, so that nothing is
//! closed in order and nothing said, as after a kill.

use outrigger_core::ops::{
    Create, FSync, Lookup, Open, OpenDir, OpenFlags, Read, Release, Rename, RenameFlags, Unlink, Write,
};
use outrigger_core::{
    BoxFuture, Clock, Credentials, Cx, Errno, Handle, HeapKeep, Keep, LockOwner, Name, Node, Op, Payload,
    Result, Runtime, Serve, Time, ask,
};
use outrigger_driver_sftp::{Options, Sftp};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Where distributions put OpenSSH's server.
const SERVERS: &[&str] =
    &["/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server"];

/// The tokio runtime around it.
struct Around;

impl Clock for Around {
    fn monotonic(&self) -> Duration {
        static BEGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        BEGIN.get_or_init(std::time::Instant::now).elapsed()
    }
    fn wall(&self) -> Time {
        Time::new(1_000_000, 0)
    }
}

impl Runtime for Around {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(deadline.saturating_sub(self.monotonic())))
    }
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(job);
    }
}

/// A directory, and what outlives the processes that serve it.
struct Far {
    dir: TempDir,
    options: Options,
    keep: Arc<HeapKeep>,
}

/// A process that serves it.
struct Life {
    tree: Serve<Sftp>,
    cx: Cx,
}

impl Far {
    /// `None` where there is no server.
    fn new() -> Option<Self> {
        let Some(server) = SERVERS.iter().find(|server| Path::new(server).exists()) else {
            println!("SKIPPED: there is no sftp-server of OpenSSH");
            return None;
        };
        let dir = tempfile::tempdir().expect("a directory");
        // Another connection would need another one of these.
        let once = dir.path().join("started");
        let command = format!("sh -c 'mkdir \"$0\" && exec \"$1\"' {} {server}", once.display());
        let mut options = Options::default();
        options.set("command", &command).expect("an option");
        fs::create_dir(dir.path().join("tree")).expect("a directory");
        Some(Far { dir, options, keep: Arc::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("tree").join(name)
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.path("")).expect("a directory");
        let mut names: Vec<String> =
            names.map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Lives a life that ends with a kill.
    fn live<T>(&self, work: impl AsyncFnOnce(&Life) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (life, done) = runtime.block_on(async {
            let keep = Arc::clone(&self.keep) as Arc<dyn Keep>;
            let path = self.path("");
            let path = path.as_os_str().as_encoded_bytes();
            let sftp = Sftp::connect("localhost", path, self.options.clone(), Arc::new(Around), Some(keep));
            let life = Life {
                tree: Serve(sftp.await.expect("connected")),
                cx: Cx { slot: 0, ..Cx::new(1, Credentials::new(0, 0), "test") },
            };
            let done = work(&life).await;
            (life, done)
        });
        std::mem::forget((life, runtime));
        done
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

impl Life {
    async fn ask<O: Op>(&self, op: O) -> Result<O::Out> {
        ask(&self.tree, &self.cx, op).await
    }

    async fn create(&self, text: &str) -> (Node, Handle) {
        let (flags, mode) = (OpenFlags::READ_WRITE | OpenFlags::EXCL, 0o644);
        let create = Create { dir: Node::ROOT, name: name(text), mode, umask: 0, flags, initial: None };
        let made = self.ask(create).await.expect("made");
        (made.entry.node, made.opened.handle)
    }

    async fn write(&self, (node, handle): (Node, Handle), offset: u64, text: &'static [u8]) {
        let data = Payload::from(text.to_vec());
        let write = Write { node, handle, offset, data, cached: false, kill_setid: false };
        assert_eq!(self.ask(write).await.map(|count| count.0), Ok(text.len() as u64));
    }

    async fn read(&self, (node, handle): (Node, Handle)) -> Result<Vec<u8>> {
        let read = self.ask(Read { node, handle, offset: 0, len: 100 }).await?;
        Ok(read.into_bytes()?.to_vec())
    }

    async fn close(&self, (node, handle): (Node, Handle)) {
        let (flags, owner) = (OpenFlags::empty(), LockOwner(0));
        let release = Release { node, handle, flags, owner, flock_release: false };
        assert_eq!(self.ask(release).await, Ok(()));
        // A directory is listed when nothing is being removed from it any more.
        assert!(self.ask(OpenDir { node: Node::ROOT }).await.is_ok());
    }

    async fn rename(&self, from: &str, to: &str) {
        let (dir, to_dir) = (Node::ROOT, Node::ROOT);
        let rename = Rename { dir, name: name(from), to_dir, to_name: name(to), flags: RenameFlags::empty() };
        assert_eq!(self.ask(rename).await, Ok(()));
    }

    async fn remove(&self, text: &str) {
        assert_eq!(self.ask(Unlink { dir: Node::ROOT, name: name(text) }).await, Ok(()));
    }

    async fn find(&self, text: &str) -> Result<(Node, u64)> {
        let entry = self.ask(Lookup { dir: Node::ROOT, name: name(text) }).await?;
        Ok((entry.node, entry.attr.ino))
    }
}

#[test]
fn open_files_and_their_handles_go_on_and_so_does_the_connection() {
    let Some(far) = Far::new() else { return };
    let file = far.live(async |life| {
        let file = life.create("f").await;
        life.write(file, 0, b"old ").await;
        file
    });
    // What has the name now is another file: the handle of the server leads to the one that was opened.
    fs::rename(far.path("f"), far.path("g")).expect("renamed");
    fs::write(far.path("f"), b"others'").expect("written");
    far.live(async |life| {
        life.write(file, 4, b"new").await;
        let (node, handle) = file;
        assert_eq!(life.ask(FSync { node, handle, data_only: false }).await, Ok(()));
    });
    let last = far.live(async |life| {
        life.close(file).await;
        life.read(file).await.expect_err("closed").errno
    });
    assert_eq!(last, Errno::EBADF);
    far.live(async |life| assert_eq!(life.read(file).await.expect_err("closed").errno, Errno::EBADF));
    let content = |text| fs::read(far.path(text)).expect("content");
    assert_eq!((content("g"), content("f")), (b"old new".to_vec(), b"others'".to_vec()));
}

#[test]
fn files_that_lost_their_names_while_open_live_on_and_are_removed_when_they_are_closed() {
    let Some(far) = Far::new() else { return };
    let [removed, replaced] = far.live(async |life| {
        let [removed, replaced, other] =
            [life.create("a").await, life.create("b").await, life.create("c").await];
        life.write(removed, 0, b"removed").await;
        life.write(replaced, 0, b"replaced").await;
        life.close(other).await;
        life.remove("a").await;
        life.rename("c", "b").await;
        [removed, replaced]
    });
    assert_eq!(far.names().len(), 3, "{:?}", far.names());
    far.live(async |life| {
        assert_eq!(life.find("a").await.expect_err("removed").errno, Errno::ENOENT);
        assert_eq!(life.read(removed).await.as_deref(), Ok(&b"removed"[..]));
        assert_eq!(life.read(replaced).await.as_deref(), Ok(&b"replaced"[..]));
        life.close(removed).await;
    });
    far.live(async |life| {
        assert_eq!(life.read(replaced).await.as_deref(), Ok(&b"replaced"[..]));
        life.close(replaced).await;
    });
    assert_eq!(far.names(), ["b"]);
}

#[test]
fn renamed_files_keep_their_numbers_without_references() {
    let Some(far) = Far::new() else { return };
    fs::write(far.path("a"), b"content").expect("written");
    let before = far.live(async |life| {
        let found = life.find("a").await.expect("found");
        life.rename("a", "b").await;
        found
    });
    let after = far.live(async |life| {
        let (node, ino) = life.find("b").await.expect("found");
        let handle = life.ask(Open { node, flags: OpenFlags::empty() }).await.expect("opened").handle;
        assert_eq!(life.read((node, handle)).await.as_deref(), Ok(&b"content"[..]));
        (node, ino)
    });
    assert_eq!(after, before);
}
