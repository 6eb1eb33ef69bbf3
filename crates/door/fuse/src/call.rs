// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking the service, and what happens while an answer is not ready.
use crate::sender::ReplySender;
use crate::session::Shared;
use crate::shape::Shape;
use crate::slot::Slot;
use outrigger_core::{Answer, Asked, BoxFuture, Class, Errno, Reply, ReplyGuard, Request};
use outrigger_proto_fuse::InHeader;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Asks the service on behalf of `header`. Gives the slot back when the answer came at once; else it went with the
/// answer.
pub(crate) fn ask(
    shared: &Arc<Shared>,
    mut slot: Arc<Slot>,
    header: &InHeader,
    request: Request,
    shape: Option<Shape>,
    sender: &mut ReplySender,
) -> Option<Arc<Slot>> {
    let query = (request.class() == Class::Query).then(|| Asked::of(&request));
    let deadline = shared.options.timeout.map(|timeout| shared.runtime.monotonic().saturating_add(timeout));
    // A slot is shared only while a parked answer holds it, which gives it back by value.
    Arc::get_mut(&mut slot)?.begin(header, deadline, matches!(shape, Some(Shape::Write(true))));
    let asked = catch_unwind(AssertUnwindSafe(|| ready_at_once(shared.service.call(&slot.cx, request))));
    // SAFETY: a future in the answer borrows from `*shared.service` and from `*slot`. It goes nowhere but into
    // `Parked` below, which holds both Arcs, so both stay where they are, and which drops the future before them.
    // Nothing mutates the slot meanwhile: that needs the only Arc to it.
    let asked = asked.map(|answer| unsafe { mem::transmute::<Answer<'_>, Answer<'static>>(answer) });
    let reply = match asked {
        Ok(Answer::Ready(reply)) => reply,
        Ok(Answer::Later(future)) => {
            let parked = Parked { future: Some(future), slot: Some(slot), shared: Arc::clone(shared) };
            park(parked, *header, query, shape);
            return None;
        }
        Err(_) => Reply::Error(Errno::EIO.because("the driver panicked")),
    };
    slot.end();
    if let Some(shape) = shape {
        sender.reply(shared, header, shape, reply);
    }
    Some(slot)
}

/// Polls an answer once: many futures are ready without waiting for anything.
fn ready_at_once(answer: Answer<'_>) -> Answer<'_> {
    let Answer::Later(mut future) = answer else { return answer };
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Answer::Ready(reply),
        Poll::Pending => Answer::Later(future),
    }
}

/// Hands an answer that is not ready to the runtime, with the duty to reply.
///
/// When the program gives up, a request without effect is answered at once: the program can end although the driver
/// goes on. A change is answered when it is done.
fn park(mut parked: Parked, header: InHeader, query: Option<Asked>, shape: Option<Shape>) {
    let shared = Arc::clone(&parked.shared);
    let runtime = Arc::clone(&shared.runtime);
    let owed = ReplyGuard::new(header.request_id(), {
        let shared = Arc::clone(&shared);
        move |reply| {
            if let Some(shape) = shape {
                ReplySender::new(false).reply(&shared, &header, shape, reply);
            }
        }
    });
    let task = async move {
        // `parked` lives to the end: its slot may be given to another request only when the reply was delivered.
        let Some(query) = query else {
            let reply = (&mut parked).await;
            return owed.send(reply);
        };
        match parked.unless_cancelled().await {
            Some(reply) => owed.send(reply),
            None => {
                owed.send(Reply::Error(Errno::EINTR.into()));
                let late = (&mut parked).await;
                undo(query, &shared, &header, &late);
            }
        }
    };
    // Polled once more right here: the thread that answers can wake it from then on.
    let mut task: Option<BoxFuture<'static, ()>> = Some(Box::pin(task));
    runtime.run_woken(&mut || task.take().into_iter().for_each(|task| runtime.spawn(task)));
}

/// Returns what the reply to a query has handed out for a program that is gone.
fn undo(asked: Asked, shared: &Arc<Shared>, header: &InHeader, reply: &Reply) {
    let mut sender = ReplySender::new(false);
    for request in asked.returns(reply) {
        sender.ask_unanswered(shared, header, request);
    }
}

/// An answer that is not ready, with everything it borrows from.
struct Parked {
    /// Borrows from the two below; dropped before them.
    future: Option<BoxFuture<'static, Reply>>,
    slot: Option<Arc<Slot>>,
    shared: Arc<Shared>,
}

impl Parked {
    /// The reply, or `None` when the request was cancelled before. One that [heeds signals](outrigger_core::Cancel::heed_signals) is
    /// answered by its driver in any case: what it may have received by then is nobody else's.
    async fn unless_cancelled(&mut self) -> Option<Reply> {
        let cancel = self.slot.as_ref().map(|slot| slot.cx.cancel.clone()).unwrap_or_default();
        let mut raised = pin!(cancel.raised());
        poll_fn(|context| match Pin::new(&mut *self).poll(context) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending if cancel.heeds_signals() => Poll::Pending,
            Poll::Pending => raised.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}

impl Future for Parked {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        match &mut self.future {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.future = None;
        if let Some(slot) = self.slot.take() {
            self.shared.slots.give(slot);
        }
    }
}
