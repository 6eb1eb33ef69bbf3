// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core of Outrigger: messages in the middle, methods at the edge.
//!
//! A file system is a protocol translator, so requests are first-class messages here. Everything else is one of
//!
//! ```text
//! door  ->  layer -> layer -> ...  ->  driver
//! ```
//!
//! * A **door** (FUSE, NFS, 9P, the command line) turns what its clients say into a [`Request`] and a [`Cx`].
//! * A **layer** ([`Layer`]) sees each request on its way down and each [`Reply`] on its way up.
//! * A **driver** ([`Driver`], [`BlockingDriver`]) answers. A driver's author writes one method per operation;
//!   the adapters [`Serve`], [`Inline`] and [`Pool`] turn those methods into a [`Service`].
//!
//! # Where things are
//!
//! | module | what it holds |
//! |---|---|
//! | [`ops`] | the operation table: the only place where an operation is described |
//! | [`attr`], [`name`], [`node`], [`payload`], [`reply`] | the words messages are made of |
//! | [`error`] | [`Errno`] and [`Error`], an errno with its reason |
//! | [`cx`] | [`Cx`]: request id, credentials, cancellation, deadline, origin |
//! | [`service`] | [`Service`], [`Answer`], [`ask`], [`Abilities`] |
//! | [`driver`] | adapters from methods to messages |
//! | [`effects`] | what an operation does, for those who do not know it |
//! | [`gate`] | waiting for a state that several tasks wait for |
//! | [`handed_out`] | giving back what an undelivered reply hands out |
//! | [`keep`] | [`Keep`], [`Region`]: what outlives the process that serves |
//! | [`node_table`] | [`NodeTable`]: numbers for drivers that know files only by path |
//! | [`layer`] | [`Layer`] and [`Stack`], whose order is checked |
//! | [`mutex`] | locking what a panic does not spoil |
//! | [`notify`] | what a driver tells its door unasked |
//! | [`reply_guard`] | exactly one reply per request |
//! | [`paths`] | which path a node stands for, learnt from the messages that pass |
//! | [`range_locks`] | advisory locks of one file |
//! | [`rebind`] | numbers that outlive the server which answers for them |
//! | [`registry`] | how drivers and layers describe themselves to users |
//! | [`runtime`] | clock, timers and tasks, supplied by the assembling caller |
//! | [`supervise`] | when a server that died is replaced, and which request is what kills |
//! | [`survive`] | typed data in what outlives the process |
//! | [`traverse`], [`wire`] | walk, encode and decode any message |
//!
//! # What is deliberately absent
//!
//! No I/O, no threads and no clock: a [`Runtime`] brings them, so that a whole stack can run under a simulated one.
//! No method trait between layers: a layer handles messages it has never heard of.
#![forbid(unsafe_code)]

// The derives name this crate by its public path.
extern crate self as outrigger_core;

pub mod acl;
pub mod attr;
pub mod cx;
pub mod driver;
pub mod effects;
pub mod error;
pub mod exchange;
pub mod gate;
pub mod handed_out;
pub mod hash;
pub mod id_map;
pub mod keep;
pub mod layer;
pub mod listing;
pub mod mutex;
pub mod name;
pub mod node;
pub mod node_table;
pub mod notify;
pub mod ops;
pub mod opset;
pub mod option;
mod option_values;
pub mod order;
pub mod paths;
pub mod payload;
pub mod range_locks;
pub mod rebind;
pub mod registry;
pub mod reply;
pub mod reply_guard;
pub mod runtime;
pub mod service;
pub mod size;
pub mod spin;
pub mod supervise;
pub mod survive;
pub mod traverse;
pub mod wcc;
pub mod whiteout;
pub mod wire;

pub use attr::{Attr, AttrFields, FileKind, SetAttrs, SetTime, Time};
pub use cx::{Cancel, Credentials, Cx, Groups, Origin, Peer};
pub use driver::{Inline, Pool, Prompt, Serve};
pub use effects::{Added, Effect, Effects, Opening, Synced};
pub use error::{Errno, Error, Result};
pub use exchange::Exchange;
pub use handed_out::Asked;
pub use id_map::IdMap;
pub use keep::{HeapKeep, HeapRegion, Keep, PartOfKeep, Region};
pub use layer::{Layer, Place, Stack, StackError};
pub use mutex::lock;
pub use name::{Name, Target, XattrName};
pub use node::{Generation, Handle, LockOwner, Node};
pub use node_table::NodeTable;
pub use notify::{Notice, Notify};
pub use ops::{BlockingDriver, Class, Driver, Op, OpCode, Request};
pub use opset::OpSet;
pub use option::{OptionInfo, OptionTable};
pub use outrigger_core_derive::{Traverse, Wire};
pub use payload::{Backing, FileSlice, Payload, ReadAt};
pub use reply::Reply;
pub use reply_guard::ReplyGuard;
pub use runtime::{BoxFuture, Clock, Runtime};
pub use service::{Abilities, Answer, DriverClass, Identity, Parallel, Recalled, Service, Wait, ask};
pub use size::parse_size;
pub use spin::Spin;
pub use traverse::{Traverse, Visit};
pub use wcc::{Around, Before, Wcc};
pub use wire::Wire;
