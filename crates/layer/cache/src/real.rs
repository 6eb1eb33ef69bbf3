// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles of the tree below that this layer opened itself.

use crate::inner::Inner;
use outrigger_core::ops::ReleaseDir;
use outrigger_core::{Cx, Handle, Node, Request, Runtime, Service};
use std::sync::Arc;

/// A handle below; dropping it gives it back.
pub(crate) struct Real {
    handle: Handle,
    end: Option<End>,
}

struct End {
    service: Arc<dyn Service>,
    runtime: Arc<dyn Runtime>,
    cx: Cx,
    request: Request,
}

impl Real {
    /// A handle that needs no giving back.
    pub(crate) fn nothing(handle: Handle) -> Self {
        Real { handle, end: None }
    }

    /// The handle of a directory.
    pub(crate) fn directory(inner: &Inner, cx: &Cx, node: Node, handle: Handle) -> Self {
        let service = Arc::clone(&inner.below().service);
        let (runtime, cx) = (Arc::clone(&inner.runtime), inner.cx(cx));
        let request = ReleaseDir { node, handle }.into();
        Real { handle, end: Some(End { service, runtime, cx, request }) }
    }

    /// The handle.
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        if let Some(End { service, runtime, cx, request }) = self.end.take() {
            runtime.spawn(Box::pin(async move {
                // Who gives back is not interested in the reply.
                service.call(&cx, request).await;
            }));
        }
    }
}
