// SPDX-License-Identifier: GPL-2.0-only
//! The kernel as several threads use it: one at a time runs it, and does what the others have left for it meanwhile. So
//! a request is mostly answered without any other thread, and no thread waits for a lock.

use crate::kept::Kept;
use crate::kernel::Kernel;
use crate::task::Task;
use crate::tasks::Tasks;
use crate::tree::Tree;
use futures_channel::oneshot;
use outrigger_core::reply::Ttl;
use outrigger_core::{
    Abilities, Answer, Credentials, Cx, DriverClass, Errno, Notify, Reply, Request, Service, lock,
};
use outrigger_succession::ASKED;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;

/// Something for the kernel to do.
pub type Work = Box<dyn FnOnce(&Task, &Tree) + Send>;

/// See the [module](self).
pub struct Machine {
    inside: Mutex<Inside>,
    /// What the kernel was not given yet.
    left: Mutex<Vec<Work>>,
    tasks: Arc<Tasks>,
    read_only: bool,
    kept: Kept,
}

/// What only the thread that runs the kernel may touch.
struct Inside {
    kernel: Kernel,
    tree: Rc<Tree>,
}

// SAFETY: nothing in it belongs to a certain thread: tasks of the kernel run on stacks of their own, whichever thread runs
// the kernel, and neither keeps anything that is the thread's. Counters and cells are touched by the thread that has the lock around it
// only; that includes the tree's copies in jobs, which live and die inside the kernel.
unsafe impl Send for Inside {}

impl Machine {
    /// Takes over a running kernel and its tree.
    ///
    /// # Errors
    /// When the host has no thread left.
    pub fn start(
        kernel: Kernel,
        tree: Rc<Tree>,
        read_only: bool,
        tasks: Arc<Tasks>,
        kept: Kept,
    ) -> io::Result<Arc<Self>> {
        let inside = Mutex::new(Inside { kernel, tree });
        let machine = Arc::new(Machine { inside, left: Mutex::default(), tasks, read_only, kept });
        let timer = Arc::clone(&machine);
        let keep_time = move || {
            loop {
                timer.tasks.wait_for_time();
                timer.turn();
            }
        };
        thread::Builder::new().name("time".into()).spawn(keep_time)?;
        Ok(machine)
    }

    /// Runs the kernel until nothing in it can go on, unless another thread does.
    fn turn(&self) {
        self.tasks.attend(|| {
            loop {
                let inside = match self.inside.try_lock() {
                    Ok(inside) => inside,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    // The thread that has it looks for what is left before it is done.
                    Err(TryLockError::WouldBlock) => return,
                };
                self.run(&inside);
                drop(inside);
                if lock(&self.left).is_empty() {
                    return;
                }
            }
        });
    }

    fn run(&self, Inside { kernel, tree }: &Inside) {
        for work in std::mem::take(&mut *lock(&self.left)) {
            let tree = Rc::clone(tree);
            kernel.submit(move |task| work(task, &tree));
        }
        let wait = kernel.run();
        let due = self.kept.absorb(|work| self.leave(work));
        self.tasks.wake_kernel_after(wait.into_iter().chain(due).min());
    }

    fn leave(&self, work: Work) {
        lock(&self.left).push(work);
    }

    /// Answers a request in the kernel's own numbers, which are not kept.
    pub fn answer(
        &self,
        frame: (u64, Credentials),
        request: Request,
        done: impl FnOnce(Reply) + Send + 'static,
    ) {
        self.leave(self.kept.answering(frame, request, done));
        self.turn();
    }

    /// Waits until nothing is being done that somebody else would have to go on with.
    pub fn settle(&self) {
        self.kept.settle();
    }

    /// Does the last thing that is done with the kernel. Whatever else is asked gets no answer.
    pub fn finish<T>(&self, last: impl FnOnce(&Kernel, &Rc<Tree>) -> T) -> T {
        let inside = lock(&self.inside);
        let result = last(&inside.kernel, &inside.tree);
        std::mem::forget(inside);
        result
    }
}

impl Service for Machine {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        if !ASKED.has(request.op()) {
            return Answer::error(Errno::ENOSYS);
        }
        let (sender, mut receiver) = oneshot::channel();
        if let Err(error) = self.kept.ask(cx, request, sender, |work| self.leave(work)) {
            return Answer::error(error);
        }
        self.turn();
        match receiver.try_recv() {
            Ok(Some(reply)) => Answer::Ready(reply),
            _ => Answer::later(
                async move { receiver.await.unwrap_or_else(|_| Reply::Error(Errno::EIO.into())) },
            ),
        }
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            class: DriverClass::Block,
            read_only: self.read_only,
            negative_ttl: Ttl::FOREVER,
            ..Abilities::new("kernel", "", ASKED)
        }
    }

    /// No one else changes the image, so there are no notices.
    fn attach(&self, _: Arc<dyn Notify>) {}
}
