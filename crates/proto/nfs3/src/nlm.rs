// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network lock manager, version 4: locks of NFS version 3 (RFC 1813, 6; the rest is in X/Open's C702, *Protocols for
//! Interworking: XNFS, Version 3W*).
//!
//! Each lock procedure exists twice: with a result, and as two messages without one, `...Msg` to the server and `...Res` back.

use crate::xdr::{Opaque, Text, xdr_enum, xdr_program, xdr_struct};

/// The longest name of a host, in bytes (`LM_MAXSTRLEN`).
pub const HOST_MAX: usize = 1024;

/// The longest name of a host in FREE_ALL, in bytes (`LM_MAXNAMELEN`).
pub const NOTIFY_HOST_MAX: usize = HOST_MAX + 1;

/// The longest handle, owner or cookie, in bytes (`MAXNETOBJ_SZ`).
pub const OBJECT_MAX: usize = 1024;

/// Bytes that only their sender understands (`netobj`).
pub type Object = Opaque<OBJECT_MAX>;

xdr_program! {
    /// The network lock manager, version 4 (RFC 1813, 6).
    program 100_021, version 4;
    /// Does nothing.
    Null = 0: () => ();
    /// Whether a lock could be had.
    Test = 1: TestArgs => TestResults;
    /// Locks a range.
    Lock = 2: LockArgs => Results;
    /// Takes a lock back that is waited for.
    Cancel = 3: CancelArgs => Results;
    /// Unlocks a range.
    Unlock = 4: UnlockArgs => Results;
    /// From the server: a lock that was waited for is there.
    Granted = 5: TestArgs => Results;
    /// As Test; answered with TestRes.
    TestMsg = 6: TestArgs => ();
    /// As Lock; answered with LockRes.
    LockMsg = 7: LockArgs => ();
    /// As Cancel; answered with CancelRes.
    CancelMsg = 8: CancelArgs => ();
    /// As Unlock; answered with UnlockRes.
    UnlockMsg = 9: UnlockArgs => ();
    /// As Granted; answered with GrantedRes.
    GrantedMsg = 10: TestArgs => ();
    /// The answer to TestMsg.
    TestRes = 11: TestResults => ();
    /// The answer to LockMsg.
    LockRes = 12: Results => ();
    /// The answer to CancelMsg.
    CancelRes = 13: Results => ();
    /// The answer to UnlockMsg.
    UnlockRes = 14: Results => ();
    /// The answer to GrantedMsg.
    GrantedRes = 15: Results => ();
    /// Reserves a file as DOS does.
    Share = 20: ShareArgs => ShareResults;
    /// Takes a reservation back.
    Unshare = 21: ShareArgs => ShareResults;
    /// As Lock, for clients that do not notice when the server restarts.
    NmLock = 22: LockArgs => Results;
    /// A client has restarted: it has no locks.
    FreeAll = 23: Notify => ();
}

xdr_enum! {
    /// What became of a request (`nlm4_stats`, RFC 1813, 6.1.4).
    #[derive(Copy)]
    pub enum Status: "status of a lock" {
        /// Done.
        Granted = 0,
        /// Another lock is in the way.
        Denied = 1,
        /// The server has no room for locks.
        NoLocks = 2,
        /// It waits for another lock; Granted will tell.
        Blocked = 3,
        /// The server has restarted and waits for clients to take their locks again.
        GracePeriod = 4,
        /// To wait would be a deadlock.
        Deadlock = 5,
        /// Read-only.
        ReadOnly = 6,
        /// The handle is stale.
        StaleHandle = 7,
        /// The range is too large.
        TooBig = 8,
        /// Failed for another reason.
        Failed = 9,
    }

    /// What became of TEST (`nlm4_testrply`): as [`Status`], and who has the lock.
    pub enum TestStatus: "status of a lock" {
        /// The lock could be had.
        Granted = 0,
        /// This lock is in the way.
        Denied(Holder) = 1,
        /// The server has no room for locks.
        NoLocks = 2,
        /// It would wait.
        Blocked = 3,
        /// The server has restarted and waits for clients to take their locks again.
        GracePeriod = 4,
        /// To wait would be a deadlock.
        Deadlock = 5,
        /// Read-only.
        ReadOnly = 6,
        /// The handle is stale.
        StaleHandle = 7,
        /// The range is too large.
        TooBig = 8,
        /// Failed for another reason.
        Failed = 9,
    }

    /// What others may not do (`fsh4_mode`).
    #[derive(Copy)]
    pub enum ShareMode: "mode of a reservation" {
        /// Everything is allowed.
        DenyNone = 0,
        /// Read.
        DenyRead = 1,
        /// Write.
        DenyWrite = 2,
        /// Read and write.
        DenyBoth = 3,
    }

    /// What the owner wants to do (`fsh4_access`).
    #[derive(Copy)]
    pub enum ShareAccess: "access of a reservation" {
        /// Nothing.
        None = 0,
        /// Read.
        Read = 1,
        /// Write.
        Write = 2,
        /// Read and write.
        Both = 3,
    }
}

