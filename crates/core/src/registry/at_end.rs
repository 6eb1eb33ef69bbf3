// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is to be done before the process ends.

use crate::lock;
use std::fmt;
use std::sync::{Arc, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// What drivers want to be done when trees are used no longer: a process that ends drops nothing that its threads hold.
#[derive(Clone, Default)]
pub struct AtEnd(Arc<Mutex<Vec<Job>>>);

impl AtEnd {
    /// Has `job` done at the end.
    pub fn add(&self, job: impl FnOnce() + Send + 'static) {
        lock(&self.0).push(Box::new(job));
    }

    /// Does what is to be done, each once.
    pub fn run(&self) {
        let jobs = std::mem::take(&mut *lock(&self.0));
        jobs.into_iter().for_each(|job| job());
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AtEnd({})", lock(&self.0).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn each_job_is_done_once() {
        let (at_end, done) = (AtEnd::default(), Arc::new(AtomicU32::new(0)));
        for _ in 0..2 {
            let done = Arc::clone(&done);
            at_end.clone().add(move || _ = done.fetch_add(1, Ordering::Relaxed));
        }
        at_end.run();
        at_end.run();
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }
}
