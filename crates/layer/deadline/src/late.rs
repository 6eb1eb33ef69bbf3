// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to do with a reply that comes after its deadline.

use outrigger_core::{Asked, Cx, Reply, Service};
use std::sync::Arc;

/// A request whose caller has gone.
pub(crate) struct Late {
    pub(crate) next: Arc<dyn Service>,
    pub(crate) cx: Cx,
    pub(crate) asked: Asked,
}

impl Late {
    /// Logs the reply and gives back what it hands out.
    pub(crate) async fn drop_reply(self, reply: Reply) {
        let op = self.asked.op().name();
        tracing::warn!(request = self.cx.id, op, ?reply, "the caller has gone: a late reply is dropped");
        // Neither the deadline nor the cancellation of the request applies to giving back.
        let cx = Cx::new(self.cx.id, self.cx.cred, self.cx.origin.door);
        for request in self.asked.returns(&reply) {
            self.next.call(&cx, request).await;
        }
    }
}
