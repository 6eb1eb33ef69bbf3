// SPDX-License-Identifier: MIT OR Apache-2.0
//! From methods to messages: the adapters that make a driver a [`Service`].
//!
//! | what the author wrote | adapter | where it runs |
//! |---|---|---|
//! | [`Driver`]: async methods | [`Serve`] | wherever the door polls |
//! | [`BlockingDriver`]: plain methods | [`Pool`] | on threads that may block |
//! | [`Prompt`]: plain methods that return at once | [`Inline`] | on the thread that asks |
//!
//! A plain driver has no other way into a stack, so none can block a door by accident.

use crate::attr::FileKind;
use crate::cx::Cx;
use crate::error::{Errno, Result};
use crate::name::Name;
use crate::node::Node;
use crate::notify::Notify;
use crate::ops::{BlockingDriver, Driver, Request, call_blocking, call_driver};
use crate::reply::Reply;
use crate::reply_guard::ReplyGuard;
use crate::runtime::Runtime;
use crate::service::{Abilities, Answer, Recalled, Service};
use futures_channel::oneshot;
use std::sync::Arc;

/// An asynchronous driver as a service.
#[derive(Debug)]
pub struct Serve<D>(pub D);

impl<D: Driver> Service for Serve<D> {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        call_driver(&self.0, cx, request)
    }
    fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        self.0.recall(dir, name, kind)
    }
    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.0.attach(notify);
    }
}

/// Promise of a plain driver that some of its methods return promptly: they touch memory or the host's file system,
/// never a network, and never wait for another request.
pub trait Prompt: BlockingDriver {
    /// Whether this request is one of them. Requests that are not go to the pool.
    fn is_prompt(&self, _request: &Request) -> bool {
        true
    }
}

/// A [`Prompt`] driver as a service that answers on the calling thread.
///
/// Requests that are not prompt run on the [`Runtime`]'s blocking threads.
pub struct Inline<D> {
    pool: Pool<D>,
}

impl<D: Prompt> Inline<D> {
    /// Serves `driver`; what is not prompt runs on `runtime`.
    pub fn new(driver: D, runtime: Arc<dyn Runtime>) -> Self {
        Inline { pool: Pool::new(driver, runtime) }
    }
}

impl<D: Prompt + 'static> Service for Inline<D> {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        if self.pool.driver.is_prompt(&request) {
            Answer::Ready(call_blocking(&*self.pool.driver, cx, request))
        } else {
            self.pool.call(cx, request)
        }
    }
    fn abilities(&self) -> Abilities {
        self.pool.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.pool.attach(notify);
    }
}

/// A plain driver as a service: each request runs on one of the [`Runtime`]'s blocking threads.
///
/// A request that was started runs to its end even when its caller no longer waits for the answer.
pub struct Pool<D> {
    driver: Arc<D>,
    runtime: Arc<dyn Runtime>,
}

impl<D: BlockingDriver> Pool<D> {
    /// Serves `driver` on `runtime`.
    pub fn new(driver: D, runtime: Arc<dyn Runtime>) -> Self {
        Pool { driver: Arc::new(driver), runtime }
    }
}

impl<D: BlockingDriver + 'static> Service for Pool<D> {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let (sender, receiver) = oneshot::channel();
        let (driver, cx) = (Arc::clone(&self.driver), cx.clone());
        self.runtime.spawn_blocking(Box::new(move || {
            // The caller may have gone; then the reply is dropped.
            let owed = ReplyGuard::new(cx.id, |reply| drop(sender.send(reply)));
            if cx.cancel.is_raised() {
                return owed.send(Reply::Error(Errno::EINTR.into()));
            }
            owed.send(call_blocking(&*driver, &cx, request));
        }));
        Answer::later(async move {
            let lost = |_| Reply::Error(Errno::EIO.because("the thread that worked on the request ended"));
            receiver.await.unwrap_or_else(lost)
        })
    }
    fn abilities(&self) -> Abilities {
        self.driver.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.driver.attach(notify);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Time;
    use crate::cx::Credentials;
    use crate::node::{Handle, Node};
    use crate::ops::{OpCode, Read, StatFs};
    use crate::opset::OpSet;
    use crate::payload::Payload;
    use crate::reply::Data;
    use crate::runtime::{BoxFuture, Clock};
    use crate::service::ask;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    struct Now;
    impl Clock for Now {
        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
        fn wall(&self) -> Time {
            Time::default()
        }
    }
    impl Runtime for Now {
        fn spawn(&self, _: BoxFuture<'static, ()>) {}
        fn sleep_until(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
        fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
            job();
        }
    }

    struct Abc;
    impl BlockingDriver for Abc {
        fn abilities(&self) -> Abilities {
            Abilities::new("abc", "abc", OpSet::of(&[OpCode::Read]))
        }
        fn read(&self, _: &Cx, op: Read) -> Result<Data> {
            if op.offset == 666 {
                panic!("a defect in the driver");
            }
            Ok(Payload::from(b"abc".to_vec()))
        }
    }
    impl Prompt for Abc {
        fn is_prompt(&self, request: &Request) -> bool {
            request.op() != OpCode::StatFs
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the test runtime does everything at once"),
        }
    }

    fn read(offset: u64) -> Read {
        Read { node: Node::ROOT, handle: Handle(0), offset, len: 3 }
    }

    #[test]
    fn a_prompt_request_is_answered_at_once_and_others_later() {
        let service = Inline::new(Abc, Arc::new(Now));
        let cx = Cx::new(1, Credentials::ROOT, "test");
        assert!(matches!(service.call(&cx, read(0).into()), Answer::Ready(Reply::Data(_))));
        assert!(matches!(service.call(&cx, StatFs { node: Node::ROOT }.into()), Answer::Later(_)));
        assert_eq!(
            block_on(ask(&service, &cx, StatFs { node: Node::ROOT })).unwrap_err().errno,
            Errno::ENOSYS
        );
    }

    #[test]
    fn a_panic_in_a_driver_on_the_pool_answers_eio() {
        struct Catch;
        impl Clock for Catch {
            fn monotonic(&self) -> Duration {
                Duration::ZERO
            }
            fn wall(&self) -> Time {
                Time::default()
            }
        }
        impl Runtime for Catch {
            fn spawn(&self, _: BoxFuture<'static, ()>) {}
            fn sleep_until(&self, _: Duration) -> BoxFuture<'static, ()> {
                Box::pin(std::future::pending())
            }
            fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            }
        }
        let service = Pool::new(Abc, Arc::new(Catch));
        let cx = Cx::new(1, Credentials::ROOT, "test");
        assert_eq!(block_on(ask(&service, &cx, read(666))).unwrap_err().errno, Errno::EIO);
    }

    #[test]
    fn a_cancelled_request_that_has_not_started_answers_eintr() {
        let service = Pool::new(Abc, Arc::new(Now));
        let cx = Cx::new(1, Credentials::ROOT, "test");
        cx.cancel.raise();
        assert_eq!(block_on(ask(&service, &cx, read(0))).unwrap_err().errno, Errno::EINTR);
    }
}
