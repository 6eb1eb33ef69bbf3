// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file as a JSON object: what `--json` prints, one a line.

use super::time::rfc3339;
use super::{mode, owner::Owners};
use crate::messages::record;
use outrigger_core::reply::FsStat;
use outrigger_core::{Attr, FileKind};
use serde::Serialize;
use serde_json::{Value, json};

/// What `ls`, `stat` and `find` tell about one file.
#[derive(Debug, Serialize)]
pub struct Record {
    path: String,
    /// The exact bytes in hexadecimal, when the path is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(flatten)]
    attributes: Option<Attributes>,
    /// What a symbolic link points to.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

#[derive(Debug, Serialize)]
struct Attributes {
    kind: &'static str,
    /// Permissions in octal.
    mode: String,
    nlink: u32,
    uid: u32,
    user: Option<String>,
    gid: u32,
    group: Option<String>,
    /// In bytes.
    size: u64,
    /// In units of 512 bytes.
    blocks: u64,
    inode: u64,
    /// Major and minor number of a device node.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    atime: String,
    mtime: String,
    ctime: String,
    btime: Option<String>,
    /// What of this the tree does not know, and has a value only to be shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<String>,
}

impl Record {
    /// A file at `path` of which the attributes and the target of the link are known or not.
    pub fn new(path: &[u8], attr: Option<&Attr>, target: Option<&[u8]>, owners: &Owners) -> Self {
        Record {
            path: String::from_utf8_lossy(path).into_owned(),
            path_hex: hex_unless_utf8(path),
            attributes: attr.map(|attr| Attributes::new(attr, owners)),
            target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }

    /// The object and the end of its line.
    pub fn line(&self) -> Vec<u8> {
        record(self).into_bytes()
    }
}

/// The bytes of `text` in hexadecimal when it is not UTF-8: JSON has no other way to keep them.
pub fn hex_unless_utf8(text: &[u8]) -> Option<String> {
    match std::str::from_utf8(text) {
        Ok(_) => None,
        Err(_) => Some(text.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}

impl Attributes {
    fn new(attr: &Attr, owners: &Owners) -> Self {
        let is_device = matches!(attr.kind(), FileKind::CharDevice | FileKind::BlockDevice);
        Attributes {
            kind: kind_word(attr.kind()),
            mode: format!("{:04o}", attr.permissions()),
            nlink: attr.nlink,
            uid: attr.uid,
            user: owners.user(attr.uid).map(|name| name.to_string()),
            gid: attr.gid,
            group: owners.group(attr.gid).map(|name| name.to_string()),
            size: attr.size,
            blocks: attr.blocks,
            inode: attr.ino,
            device: is_device.then(|| mode::device(attr.rdev)),
            atime: rfc3339(attr.atime),
            mtime: rfc3339(attr.mtime),
            ctime: rfc3339(attr.ctime),
            btime: attr.btime.map(rfc3339),
            unknown: attr.unknown.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect(),
        }
    }
}

/// What `cp` and `mv` tell about a file that was copied or moved.
pub fn transfer(source: &Attr, from: &[u8], to: &[u8]) -> Value {
    json!({
        "source": String::from_utf8_lossy(from),
        "destination": String::from_utf8_lossy(to),
        "kind": kind_word(source.kind()),
        "size": source.size,
    })
}

/// What `df` and `stat -f` tell about the tree at a place; sizes in bytes.
pub fn space(place: &str, tree: &str, driver: &str, info: &FsStat) -> Value {
    let bytes = |blocks: u64| blocks.saturating_mul(info.frsize.into());
    json!({
        "path": place, "tree": tree, "driver": driver,
        "size": bytes(info.blocks), "used": bytes(info.blocks.saturating_sub(info.bfree)),
        "free": bytes(info.bfree), "available": bytes(info.bavail),
        "inodes": info.files, "inodes_free": info.ffree,
        "block_size": info.bsize, "name_length": info.namelen,
    })
}

/// How a kind of file is called in `--json`.
pub fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_keep_their_bytes() {
        let record = Record::new(b"a\xff", None, None, &Owners::default());
        let line = String::from_utf8(record.line()).unwrap();
        assert_eq!(line, "{\"path\":\"a\u{fffd}\",\"path_hex\":\"61ff\"}\n");
    }
}
