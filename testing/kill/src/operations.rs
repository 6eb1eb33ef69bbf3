// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of the table: how each is prepared and done, and which requests it becomes.

use crate::snapshot::set_new_xattr;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// One row.
pub struct Operation {
    /// As programs call it.
    pub name: &'static str,
    /// The requests of the file system, as rules of the fault layer name them. What cannot succeed is not asked for: the
    /// kernel looks before.
    pub requests: &'static str,
    /// Makes what the operation needs.
    pub prepare: fn(&Path, u32) -> io::Result<()>,
    /// Does it; what it answers is compared, too.
    pub act: fn(&Path, u32) -> io::Result<String>,
}

impl Operation {
    /// Whether it changes something, or would.
    pub fn is_change(&self) -> bool {
        self.asks_for_change() || self.requests == "lookup" || self.removes_open()
    }

    /// Whether it takes the last name from a file that is open.
    pub fn removes_open(&self) -> bool {
        [", open", ", removed"].iter().any(|end| self.name.ends_with(end))
    }

    /// Whether the file system is asked to change something.
    pub fn asks_for_change(&self) -> bool {
        !["open", "read", "readdir|readdirplus", "readlink", "lookup|getattr", "lookup"]
            .contains(&self.requests)
    }
}

fn file(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("file{number}"))
}

fn other(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("other{number}"))
}

fn nothing(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

fn with_file(dir: &Path, number: u32) -> io::Result<()> {
    fs::write(file(dir, number), format!("content of {number}"))
}

fn done(result: io::Result<()>) -> io::Result<String> {
    result.map(|()| String::new())
}

/// An open file that was just removed, so that the successor finds it without a name.
fn removed(dir: &Path, number: u32) -> io::Result<File> {
    let removed = OpenOptions::new().read(true).write(true).open(file(dir, number))?;
    fs::remove_file(file(dir, number))?;
    removed.sync_all()?;
    Ok(removed)
}

const TIME: Timespec = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };

