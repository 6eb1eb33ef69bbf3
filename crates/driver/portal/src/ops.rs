// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is asked of the tree.

use crate::Portal;
use crate::connection::{Connection, waits_for_peer};
use crate::dial::dial;
use crate::machine::aside;
use crate::places::{OnMachine, Place, Target};
use outrigger_core::listing::cookie_of;
use outrigger_core::ops::{
    Create, FSync, Flush, Forget, GetAttr, Locate, Lookup, MkDir, MkNod, Open, OpenDir, OpenFlags, Poll,
    Read, ReadDir, Release, ReleaseDir, SetAttr, StatFs, Write,
};
use outrigger_core::reply::{
    Attrs, Count, Created, Data, Dirent, Dirents, Entry, Events, FsStat, OpenHow, Opened, Ttl,
};
use outrigger_core::{
    Abilities, Cx, Driver, Errno, Error, FileKind, Generation, Handle, Name, Notice, Notify, OpCode, OpSet,
    Parallel, Payload, Result, Target as Path,
};
use rustix::fs::OFlags;
use std::sync::Arc;
use tokio::sync::oneshot;

const OPS: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::Create,
    OpCode::Open,
    OpCode::Read,
    OpCode::Write,
    OpCode::Flush,
    OpCode::FSync,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReleaseDir,
    OpCode::StatFs,
    OpCode::Poll,
    OpCode::Forget,
    OpCode::Locate,
]);

/// What a name takes in a listing beside itself, in bytes.
const DIRENT: usize = 24;

impl Driver for Portal {
    fn abilities(&self) -> Abilities {
        Abilities {
            hides_names: true,
            opens_streams: true,
            lasting_cookies: true,
            cookies_by_name: false,
            stateless_dirs: true,
            parallel: Parallel { reads: 1, listings: 1 },
            ..Abilities::new("portal", "portal:", OPS)
        }
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        // Notices go to the first door only.
        let _ = self.notify.set(notify);
    }

