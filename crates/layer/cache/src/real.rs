// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles of the tree below that this layer opened itself.

use crate::inner::Inner;
use crate::underway::Asked;
use outrigger_core::ops::ReleaseDir;
use outrigger_core::{Cx, Handle, Node, Request, Runtime, Service};
use std::sync::Arc;

/// A handle below; dropping it gives it back.
pub(crate) struct Real {
    handle: Handle,
    /// When it was opened: what is listed by it may have been asked for then.
    asked: Option<Asked>,
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
        Real { handle, asked: None, end: None }
    }

    /// The handle of a directory, and when that was asked for.
    pub(crate) fn directory(inner: &Inner, cx: &Cx, node: Node, (handle, asked): (Handle, Asked)) -> Self {
        let service = Arc::clone(&inner.below().service);
        let (runtime, cx) = (Arc::clone(&inner.runtime), inner.cx(cx));
        let request = ReleaseDir { node, handle }.into();
        Real { handle, asked: Some(asked), end: Some(End { service, runtime, cx, request }) }
    }

    /// When what is listed by it may have been asked for, if that was before it is asked of it.
    pub(crate) fn asked(&self) -> Option<Asked> {
        self.asked
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
