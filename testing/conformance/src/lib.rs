// SPDX-License-Identifier: MIT OR Apache-2.0
//! One conformance suite for every driver and every door.
//!
//! A case works on a [`Subject`]: the calls of POSIX on paths and open files. There are two.
//!
//! * [`Direct`] asks a service. It does what a kernel does above a file system: it looks up paths, follows symbolic
//!   links, keeps references and returns them.
//! * [`HostDir`] makes real system calls in a directory: on a FUSE mount, or on a file system of the kernel, which is
//!   how the suite itself is kept right.
//!
//! Each case says which operations it needs; [`run`] skips it, with the reason, where the driver's `OpSet` lacks one.
//! A driver's test is a few lines:
//!
//! ```
//! # use outrigger_conformance::{Direct, Target, run};
//! # use outrigger_core::{Abilities, Answer, Cx, Errno, Notify, OpSet, Request, Service};
//! # use std::sync::Arc;
//! # struct Nothing;
//! # impl Service for Nothing {
//! #     fn call<'a>(&'a self, _: &'a Cx, _: Request) -> Answer<'a> { Answer::error(Errno::ENOSYS) }
//! #     fn abilities(&self) -> Abilities { Abilities::new("nothing", "", OpSet::NONE) }
//! #     fn attach(&self, _: Arc<dyn Notify>) {}
//! # }
//! # let service = Arc::new(Nothing);
//! let direct = Direct::new(service);
//! let target = Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] };
//! run(&direct, &target).must_hold(0);
//! ```
//!
//! `cargo run -p outrigger-conformance --example matrix` writes docs/MATRIX.md.
#![forbid(unsafe_code)]

pub mod cases;
pub mod ftp;
pub mod http;
pub mod mount;
pub mod nfs;
pub mod ninep;
pub mod sample;
pub mod sftp;
pub mod wire;

mod direct;
mod hostdir;
mod report;
mod subject;
mod tester;

pub use direct::{Direct, block_on};
pub use hostdir::HostDir;
pub use report::{Case, Place, Report, Target, run, run_until};
pub use subject::{Fd, Flags, Kind, Listed, Listing, Result, Subject, range_lock};
pub use tester::{Expect, Outcome, Tester};
