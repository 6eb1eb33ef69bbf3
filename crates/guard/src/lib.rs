// SPDX-License-Identifier: MIT OR Apache-2.0
//! State that outlives the process that serves a file system.
//!
//! # What there is
//!
//! [`SharedRegion`]: memory that several processes see, named by a descriptor. A keeper holds the descriptor and gives
//! copies to the workers it starts; what a worker stored is there for the next one, also when it was killed. The
//! core's [`NodeTable`](outrigger_core::NodeTable) lives in such a region: each of its changes is a transaction that a
//! kill leaves done or not done.
//!
//! # Limits
//!
//! * A region survives the death of any process, but not that of the last one that holds its descriptor, and not that
//!   of the machine.
//! * One process at a time may change a table in a region; whoever hands it on sees to that.
//! * The size is fixed when a region is made. Pages never touched cost nothing, so choose it large.

mod region;

pub use region::SharedRegion;
