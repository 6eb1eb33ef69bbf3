// SPDX-License-Identifier: MIT OR Apache-2.0
//! Typed data in a [`Region`](crate::Region), which outlives the process that stores it.
//!
//! A process may be killed between any two stores. Each block here changes so that what such a kill leaves is what was before
//! the change or what is after it: content first, then one store that switches to it.
//!
//! | block | holds | switches with the store of |
//! |---|---|---|
//! | [`Layout`] | what a region is: kind, version of the layout, size | its mark |
//! | [`fields!`](crate::fields) | words by name | that of each word by itself |
//! | [`Text`] | bytes | their length |
//! | [`Slots`] | records of one type, each with a generation | the head of a slot |
//! | [`Twin`] | a value of any size, twice | the number of the one that counts |
//! | [`Log`] | groups of words, made shorter while it is in use | its length and half |
//! | [`Queue`] | entries in the order in which they came, each done some time | its end; the mark of an entry |
//! | [`Redo`] | changes of many words anywhere in an [`Area`] | the head of a list of stores, which are made again |
//!
//! A region is opened by its [`Layout`], which gives the [`Area`] after its header; blocks take their parts of it one after
//! the other, so the order in which they are taken is the layout. Whenever it changes, the version of the layout must.
//!
//! Stores happen in the order of the program. A kill needs no more than that, since memory survives it; where a program that
//! goes wild must be noticed, records carry checksums of their own.
//!
//! [`testing`] kills at each access.

mod area;
mod layout;
mod layouts;
mod log;
mod queue;
mod record;
mod redo;
mod slots;
pub mod testing;
mod twin;

pub use area::{Area, Part, Row, Stored, Text, Word};
pub use layout::{Layout, Opened, Reads, is_read_by};
pub use log::{Log, Records, Room, take_record};
pub use queue::{Queue, Ticket};
pub use record::{AsWord, Record};
pub use redo::{Redo, Writes};
pub use slots::{Slot, Slots};
pub use twin::Twin;

#[cfg(test)]
mod tests;