/// Every row, in the order of the paper's table and then what it does not have.
pub const ALL: &[Operation] = &[
    Operation {
        name: "create",
        requests: "create",
        prepare: nothing,
        act: |dir, n| done(File::create_new(file(dir, n)).and_then(|made| made.write_all_at(b"new", 0))),
    },
    Operation {
        name: "mkdir",
        requests: "mkdir",
        prepare: nothing,
        act: |dir, n| done(fs::create_dir(file(dir, n))),
    },
    Operation {
        name: "symlink",
        requests: "symlink",
        prepare: nothing,
        act: |dir, n| done(symlink(format!("target of {n}"), file(dir, n))),
    },
    Operation {
        name: "link",
        requests: "link",
        prepare: with_file,
        act: |dir, n| done(fs::hard_link(file(dir, n), other(dir, n))),
    },
    Operation {
        name: "rename",
        requests: "rename",
        prepare: with_file,
        act: |dir, n| done(fs::rename(file(dir, n), other(dir, n))),
    },
    Operation {
        name: "rename over",
        requests: "rename",
        prepare: |dir, n| with_file(dir, n).and_then(|()| fs::write(other(dir, n), "goes")),
        act: |dir, n| done(fs::rename(file(dir, n), other(dir, n))),
    },
    Operation {
        name: "open",
        requests: "open",
        prepare: with_file,
        act: |dir, n| File::open(file(dir, n)).and_then(io::read_to_string),
    },
    Operation {
        name: "read",
        requests: "read",
        prepare: with_file,
        act: |dir, n| fs::read_to_string(file(dir, n)),
    },
    Operation {
        name: "readdir",
        requests: "readdir|readdirplus",
        prepare: |dir, n| {
            fs::create_dir(file(dir, n))?;
            (0..40).try_for_each(|i| fs::write(file(dir, n).join(format!("{i}")), ""))
        },
        act: |dir, n| {
            let names = fs::read_dir(file(dir, n))?.map(|entry| Ok(entry?.file_name()));
            let mut names = names.collect::<io::Result<Vec<_>>>()?;
            names.sort();
            Ok(format!("{names:?}"))
        },
    },
    Operation {
        name: "readlink",
        requests: "readlink",
        prepare: |dir, n| symlink(format!("target of {n}"), file(dir, n)),
        act: |dir, n| fs::read_link(file(dir, n)).map(|target| target.display().to_string()),
    },
    Operation {
        name: "write",
        requests: "write",
        prepare: with_file,
        act: |dir, n| done(OpenOptions::new().write(true).open(file(dir, n))?.write_all_at(b"other", 3)),
    },
    Operation {
        name: "append",
        requests: "write",
        prepare: with_file,
        act: |dir, n| {
            use io::Write;
            done(OpenOptions::new().append(true).open(file(dir, n))?.write_all(b" and more"))
        },
    },
    Operation {
        name: "fsync",
        requests: "fsync|syncfs",
        prepare: with_file,
        act: |dir, n| {
            let file = OpenOptions::new().write(true).open(file(dir, n))?;
            done(file.write_all_at(b"other", 3).and_then(|()| file.sync_all()))
        },
    },
    Operation {
        name: "unlink",
        requests: "unlink",
        prepare: with_file,
        act: |dir, n| done(fs::remove_file(file(dir, n))),
    },
    Operation {
        name: "rmdir",
        requests: "rmdir",
        prepare: |dir, n| fs::create_dir(file(dir, n)),
        act: |dir, n| done(fs::remove_dir(file(dir, n))),
    },
    Operation {
        name: "truncate",
        requests: "setattr",
        prepare: with_file,
        act: |dir, n| done(OpenOptions::new().write(true).open(file(dir, n))?.set_len(4)),
    },
    Operation {
        name: "chmod",
        requests: "setattr",
        prepare: with_file,
        act: |dir, n| done(fs::set_permissions(file(dir, n), Permissions::from_mode(0o4711))),
    },
    Operation {
        name: "utime",
        requests: "setattr",
        prepare: with_file,
        act: |dir, n| {
            let times = Timestamps { last_access: TIME, last_modification: TIME };
            done(utimensat(CWD, file(dir, n), &times, AtFlags::empty()).map_err(Into::into))
        },
    },
    Operation {
        name: "stat",
        requests: "lookup|getattr",
        prepare: with_file,
        act: |dir, n| fs::metadata(file(dir, n)).map(|found| found.len().to_string()),
    },
    Operation {
        name: "setxattr",
        requests: "setxattr",
        prepare: with_file,
        act: |dir, n| done(set_new_xattr(&file(dir, n), b"value")),
    },
    Operation {
        name: "mknod",
        requests: "mknod",
        prepare: nothing,
        act: |dir, n| {
            let mode = Mode::from_raw_mode(0o640);
            done(mknodat(CWD, file(dir, n), FileType::Fifo, mode, 0).map_err(Into::into))
        },
    },
    Operation {
        name: "mkdir, in the way",
        requests: "lookup",
        prepare: |dir, n| fs::create_dir(file(dir, n)),
        act: |dir, n| done(fs::create_dir(file(dir, n))),
    },
    Operation {
        name: "unlink, not there",
        requests: "lookup",
        prepare: nothing,
        act: |dir, n| done(fs::remove_file(file(dir, n))),
    },
    Operation {
        name: "unlink, open",
        requests: "unlink",
        prepare: with_file,
        act: |dir, n| io::read_to_string(removed(dir, n)?),
    },
    Operation {
        name: "rename over, open",
        requests: "rename",
        prepare: |dir, n| with_file(dir, n).and_then(|()| fs::write(other(dir, n), "goes")),
        act: |dir, n| {
            let replaced = File::open(other(dir, n))?;
            fs::rename(file(dir, n), other(dir, n))?;
            Ok(io::read_to_string(replaced)? + &fs::read_to_string(other(dir, n))?)
        },
    },
    Operation {
        name: "read, removed",
        requests: "read",
        prepare: with_file,
        act: |dir, n| io::read_to_string(removed(dir, n)?),
    },
    Operation {
        name: "write, removed",
        requests: "write",
        prepare: with_file,
        act: |dir, n| {
            let removed = removed(dir, n)?;
            removed.write_all_at(b"other", 3)?;
            io::read_to_string(removed)
        },
    },
];
