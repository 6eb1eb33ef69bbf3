// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounds on what an archive may cost, and how the caller watches and stops the work.

use std::path::PathBuf;

/// Bounds against archives made to exhaust memory or time ("bombs"). Exceeding one fails with [`Kind::Limit`] and a
/// text that names the option to raise.
///
/// [`Kind::Limit`]: crate::Kind::Limit
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most entries, synthesised directories included (`max_entries=`).
    pub entries: u32,
    /// Most bytes of names, link targets and extended attributes together (`max_names=`).
    pub name_bytes: u64,
    /// Most decompressed bytes for one byte of the archive (`max_ratio=`), applied after [`Limits::free_output`]: to what
    /// a compressed archive decodes to, and to the sizes that the members of a zip have together.
    pub ratio: u64,
    /// Decompressed bytes that are always allowed, whatever the ratio.
    pub free_output: u64,
    /// Most bytes of index for one byte of the archive (`max_index_ratio=`), applied after [`Limits::free_index`].
    pub index_ratio: u64,
    /// Bytes of index that are always allowed, whatever the ratio.
    pub free_index: u64,
    /// Most bytes one decoder may use for its window or dictionary (`decoder_memory=`).
    pub decoder_memory: u64,
    /// Bytes of decompressed blocks kept in memory (`block_cache=`).
    pub block_cache: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            entries: 10_000_000,
            name_bytes: 1 << 30,
            ratio: 1000,
            free_output: 4 << 30,
            index_ratio: 64,
            free_index: 64 << 20,
            decoder_memory: 256 << 20,
            block_cache: 32 << 20,
        }
    }
}

/// Where indexes and decompressed blocks are kept between openings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// Below which the directory `outrigger/index` is; what is missing is made for its user only.
    pub base: PathBuf,
    /// Most bytes the whole directory may use; the least recently used files are removed first.
    pub max_bytes: u64,
}

impl CacheConfig {
    /// `$XDG_CACHE_HOME/outrigger/index`, or `$HOME/.cache/outrigger/index`, with 2 GiB; `None` when neither
    /// variable holds an absolute path.
    pub fn user() -> Option<Self> {
        Some(CacheConfig { base: outrigger_host::users_caches()?, max_bytes: 2 << 30 })
    }
}

/// How an archive is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Bounds against bombs.
    pub limits: Limits,
    /// Show the entries before the damage of a truncated or corrupt archive instead of failing.
    pub partial: bool,
    /// Where to keep the index; `None` keeps nothing.
    pub cache: Option<CacheConfig>,
}

/// How far the indexing of an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the archive file read so far.
    pub read: u64,
    /// Size of the archive file.
    pub size: u64,
    /// Entries found so far.
    pub entries: u64,
}

/// Watches a long operation: gets its progress, and decides whether it goes on.
pub trait Watch: Send + Sync {
    /// Called about every few hundred kilobytes while an archive is indexed.
    fn progress(&self, _now: Progress) {}
    /// `true` makes the operation stop with [`Kind::Cancelled`](crate::Kind::Cancelled).
    fn cancelled(&self) -> bool {
        false
    }
}

/// A [`Watch`] that looks away: no progress is reported and nothing is ever cancelled.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;
impl Watch for Unwatched {}
