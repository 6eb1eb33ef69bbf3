// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a tree whose server may die, and forgets things on request: the kernel code of a disk
//! image ([`Served`] and the driver `kernel` are the users).
//!
//! * [`State`] has what is asked, what waits, and the replies. It has no socket, no clock but for the age of its log, and no thread:
//!   its user moves requests and replies.
//! * [`Files`](files) keeps numbers of files and open files that stay what they are while those of the server change, and
//!   returns files to it that were not used for long.
//! * [`Log`](log) keeps changes that were answered since the last checkpoint, to be done again.
//! * A file that loses its last name while it is open keeps one that programs do not see ([`place::KEEPS`]).
//! * [`control`] is the memory that both processes hold.
//! * [`record`] takes what happens to the state of one process to a copy of it in another one, which goes on with that.
//!
//! `docs/design/0007-guarded-images.md`, `docs/design/0008-a-door-in-the-kernel-process.md` and
//! `docs/design/0011-removed-files-that-are-open.md` have the reasons.
//!
//! # Limits
//!
//! * A file that has lost its last name and is not open cannot be found again: it is not returned, and known until the next
//!   checkpoint at most when the server dies.
//! * Not for trees that others change: what has a name is expected to keep it.
#![forbid(unsafe_code)]

pub mod control;
pub mod files;
mod flight;
pub mod log;
pub mod place;
mod recent;
pub mod record;
pub mod served;
mod silly_rename;
pub mod state;
mod undelivered;

use outrigger_core::{OpCode, OpSet};

pub use flight::Ask;
pub use served::{RECORDED, Served};
pub use silly_rename::silly_name;
pub use state::{Role, State, Task};
pub use undelivered::{Requester, deliver};

/// What is asked of kernel code: doors answer the rest by themselves, or do without.
pub const ASKED: OpSet = OpSet::of(&[
    OpCode::Lookup,
    OpCode::Walk,
    OpCode::GetAttr,
    OpCode::SetAttr,
    OpCode::ReadLink,
    OpCode::MkNod,
    OpCode::MkDir,
    OpCode::SymLink,
    OpCode::Link,
    OpCode::Unlink,
    OpCode::RmDir,
    OpCode::Rename,
    OpCode::Open,
    OpCode::Create,
    OpCode::TmpFile,
    OpCode::Read,
    OpCode::Write,
    OpCode::FSync,
    OpCode::Fallocate,
    OpCode::Seek,
    OpCode::CopyRange,
    OpCode::Release,
    OpCode::OpenDir,
    OpCode::ReadDir,
    OpCode::ReadDirPlus,
    OpCode::ReleaseDir,
    OpCode::FSyncDir,
    OpCode::GetXattr,
    OpCode::SetXattr,
    OpCode::ListXattr,
    OpCode::RemoveXattr,
    OpCode::StatFs,
    OpCode::Forget,
    OpCode::SyncFs,
    OpCode::Parent,
]);
