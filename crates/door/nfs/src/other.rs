// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs beside NFS and MOUNT: ports of programs, and locks, which this server does not have.

use crate::answer::success;
use outrigger_proto_nfs3::nlm::{self, Results, ShareResults, Status, TestResults, TestStatus};
use outrigger_proto_nfs3::xdr::portmap::{self, Call, Mapping, TCP};
use outrigger_proto_nfs3::xdr::{Encoded, List};
use outrigger_proto_nfs3::{mount, nfs};

/// The programs that this port has, with their versions.
const PROGRAMS: [(u32, u32); 4] = [
    (portmap::PROGRAM, portmap::VERSION),
    (nfs::PROGRAM, nfs::VERSION),
    (mount::PROGRAM, mount::VERSION),
    (nlm::PROGRAM, nlm::VERSION),
];

/// Answers as portmap (RFC 1833, section 3): every program is at this port. Nothing can be registered.
pub(crate) fn ports(port: u16, xid: u32, call: &Call) -> Encoded {
    let port = u32::from(port);
    match call {
        Call::Null(()) => success(xid, &()),
        Call::Set(_) | Call::Unset(_) => success(xid, &false),
        Call::GetPort(wanted) => {
            let has = wanted.protocol == TCP && PROGRAMS.contains(&(wanted.program, wanted.version));
            success(xid, &if has { port } else { 0 })
        }
        Call::Dump(()) => {
            let mapping = |(program, version)| Mapping { program, version, protocol: TCP, port };
            success(xid, &List(PROGRAMS.into_iter().map(mapping).collect()))
        }
    }
}

/// Whether a call is for a lock, which is refused.
pub(crate) fn asks_for_lock(call: &nlm::Call) -> bool {
    matches!(call, nlm::Call::Lock(_) | nlm::Call::NmLock(_) | nlm::Call::Share(_))
}

/// Refuses locks in a way that programs understand (`ENOLCK`): a client that keeps them by itself (`nolock`) does not ask. `None` for
/// messages without a reply.
pub(crate) fn locks(xid: u32, call: nlm::Call) -> Option<Encoded> {
    use nlm::Call;
    let refused = |cookie, status| Some(success(xid, &Results { cookie, status }));
    match call {
        Call::Null(()) | Call::FreeAll(_) => Some(success(xid, &())),
        Call::Test(args) => {
            let results = TestResults { cookie: args.cookie, status: TestStatus::NoLocks };
            Some(success(xid, &results))
        }
        Call::Lock(args) | Call::NmLock(args) => refused(args.cookie, Status::NoLocks),
        Call::Cancel(args) => refused(args.cookie, Status::NoLocks),
        // There is none, so it is released.
        Call::Unlock(args) => refused(args.cookie, Status::Granted),
        Call::Share(args) | Call::Unshare(args) => {
            let results = ShareResults { cookie: args.cookie, status: Status::NoLocks, sequence: 0 };
            Some(success(xid, &results))
        }
        _ => None,
    }
}
