// SPDX-License-Identifier: GPL-2.0-only
//! The kernel in this process: starting it, giving it jobs, letting it run.

use crate::abi::{self, Host, Job};
use crate::fixed;
use crate::task::Task;
use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::time::Duration;

/// The running kernel. It belongs to one thread.
pub struct Kernel(PhantomData<*const ()>);

/// A job with the closure it runs; the kernel knows the first field only.
#[repr(C)]
struct Boxed {
    job: Job,
    work: Box<dyn FnOnce(&Task)>,
}

/// Runs the closure of `job`, inside the kernel.
unsafe extern "C" fn run(job: *mut Job) {
    // SAFETY: `submit` made it from a box, and the kernel gives each job back once.
    let Boxed { work, .. } = *unsafe { Box::from_raw(job.cast::<Boxed>()) };
    work(&Task::current());
}

impl Kernel {
    /// Starts the kernel on `host`; there is one in a process.
    ///
    /// # Errors
    /// `EPROTO` when the kernel object was built for another version of this program.
    pub fn start(host: Host, command_line: &CStr) -> io::Result<Self> {
        let host: &'static Host = Box::leak(Box::new(host));
        // SAFETY: the machine lives for ever, and the kernel copies the command line. A second start cannot happen, for
        // `host::machine` makes one machine only.
        match unsafe { abi::outrigger_start(host, command_line.as_ptr()) } {
            0 => Ok(Kernel(PhantomData)),
            error => Err(io::Error::from_raw_os_error(-error as i32)),
        }
    }

    /// Gives the kernel something to do; it happens in [`Kernel::run`].
    pub fn submit(&self, work: impl FnOnce(&Task) + 'static) {
        let job = Job { run, next: std::ptr::null_mut() };
        let job = Box::into_raw(Box::new(Boxed { job, work: Box::new(work) }));
        // SAFETY: the job is complete and belongs to the kernel from here on; this is the kernel's thread, outside of it.
        unsafe { abi::outrigger_submit(job.cast()) };
    }

    /// Runs jobs and whatever else the kernel has to do until all of it waits; tells for how long at most.
    pub fn run(&self) -> Option<Duration> {
        // SAFETY: this is the kernel's thread, outside of any job: jobs have a `Task` and no `Kernel`.
        match unsafe { abi::outrigger_run() } {
            u64::MAX => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    /// Does `work` inside the kernel and waits for it.
    pub fn call<T: 'static>(&self, work: impl FnOnce(&Task) -> T + 'static) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.submit(move |task| drop(sender.send(work(task))));
        loop {
            let wait = self.run();
            if let Ok(result) = receiver.try_recv() {
                return result;
            }
            fixed::pass(wait);
        }
    }
}
