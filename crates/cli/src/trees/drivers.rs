// SPDX-License-Identifier: MIT OR Apache-2.0
//! The drivers: what `outrigger drivers` lists, and how options reach them.

use crate::status::Failure;
use outrigger_core::{Errno, Error};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

/// What `outrigger drivers` tells about a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    /// Its name.
    pub name: &'static str,
    /// What it opens.
    pub opens: &'static str,
    /// How its trees are named.
    pub location: &'static str,
    /// Whether trees can be changed.
    pub writable: bool,
    /// Its options, as `-o` and `--opt` take them.
    pub options: &'static str,
}

/// Every driver.
pub const DRIVERS: &[DriverInfo] = &[
    DriverInfo {
        name: "local",
        opens: "directories of the host",
        location: "PATH",
        writable: true,
        options: "cache=SECONDS passthrough=on|off xattr=on|off xdev=on|off handles=on|off descriptors=N",
    },
    DriverInfo {
        name: "archive",
        opens: "tar, tar.gz, tar.bz2, tar.xz, tar.zst, zip, cpio, ar and deb; gz, bz2, xz and zst files",
        location: "FILE::/path",
        writable: false,
        options: "partial nocache max_entries=N max_names=BYTES max_ratio=N decoder_memory=BYTES block_cache=BYTES cache_size=BYTES",
    },
    DriverInfo {
        name: "kernel",
        opens: "disk images and block devices: ext2, ext3, ext4, xfs, btrfs, f2fs, jfs, nilfs2, vfat, exfat, ntfs, udf, hfs, hfsplus, minix, ufs, iso9660, squashfs, erofs, romfs, cramfs, jffs2; with partitions (GPT, MBR) as directories p1, p2, ...; tmpfs: in memory",
        location: "FILE::/path, tmpfs:",
        writable: true,
        options: "ro type=NAME partition=N erase=BYTES memory=BYTES io=buffered|direct|mmap|uring backing=allow device=FILE journal_path=FILE logdev=FILE rtdev=FILE patience=SECONDS and those of the file system, as in mount(8)",
    },
    DriverInfo {
        name: "mem",
        opens: "memory; the tree lives as long as the mount",
        location: "mem:",
        writable: true,
        options: "size=BYTES|% nr_inodes=N nr_blocks=N mode=OCTAL uid=N gid=N",
    },
    DriverInfo {
        name: "sftp",
        opens: "directories of SSH servers, with the user's ssh and its configuration",
        location: "HOST:PATH, sftp://USER@HOST:PORT/PATH",
        writable: true,
        options: "for mounts: cache=SECONDS|always|never write=through|close|behind cache:/PATH= write:/PATH= cache_memory=BYTES disk_cache=BYTES cache_dir=DIR write_memory=BYTES cache_entries=N cache_names=BYTES files_ahead=BYTES, and of sshfs dir_cache=no (cache=never) dcache_timeout=N (cache=N) dcache_max_size=N (cache_entries=N) sshfs_sync (write=through); always: port=N compression=yes|no idmap=none|user|file uidfile=FILE gidfile=FILE nomap=error|ignore transform_symlinks contain_symlinks follow_symlinks disable_hardlink ahead=SECONDS read_ahead=BYTES no_readahead sync_read sync_readdir timeout=SECONDS connect_timeout=SECONDS F=FILE ssh_command=WORDS sftp_server=NAME command=WORDS, and those of ssh_config(5) as in IdentityFile=FILE",
    },
    DriverInfo {
        name: "fuse",
        opens: "what any FUSE program serves (sshfs, bindfs, squashfuse, ...), started without a mount and again when it dies",
        location: "fuse:COMMAND",
        writable: true,
        options: "timeout=SECONDS restart-on-hang=SECONDS start-timeout=SECONDS kept-writes=BYTES unsafe-cache",
    },
    DriverInfo {
        name: "null",
        opens: "one constant file, to measure everything around it",
        location: "null:",
        writable: false,
        options: "size=BYTES",
    },
];

/// What became of the options of a command that has trees of several drivers: one concerns whoever takes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sides {
    taken: RefCell<HashSet<String>>,
    /// With what the driver said.
    refused: RefCell<Vec<(String, String)>>,
}

impl Sides {
    /// All trees are open: whatever concerns one of them has been taken.
    ///
    /// # Errors
    /// What a driver said about an option that none takes.
    pub fn all_taken(&self) -> Result<(), Failure> {
        let (taken, refused) = (self.taken.borrow(), self.refused.borrow());
        match refused.iter().find(|(key, _)| !taken.contains(key)) {
            Some((_, why)) => Err(Failure::serious(why)),
            None => Ok(()),
        }
    }
}

/// Options meant for a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverOptions {
    pairs: Vec<(String, String)>,
    /// Where some may be meant for others.
    sides: Option<Rc<Sides>>,
}

impl DriverOptions {
    /// Reads `key=value,key` lists.
    pub fn parse(lists: &[String]) -> Self {
        let items = lists.iter().flat_map(|list| list.split(',')).filter(|item| !item.is_empty());
        DriverOptions::of(items)
    }

    /// The same options, of which some may be meant for other drivers.
    pub fn for_sides(self, sides: Option<Rc<Sides>>) -> Self {
        DriverOptions { sides, ..self }
    }

    /// Whether an option can only be meant for another driver than `kernel`, which leaves what it does not know to the file
    /// system.
    pub fn is_elsewhere(&self, key: &str) -> bool {
        let of = |driver: &DriverInfo| {
            driver.options.split_whitespace().any(|item| item.split('=').next() == Some(key))
        };
        let others = ["local", "archive", "sftp"];
        self.sides.is_some()
            && DRIVERS.iter().any(|driver| others.contains(&driver.name) && of(driver))
            && !DRIVERS.iter().any(|driver| driver.name == "kernel" && of(driver))
    }

    /// Reads single `key=value` or `key` items.
    pub fn of<'a>(items: impl Iterator<Item = &'a str>) -> Self {
        let pair = |item: &str| match item.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (item.to_owned(), String::new()),
        };
        DriverOptions { pairs: items.map(pair).collect(), sides: None }
    }

    /// Takes out those whose keys are `known`.
    pub fn take(&mut self, known: impl Fn(&str) -> bool) -> Self {
        let pairs = self.pairs.extract_if(.., |(key, _)| known(key)).collect();
        DriverOptions { pairs, sides: self.sides.clone() }
    }

    /// Whether one of these options is given.
    pub fn has(&self, keys: &[&str]) -> bool {
        self.pairs.iter().any(|(key, _)| keys.contains(&key.as_str()))
    }

    /// The key of the first one.
    pub fn first(&self) -> Option<&str> {
        self.pairs.first().map(|(key, _)| &**key)
    }

    /// Gives each option to `set`.
    ///
    /// # Errors
    /// What the driver says about an option it does not take, unless that may be meant for another one.
    pub fn apply(&self, mut set: impl FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Failure> {
        for (key, value) in &self.pairs {
            let said =
                set(key, value).map_err(|error| error.reason.as_deref().unwrap_or("bad option").to_owned());
            match (said, &self.sides) {
                (Err(why), None) => return Err(Failure::serious(why)),
                (Err(why), Some(sides)) => sides.refused.borrow_mut().push((key.clone(), why)),
                (Ok(()), Some(sides)) => _ = sides.taken.borrow_mut().insert(key.clone()),
                (Ok(()), None) => {}
            }
        }
        Ok(())
    }

    /// What a driver says that does not know an option.
    pub fn unknown(driver: &str, key: &str) -> Error {
        Errno::EINVAL.because(format!("{driver} has no option {key}"))
    }
}