xdr_struct! {
    /// A lock that somebody has (`nlm4_holder`, RFC 1813, 6.1.4).
    pub struct Holder {
        /// Whether nobody else can have one.
        pub exclusive: bool,
        /// The process.
        pub svid: i32,
        /// The owner.
        pub owner: Object,
        /// The first byte.
        pub offset: u64,
        /// How many bytes; 0 for all to the end.
        pub len: u64,
    }

    /// A lock that a client wants or has (`nlm4_lock`, RFC 1813, 6.1.4).
    pub struct Lock {
        /// The client.
        pub host: Text<HOST_MAX>,
        /// The file.
        pub handle: Object,
        /// The owner.
        pub owner: Object,
        /// The process.
        pub svid: i32,
        /// The first byte.
        pub offset: u64,
        /// How many bytes; 0 for all to the end.
        pub len: u64,
    }

    /// `nlm4_testargs`.
    pub struct TestArgs {
        /// Comes back in the result.
        pub cookie: Object,
        /// Whether nobody else could have a lock.
        pub exclusive: bool,
        /// The lock.
        pub lock: Lock,
    }

    /// `nlm4_lockargs`.
    pub struct LockArgs {
        /// Comes back in the result.
        pub cookie: Object,
        /// Whether to wait.
        pub block: bool,
        /// Whether nobody else can have a lock.
        pub exclusive: bool,
        /// The lock.
        pub lock: Lock,
        /// Whether the client had it before the server restarted.
        pub reclaim: bool,
        /// Which life of the client this is.
        pub state: i32,
    }

    /// `nlm4_cancargs`: as in the LOCK that is taken back.
    pub struct CancelArgs {
        /// Comes back in the result.
        pub cookie: Object,
        /// Whether it was to wait.
        pub block: bool,
        /// Whether nobody else could have had a lock.
        pub exclusive: bool,
        /// The lock.
        pub lock: Lock,
    }

    /// `nlm4_unlockargs`.
    pub struct UnlockArgs {
        /// Comes back in the result.
        pub cookie: Object,
        /// The lock.
        pub lock: Lock,
    }

    /// `nlm4_res`.
    pub struct Results {
        /// That of the arguments.
        pub cookie: Object,
        /// What became of the request.
        pub status: Status,
    }

    /// `nlm4_testres`.
    pub struct TestResults {
        /// That of the arguments.
        pub cookie: Object,
        /// Whether the lock could be had.
        pub status: TestStatus,
    }

    /// `nlm4_share` and what is around it (`nlm4_shareargs`).
    pub struct ShareArgs {
        /// Comes back in the result.
        pub cookie: Object,
        /// The client.
        pub host: Text<HOST_MAX>,
        /// The file.
        pub handle: Object,
        /// The owner.
        pub owner: Object,
        /// What others may not do.
        pub mode: ShareMode,
        /// What the owner wants to do.
        pub access: ShareAccess,
        /// Whether the client had it before the server restarted.
        pub reclaim: bool,
    }

    /// `nlm4_shareres`.
    pub struct ShareResults {
        /// That of the arguments.
        pub cookie: Object,
        /// What became of the request.
        pub status: Status,
        /// A number for the order of results; not used.
        pub sequence: i32,
    }

    /// `nlm4_notify`.
    pub struct Notify {
        /// The client.
        pub host: Text<NOTIFY_HOST_MAX>,
        /// Which life of it this is.
        pub state: i32,
    }
}
