// SPDX-License-Identifier: MIT OR Apache-2.0
//! Switching tracing, and passing lines to the readers without waiting for them.

use crate::line::Format;
use outrigger_core::{Runtime, lock};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How many lines may wait to be written; further ones are dropped and counted.
pub const QUEUE_LINES: usize = 8192;

/// How many lines are written at once: few enough for a socket to take all of them or none (up to 32 KiB), so that a process
/// that is killed meanwhile leaves no half line to which the next one adds.
pub(crate) const LINES_AT_ONCE: usize = 16;

/// Switches tracing on and off while the stack is in use.
pub struct TraceControl {
    on: AtomicBool,
    channel: Mutex<Arc<Channel>>,
    runtime: Arc<dyn Runtime>,
}

impl TraceControl {
    /// A control that is off; lines are written by blocking jobs of `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let nowhere = Channel::new(Box::new(std::io::sink()), Format::Human);
        TraceControl { on: AtomicBool::new(false), channel: Mutex::new(Arc::new(nowhere)), runtime }
    }

    /// Traces to `sink` from now on.
    ///
    /// Lines printed before go to the sink they were printed for, also when that is slow. A sink that fails to write
    /// is given up, and its lines are counted as dropped.
    pub fn start(&self, sink: Box<dyn Write + Send>, format: Format) {
        self.start_on(Channel::new(sink, format));
    }

    /// Traces to `sink` from now on, and has a request wait while its lines are written, if no other request writes at the time: for
    /// programs that end with their last request. A server of other programs must not wait for a terminal that its user
    /// has stopped.
    pub fn start_waiting(&self, sink: Box<dyn Write + Send>, format: Format) {
        self.start_on(Channel { waits: true, ..Channel::new(sink, format) });
    }

    fn start_on(&self, channel: Channel) {
        *lock(&self.channel) = Arc::new(channel);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops tracing; lines that wait are still written.
    pub fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// Whether requests are traced.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// How many lines were dropped since tracing last started.
    pub fn dropped(&self) -> u64 {
        self.channel().dropped.load(Ordering::Relaxed)
    }

    /// Whether nothing is to be printed of a request before it has ended.
    pub(crate) fn shows_ends_only(&self) -> bool {
        self.channel().format == Format::Ended
    }

    fn channel(&self) -> Arc<Channel> {
        Arc::clone(&lock(&self.channel))
    }

    /// Queues the line that `make` makes, unless there is no room for it.
    pub(crate) fn print(&self, make: impl FnOnce(Format) -> String) {
        let channel = self.channel();
        if !channel.put(make) {
            return;
        }
        if channel.waits {
            channel.write();
        } else {
            self.runtime.spawn_blocking(Box::new(move || channel.write()));
        }
    }
}

/// A sink and the lines on their way to it.
struct Channel {
    format: Format,
    /// Whether requests wait until their lines are written.
    waits: bool,
    queue: Mutex<Queue>,
    dropped: AtomicU64,
    sink: Mutex<Box<dyn Write + Send>>,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<String>,
    /// Whether a job is writing, so that no second one is needed.
    writing: bool,
    broken: bool,
}

impl Channel {
    fn new(sink: Box<dyn Write + Send>, format: Format) -> Self {
        Channel {
            format,
            waits: false,
            queue: Mutex::default(),
            dropped: AtomicU64::new(0),
            sink: Mutex::new(sink),
        }
    }

    /// Whether a job has to be started to write the queue.
    fn put(&self, make: impl FnOnce(Format) -> String) -> bool {
        let line = make(self.format);
        let mut queue = lock(&self.queue);
        if queue.broken || queue.lines.len() >= QUEUE_LINES {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        queue.lines.push_back(line);
        !std::mem::replace(&mut queue.writing, true)
    }

    /// Writes until the queue is empty.
    fn write(&self) {
        let mut sink = lock(&self.sink);
        loop {
            let mut lines = {
                let mut queue = lock(&self.queue);
                queue.writing = !queue.lines.is_empty();
                if !queue.writing {
                    return;
                }
                std::mem::take(&mut queue.lines)
            };
            while !lines.is_empty() {
                let next = lines.iter().take(LINES_AT_ONCE);
                let text: String = next.flat_map(|line| [line.as_str(), "\n"]).collect();
                if let Err(error) = sink.write_all(text.as_bytes()).and_then(|()| sink.flush()) {
                    self.give_up(lines.len(), &error);
                    return;
                }
                lines.drain(..LINES_AT_ONCE.min(lines.len()));
            }
        }
    }

    fn give_up(&self, unwritten: usize, error: &std::io::Error) {
        let mut queue = lock(&self.queue);
        queue.broken = true;
        queue.writing = false;
        let lost = unwritten + std::mem::take(&mut queue.lines).len();
        self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        drop(queue);
        tracing::warn!(lost, %error, "tracing stops: its output cannot be written");
    }
}
