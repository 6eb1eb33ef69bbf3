// SPDX-License-Identifier: MIT OR Apache-2.0
//! The header of every message.
use crate::layout::layout;

/// Node number of the root directory.
pub const ROOT_ID: u64 = 1;
/// Set in `unique` of a request that the kernel sends again after a resend notification (7.40).
pub const UNIQUE_RESEND: u64 = 1 << 63;

layout! {
    /// Header of a request (`fuse_in_header`).
    pub struct InHeader: 40 {
        /// Length of the whole message with header and extensions, in bytes.
        len: u32 = 0,
        /// Operation code; see [`Opcode`](crate::Opcode).
        opcode: u32 = 4,
        /// Identity of the request; the reply repeats it.
        unique: u64 = 8,
        /// Node the request is about.
        nodeid: u64 = 16,
        /// User of the caller (file-system user id).
        uid: u32 = 24,
        /// Group of the caller (file-system group id).
        gid: u32 = 28,
        /// Thread of the caller, zero when it is not visible or the kernel itself asks.
        pid: u32 = 32,
        /// Length of the extensions at the end, in units of 8 bytes (7.38).
        total_extlen: u16 = 36,
    }

    /// Header of a reply or notification (`fuse_out_header`).
    pub struct OutHeader: 16 {
        /// Length of the whole message with header, in bytes.
        len: u32 = 0,
        /// Zero, a negated errno, or the code of a notification.
        error: i32 = 4,
        /// Identity of the request answered; zero for a notification.
        unique: u64 = 8,
    }
}

impl InHeader {
    /// True when the kernel sends this request again because a resend was asked for.
    #[must_use]
    pub const fn is_resend(&self) -> bool {
        self.unique & UNIQUE_RESEND != 0
    }

    /// The identity of the request without the resend mark: equal for the first and the repeated message.
    #[must_use]
    pub const fn request_id(&self) -> u64 {
        self.unique & !UNIQUE_RESEND
    }
}

impl OutHeader {
    /// The header of a reply without error whose body has `body` bytes.
    #[must_use]
    pub const fn ok(unique: u64, body: usize) -> Self {
        Self { len: (Self::SIZE + body) as u32, error: 0, unique }
    }

    /// The header (and whole message) of a reply with the positive error number `errno`.
    #[must_use]
    pub const fn error(unique: u64, errno: i32) -> Self {
        Self { len: Self::SIZE as u32, error: -errno, unique }
    }
}
