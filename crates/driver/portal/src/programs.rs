// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of a tree: all of them end with it.

use crate::process::{Process, Started};
use outrigger_core::{Errno, Result, Runtime, lock};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Starts programs. Dropping it kills those that run.
#[derive(Default)]
pub(crate) struct Programs {
    groups: Arc<Groups>,
    /// Gives work to the thread that starts programs: the kernel kills each with the thread that has started it, so that none may be
    /// started by one that ends before the tree.
    thread: Mutex<Option<Sender<Job>>>,
}

impl Programs {
    /// Starts a program; see [`Process::start`].
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(crate) async fn start(
        &self,
        (words, dir): (Vec<OsString>, PathBuf),
        streams: (bool, bool),
        runtime: &Arc<dyn Runtime>,
    ) -> Result<Started> {
        let (sender, receiver) = oneshot::channel();
        let groups = Arc::clone(&self.groups);
        let job: Job = Box::new(move || {
            // A program whose opener was cancelled is dropped, and killed by that.
            let _ = sender.send(Process::start((&words, &dir), streams, groups));
        });
        let ending = || Errno::EIO.because("the tree is ending");
        self.thread(runtime)?.send(job).map_err(|_| ending())?;
        receiver.await.unwrap_or_else(|_| Err(ending()))
    }

    /// What the thread takes its work from, which begins with the first program.
    fn thread(&self, runtime: &Arc<dyn Runtime>) -> Result<Sender<Job>> {
        let mut thread = lock(&self.thread);
        if let Some(sender) = &*thread {
            return Ok(sender.clone());
        }
        let (sender, jobs) = mpsc::channel::<Job>();
        let runtime = Arc::clone(runtime);
        let work = move || runtime.enter(&mut || jobs.iter().for_each(|job| job()));
        thread::Builder::new().name("portal-programs".into()).spawn(work)?;
        Ok(thread.insert(sender).clone())
    }

    /// The process groups of those that run.
    pub(crate) fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.groups.end();
    }
}

/// The process groups of programs that run; none once the tree has ended.
pub(crate) struct Groups(Mutex<Option<HashSet<Pid>>>);

impl Default for Groups {
    fn default() -> Self {
        Groups(Mutex::new(Some(HashSet::new())))
    }
}

impl Groups {
    /// A program leads this group, until [`Groups::remove`].
    pub(crate) fn add(&self, group: Pid) {
        match &mut *lock(&self.0) {
            Some(groups) => drop(groups.insert(group)),
            // The tree has ended meanwhile.
            None => kill(group),
        }
    }

    /// The program is to be waited for: its number may mean another one after that.
    pub(crate) fn remove(&self, group: Pid) {
        if let Some(groups) = &mut *lock(&self.0) {
            groups.remove(&group);
        }
    }

    /// Kills them all, and those that are added later.
    pub(crate) fn end(&self) {
        // Under the lock, so that none is waited for meanwhile.
        lock(&self.0).take().into_iter().flatten().for_each(kill);
    }
}

fn kill(group: Pid) {
    // One that has ended cannot be killed.
    let _ = kill_process_group(group, Signal::KILL);
}
