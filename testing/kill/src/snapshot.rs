// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a tree holds, in a form in which two trees can be compared.

use anyhow::{Context, Result};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Every file by its path, described in one line each.
pub type Snapshot = BTreeMap<String, String>;

/// Reads the tree at `dir`.
pub fn take(dir: &Path) -> Result<Snapshot> {
    let mut snapshot = Snapshot::new();
    visit(dir, "", &mut snapshot)?;
    Ok(snapshot)
}

fn visit(dir: &Path, prefix: &str, snapshot: &mut Snapshot) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().display());
        let metadata =
            fs::symlink_metadata(entry.path()).with_context(|| entry.path().display().to_string())?;
        snapshot.insert(name.clone(), describe(&entry.path(), &metadata)?);
        if metadata.is_dir() {
            visit(&entry.path(), &format!("{name}/"), snapshot)?;
        }
    }
    Ok(())
}

/// Times only where they were set on purpose: in the year 2001.
const SET_ON_PURPOSE: i64 = 1_000_000_000;

fn describe(path: &Path, metadata: &Metadata) -> Result<String> {
    let content = if metadata.is_file() {
        format!(
            "{:?}",
            fs::read(path)?.iter().fold(0_u64, |hash, &byte| hash.rotate_left(7) ^ u64::from(byte))
        )
    } else if metadata.is_symlink() {
        fs::read_link(path)?.display().to_string()
    } else {
        String::new()
    };
    let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
    let size = if metadata.is_dir() { 0 } else { metadata.len() };
    let time = if metadata.mtime() == SET_ON_PURPOSE { "set" } else { "" };
    let xattr = if metadata.is_symlink() { String::new() } else { xattrs(path)? };
    Ok(format!("{:o} {links} {size} {content} {time} {xattr}", metadata.mode()))
}

fn xattrs(path: &Path) -> Result<String> {
    let mut names = vec![0; 4096];
    let len = match llistxattr(path, &mut names) {
        Err(Errno::OPNOTSUPP) => 0,
        listed => listed?,
    };
    let mut found = Vec::new();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; 4096];
        let len = lgetxattr(path, name, &mut value)?;
        found.push(format!("{}={}", name.escape_ascii(), value[..len].escape_ascii()));
    }
    found.sort();
    Ok(found.join(" "))
}

/// Sets an extended attribute that must not be there yet.
pub fn set_new_xattr(path: &Path, value: &[u8]) -> std::io::Result<()> {
    Ok(lsetxattr(path, "user.test", value, XattrFlags::CREATE)?)
}

/// The first few differences, for people.
pub fn differences(expected: &Snapshot, found: &Snapshot) -> Vec<String> {
    let mut all = Vec::new();
    for (path, what) in expected {
        match found.get(path) {
            Some(there) if there == what => {}
            Some(there) => all.push(format!("{path}: expected {what}, found {there}")),
            None => all.push(format!("{path}: missing")),
        }
    }
    all.extend(
        found.keys().filter(|path| !expected.contains_key(*path)).map(|path| format!("{path}: not expected")),
    );
    all
}
