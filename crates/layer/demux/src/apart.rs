// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree whose requests run on threads of their own.

use futures_channel::oneshot;
use outrigger_core::{
    Abilities, Answer, Cx, Errno, Error, Notify, Payload, Reply, ReplyGuard, Request, Runtime, Service,
    Traverse, Visit,
};
use std::sync::Arc;

/// A service whose calls run on a runtime of its own, and content with them: where a call waits after all, as one to a directory of
/// this machine does whose own server is gone, the threads of others go on.
pub struct Apart {
    service: Arc<dyn Service>,
    runtime: Arc<dyn Runtime>,
}

impl Apart {
    /// Has `runtime` run what is asked of `service`.
    pub fn new(service: Arc<dyn Service>, runtime: Arc<dyn Runtime>) -> Self {
        Apart { service, runtime }
    }
}

/// Reads content that is not read yet.
#[derive(Default)]
struct Fetch {
    failed: Option<Error>,
}

impl Visit for Fetch {
    fn payload(&mut self, payload: &mut Payload) {
        if let Payload::File(slice) = payload {
            match slice.read() {
                Ok(bytes) => *payload = Payload::Bytes(bytes),
                Err(error) => self.failed = Some(error),
            }
        }
    }
}

fn fetched(mut reply: Reply) -> Reply {
    let mut fetch = Fetch::default();
    reply.traverse(&mut fetch);
    fetch.failed.map_or(reply, Reply::Error)
}

impl Service for Apart {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let (sender, receiver) = oneshot::channel();
        let (service, cx) = (Arc::clone(&self.service), cx.clone());
        self.runtime.spawn(Box::pin(async move {
            // The caller may have gone; then the reply is dropped.
            let owed = ReplyGuard::new(cx.id, |reply| drop(sender.send(reply)));
            let reply = service.call(&cx, request).await;
            owed.send(fetched(reply));
        }));
        Answer::later(async move {
            let lost = |_| Reply::Error(Errno::EIO.because("the task that worked on the request ended"));
            receiver.await.unwrap_or_else(lost)
        })
    }

    fn abilities(&self) -> Abilities {
        self.service.abilities()
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        self.service.attach(notify);
    }
}
