// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel, the keeper, and one process at a time.

use crate::mortal::{Death, Mortal};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Clock, Credentials, Cx, Handle, HeapKeep, Reply, Request, Service, Stack, Wait};
use outrigger_layer_journal::Journal;
use std::collections::HashSet;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park};

/// How many slots requests take turns in.
const SLOTS: u32 = 3;

/// A mount.
pub struct World {
    driver: Arc<dyn Service>,
    clock: Arc<dyn Clock>,
    keep: HeapKeep,
    process: Option<Process>,
    requests: u64,
    deaths: u64,
    /// Open files that append: the kernel says so with each write.
    appending: HashSet<Handle>,
}

struct Process {
    journal: Journal,
    mortal: Mortal,
    top: Arc<dyn Service>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl World {
    /// A mount of the tree of `driver`, whose files `clock` stamps.
    pub fn new(driver: Arc<dyn Service>, clock: Arc<dyn Clock>) -> Self {
        World {
            driver,
            clock,
            keep: HeapKeep::default(),
            process: None,
            requests: 0,
            deaths: 0,
            appending: HashSet::new(),
        }
    }

    /// The driver, to look at its tree without layers.
    pub fn driver(&self) -> &Arc<dyn Service> {
        &self.driver
    }

    /// How many processes died.
    pub fn deaths(&self) -> u64 {
        self.deaths
    }

    /// The reply to `request` although one process after the other dies as `deaths` say, as long as there is a request
    /// that is not answered.
    ///
    /// # Panics
    /// When the journal cannot be taken over.
    pub fn ask(&mut self, request: impl Into<Request>, deaths: &[Death]) -> Reply {
        let request = request.into();
        let reply = self.ask_until_answered(&request, deaths);
        self.follow(&request, &reply);
        reply
    }

    /// Follows which open files append.
    fn follow(&mut self, request: &Request, reply: &Reply) {
        let opened = match reply {
            Reply::Opened(opened) => opened.handle,
            Reply::Created(created) => created.opened.handle,
            _ => return,
        };
        if let Some(flags) = request.opens().and_then(|opens| opens.flags) {
            match flags.contains(OpenFlags::APPEND) {
                true => self.appending.insert(opened),
                false => self.appending.remove(&opened),
            };
        }
    }

    fn ask_until_answered(&mut self, request: &Request, deaths: &[Death]) -> Reply {
        let appends = matches!(request, Request::Write(op) if self.appending.contains(&op.handle));
        self.requests += 1;
        let mut slot = self.requests as u32 % SLOTS;
        for death in deaths.iter().copied().map(Some).chain([None]) {
            let process = self.process.take().unwrap_or_else(|| self.start());
            let cx = Cx { slot, appends: Some(appends), ..Cx::new(self.requests, Credentials::ROOT, "test") };
            process.mortal.plan(death);
            let reply = process.until_dead(process.top.call(&cx, request.clone()).into_future());
            process.mortal.plan(None);
            match reply {
                Some(reply) if death != Some(Death::Undelivered) => {
                    self.process = Some(process);
                    return reply;
                }
                _ => self.deaths += 1,
            }
            // The next process's door numbers its slots anew.
            slot = (slot + 1) % SLOTS;
        }
        unreachable!("the last process does not die")
    }

    fn start(&self) -> Process {
        let clock = Arc::clone(&self.clock);
        let journal = Journal::attach(&self.keep, clock, None).expect("the journal is taken over");
        let mortal = Mortal::default();
        let stack = Stack::new(Arc::clone(&self.driver)).push(mortal.clone()).expect("any order is good");
        let top = stack.push(journal.clone()).expect("the journal is on top").service();
        top.abilities();
        Process { journal, mortal, top }
    }

    /// Lets the process die at a moment when it has nothing to do.
    pub fn restart(&mut self) {
        self.process = None;
    }

    /// What the journal of the living process counted.
    pub fn counts(&self) -> outrigger_layer_journal::Counts {
        self.process.as_ref().map(|process| process.journal.counts()).unwrap_or_default()
    }
}

impl Process {
    /// The reply; `None` when the process died.
    fn until_dead(&self, wait: Wait<'_>) -> Option<Reply> {
        let waker = Waker::from(Arc::new(Unpark(current())));
        let mut wait = pin!(wait);
        loop {
            if let Poll::Ready(reply) = wait.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(reply);
            }
            if self.mortal.is_dead() {
                return None;
            }
            park();
        }
    }
}
