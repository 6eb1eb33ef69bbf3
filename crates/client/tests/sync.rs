// SPDX-License-Identifier: MIT OR Apache-2.0
//! Synchronising a tree: what is owed until it has succeeded.

use outrigger_client::{Client, Settings};
use outrigger_core::{Answer, Cx, Errno, Inline, Layer, Name, Place, Reply, Request, Service, Stack, Target};
use outrigger_driver_mem::{Mem, Options};
use outrigger_runtime::Threads;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Answers each SyncFs with the next of these errors, and lets it pass when there is none.
#[derive(Default)]
struct Failing {
    errors: Mutex<Vec<Errno>>,
    asked: AtomicU32,
}

struct Fails(Arc<Failing>);

impl Layer for Fails {
    fn place(&self) -> Place {
        Place::anywhere("fails")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        if let Request::SyncFs(_) = &request {
            self.0.asked.fetch_add(1, SeqCst);
            if let Some(errno) = self.0.errors.lock().unwrap().pop() {
                return Answer::Ready(Reply::Error(errno.into()));
            }
        }
        next.call(cx, request)
    }
}

#[test]
fn a_tree_whose_synchronisation_failed_is_asked_again() {
    let runtime = Arc::new(Threads::new());
    let mem = Inline::new(Mem::new(Options::default(), runtime.clone()), runtime.clone());
    let failing = Arc::new(Failing::default());
    let stack = Stack::new(Arc::new(mem)).push(Fails(failing.clone())).unwrap();
    let client = Client::new(stack.service(), runtime, Settings::default());
    let sync = || client.sync().map_err(|error| error.errno);
    let asked = || failing.asked.load(SeqCst);
    assert_eq!((sync(), asked()), (Ok(()), 0), "nothing was changed");

    *failing.errors.lock().unwrap() = vec![Errno::ENOSPC, Errno::ETIMEDOUT];
    let name = Name::try_from("link").unwrap();
    client.root().unwrap().symlink(&name, Target::new("to").unwrap()).unwrap();
    assert_eq!((sync(), asked()), (Err(Errno::ETIMEDOUT), 1));
    assert_eq!((sync(), asked()), (Err(Errno::ENOSPC), 2));
    assert_eq!((sync(), asked()), (Ok(()), 3));
    assert_eq!((sync(), asked()), (Ok(()), 3), "all is stored");
}
