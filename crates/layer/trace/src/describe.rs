// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments and results in few words.

use outrigger_core::ops::{Lock, OpenFlags};
use outrigger_core::paths::printable;
use outrigger_core::reply::{Entry, Opened};
use outrigger_core::{Attr, FileKind, Handle, Payload, Reply, Request, SetAttrs, SetTime, Time};
use std::fmt;
use std::fs::File;

type Arguments = Vec<(&'static str, String)>;

/// The arguments that the paths do not show already.
pub(crate) fn arguments(request: &Request) -> Arguments {
    match request {
        Request::GetAttr(op) => op.handle.map(|handle| ("handle", number(handle))).into_iter().collect(),
        Request::SetAttr(op) => set_attrs(&op.attrs),
        Request::MkNod(op) => made(op.mode, op.umask, [("rdev", op.rdev.to_string())]),
        Request::MkDir(op) => made(op.mode, op.umask, []),
        Request::SymLink(op) => vec![("target", format!("\"{}\"", printable(&op.target)))],
        Request::Rename(op) if op.flags.is_empty() => Vec::new(),
        Request::Rename(op) => vec![("flags", flags(&op.flags))],
        Request::Open(op) => vec![("flags", open_flags(op.flags))],
        Request::Create(op) => made(op.mode, op.umask, [("flags", open_flags(op.flags))]),
        Request::TmpFile(op) => made(op.mode, op.umask, [("flags", open_flags(op.flags))]),
        Request::Read(op) => range(op.handle, op.offset, op.len.into()),
        Request::Write(op) => range(op.handle, op.offset, op.data.len() as u64),
        Request::FSync(op) => vec![("handle", number(op.handle)), ("data_only", op.data_only.to_string())],
        Request::Fallocate(op) => {
            let mut all = range(op.handle, op.offset, op.len);
            all.push(("mode", flags(&op.mode)));
            all
        }
        Request::Seek(op) => vec![
            ("handle", number(op.handle)),
            ("offset", op.offset.to_string()),
            ("whence", format!("{:?}", op.whence).to_lowercase()),
        ],
        Request::CopyRange(op) => {
            let mut all = range(op.handle, op.offset, op.len);
            all.push(("to_offset", op.to_offset.to_string()));
            all
        }
        Request::Flush(op) => vec![("handle", number(op.handle))],
        Request::Release(op) => vec![("handle", number(op.handle))],
        Request::ReadDir(op) => listing(op.handle, op.cookie, op.size),
        Request::ReadDirPlus(op) => listing(op.handle, op.cookie, op.size),
        Request::ReleaseDir(op) => vec![("handle", number(op.handle))],
        Request::GetXattr(op) => vec![("name", printable(&op.name))],
        Request::SetXattr(op) => vec![("name", printable(&op.name)), ("bytes", op.value.len().to_string())],
        Request::RemoveXattr(op) => vec![("name", printable(&op.name))],
        Request::GetLock(op) => vec![("lock", lock(&op.lock))],
        Request::SetLock(op) => vec![("lock", lock(&op.lock)), ("wait", op.wait.to_string())],
        Request::Ioctl(op) => vec![("command", format!("{:#x}", op.command))],
        Request::Poll(op) => vec![("events", format!("{:#x}", op.events))],
        Request::Forget(op) => vec![("count", op.count.to_string())],
        Request::Access(op) => vec![("mask", op.mask.to_string())],
        _ => Vec::new(),
    }
}

/// What a reply that is no error holds.
pub(crate) fn result(reply: &Reply) -> String {
    match reply {
        Reply::Done(()) => "done".into(),
        Reply::Entry(entry) => found(entry),
        Reply::Entries(entries) => match entries.last() {
            Some(last) => format!("{} found, the last {}", entries.len(), found(last)),
            None => "none found".into(),
        },
        Reply::Attrs(attrs) => attributes(&attrs.attr),
        Reply::Target(target) => format!("\"{}\"", printable(target)),
        Reply::Opened(opened) => handle(opened),
        Reply::Created(created) => format!("{} {}", found(&created.entry), handle(&created.opened)),
        Reply::Data(data) => format!("{} bytes", length(data)),
        Reply::Count(count) => format!("{} bytes", count.0),
        Reply::Granted(granted) => format!("granted {}", granted.0),
        Reply::Offset(offset) => format!("offset {}", offset.0),
        Reply::Dirents(list) => entries(list.entries.len(), list.eof),
        Reply::DirentsPlus(list) => entries(list.entries.len(), list.eof),
        Reply::Value(value) => format!("{} bytes", value.len()),
        Reply::Names(names) => {
            let list: Vec<String> = names.iter().map(|name| printable(name)).collect();
            format!("{} names: {}", list.len(), list.join(" "))
        }
        Reply::LockState(None) => "free".into(),
        Reply::LockState(Some(held)) => format!("held: {} by pid {}", lock(held), held.pid),
        Reply::FsStat(stat) => {
            format!("{} of {} blocks of {} bytes free", stat.bfree, stat.blocks, stat.frsize)
        }
        Reply::IoctlDone(done) => format!("{}, {} bytes", done.result, done.output.len()),
        Reply::Events(events) => format!("{:#x}", events.0),
        Reply::Error(error) => format!("{error:?}"),
    }
}

/// How much content was read, written or copied.
pub(crate) fn bytes(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Data(data) => Some(length(data)),
        Reply::Count(count) => Some(count.0),
        _ => None,
    }
}

