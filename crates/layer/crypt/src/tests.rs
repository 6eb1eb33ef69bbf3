// SPDX-License-Identifier: MIT OR Apache-2.0

mod attacks;
mod files;
mod format;
mod keys;
mod requests;
mod room;
mod turns;

use super::*;
use outrigger_client::{Client, Follow, Inode, Settings, block_on};
use outrigger_core::ops::{self, OpenFlags};
use outrigger_core::{Inline, Stack};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;

/// A tree in memory, and the encrypted one that is in it.
struct Both {
    below: Arc<dyn Service>,
    runtime: Arc<Threads>,
    master: Master,
}

/// A tree whose files have to be opened.
struct Opening(Arc<dyn Service>);

impl Service for Opening {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.0.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        Abilities { stateless_files: false, anonymous_io: false, ..self.0.abilities() }
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

impl Both {
    fn new() -> Self {
        let both = Both::without_handles();
        Both { below: Arc::new(Opening(both.below)), ..both }
    }

    /// The same on a tree that needs no open files.
    fn without_handles() -> Self {
        let runtime = Arc::new(Threads::new());
        let below: Arc<dyn Service> =
            Arc::new(Inline::new(Mem::new(Options::default(), runtime.clone()), runtime.clone()));
        Both { below, runtime, master: Master::random().expect("random numbers") }
    }

    /// The tree as it is stored.
    fn stored(&self) -> Client {
        Client::new(Arc::clone(&self.below), self.runtime.clone(), Settings::default())
    }

    fn service(&self) -> Arc<dyn Service> {
        let layer = Crypt::new(Keys::of(&self.master));
        Stack::new(Arc::clone(&self.below)).push(layer).expect("it may stand there").service()
    }

    /// The tree as a process sees it that knows nothing yet.
    fn shown(&self) -> Client {
        Client::new(self.service(), self.runtime.clone(), Settings::default())
    }

    fn write(&self, name: &str, content: &[u8]) {
        let root = self.shown().root().expect("a root");
        let (_, file) = root.create(&named(name), 0o644, OpenFlags::READ_WRITE).expect("a file");
        file.write_all_at(0, Bytes::copy_from_slice(content)).expect("room");
        file.close().expect("it is stored");
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        read(&self.shown(), name)
    }

    /// The only file of the layer's users that is stored in the root.
    fn only(&self) -> Inode {
        let entries = self.stored().root().and_then(|root| root.entries()).expect("a listing");
        let mut files =
            entries.map(|entry| entry.expect("an entry")).filter(|(name, _)| !name.contains(&b'.'));
        files.next().expect("a file").1
    }

    /// The bytes that are stored of that file.
    fn bytes(&self) -> Vec<u8> {
        let file = self.only().open(OpenFlags::empty()).expect("it opens");
        file.read_at(0, 1 << 24).expect("it can be read").to_vec()
    }

    /// Stores other bytes for it.
    fn store(&self, bytes: &[u8]) {
        let file = self.only().open(OpenFlags::READ_WRITE | OpenFlags::TRUNC).expect("it opens");
        file.write_all_at(0, Bytes::copy_from_slice(bytes)).expect("room");
        file.close().expect("it is stored");
    }
}

use bytes::Bytes;

/// Writes to the end of a file, as a program does that opens it with `O_APPEND`.
fn append(client: &Client, path: &str, bytes: &[u8]) {
    let inode = client.walk(path.as_bytes(), Follow::No).expect("it is there");
    let (node, owner) = (inode.node(), Default::default());
    let flags = OpenFlags::WRITE_ONLY | OpenFlags::APPEND;
    let handle = client.call(ops::Open { node, flags }).expect("it opens").handle;
    let data = outrigger_core::Payload::from(bytes.to_vec());
    let write = ops::Write { node, handle, offset: 0, data, cached: false, kill_setid: false };
    assert_eq!(client.call(write).expect("room").0, bytes.len() as u64);
    client.call(ops::Flush { node, handle, owner }).expect("it is stored");
    client.call(ops::Release { node, handle, flags, owner, flock_release: false }).expect("it is closed");
}

fn named(name: &str) -> Name {
    Name::try_from(name).expect("a name")
}

/// Reads a file as programs do: until there is nothing more.
fn read(client: &Client, path: &str) -> Result<Vec<u8>> {
    let file = client.walk(path.as_bytes(), Follow::No)?.open(OpenFlags::empty())?;
    let mut all = Vec::new();
    loop {
        let piece = file.read_at(all.len() as u64, 10_000)?;
        if piece.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&piece);
    }
}

/// Bytes that differ from block to block.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / BLOCK) as u8).collect()
}

fn wait<T>(asking: impl Future<Output = T>) -> T {
    block_on(asking)
}
