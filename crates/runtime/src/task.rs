// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that need no thread of their own: one that is woken on a thread which runs what it wakes is polled right there.
//!
//! A hand-over to another thread costs more than most tasks have left to do when the message they waited for is there.

use outrigger_core::{BoxFuture, lock};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

/// Waits to be woken.
const IDLE: u8 = 0;
/// Is in line to be polled.
const IN_LINE: u8 = 1;
/// Is being polled.
const RUNNING: u8 = 2;
/// Was woken while it was being polled.
const AGAIN: u8 = 3;

/// How many polls a thread does for others before it goes on with its own work; tokio gets the rest.
const POLLS: usize = 64;

thread_local! {
    /// What the calling thread will poll; `None` unless it is in [`run_woken`].
    static LINE: RefCell<Option<VecDeque<Arc<Task>>>> = const { RefCell::new(None) };
}

struct Task {
    state: AtomicU8,
    /// `None` once it is ready.
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    handle: Handle,
}

/// Has `future` polled to its end.
pub(crate) fn start(handle: &Handle, future: BoxFuture<'static, ()>) {
    Task::new(handle, future).stand_in_line();
}

/// Runs `body`, then polls on this thread what was started or woken meanwhile.
pub(crate) fn run_woken(body: &mut dyn FnMut()) {
    if LINE.with_borrow(Option::is_some) {
        // The caller further up polls.
        return body();
    }
    LINE.set(Some(VecDeque::new()));
    let open = Open;
    body();
    for _ in 0..POLLS {
        let Some(task) = LINE.with_borrow_mut(|line| line.as_mut().and_then(VecDeque::pop_front)) else {
            break;
        };
        task.run();
    }
    drop(open);
}

/// The calling thread is in [`run_woken`]. What is left in line when that ends goes to tokio.
struct Open;

impl Drop for Open {
    fn drop(&mut self) {
        LINE.take().into_iter().flatten().for_each(Task::stand_in_line);
    }
}

/// A task that tokio is to poll. tokio drops it instead when the runtime ends. Then the task ends, too: it cannot be left to whoever
/// can wake it, because a future that waits for something of its own, such as a queue within, has a waker of itself.
struct Turn(Option<Arc<Task>>);

impl Turn {
    fn take(mut self) {
        if let Some(task) = self.0.take() {
            task.run();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.end();
        }
    }
}

impl Task {
    fn new(handle: &Handle, future: BoxFuture<'static, ()>) -> Arc<Self> {
        let (state, future) = (AtomicU8::new(IN_LINE), Mutex::new(Some(future)));
        Arc::new(Task { state, future, handle: handle.clone() })
    }

    fn stand_in_line(self: Arc<Self>) {
        let elsewhere = LINE.with_borrow_mut(|line| match line {
            Some(line) => {
                line.push_back(self);
                None
            }
            None => Some(self),
        });
        if let Some(task) = elsewhere {
            let (handle, turn) = (task.handle.clone(), Turn(Some(task)));
            handle.spawn(async move { turn.take() });
        }
    }

    /// Drops the future: it is not polled any more.
    fn end(&self) {
        let ended = lock(&self.future).take();
        drop(ended);
    }

