// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images of file systems that are made empty by a tool of the system, and filled by their kernel code.

use super::keeps::Keeps;
use super::plan::{BLOCK, Plan};
use super::seed::Seed;
use super::target::descriptor;
use super::tool::Tool;
use crate::say::word;
use crate::status::Failure;
use std::ffi::OsString;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;

/// A type of file system.
#[derive(Debug)]
pub struct Disk {
    /// Its name in the kernel.
    pub kernel: &'static str,
    /// The program that makes an empty one.
    pub tool: Tool,
    /// The arguments of the program, but for the image, which is the last one.
    pub arguments: fn(&Wish<'_>) -> Vec<String>,
    /// Variables of the program.
    pub variables: fn(&Wish<'_>) -> Vec<(&'static str, String)>,
    /// How large an image has to be for a tree, in bytes.
    pub size: fn(&Plan) -> u64,
    /// What it can hold.
    pub keeps: Keeps,
    /// The longest label.
    pub label: Longest,
    /// The first and the last time that it can hold, in seconds since 1970.
    pub times: RangeInclusive<u64>,
}

/// The longest label that the program stores as a whole.
#[derive(Debug, Clone, Copy)]
pub enum Longest {
    /// In bytes.
    Bytes(usize),
    /// In units of UTF-16.
    Units(usize),
}

/// What is wanted of an empty file system.
#[derive(Debug)]
pub struct Wish<'a> {
    /// Its size, in bytes.
    pub size: u64,
    /// Its label, if it is to have one.
    pub label: Option<&'a str>,
    /// Where its identifiers come from.
    pub seed: Seed,
    /// When it is made, in seconds since 1970.
    pub clock: u64,
    /// What it is for.
    pub plan: &'a Plan,
}

impl Disk {
    /// How large the image has to be, in bytes.
    pub fn size(&self, plan: &Plan) -> u64 {
        (self.size)(plan).next_multiple_of(1 << 20)
    }

    /// Makes an empty file system in `image`, which the program gets as a descriptor: a path may lead to another file by then.
    ///
    /// # Errors
    /// That the program is missing, or what it says.
    pub fn format(&self, wish: &Wish<'_>, image: &File) -> Result<(), Failure> {
        let words = (self.arguments)(wish).into_iter().chain([descriptor(image)]).map(OsString::from);
        let words: Vec<OsString> = words.collect();
        self.tool.run(&words, &(self.variables)(wish), &[image.as_raw_fd()])
    }

    /// Looks whether it can have this label.
    ///
    /// # Errors
    /// A sentence that says how long a label may be. The programs cut some off without failing.
    pub fn check_label(&self, label: &str) -> Result<(), Failure> {
        let (length, most, unit) = match self.label {
            Longest::Bytes(most) => (label.len(), most, "bytes"),
            Longest::Units(most) => (label.encode_utf16().count(), most, "characters"),
        };
        match length > most {
            true => Err(Failure::serious(format!(
                "the label {} has {length} {unit}: {} has labels of at most {most}",
                word(label),
                self.kernel
            ))),
            false => Ok(()),
        }
    }
}

/// Times of most types: up to 2106, which all of them and the clock of their kernel code can have.
pub const TIMES: RangeInclusive<u64> = 0..=u32::MAX as u64;

/// Features of ext4, after "none": without, those that `/etc/mke2fs.conf` has count.
const EXT4_FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
                             large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// ext4 with its metadata on the same places wherever it is made.
pub const EXT4: Disk = Disk {
    kernel: "ext4",
    tool: Tool { program: "mke2fs", package: "e2fsprogs" },
    arguments: |wish| {
        let further = if wish.plan.longest_attribute > BLOCK / 2 { ",ea_inode" } else { "" };
        let features = format!("{EXT4_FEATURES}{further}");
        // Whether zeroes are written depends on the file system that the image is in and on this kernel, otherwise.
        let extended = format!(
            "hash_seed={},root_owner=0:0,nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            wish.seed.uuid("hash")
        );
        let inodes = ext4_inodes(wish.plan).to_string();
        let uuid = wish.seed.uuid("image");
        let block = BLOCK.to_string();
        let words = [
            "-q", "-F", "-t", "ext4", "-b", &block, "-I", INODE, "-m", "0", "-N", &inodes, "-U", &uuid, "-O",
            &features, "-E", &extended,
        ];
        labelled(wish, "-L", &words)
    },
    variables: |wish| {
        vec![
            // Instead of the one of this system.
            ("MKE2FS_CONFIG", "/dev/null".to_owned()),
            ("E2FSPROGS_FAKE_TIME", wish.clock.to_string()),
            ("MKE2FS_SYNC", "0".to_owned()),
        ]
    },
    size: ext4_size,
    keeps: Keeps::ALL,
    label: Longest::Bytes(16),
    times: TIMES,
};

/// These words, and the label if there is to be one.
pub fn labelled(wish: &Wish<'_>, option: &str, words: &[&str]) -> Vec<String> {
    let label = wish.label.into_iter().flat_map(|label| [option, label]);
    words.iter().copied().chain(label).map(str::to_owned).collect()
}

/// The first ten are the file system's own, and lost+found is the eleventh; some are for what comes later.
fn ext4_inodes(plan: &Plan) -> u64 {
    plan.files + plan.files / 16 + 32
}

/// The size of an inode of ext4, in bytes.
const INODE: &str = "256";
/// Blocks in a group, and inodes in a block of their table.
const GROUP: u64 = 32768;
const INODES: u64 = BLOCK / 256;

fn ext4_size(plan: &Plan) -> u64 {
    let content = plan.blocks + plan.directory_blocks;
    let inodes = ext4_inodes(plan).div_ceil(INODES) + 16;
    // Extents that end at groups, and what is found for content that comes in pieces.
    let needed = content + content / 50 + inodes + 256;
    let with_journal = needed + ext4_journal(needed + needed / 8);
    let groups = with_journal / GROUP + 1;
    // Bitmaps; descriptors, also for a file system that has grown a thousandfold, with each copy of the superblock.
    let descriptors = groups.div_ceil(BLOCK / 64) + (with_journal / 2048).min(1024) + 1;
    let inodes_of_groups = groups;
    // With fewer blocks mke2fs makes no journal.
    (with_journal + groups * 2 + descriptors * copies(groups) + inodes_of_groups).max(2048) * BLOCK
}

/// The blocks of the journal that mke2fs makes in a file system of so many blocks.
fn ext4_journal(blocks: u64) -> u64 {
    let steps = [
        (GROUP, 1024),
        (256 << 10, 4096),
        (512 << 10, 8192),
        (4096 << 10, 16384),
        (8192 << 10, 32768),
        (16384 << 10, 65536),
    ];
    steps.iter().find(|(below, _)| blocks < *below).map_or(256 << 10, |(_, journal)| *journal)
}

/// How many of so many groups have a copy of the superblock: 0, 1, and powers of 3, 5 and 7.
fn copies(groups: u64) -> u64 {
    let powers = |base: u64| {
        std::iter::successors(Some(base), move |power| power.checked_mul(base))
            .take_while(|power| *power < groups)
            .count()
    };
    2 + [3, 5, 7].map(powers).iter().sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_the_superblock_are_in_groups_of_powers() {
        assert_eq!(copies(1), 2);
        // 0, 1, 3, 5, 7, 9, 25, 27
        assert_eq!(copies(28), 8);
    }

    #[test]
    fn an_empty_tree_has_room_for_a_journal() {
        let plan = Plan::new("a".into());
        assert!(ext4_size(&plan) >= 2048 * BLOCK);
    }
}
