// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts that survive the process that serves them.
//!
//! # Who is who
//!
//! * The **keeper** ([`supervise`]) is the process a mount was started as. It holds everything and touches nothing.
//! * A **worker** is a child of it and serves. It has a [`Seat`]: the [`Keep`](outrigger_core::Keep) for its regions and
//!   descriptors, what it inherits, and what it tells the keeper.
//!
//! Keeper and workers share one table of descriptors, so what a worker has opened stays open when it dies. Memory that is
//! to survive is in a [`SharedRegion`].
//!
//! * A **proxy** ([`proxy`]) is between kernel and worker where the kernel cannot do its part of what follows.
//!
//! # What happens when a worker dies
//!
//! The keeper reaps it, notes how it died, and clones the next one, which closes the descriptors that are not held
//! ([`Seat`]), takes over the connection to the kernel, and asks it to send unanswered requests again. Deaths in a row
//! without any answer in between slow down and at last end the mount: its programs get errors then and do not wait. A mount
//! that nothing but unmounting ends gets a worker that answers with errors ([`StandIn`]).
//!
//! # Limits
//!
//! * The keeper has one thread when it starts and never another: a copy of a process has only the thread that copied it.
//! * A region survives the death of any process, but not that of the last one that has it open, and not that of the
//!   machine. Descriptors can be given to systemd's store, files that programs had open are lost then.
//! * One worker at a time.

mod crash;
mod death;
mod exec;
mod keeper;
mod manager;
pub mod proxy;
mod region;
mod seat;
mod signals;
mod stand_in;
mod state;

pub use crash::Crash;
pub use exec::takes_over;
pub use keeper::{READY, Settings, supervise};
pub use manager::tell_manager;
pub use region::{FileRegion, SharedRegion};
pub use seat::{Inherited, Seat};
pub use stand_in::{GIVE_UP, StandIn, TRY_AGAIN};
