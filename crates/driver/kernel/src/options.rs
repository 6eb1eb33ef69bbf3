// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a disk image.

use crate::Kernel;
use crate::files;
use outrigger_core::option::option;
use outrigger_core::registry::{DriverInfo, Follows, Lasts, Scheme};
use outrigger_core::{Errno, Error, OptionTable, Result, parse_size};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "kernel",
    opens: "disk images and block devices: ext2, ext3, ext4, xfs, btrfs, f2fs, jfs, nilfs2, vfat, exfat, ntfs, udf, hfs, hfsplus, minix, ufs, iso9660, squashfs, erofs, romfs, cramfs, jffs2; with partitions (GPT, MBR) as directories p1, p2, ...; tmpfs: in memory",
    location: "FILE::/PATH, tmpfs:[PATH]",
    writable: true,
    options: &[&OPTIONS],
    others: "the options of the file system, as in mount(8)",
    schemes: &[Scheme {
        name: "tmpfs",
        follows: Follows::Path,
        lasts: Lasts::Process,
        open: |_, given, _| {
            let mut options = Options::default();
            given.apply(&mut |key, value| options.set(key, value))?;
            let tree = Kernel::in_memory(&options);
            let tree = tree.map_err(|error| error.errno.because(format!("cannot make a tmpfs: {error}")))?;
            Ok(Arc::new(tree))
        },
    }],
    files: Some(files::FILES),
    ..DriverInfo::NONE
};

/// What [`Options::set`] takes itself; every other option goes to the file system.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "kernel",
    options: &[
        option("ro", "", "", "refuses changes; a journal is replayed into memory only"),
        option("rw", "", "", "the opposite of ro"),
        option("type", "NAME", "found by content", "the file system"),
        option(
            "partition",
            "N",
            "",
            "the partition that is the tree; without it all are, as p1, p2 and so on",
        ),
        option("offset", "BYTES", "0", "where in the image the file system begins"),
        option("memory", "BYTES", "128m", "memory of the kernel code, page cache included; at least 24m"),
        option("io", "buffered|direct|mmap|uring", "buffered", "how the bytes of the image are moved"),
        option("erase", "BYTES", "found by content", "the erase block of flash memory (jffs2)"),
        option(
            "backing",
            "allow",
            "",
            "lets an image be based on, or be in, files outside its own directory",
        ),
        option("device", "FILE", "", "a further device of btrfs; may be repeated"),
        option("journal_path", "FILE", "", "the external journal of ext4"),
        option("logdev", "FILE", "", "the external log of XFS"),
        option("rtdev", "FILE", "", "the real-time device of XFS"),
        option("patience", "SECONDS", "120", "how long mounting and unmounting the image may each take"),
        option("guard", "", "", "commands go on when outrigger-kernel dies; mounts always do"),
    ],
};

/// How an image is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// `ro`: refuse changes; `rw` is the opposite.
    pub read_only: bool,
    /// `type=NAME`: the file system, instead of looking for it.
    pub kind: Option<String>,
    /// `partition=N`: the partition that is the tree, of an image with a partition table.
    pub partition: Option<u32>,
    /// `offset=BYTES`: where in the image the file system begins, which ends where the image does.
    pub offset: Option<u64>,
    /// `guard`: the tree survives the death of the process that serves it; what is written reaches the image at
    /// checkpoints only.
    pub guard: bool,
    /// `memory=BYTES`: how much memory the kernel code has, page cache included; 128 MiB if not given.
    pub memory: Option<u64>,
    /// `erase=BYTES`: how much of flash memory is erased together; what its content tells if not given.
    pub erase: Option<u32>,
    /// `patience=SECONDS`: how long mounting and unmounting the image may each take before the worker is killed; two
    /// minutes if not given.
    pub patience: Option<Duration>,
    /// `io=buffered|direct|mmap|uring`: how the bytes of the image are moved; `buffered` if not given.
    pub io: Option<String>,
    /// `backing=allow`: an image may be based on, or be in, files that are not in its own directory or below.
    pub backing: bool,
    /// `device=FILE`, `journal_path=FILE`, `logdev=FILE`, `rtdev=FILE`: further files the file system is on, each with the option
    /// that names it: other devices of btrfs, the journal of ext4, the log and the real-time device of XFS.
    pub devices: Vec<(String, PathBuf)>,
    /// For how long at least a guarded tree tries to start a worker before it is given up: what a mount says with `timeout=`.
    pub hold: Duration,
    /// The same requests lead to the same image; none for a machine with the host's clock and random numbers.
    pub fixed: Option<Fixed>,
    /// Everything else: options of the file system, as mount(8) takes them.
    pub passed: Vec<String>,
}

/// A machine that does the same whenever and wherever it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    /// The time of day, which never passes, in seconds since 1970.
    pub seconds: u64,
    /// Where its random numbers begin.
    pub seed: u64,
}

