// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests, and what a server was sent for them.

use crate::untold::Asker;
use futures_channel::oneshot::Sender;
use outrigger_core::supervise::Suspect;
use outrigger_core::{Class, Credentials, Cx, Effect, Handle, Node, Payload, Reply, Request, Result};

/// A request with our numbers, and who waits for the reply.
pub struct Ask {
    pub(crate) cred: Credentials,
    pub(crate) request: Request,
    pub(crate) asker: Asker,
    /// At which deaths it was in flight that nobody else caused.
    pub(crate) suspect: Suspect,
    /// What the worker answered to the frame with this number, if something has to be found before that can be told.
    pub(crate) reply: Option<(u64, Reply)>,
}

impl Ask {
    /// Whether the worker has done it, and nobody was told.
    pub(crate) fn is_done(&self) -> bool {
        self.reply.is_some()
    }

    /// A request of the door, with its content, and who waits for the reply.
    ///
    /// # Errors
    /// When the content of a write cannot be had.
    pub fn of(cx: &Cx, mut request: Request, sender: Sender<Reply>) -> Result<Self> {
        if let Request::Write(op) = &mut request {
            op.data = std::mem::replace(&mut op.data, Payload::EMPTY).into_bytes()?.into();
        }
        Ok(Ask::new(cx.cred.clone(), request, Asker::new(cx, sender)))
    }

    /// Nobody has worked on it yet.
    pub fn new(cred: Credentials, request: Request, asker: Asker) -> Self {
        Ask { cred, request, asker, suspect: Suspect::default(), reply: None }
    }
}

/// What a frame was sent for.
pub(crate) enum Flight {
    Asked(Ask),
    /// Where a node is that a request needs.
    Found(Node, Ask),
    /// To open again what a request needs.
    Opened(Handle, Ask),
    Checkpoint,
    /// To return references before a checkpoint.
    GivenUp,
}

impl Flight {
    pub(crate) fn ask(self) -> Option<Ask> {
        match self {
            Flight::Asked(ask) | Flight::Found(_, ask) | Flight::Opened(_, ask) => Some(ask),
            Flight::Checkpoint | Flight::GivenUp => None,
        }
    }

    pub(crate) fn as_ask(&self) -> Option<&Ask> {
        match self {
            Flight::Asked(ask) | Flight::Found(_, ask) | Flight::Opened(_, ask) => Some(ask),
            Flight::Checkpoint | Flight::GivenUp => None,
        }
    }

    pub(crate) fn ask_mut(&mut self) -> Option<&mut Ask> {
        match self {
            Flight::Asked(ask) | Flight::Found(_, ask) | Flight::Opened(_, ask) => Some(ask),
            Flight::Checkpoint | Flight::GivenUp => None,
        }
    }

    pub(crate) fn is_change(&self) -> bool {
        match self {
            Flight::Asked(ask) | Flight::Found(_, ask) | Flight::Opened(_, ask) => {
                ask.request.class() == Class::Change
            }
            Flight::Checkpoint => false,
            Flight::GivenUp => true,
        }
    }

    /// Whether it takes a name from something, which whoever follows a path meanwhile could miss.
    pub(crate) fn takes_name(&self) -> bool {
        matches!(self, Flight::Asked(ask) if takes_name(&ask.request))
    }

    pub(crate) fn follows_path(&self) -> bool {
        matches!(self, Flight::Found(..))
    }
}

/// Whether a name leads to what it led to no more.
pub(crate) fn takes_name(request: &Request) -> bool {
    let takes = |effect| matches!(effect, Effect::Removes { .. } | Effect::Moves { .. });
    request.effects().into_iter().any(takes)
}
