// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of directories, and what a file system has as a whole.

use crate::export::{Export, Outcome};
use crate::files::Used;
use outrigger_core::ops::{Parent, ReadDir, ReadDirPlus, StatFs};
use outrigger_core::reply::{Dirent, DirentPlus};
use outrigger_core::{Abilities, Cx, Handle, Node, OpCode};
use outrigger_proto_nfs3::results::{
    AttrsFailed, Entries, EntriesPlus, Entry, EntryPlus, FsInfo, FsStat, Pathconf,
};
use outrigger_proto_nfs3::types::{FileHandle, Name, Properties, Status, Time, Verifier};
use outrigger_proto_nfs3::xdr::{List, Xdr};
use outrigger_toolkit_serve::dots::{DOT, below, dots};

/// Cookies last as long as the directory is known, so there is nothing to verify.
const VERIFIER: Verifier = [0; 8];
/// Bytes of a result without entries: attributes, verifier, two booleans.
const FRAME: usize = 4 + 84 + 8 + 4 + 4;
/// The most that is listed at once, in bytes.
const LISTING_MAX: u32 = 1 << 20;
/// The longest name where the tree does not say.
const NAME_MAX: u32 = 255;
/// The most hard links where nothing is known.
const LINK_MAX: u32 = 65_000;

/// What sizes of content should be multiples of.
const PAGE: u32 = 4096;
/// The best size of a listing, in bytes.
const PREFERRED: u32 = 64 << 10;
const NANOS: u32 = 1_000_000_000;

/// Room for entries, in bytes.
struct Room {
    left: usize,
}

impl Room {
    /// For entries of a result of at most `bytes`.
    fn new(bytes: u32) -> Self {
        Room { left: (bytes.min(LISTING_MAX) as usize).saturating_sub(FRAME) }
    }

    /// Whether the entry fits; it is counted then.
    fn takes(&mut self, entry: &impl Xdr) -> bool {
        // A boolean precedes each.
        let left = self.left.checked_sub(4 + entry.encoded_len());
        left.inspect(|&left| self.left = left).is_some()
    }

    /// The entries of a listing that goes on; `TOOSMALL` where not even one fits.
    fn cut<T>(&self, entries: Vec<T>) -> Outcome<(Vec<T>, bool)> {
        if entries.is_empty() { Err(Status::TOOSMALL) } else { Ok((entries, false)) }
    }
}

fn known(name: &[u8]) -> Name {
    Name::new(bytes::Bytes::copy_from_slice(name)).expect("a name of the core has at most 255 bytes")
}

impl Export {
    pub(crate) async fn read_dir(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        cookie: u64,
        count: u32,
    ) -> Result<Entries, AttrsFailed> {
        let listed = self.names(cx, dir, cookie, count).await;
        let attrs = self.after(cx, dir.node).await;
        let (entries, eof) = listed.map_err(|status| AttrsFailed { status, attrs })?;
        Ok(Entries { dir_attrs: attrs, verifier: VERIFIER, entries: List(entries), eof })
    }

    async fn names(&self, cx: &Cx, dir: &Used<'_>, cookie: u64, count: u32) -> Outcome<(Vec<Entry>, bool)> {
        let mut room = Room::new(count);
        let mut entries = Vec::new();
        for &(name, cookie) in dots(cookie) {
            let entry = Entry { fileid: self.dot(cx, dir, cookie).await?, name: known(name), cookie };
            if !room.takes(&entry) {
                return room.cut(entries);
            }
            entries.push(entry);
        }
        let size = room.left as u32;
        let read = ReadDir { node: dir.node, handle: Handle::NONE, cookie: below(cookie), size };
        let listed = self.ask(cx, read).await.map_err(|status| cookie_failed(status, cookie))?;
        for Dirent { ino, cookie, name, .. } in &listed.entries {
            let entry = Entry { fileid: *ino, name: known(name), cookie: *cookie };
            if !room.takes(&entry) {
                return room.cut(entries);
            }
            entries.push(entry);
        }
        if listed.eof { Ok((entries, true)) } else { room.cut(entries) }
    }

    pub(crate) async fn read_dir_plus(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        cookie: u64,
        count: u32,
    ) -> Result<EntriesPlus, AttrsFailed> {
        let listed = self.names_plus(cx, dir, cookie, count).await;
        let attrs = self.after(cx, dir.node).await;
        let (entries, eof) = listed.map_err(|status| AttrsFailed { status, attrs })?;
        Ok(EntriesPlus { dir_attrs: attrs, verifier: VERIFIER, entries: List(entries), eof })
    }

