// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several requests at once for what one request asks.

use outrigger_core::BoxFuture;
use std::future::poll_fn;
use std::task::Poll;

/// The outcomes of futures that are at work together, in their order.
pub async fn together<T>(mut all: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, done) in all.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(outcome) = future.as_mut().poll(context) {
                *done = Some(outcome);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Ranges of at most `each` bytes, one after the other: their beginnings, and lengths.
pub fn pieces(len: usize, each: u32) -> impl Iterator<Item = (usize, usize)> {
    let each = each.max(1) as usize;
    (0..len).step_by(each).map(move |at| (at, (len - at).min(each)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn all_are_at_work_and_their_order_stays() {
        let (sender, receiver) = oneshot::channel();
        // The first one waits for the second.
        let first: BoxFuture<'_, u32> = Box::pin(async { receiver.await.unwrap_or(0) });
        let second: BoxFuture<'_, u32> = Box::pin(async { sender.send(1).map_or(0, |()| 2) });
        assert_eq!(together(vec![first, second]).await, [1, 2]);
    }

    #[test]
    fn ranges_cover_all() {
        assert_eq!(pieces(10, 4).collect::<Vec<_>>(), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(pieces(0, 4).count(), 0);
    }
}