/// How much content a payload has. A piece of a file ends where the file does.
fn length(data: &Payload) -> u64 {
    let most = data.len() as u64;
    let Payload::File(slice) = data else { return most };
    let file = slice.file.fd().and_then(|fd| fd.try_clone_to_owned().ok()).map(File::from);
    let size = file.and_then(|file| file.metadata().ok()).map(|metadata| metadata.len());
    size.map_or(most, |size| size.saturating_sub(slice.offset).min(most))
}

fn number(handle: Handle) -> String {
    handle.0.to_string()
}

fn mode(mode: u32) -> (&'static str, String) {
    ("mode", format!("{mode:04o}"))
}

/// The mode of a new file, the umask if there is one to apply, and what else there is.
fn made(permissions: u32, umask: u32, more: impl IntoIterator<Item = (&'static str, String)>) -> Arguments {
    let umask = (umask != 0).then(|| ("umask", format!("{umask:04o}")));
    [mode(permissions)].into_iter().chain(umask).chain(more).collect()
}

fn range(handle: Handle, offset: u64, len: u64) -> Arguments {
    vec![("handle", number(handle)), ("offset", offset.to_string()), ("len", len.to_string())]
}

fn listing(handle: Handle, cookie: u64, size: u32) -> Arguments {
    vec![("handle", number(handle)), ("cookie", cookie.to_string()), ("size", size.to_string())]
}

/// The names of the flags, joined by `|`, as the flags themselves print them.
fn flags(set: &impl fmt::Debug) -> String {
    let text = format!("{set:?}");
    let inner = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(&text);
    inner.replace(" | ", "|").to_lowercase()
}

fn open_flags(set: OpenFlags) -> String {
    let access = match (set.reads(), set.writes()) {
        (true, true) => "read_write",
        (false, _) => "write",
        _ => "read",
    };
    let rest = set.difference(OpenFlags::WRITE_ONLY | OpenFlags::READ_WRITE);
    if rest.is_empty() { access.into() } else { format!("{access}|{}", flags(&rest)) }
}

fn set_attrs(attrs: &SetAttrs) -> Arguments {
    let time = |set: &SetTime| match set {
        SetTime::Now => "now".into(),
        SetTime::To(time) => seconds(time),
    };
    let all = [
        ("mode", attrs.mode.map(|mode| format!("{mode:04o}"))),
        ("uid", attrs.uid.map(|uid| uid.to_string())),
        ("gid", attrs.gid.map(|gid| gid.to_string())),
        ("size", attrs.size.map(|size| size.to_string())),
        ("atime", attrs.atime.as_ref().map(time)),
        ("mtime", attrs.mtime.as_ref().map(time)),
        ("ctime", attrs.ctime.as_ref().map(seconds)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn seconds(time: &Time) -> String {
    format!("{}.{:09}", time.secs, time.nanos)
}

fn lock(lock: &Lock) -> String {
    let kind = format!("{:?}", lock.kind).to_lowercase();
    match lock.end {
        u64::MAX => format!("{kind} {}..", lock.start),
        end => format!("{kind} {}..={end}", lock.start),
    }
}

fn found(entry: &Entry) -> String {
    format!("node {} {}", entry.node.0, attributes(&entry.attr))
}

fn handle(opened: &Opened) -> String {
    format!("handle {}", opened.handle.0)
}

fn entries(count: usize, eof: bool) -> String {
    format!("{count} entries{}", if eof { ", the end" } else { "" })
}

fn attributes(attr: &Attr) -> String {
    let kind = match attr.kind() {
        FileKind::Regular => "regular",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "chardev",
        FileKind::BlockDevice => "blockdev",
    };
    format!("{kind} {:04o} {} bytes", attr.permissions(), attr.size)
}
