// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong with an archive: every error names the archive, the byte where it was noticed and the reason.

use std::{fmt, io, sync::Arc};

/// The class of an [`Error`], from which the caller decides what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The bytes of the archive could not be read.
    Io,
    /// The archive ends before it is complete.
    Truncated,
    /// The bytes do not follow the format, or a checksum does not match.
    Corrupt,
    /// Valid, but using a feature this driver does not have (encryption, an unknown method, ...).
    Unsupported,
    /// One of the [`Limits`](crate::Limits) was exceeded.
    Limit,
    /// The caller asked to stop.
    Cancelled,
    /// No known archive or compression format was recognised.
    NotAnArchive,
}

/// An error in an archive. The text is `ARCHIVE: at byte N: WHAT`.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    archive: Arc<str>,
    offset: u64,
    what: String,
    io: Option<io::ErrorKind>,
}

impl Error {
    /// An error of `kind` in `archive`, noticed at byte `offset` of the archive file.
    pub fn new(kind: Kind, archive: &Arc<str>, offset: u64, what: impl Into<String>) -> Self {
        Error { kind, archive: archive.clone(), offset, what: what.into(), io: None }
    }

    /// A failed read of the archive's own bytes.
    pub fn io(archive: &Arc<str>, offset: u64, e: &io::Error) -> Self {
        let what = format!("cannot read the archive: {e}");
        Error { io: Some(e.kind()), ..Error::new(Kind::Io, archive, offset, what) }
    }

    /// The class of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The byte of the archive file where the error was noticed (not where the damage began).
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The reason, without the name of the archive and the offset.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The `io::ErrorKind` of an [`Kind::Io`] error.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        self.io
    }

    /// Whether an archive with this error still has entries before it worth showing (`-o partial`).
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self.kind, Kind::Truncated | Kind::Corrupt | Kind::Io)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: at byte {}: {}", self.archive, self.offset, self.what)
    }
}

impl std::error::Error for Error {}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