    async fn names_plus(
        &self,
        cx: &Cx,
        dir: &Used<'_>,
        cookie: u64,
        count: u32,
    ) -> Outcome<(Vec<EntryPlus>, bool)> {
        let mut room = Room::new(count);
        let mut entries = Vec::new();
        for &(name, cookie) in dots(cookie) {
            let fileid = self.dot(cx, dir, cookie).await?;
            let entry = EntryPlus { fileid, name: known(name), cookie, attrs: None, object: None };
            if !room.takes(&entry) {
                return room.cut(entries);
            }
            entries.push(entry);
        }
        let size = room.left as u32;
        let read = ReadDirPlus { node: dir.node, handle: Handle::NONE, cookie: below(cookie), size };
        let listed = self.ask(cx, read).await.map_err(|status| cookie_failed(status, cookie))?;
        let mut is_full = false;
        // Any handle is as long.
        let placeholder = self.handle(dir.id);
        for dirent in listed.entries {
            // The references of those that do not fit are given back.
            is_full = is_full || !self.add(cx, (dir, placeholder), &dirent, &mut room, &mut entries).await;
            if is_full && dirent.entry.node != Node(0) {
                self.files.give_back(cx, &dirent.entry).await;
            }
        }
        if listed.eof && !is_full { Ok((entries, true)) } else { room.cut(entries) }
    }

    /// Adds a name with what it leads to; false where it does not fit, with a handle as long as `placeholder`.
    async fn add(
        &self,
        cx: &Cx,
        (dir, placeholder): (&Used<'_>, FileHandle),
        dirent: &DirentPlus,
        room: &mut Room,
        entries: &mut Vec<EntryPlus>,
    ) -> bool {
        let DirentPlus { cookie, name, entry } = dirent;
        let (fileid, has_node) = (entry.attr.ino, entry.node != Node(0));
        let attrs = has_node.then(|| self.attrs(&entry.attr));
        let object = has_node.then_some(placeholder);
        let mut listed = EntryPlus { fileid, name: known(name), cookie: *cookie, attrs, object };
        if !room.takes(&listed) {
            return false;
        }
        if has_node {
            let id = self.files.found(cx, dir.id, name, entry).await;
            // Without a handle, the client looks the name up.
            listed.object = id.ok().map(|id| self.handle(id));
        }
        entries.push(listed);
        true
    }

    /// The file number that `.` or `..` shows.
    async fn dot(&self, cx: &Cx, dir: &Used<'_>, cookie: u64) -> Outcome<u64> {
        if cookie == DOT || dir.node == Node::ROOT || !self.abilities.ops.has(OpCode::Parent) {
            return Ok(self.attr(cx, dir.node).await?.ino);
        }
        // Who may list a directory may perhaps not search it.
        let Ok(entry) = self.ask(cx, Parent { dir: dir.node }).await else {
            return Ok(self.attr(cx, dir.node).await?.ino);
        };
        self.files.give_back(cx, &entry).await;
        Ok(entry.attr.ino)
    }

    pub(crate) async fn fs_stat(&self, cx: &Cx, file: &Used<'_>) -> Result<FsStat, AttrsFailed> {
        let stat = self.ask(cx, StatFs { node: file.node }).await;
        let attrs = self.after(cx, file.node).await;
        let stat = stat.map_err(|status| AttrsFailed { status, attrs })?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.frsize.into());
        Ok(FsStat {
            attrs,
            total_bytes: bytes(stat.blocks),
            free_bytes: bytes(stat.bfree),
            available_bytes: bytes(stat.bavail),
            total_files: stat.files,
            free_files: stat.ffree,
            available_files: stat.ffree,
            invariant_seconds: 0,
        })
    }

    pub(crate) async fn fs_info(&self, cx: &Cx, file: &Used<'_>) -> FsInfo {
        let Abilities { ops, max_io, time_unit, .. } = &self.abilities;
        let largest = (*max_io).min(crate::IO_MAX);
        let mut properties = Properties::HOMOGENEOUS;
        properties.set(Properties::LINK, ops.has(OpCode::Link));
        properties.set(Properties::SYMLINK, ops.has(OpCode::SymLink));
        properties.set(Properties::CANSETTIME, ops.has(OpCode::SetAttr));
        FsInfo {
            attrs: self.after(cx, file.node).await,
            read_max: largest,
            read_preferred: largest,
            read_multiple: PAGE,
            write_max: largest,
            write_preferred: largest,
            write_multiple: PAGE,
            read_dir_preferred: PREFERRED,
            file_size_max: i64::MAX as u64,
            time_delta: Time { seconds: time_unit / NANOS, nanos: time_unit % NANOS },
            properties,
        }
    }

    pub(crate) async fn path_conf(&self, cx: &Cx, file: &Used<'_>) -> Result<Pathconf, AttrsFailed> {
        let stat = self.ask(cx, StatFs { node: file.node }).await.ok();
        Ok(Pathconf {
            attrs: self.after(cx, file.node).await,
            link_max: LINK_MAX,
            name_max: stat.map(|stat| stat.namelen).filter(|&len| len > 0).unwrap_or(NAME_MAX),
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        })
    }
}

/// A tree that no longer knows a cookie answers `ESTALE`.
fn cookie_failed(status: Status, cookie: u64) -> Status {
    if status == Status::STALE && below(cookie) != 0 { Status::BAD_COOKIE } else { status }
}
