// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files copied side by side.
//!
//! The walker offers each file to the pool; when all threads are busy and the queue is full it copies the file
//! itself, so that walking never runs far ahead of copying. Small files for an image go together, up to so many: the
//! process that serves it is then asked for all of them at once.

use super::file::FileCopy;
use super::shared::Shared;
use outrigger_core::{DriverClass, lock};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Files that wait for a thread, per thread.
const QUEUE: usize = 32;
/// The most files that are copied together.
const TOGETHER: usize = 32;
/// Threads for a tree on another host: each spends most of its time waiting for the server.
const NETWORK_THREADS: usize = 8;

/// Threads that copy files. They start with the first file.
pub(super) struct Pool {
    shared: Arc<Shared>,
    processors: usize,
    running: Option<Running>,
    /// Small files that wait for others, all of them for the same tree.
    together: Vec<FileCopy>,
}

struct Running {
    queue: SyncSender<FileCopy>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Pool { shared, processors, running: None, together: Vec::new() }
    }

    /// Copies `file` on some thread, perhaps on this one.
    pub(super) fn copy(&mut self, file: FileCopy) {
        if file.trees()[1] == DriverClass::Block && file.is_small(&self.shared) {
            if self.together.first().is_some_and(|first| !first.has_target_tree_of(&file)) {
                self.copy_together();
            }
            self.together.push(file);
            if self.together.len() == TOGETHER {
                self.copy_together();
            }
            return;
        }
        let wanted = self.threads(file.trees());
        let shared = &self.shared;
        let running = self.running.get_or_insert_with(|| Running::start(shared, wanted));
        match running.queue.try_send(file) {
            Ok(()) => {}
            Err(TrySendError::Full(file) | TrySendError::Disconnected(file)) => drop(file.run(shared)),
        }
    }

    /// How many threads help the walker, which is busy too, as is the process that serves an image.
    fn threads(&self, trees: [DriverClass; 2]) -> usize {
        if trees.contains(&DriverClass::Network) {
            return NETWORK_THREADS;
        }
        let servers = trees.iter().filter(|class| **class == DriverClass::Block).count();
        self.processors.saturating_sub(1 + servers).max(usize::from(servers == 0))
    }

    /// Copies the small files that wait for others.
    pub(super) fn copy_together(&mut self) {
        FileCopy::run_together(std::mem::take(&mut self.together), &self.shared);
    }

    /// Waits until every file is done.
    pub(super) fn wait(&mut self) {
        self.copy_together();
        if let Some(Running { queue, threads }) = self.running.take() {
            drop(queue);
            for thread in threads {
                if thread.join().is_err() {
                    self.shared
                        .complain("a thread that copied files ended unexpectedly; files may be missing");
                }
            }
        }
    }
}

impl Running {
    fn start(shared: &Arc<Shared>, count: usize) -> Self {
        let (queue, files) = sync_channel(count * QUEUE);
        let files = Arc::new(Mutex::new(files));
        let start = |_| {
            let (shared, files) = (Arc::clone(shared), Arc::clone(&files));
            thread::Builder::new().name("copy".into()).spawn(move || work(&shared, &files)).ok()
        };
        // Fewer threads than wanted, even none, only make it slower: the walker copies what finds no taker.
        let threads = (0..count).filter_map(start).collect();
        Running { queue, threads }
    }
}

fn work(shared: &Shared, files: &Mutex<Receiver<FileCopy>>) {
    loop {
        let next = lock(files).recv();
        match next {
            // After an interruption the queue is only emptied: each file fails at its first step.
            Ok(file) => drop(file.run(shared)),
            Err(_) => return,
        }
    }
}