    /// Polls once. Only the thread that took the task out of the queue does.
    fn run(self: Arc<Self>) {
        self.state.store(RUNNING, std::sync::atomic::Ordering::Release);
        let waker = Waker::from(Arc::clone(&self));
        let mut future = lock(&self.future);
        let Some(pending) = &mut *future else { return };
        // A task may use timers and sockets of tokio wherever it is polled.
        let _runtime = self.handle.enter();
        let poll = || pending.as_mut().poll(&mut Context::from_waker(&waker));
        // A task that panics ends; what it held is dropped as if it had been cancelled.
        if !matches!(catch_unwind(AssertUnwindSafe(poll)), Ok(Poll::Pending)) {
            let done = future.take();
            drop(future);
            return drop(done);
        }
        drop(future);
        if self.state.compare_exchange(RUNNING, IDLE, AcqRel, Acquire).is_err() {
            self.state.store(IN_LINE, std::sync::atomic::Ordering::Release);
            self.stand_in_line();
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let woken = self.state.fetch_update(AcqRel, Acquire, |state| match state {
            IDLE => Some(IN_LINE),
            RUNNING => Some(AGAIN),
            _ => None,
        });
        if woken == Ok(IDLE) {
            self.stand_in_line();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{IDLE, Task};
    use crate::Threads;
    use outrigger_core::Runtime;
    use std::future::poll_fn;
    use std::sync::atomic::Ordering::Acquire;
    use std::sync::{Arc, mpsc};
    use std::task::{Poll, Wake};
    use std::thread;
    use std::time::Duration;

    /// A task that tells on which threads it is polled until `times` polls.
    fn telling(threads: &Threads, times: usize) -> (mpsc::Receiver<thread::ThreadId>, Arc<Task>) {
        let (sender, receiver) = mpsc::channel();
        let mut left = times;
        let future = poll_fn(move |_| {
            left -= 1;
            let _ = sender.send(thread::current().id());
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        (receiver, Task::new(threads.handle(), Box::pin(future)))
    }

    #[test]
    fn a_task_is_polled_where_it_is_woken_if_that_thread_says_so() {
        let threads = Threads::new();
        let (polls, task) = telling(&threads, 3);
        let here = thread::current().id();
        Arc::clone(&task).stand_in_line();
        assert_ne!(polls.recv(), Ok(here), "started elsewhere");
        // It tells before that poll has ended, and who wakes it meanwhile has it polled there once more.
        while task.state.load(Acquire) != IDLE {
            thread::yield_now();
        }
        let wake = || Arc::clone(&task).wake();
        let mut nested = || threads.run_woken(&mut || (wake(), wake(), assert!(polls.try_recv().is_err())).2);
        threads.run_woken(&mut nested);
        assert_eq!(polls.try_recv(), Ok(here));
        assert!(polls.try_recv().is_err(), "woken twice, polled once");
        wake();
        assert_ne!(polls.recv(), Ok(here), "and elsewhere again");
        assert!(polls.recv().is_err(), "ready, and dropped");
    }

    #[test]
    fn a_task_woken_while_it_is_polled_is_polled_again() {
        let threads = Threads::new();
        let (sender, receiver) = mpsc::channel();
        let mut left = 3;
        threads.run_woken(&mut || {
            let sender = sender.clone();
            threads.spawn(Box::pin(poll_fn(move |context| {
                context.waker().wake_by_ref();
                left -= 1;
                let _ = sender.send(left);
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })));
        });
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn a_task_that_always_wakes_itself_does_not_keep_the_thread() {
        let threads = Threads::new();
        let here = thread::current().id();
        let (sender, receiver) = mpsc::channel();
        threads.run_woken(&mut || {
            let sender = sender.clone();
            threads.spawn(Box::pin(poll_fn(move |context| {
                if thread::current().id() != here {
                    let _ = sender.send(());
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })));
        });
        assert_eq!(receiver.recv(), Ok(()), "went on elsewhere");
    }

    #[test]
    fn a_task_has_tokio_wherever_it_is_polled() {
        let threads = Threads::new();
        let (sender, receiver) = mpsc::channel();
        threads.run_woken(&mut || {
            let sender = sender.clone();
            threads.spawn(Box::pin(async move {
                let _ = sender.send(tokio::runtime::Handle::try_current().is_ok());
            }));
        });
        assert_eq!(receiver.recv(), Ok(true));
    }

    #[test]
    fn a_task_that_can_wake_itself_ends_with_its_runtime() {
        let threads = Threads::new();
        let (sender, receiver) = mpsc::channel();
        let mut timer = threads.sleep_until(Duration::from_secs(3600));
        let mut own = Vec::new();
        threads.spawn(Box::pin(poll_fn(move |context| {
            own.push(context.waker().clone());
            let _ = sender.send(());
            timer.as_mut().poll(context)
        })));
        assert_eq!(receiver.recv(), Ok(()), "it waits");
        drop(threads);
        let next = || receiver.recv_timeout(Duration::from_secs(20));
        let last = std::iter::repeat_with(next).find_map(Result::err);
        assert_eq!(last, Some(mpsc::RecvTimeoutError::Disconnected), "what it held was dropped");
    }

    #[test]
    fn a_panic_ends_its_task_only() {
        let threads = Threads::new();
        let (sender, receiver) = mpsc::channel::<()>();
        threads.run_woken(&mut || {
            let sender = sender.clone();
            threads.spawn(Box::pin(async move {
                let _held = sender;
                panic!("a test of panics");
            }));
        });
        drop(sender);
        assert!(receiver.recv().is_err(), "what it held was dropped");
    }
}