impl Options {
    /// Takes one option.
    ///
    /// # Errors
    /// `EINVAL` with a sentence when the value cannot be.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "ro" | "rw" | "guard" if !value.is_empty() => return Err(OPTIONS.unfit(key, value)),
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "guard" => self.guard = true,
            "type" => self.kind = Some(value.to_owned()),
            "memory" => {
                let bytes =
                    parse_size(value).filter(|&bytes| bytes >= LEAST).ok_or_else(|| refused(value))?;
                let host = rustix::system::sysinfo();
                let most = host.totalram.saturating_mul(host.mem_unit.into());
                if bytes > most {
                    let most = most >> 20;
                    return Err(
                        Errno::EINVAL.because(format!("memory={value}: this machine has {most}M of memory"))
                    );
                }
                self.memory = Some(bytes);
            }
            "io" if ["buffered", "direct", "mmap", "uring"].contains(&value) => {
                self.io = Some(value.to_owned())
            }
            "backing" if value == "allow" => self.backing = true,
            "io" | "backing" => return Err(OPTIONS.unfit(key, value)),
            "erase" => self.erase = Some(erased(value)?),
            "offset" => self.offset = Some(OPTIONS.bytes(key, value)?),
            "partition" => self.partition = Some(OPTIONS.number(key, value, 1..)?),
            "patience" => self.patience = Some(OPTIONS.time_limit(key, value)?),
            "device" | "journal_path" | "logdev" | "rtdev" if !value.is_empty() => {
                self.devices.push((key.to_owned(), value.into()))
            }
            "journal_dev" => {
                return Err(Errno::EINVAL.because(
                    "option journal_dev is a number of the host's; journal_path=FILE names the journal",
                ));
            }
            _ if value.is_empty() => self.passed.push(key.to_owned()),
            _ => self.passed.push(format!("{key}={value}")),
        }
        Ok(())
    }

    /// How much memory a file system in memory needs, where its own `size=BYTES` is more than fits otherwise.
    pub(crate) fn memory_for_tree(&self) -> Option<u64> {
        let size = self.passed.iter().rev().find_map(|option| parse_size(option.strip_prefix("size=")?));
        self.memory.or_else(|| size.map(|size| (size + size / 8).saturating_add(ROOM)))
    }
}

/// What the kernel code needs beside the files of a file system in memory, in bytes.
const ROOM: u64 = 64 << 20;

/// Enough for the metadata of large images, and to keep a disk busy.
const MEMORY: u64 = 128 << 20;
/// A file in use costs nearly 2 KiB of it, and such files are scattered over what others leave: a quarter is for them.
const A_FILE: u64 = 8 << 10;
/// Fewer files than this are in use for one path.
const FEW_FILES: u64 = 512;

impl Options {
    /// How much memory the kernel code has, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.unwrap_or(MEMORY)
    }

    /// How many files it is to hold at most.
    pub(crate) fn files(&self) -> usize {
        (self.memory().saturating_sub(LEAST) / A_FILE).max(FEW_FILES) as usize
    }
}

/// With less the kernel code does not even start, or XFS cannot be mounted.
const LEAST: u64 = 24 << 20;

fn refused(value: &str) -> Error {
    Errno::EINVAL.because(format!("option memory cannot be \"{value}\": a size of at least 24M"))
}

/// A size of flash memory that is erased together.
fn erased(text: &str) -> Result<u32> {
    let fits = |bytes: &u64| bytes.is_power_of_two() && (4 << 10..=64 << 20).contains(bytes);
    parse_size(text).filter(fits).map(|bytes| bytes as u32).ok_or_else(|| {
        Errno::EINVAL.because(format!("option erase cannot be \"{text}\": a power of two from 4K to 64M"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_takes_no_value() {
        for key in ["ro", "rw", "guard"] {
            let refused = Options::default().set(key, "0").unwrap_err();
            assert!(refused.to_string().contains(key), "{refused}");
        }
    }

    #[test]
    fn what_is_not_ours_is_the_file_systems() {
        let mut options = Options::default();
        for (key, value) in [
            ("ro", ""),
            ("memory", "64M"),
            ("noatime", ""),
            ("commit", "5"),
            ("type", "ext4"),
            ("patience", "9"),
            ("partition", "2"),
            ("offset", "1M"),
            ("io", "mmap"),
            ("erase", "128K"),
            ("guard", ""),
            ("backing", "allow"),
            ("device", "one"),
            ("logdev", "other"),
            ("rtdev", "third"),
        ] {
            options.set(key, value).expect("an option");
        }
        let passed = ["noatime", "commit=5"].map(str::to_owned).to_vec();
        let expected = Options {
            read_only: true,
            guard: true,
            kind: Some("ext4".into()),
            partition: Some(2),
            offset: Some(1 << 20),
            memory: Some(64 << 20),
            patience: Some(Duration::from_secs(9)),
            io: Some("mmap".into()),
            backing: true,
            erase: Some(128 << 10),
            devices: [("device", "one"), ("logdev", "other"), ("rtdev", "third")]
                .map(|(key, path)| (key.to_owned(), path.into()))
                .to_vec(),
            passed,
            ..Options::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn patience_is_a_number_of_seconds() {
        for (value, fits) in [("1", true), ("600", true), ("0", false), ("-1", false), ("", false)] {
            assert_eq!(Options::default().set("patience", value).is_ok(), fits, "{value}");
        }
    }

    #[test]
    fn memory_has_a_least_size() {
        for (value, fits) in [
            ("24M", true),
            ("1G", true),
            ("23M", false),
            ("", false),
            ("M", false),
            ("99999999999G", false),
            ("1000t", false),
        ] {
            assert_eq!(Options::default().set("memory", value).is_ok(), fits, "{value}");
        }
    }
}