    async fn lookup(&self, cx: &Cx, op: Lookup) -> Result<Entry> {
        let mut path = self.names.path(op.dir)?;
        path.push(op.name.clone());
        let asked = cx.cancel.unless_raised(self.kind(self.find(&path)?)).await;
        let kind = asked.unwrap_or_else(|| Err(Errno::EINTR.into()))?;
        let node = self.names.found(op.dir, &op.name, None)?;
        let Attrs { attr, ttl } = self.attrs(node, kind);
        Ok(Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::NEVER, attr_ttl: ttl })
    }

    async fn getattr(&self, cx: &Cx, op: GetAttr) -> Result<Attrs> {
        let is_open = op.handle.is_some_and(|handle| self.files.get(handle).is_ok());
        let place = self.place(op.node)?;
        let asked = async { if is_open { Ok(FileKind::Regular) } else { self.kind(place).await } };
        let kind = cx.cancel.unless_raised(asked).await.unwrap_or_else(|| Err(Errno::EINTR.into()))?;
        Ok(self.attrs(op.node, kind))
    }

    async fn setattr(&self, cx: &Cx, op: SetAttr) -> Result<Attrs> {
        let attrs = &op.attrs;
        if attrs.mode.is_some() || attrs.uid.is_some() || attrs.gid.is_some() {
            return Err(Errno::EPERM.because("owner and permissions are those of the mount: option mode"));
        }
        match (attrs.size, self.place(op.node)?) {
            (Some(size), Place::Machine(place)) if !place.sockets => {
                self.resize(place, op.handle, size).await?;
            }
            (None | Some(0), _) => {}
            (Some(_), _) => return Err(Errno::EINVAL.because("a stream has no size")),
        }
        self.getattr(cx, GetAttr { node: op.node, handle: op.handle }).await
    }

    async fn mknod(&self, _: &Cx, op: MkNod) -> Result<Entry> {
        Err(no_new(&op.name))
    }

    async fn mkdir(&self, _: &Cx, op: MkDir) -> Result<Entry> {
        Err(no_new(&op.name))
    }

    async fn create(&self, _: &Cx, op: Create) -> Result<Created> {
        Err(no_new(&op.name))
    }

    async fn open(&self, cx: &Cx, op: Open) -> Result<Opened> {
        let target = self.target(op.node).await?;
        // The program opened the file for writing only, and cannot read what the server sends.
        let drains = !op.flags.reads() && !matches!(target, Target::Exec { .. });
        let connection = self.connect(cx, target, op.flags).await?;
        let (handle, connection) = self.files.add(connection);
        if drains {
            self.runtime.spawn(Box::pin(async move { connection.drain_while_open().await }));
        }
        let how = OpenHow::DIRECT_IO
            | OpenHow::NONSEEKABLE
            | OpenHow::STREAM
            | OpenHow::NO_FLUSH
            | OpenHow::PARALLEL_DIRECT_WRITES;
        Ok(Opened { handle, how, ..Opened::default() })
    }

    async fn read(&self, cx: &Cx, op: Read) -> Result<Data> {
        let connection = self.files.get(op.handle)?;
        Ok(Payload::Bytes(connection.read(cx, op.len as usize, &*self.runtime).await?))
    }

    async fn write(&self, cx: &Cx, op: Write) -> Result<Count> {
        let connection = self.files.get(op.handle)?;
        Ok(Count(connection.write(cx, op.data.into_bytes()?, &*self.runtime).await?))
    }

    async fn flush(&self, _: &Cx, _: Flush) -> Result<()> {
        Ok(())
    }

    async fn fsync(&self, _: &Cx, op: FSync) -> Result<()> {
        self.files.get(op.handle)?.sync(op.data_only, &*self.runtime).await
    }

    async fn release(&self, _: &Cx, op: Release) -> Result<()> {
        self.files.close(op.handle, &*self.runtime);
        Ok(())
    }

    async fn poll(&self, _: &Cx, op: Poll) -> Result<Events> {
        let (connection, notify) = (self.files.get(op.handle)?, Arc::clone(&self.notify));
        let wake = move |key| {
            if let Some(notify) = notify.get() {
                notify.notify(Notice::Wake { key });
            }
        };
        Ok(Events(connection.poll(op.events, op.key, &*self.runtime, wake)))
    }

    async fn opendir(&self, cx: &Cx, op: OpenDir) -> Result<Opened> {
        let asked = cx.cancel.unless_raised(self.kind(self.place(op.node)?)).await;
        match asked.unwrap_or_else(|| Err(Errno::EINTR.into()))? {
            FileKind::Directory => Ok(Opened::default()),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    async fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        // Made-up names cannot be listed, and sockets and files of this machine are not.
        let names = self.config.names(&self.names.path(op.node)?);
        let (mut entries, mut size) = (Vec::new(), 0);
        let total = names.len();
        for (index, (name, kind)) in names.into_iter().enumerate().skip(op.cookie as usize) {
            size += DIRENT + name.len();
            if size > op.size as usize && !entries.is_empty() {
                return Ok(Dirents { entries, eof: false });
            }
            entries.push(Dirent { ino: cookie_of(&name), cookie: index as u64 + 1, kind, name });
        }
        let eof = op.cookie as usize + entries.len() >= total;
        Ok(Dirents { entries, eof })
    }

    async fn releasedir(&self, _: &Cx, _: ReleaseDir) -> Result<()> {
        Ok(())
    }

    async fn statfs(&self, _: &Cx, _: StatFs) -> Result<FsStat> {
        Ok(FsStat { bsize: 1 << 16, frsize: 1 << 16, namelen: 255, ..FsStat::default() })
    }

    async fn forget(&self, _: &Cx, op: Forget) -> Result<()> {
        self.names.forget(op.node, op.count);
        Ok(())
    }

    async fn locate(&self, _: &Cx, op: Locate) -> Result<Path> {
        self.names.locate(op.node)
    }
}

fn no_new(name: &Name) -> Error {
    Errno::EACCES.because(format!("'{}': only the configuration makes names here", name.escape_ascii()))
}

impl Portal {
    /// Sets the size of a file of this machine: the kernel has `O_TRUNC` done so.
    async fn resize(&self, place: OnMachine, handle: Option<Handle>, size: u64) -> Result<()> {
        let open =
            handle.and_then(|handle| self.files.get(handle).ok()).and_then(|open| open.writable_file());
        aside(&*self.runtime, move || match open {
            Some(file) => Ok(file.set_len(size)?),
            None => Ok(place.file(OFlags::WRONLY)?.set_len(size)?),
        })
        .await
    }

    /// Makes a connection in a task of its own: only there can sockets be opened. It ends when the caller gives up.
    async fn connect(&self, cx: &Cx, target: Target, flags: OpenFlags) -> Result<Connection> {
        let (room, options, runtime) = (self.room()?, self.options.clone(), Arc::clone(&self.runtime));
        let programs = Arc::clone(&self.programs);
        waits_for_peer(cx)?;
        let (mut sender, receiver) = oneshot::channel();
        self.runtime.spawn(Box::pin(async move {
            let opening = async {
                let opened = dial(target, flags, &options, (&programs, &runtime)).await?.fit(flags);
                Ok(Connection::new(opened, flags, options.linger, room))
            };
            let opened = tokio::select! {
                opened = opening => opened,
                () = sender.closed() => return,
            };
            // A connection whose open(2) was cancelled is closed.
            let _ = sender.send(opened);
        }));
        match cx.cancel.unless_raised(receiver).await {
            Some(Ok(opened)) => opened,
            Some(Err(_)) => Err(Errno::EIO.because("the program is ending")),
            None => Err(Errno::EINTR.into()),
        }
    }
}
