// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests that are measured, and the files that they are about.

use super::client::{Client, credential};
use super::servers::Server;
use anyhow::{Result, anyhow};
use bytes::Bytes;
use outrigger_proto_nfs3::nfs::procedure as nfs;
use outrigger_proto_nfs3::nfs::{CommitArgs, CreateArgs, CreateHow, ReadArgs, ReadDirPlusArgs, WriteArgs};
use outrigger_proto_nfs3::types::{Content, DirName, FileHandle, Name, SetAttrs, Stable};
use outrigger_proto_nfs3::xdr::rpc::{self, Auth};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names in the directory that is listed.
pub const NAMES: usize = 1000;
/// Bytes of the file that is read and written.
pub const SPAN: u64 = 64 << 20;
/// Bytes of one READ or WRITE.
const BLOCK: u32 = 64 << 10;
/// Bytes of one listing.
const LISTING: u32 = 32 << 10;
/// Every call of this number is a COMMIT, among those that write.
const COMMIT_EACH: u32 = 16;

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    GetAttr,
    Lookup,
    Read,
    Write,
    ReadDirPlus,
    /// CREATE of a name, and as much later REMOVE.
    Create,
}

impl Work {
    pub const ALL: &[Work] =
        &[Work::GetAttr, Work::Lookup, Work::Read, Work::Write, Work::ReadDirPlus, Work::Create];

    /// What it is called in a table.
    pub fn name(self) -> &'static str {
        match self {
            Work::GetAttr => "GETATTR of 1000 files",
            Work::Lookup => "LOOKUP of 1000 names",
            Work::Read => "READ of 64 KiB",
            Work::Write => "WRITE of 64 KiB, with a COMMIT for 15",
            Work::ReadDirPlus => "READDIRPLUS of 32 KiB",
            Work::Create => "CREATE and REMOVE",
        }
    }

    /// How many calls a sample has.
    pub fn calls(self) -> u32 {
        match self {
            Work::GetAttr | Work::Lookup => 40_000,
            Work::Read | Work::Write => 8000,
            Work::ReadDirPlus => 4000,
            Work::Create => 16_000,
        }
    }
}

/// Handles of one server.
pub struct Files {
    auth: Auth,
    flat: FileHandle,
    own: FileHandle,
    names: Vec<Name>,
    handles: Vec<FileHandle>,
    read: FileHandle,
    written: FileHandle,
    content: Content,
    /// How many samples have begun.
    samples: AtomicU32,
}

fn name(name: &str) -> Result<Name> {
    Name::new(name.to_owned()).map_err(|error| anyhow!("{name}: {error:?}"))
}

fn look_up(client: &mut Client, dir: FileHandle, wanted: &str) -> Result<FileHandle> {
    let found = client.call::<nfs::Lookup>(&DirName { dir, name: name(wanted)? })?;
    found.map(|found| found.object).map_err(|failed| anyhow!("{wanted}: {}", failed.status))
}

impl Files {
    /// Looks everything up in the directory `store`, which `server` exports.
    pub fn find(server: &Server, store: &Path) -> Result<Self> {
        // Each server writes files of its own.
        let own = format!("of-{}", server.name);
        fs::create_dir(store.join(&own))?;
        fs::copy(store.join("block"), store.join(&own).join("block"))?;
        let root = server.mount()?;
        let mut client = Client::connect(server.address)?;
        let flat = look_up(&mut client, root, "flat")?;
        let own = look_up(&mut client, root, &own)?;
        let names: Vec<String> = fs::read_dir(store.join("flat"))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        let handles = names.iter().map(|name| look_up(&mut client, flat, name)).collect::<Result<_>>()?;
        let content = Content::new(Bytes::from(vec![b'x'; BLOCK as usize]));
        Ok(Files {
            auth: credential(),
            flat,
            own,
            handles,
            names: names.iter().map(|text| name(text)).collect::<Result<_>>()?,
            read: look_up(&mut client, root, "block")?,
            written: look_up(&mut client, own, "block")?,
            content: content.map_err(|error| anyhow!("content: {error:?}"))?,
            samples: AtomicU32::new(0),
        })
    }

    /// A sample begins: its files are not those of the sample before, or a server would take its calls for repetitions.
    pub fn begin(&self) {
        self.samples.fetch_add(1, Ordering::Relaxed);
    }

    /// The record of the call with this number.
    pub fn call(&self, work: Work, xid: u32) -> Bytes {
        let number = xid as usize % NAMES;
        let offset = u64::from(xid) * u64::from(BLOCK) % SPAN;
        let auth = &self.auth;
        let record = match work {
            Work::GetAttr => rpc::call::<nfs::GetAttr>(xid, auth, &self.handles[number]),
            Work::Lookup => {
                let args = DirName { dir: self.flat, name: self.names[number].clone() };
                rpc::call::<nfs::Lookup>(xid, auth, &args)
            }
            Work::Read => {
                rpc::call::<nfs::Read>(xid, auth, &ReadArgs { file: self.read, offset, count: BLOCK })
            }
            Work::Write if xid % COMMIT_EACH == COMMIT_EACH - 1 => {
                rpc::call::<nfs::Commit>(xid, auth, &CommitArgs { file: self.written, offset: 0, count: 0 })
            }
            Work::Write => {
                let (file, data, stable) = (self.written, self.content.clone(), Stable::Unstable);
                rpc::call::<nfs::Write>(xid, auth, &WriteArgs { file, offset, count: BLOCK, stable, data })
            }
            Work::ReadDirPlus => {
                let (dir, verifier) = (self.flat, [0; 8]);
                let args =
                    ReadDirPlusArgs { dir, cookie: 0, verifier, dir_count: LISTING, max_count: LISTING };
                rpc::call::<nfs::ReadDirPlus>(xid, auth, &args)
            }
            Work::Create => return self.create_or_remove(xid),
        };
        record.finish().into_bytes()
    }

    /// The calls of one place in the window make a file and remove it in turns.
    fn create_or_remove(&self, xid: u32) -> Bytes {
        let (place, turn) = (xid % super::WINDOW, xid / super::WINDOW);
        let sample = self.samples.load(Ordering::Relaxed);
        let name = Name::new(format!("new-{sample}-{place}-{}", turn / 2)).expect("a short name");
        let at = DirName { dir: self.own, name };
        if turn % 2 == 1 {
            return rpc::call::<nfs::Remove>(xid, &self.auth, &at).finish().into_bytes();
        }
        let how = CreateHow::Unchecked(SetAttrs::NONE);
        rpc::call::<nfs::Create>(xid, &self.auth, &CreateArgs { at, how }).finish().into_bytes()
    }
}
