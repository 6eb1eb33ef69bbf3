// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests, and what a server was sent for them.

use crate::undelivered::Requester;
use futures_channel::oneshot::Sender;
use outrigger_core::supervise::Suspect;
use outrigger_core::{Class, Credentials, Cx, Effect, Handle, Node, Payload, Reply, Request, Result};

/// A request with our numbers, and the requester that waits for the reply.
pub struct Ask {
    pub(crate) cred: Credentials,
    pub(crate) request: Request,
    pub(crate) requester: Requester,
    /// The deaths during which it was in flight, without those that other processes caused.
    pub(crate) suspect: Suspect,
    /// What the worker answered to the frame with this number, if something has to be found before that reply can be given.
    pub(crate) reply: Option<(u64, Reply)>,
}

impl Ask {
    /// Whether the worker has done it, and its reply was not delivered.
    pub(crate) fn is_done(&self) -> bool {
        self.reply.is_some()
    }

    /// A request of the door, with its content, and the requester that waits for the reply.
    ///
    /// # Errors
    /// When the content of a write cannot be had.
    pub fn of(cx: &Cx, mut request: Request, sender: Sender<Reply>) -> Result<Self> {
        if let Request::Write(op) = &mut request {
            op.data = std::mem::replace(&mut op.data, Payload::EMPTY).into_bytes()?.into();
        }
        Ok(Ask::new(cx.cred.clone(), request, Requester::new(cx, sender)))
    }

    /// No server has worked on it yet.
    pub fn new(cred: Credentials, request: Request, requester: Requester) -> Self {
        Ask { cred, request, requester, suspect: Suspect::default(), reply: None }
    }
}

/// What a frame was sent for.
#[allow(clippy::large_enum_variant, reason = "nearly every frame is for a request")]
pub(crate) enum Flight {
    /// A request.
    Request(Purpose, Ask),
    /// A checkpoint.
    Checkpoint,
    /// To return references before a checkpoint.
    GivenUp,
}

/// What a frame does for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is the request.
    Asked,
    /// Where a node is that the request needs.
    Found(Node),
    /// To open again what the request needs.
    Opened(Handle),
}

impl Flight {
    pub(crate) fn ask(&self) -> Option<&Ask> {
        if let Flight::Request(_, ask) = self { Some(ask) } else { None }
    }

    pub(crate) fn ask_mut(&mut self) -> Option<&mut Ask> {
        if let Flight::Request(_, ask) = self { Some(ask) } else { None }
    }

    pub(crate) fn into_ask(self) -> Option<Ask> {
        if let Flight::Request(_, ask) = self { Some(ask) } else { None }
    }

    pub(crate) fn is_change(&self) -> bool {
        match self {
            Flight::Request(_, ask) => ask.request.class() == Class::Change,
            Flight::Checkpoint => false,
            Flight::GivenUp => true,
        }
    }

    /// Whether it takes a name from something, which a request that follows a path meanwhile could miss.
    pub(crate) fn takes_name(&self) -> bool {
        matches!(self, Flight::Request(Purpose::Asked, ask) if takes_name(&ask.request))
    }

    pub(crate) fn follows_path(&self) -> bool {
        matches!(self, Flight::Request(Purpose::Found(_), _))
    }
}

/// Whether a name leads to what it led to no more.
pub(crate) fn takes_name(request: &Request) -> bool {
    let takes = |effect| matches!(effect, Effect::Removes { .. } | Effect::Moves { .. });
    request.effects().into_iter().any(takes)
}
