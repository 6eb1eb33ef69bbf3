// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that clients can attach to, and the references to its nodes.

use outrigger_core::ops::Forget;
use outrigger_core::range_locks::RangeLocks;
use outrigger_core::reply::Entry;
use outrigger_core::{
    Abilities, Credentials, Cx, Errno, Generation, Node, Op, Request, Result, Service, ask, hash,
};
use outrigger_toolkit_serve::{Callers, Seldom};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;

/// The name of this door.
pub(crate) const DOOR: &str = "9p";

/// An exported tree.
pub(crate) struct Export {
    /// What clients attach to, without the slashes at its ends.
    pub(crate) name: String,
    pub(crate) abilities: Abilities,
    /// Who may ask.
    pub(crate) callers: Callers,
    pub(crate) service: Arc<dyn Service>,
    /// The locks of files, where the tree keeps none.
    pub(crate) locks: Mutex<HashMap<(Node, Generation), RangeLocks>>,
    pub(crate) fsid: u64,
    /// Says that someone who is squashed was refused.
    squashed: Seldom,
    runtime: Handle,
}

impl Export {
    pub(crate) fn new(name: &str, service: Arc<dyn Service>, callers: Callers, runtime: Handle) -> Self {
        let name = name.trim_matches('/').to_owned();
        Export {
            abilities: service.abilities(),
            fsid: hash::siphash13(name.as_bytes()),
            name,
            callers,
            service,
            locks: Mutex::default(),
            squashed: Seldom::default(),
            runtime,
        }
    }

    /// Asks the tree.
    pub(crate) async fn ask<O: Op>(&self, cx: &Cx, op: O) -> Result<O::Out> {
        ask(&*self.service, cx, op).await.inspect_err(|error| {
            let (export, what) = (&self.name, O::CODE.name());
            match error.errno {
                Errno::EACCES | Errno::EPERM => {
                    self.callers.tell_of_squashing(cx, (export, what), &self.squashed)
                }
                Errno::EIO | Errno::ENOMEM => tracing::warn!(export, what, %error, "a request failed"),
                _ => tracing::debug!(export, what, %error, "a request failed"),
            }
        })
    }

    /// The most bytes of one read or write.
    pub(crate) fn io_max(&self) -> u32 {
        self.abilities.max_io.min(crate::IO_MAX)
    }

    /// Asks for what no client waits for, to its end: at once if that takes no time.
    pub(crate) fn aside(self: &Arc<Self>, request: Request) {
        let export = Arc::clone(self);
        let mut asked = Box::pin(async move {
            let cx = Cx { slot: Cx::NO_SLOT, ..Cx::new(0, Credentials::ROOT, DOOR) };
            export.service.call(&cx, request).await;
        });
        if pin!(&mut asked).poll(&mut Context::from_waker(Waker::noop())) == Poll::Pending {
            self.runtime.spawn(asked);
        }
    }
}

/// A reference to a node, returned when it is dropped.
pub(crate) struct Held {
    export: Arc<Export>,
    pub(crate) node: Node,
    pub(crate) generation: Generation,
}

impl Held {
    /// Takes over the reference of `entry`.
    pub(crate) fn of(export: &Arc<Export>, entry: &Entry) -> Arc<Self> {
        let (node, generation) = (entry.node, entry.generation);
        Arc::new(Held { export: Arc::clone(export), node, generation })
    }

    /// The root, which needs none.
    pub(crate) fn root(export: &Arc<Export>) -> Arc<Self> {
        Arc::new(Held { export: Arc::clone(export), node: Node::ROOT, generation: Generation(0) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.node != Node::ROOT {
            self.export.aside(Forget { node: self.node, count: 1 }.into());
        }
    }
}
