// SPDX-License-Identifier: GPL-2.0-only
//! What this process keeps of a mount that it serves by itself: which replies were sent, so that the kernel needs not hold every
//! file that is known, and somebody else can go on if this process dies (`crates/succession`).

use crate::guard::Guard;
use crate::host;
use crate::machine::Work;
use crate::serve::Outlet;
use futures_channel::oneshot::Sender;
use outrigger_core::wire::Frame;
use outrigger_core::{Credentials, Cx, Reply, Request, Result, Synced, lock};
use outrigger_succession::{RECORDED, Served, Task, deliver};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long what was asked last may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the [module](self).
pub struct Kept {
    served: Mutex<Served>,
    /// What the kernel has done since it was last looked at.
    done: Arc<Mutex<Vec<Done>>>,
    /// None where the end of this process is the end of the tree.
    guard: Option<Arc<Guard>>,
    /// Where the reader of the record is notified.
    outlet: Arc<Outlet>,
    /// Notified when no request is at work any more, if a thread waits for that: a notification costs a system call.
    idle: Condvar,
    settling: AtomicBool,
}

struct Done {
    id: u64,
    only_looks: bool,
    reply: Reply,
}

impl Kept {
    /// With nothing asked yet.
    pub fn new(served: Served, guard: Option<Arc<Guard>>, outlet: Arc<Outlet>) -> Self {
        let (served, settling) = (Mutex::new(served), AtomicBool::new(false));
        Kept { served, done: Arc::default(), guard, outlet, idle: Condvar::new(), settling }
    }

    /// Work of answering a request in the kernel's numbers, whose reply goes to `done`.
    pub fn answering(
        &self,
        (id, cred): (u64, Credentials),
        request: Request,
        done: impl FnOnce(Reply) + Send + 'static,
    ) -> Work {
        let guard = self.guard.clone();
        Box::new(move |task, tree| {
            let reply = match guard {
                Some(guard) => guard.answer(task, tree, (id, cred), request),
                None => tree.answer(task, &cred, request),
            };
            if id != Frame::UNANSWERED {
                done(reply);
            }
        })
    }

    /// Takes a request, whose reply goes to `sender`. What is to be done is left for the kernel.
    ///
    /// # Errors
    /// When the content of a write cannot be had.
    pub fn ask(
        &self,
        cx: &Cx,
        request: Request,
        sender: Sender<Reply>,
        leave: impl FnMut(Work),
    ) -> Result<()> {
        let mut served = lock(&self.served);
        if let Some((node, count)) = request.returns() {
            served.forget(node, count);
            // No thread waits.
            drop(sender.send(Reply::Done(())));
        } else {
            served.ask(cx, request, sender)?;
        }
        self.go_on(served, leave);
        Ok(())
    }

    /// Looks at what the kernel has done; leaves what is to be done next. Tells after which time to look again.
    pub fn absorb(&self, leave: impl FnMut(Work)) -> Option<Duration> {
        let done = std::mem::take(&mut *lock(&self.done));
        let mut served = lock(&self.served);
        let is_due = served.due_after().is_some_and(|after| after.is_zero());
        if is_due {
            served.tick();
        }
        if done.is_empty() && !is_due {
            return served.due_after();
        }
        let mut looked = Vec::new();
        for Done { id, only_looks, mut reply } in done {
            if only_looks {
                let sender = served.looked_at(id, &mut reply);
                looked.extend(sender.map(|sender| (sender, reply)));
            } else {
                served.replied(id, reply);
            }
        }
        let due = served.due_after();
        self.go_on(served, leave);
        deliver(looked);
        due
    }

    /// Leaves what is to be done, and wakes the thread that waits, after it has been recorded.
    fn go_on(&self, mut served: MutexGuard<'_, Served>, mut leave: impl FnMut(Work)) {
        let (tasks, answered) = served.take_next();
        let is_checkpoint = |task: &Task| task.request.syncs() == Some(Synced::Tree);
        self.record(&mut served, !answered.is_empty() || tasks.iter().any(is_checkpoint));
        tasks.into_iter().for_each(|task| leave(self.work(task)));
        if self.settling.load(Relaxed) && served.is_idle() {
            self.idle.notify_all();
        }
        drop(served);
        deliver(answered);
    }

    fn record(&self, served: &mut Served, is_told: bool) {
        let wants_reader = served.record(is_told, |moment| {
            self.outlet.reply(RECORDED, Reply::Done(()));
            self.outlet.is_read_after(moment)
        });
        match wants_reader {
            Ok(true) => self.outlet.reply(RECORDED, Reply::Done(())),
            Ok(false) => {}
            // The next process knows only what was recorded.
            Err(error) => host::stop(&format!("what has happened cannot be recorded: {error}")),
        }
    }

    fn work(&self, Task { id, cred, request, only_looks }: Task) -> Work {
        let done = Arc::clone(&self.done);
        self.answering((id, cred), request, move |reply| lock(&done).push(Done { id, only_looks, reply }))
    }

    /// Waits until everything that was asked is done, and recorded, for somebody else is to go on; not for ever, for kernel code
    /// may hang.
    pub fn settle(&self) {
        if self.guard.is_none() {
            return;
        }
        let served = lock(&self.served);
        self.settling.store(true, Relaxed);
        let settled = self.idle.wait_timeout_while(served, PATIENCE, |served| !served.is_idle());
        self.record(&mut settled.unwrap_or_else(PoisonError::into_inner).0, true);
    }
}
