// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts any [`Service`](outrigger_core::Service) through FUSE.
//!
//! The transport is our own: protocol 7.45 (down to 7.31) over `/dev/fuse`, codec in `outrigger-proto-fuse`.
//!
//! ```no_run
//! # fn serve(service: std::sync::Arc<dyn outrigger_core::Service>,
//! #          runtime: std::sync::Arc<dyn outrigger_core::Runtime>) -> Result<(), Box<dyn std::error::Error>> {
//! use outrigger_door_fuse::{Options, Session};
//!
//! let (options, _for_the_driver) = Options::parse("allow_other,attr_timeout=5")?;
//! let session = Session::mount("/mnt".as_ref(), service, runtime, options)?;
//! session.wait_ready(std::time::Duration::from_secs(10))?;
//! session.wait();
//! # Ok(()) }
//! ```
//!
//! # Where things are
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | [`Options`] and the `-o` list |
//! | `mount`, `unmount`, `mountpoint` | making and removing the mount, with and without root; dead mounts |
//! | `device` | system calls on `/dev/fuse` |
//! | `connection` | [`Connection`]: a device before it is served, or a proxy in its place |
//! | `negotiate` | INIT: which abilities are switched on and why |
//! | `session` | [`Session`]: start, resume, wait, stop |
//! | `remote` | [`Order`]: what is said to a process that serves a session on behalf of another |
//! | `reader`, `pool` | the threads that read requests, and how many there are |
//! | `call` | asking the service; answers that are not ready |
//! | `slot` | requests in flight |
//! | `interrupt` | which signals end a request |
//! | `translate` | FUSE request to core request |
//! | `shape`, `answer` | core reply to FUSE reply, by operation; how attributes, entries and listings are shown |
//! | `sender` | writing replies |
//! | `backing` | files the kernel serves by itself (FUSE passthrough) |
//! | `splice` | file content that never enters our memory |
//! | `notify` | notices of the driver on their way to the kernel |
//! | `status` | [`Status`]: what goes on in a session |
//!
//! # How a request is served
//!
//! A reader thread takes a request from the device, translates it and calls the service. An
//! [`Answer::Ready`](outrigger_core::Answer::Ready) is written back by the same thread: two system calls, no
//! allocation for requests without names, no change of thread. An
//! [`Answer::Later`](outrigger_core::Answer::Later) is polled once in place; if it is really not ready it moves
//! to the [`Runtime`](outrigger_core::Runtime) with everything it borrows, and the reader goes on. There is one
//! reader until all are stuck, or busy with several clients, for a few milliseconds; then more, up to a limit.
//!
//! Every request gets exactly one reply, also when a driver panics or drops it (`EIO`). When a program is killed or
//! interrupted for good, the cancel token of its request is raised; a request without effect that is not answered
//! yet then gets `EINTR` at once, so that the program can end even if the driver hangs. Signals that a program
//! survives do not disturb its requests.
//!
//! # Limits
//!
//! * NFS export of the mount is left to the kernel's own means: lookups of `.` and `..` are not answered.
//! * ioctl passes only data whose size the command number states. BMAP and DAX are refused.
//! * FUSE over io_uring is not used: requests in it are lost when the serving process dies.
//! * Never touch the own mount from a thread of the same process that its requests may need: a page fault there
//!   can wait for itself.

mod answer;
mod backing;
mod backlog;
mod call;
mod connection;
mod device;
mod interrupt;
mod mount;
mod mountpoint;
mod negotiate;
mod notify;
mod options;
mod pool;
mod reader;
mod remote;
mod sender;
mod session;
mod shape;
mod slot;
mod splice;
mod status;
mod translate;
mod unmount;
mod utab;

pub use connection::Connection;
pub use device::Device;
pub use mount::{MountError, Mounted, dev_fd, mount};
pub use mountpoint::{Mountpoint, inspect};
pub use negotiate::Negotiated;
pub use options::{Kept, OPTIONS, Options, OptionsError};
pub use remote::Order;
pub use session::{End, Session};
pub use status::{Failure, InFlight, OpCount, Status};
pub use unmount::{Force, UnmountError, abort, unmount, unmount_entry};
