// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a long command is: a bar on standard error when that is a terminal, nothing otherwise.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::isatty;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether to show progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum When {
    /// When standard error is a terminal.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Counts what is done and shows it. All methods may be called from any thread.
#[derive(Debug, Default)]
pub struct Progress {
    bar: Option<ProgressBar>,
    files: AtomicU64,
}

/// Bytes, files, rate and time left.
const TEMPLATE: &str = "{spinner} {binary_bytes}/{binary_total_bytes} {wide_bar} {msg} {binary_bytes_per_sec} {eta_precise} left";

impl Progress {
    /// A bar that appears after the first tick, or none.
    pub fn new(when: When) -> Self {
        let shown = match when {
            When::Auto => isatty(io::stderr()),
            When::Always => true,
            When::Never => false,
        };
        if !shown {
            return Progress::default();
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(125));
        Progress { bar: Some(bar), files: AtomicU64::new(0) }
    }

    /// Whether a bar is shown.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// More is to be done than was known.
    pub fn expect(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc_length(bytes);
        }
    }

    /// Some bytes are done.
    pub fn bytes(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(count);
        }
    }

    /// A file is done.
    pub fn file(&self) {
        if let Some(bar) = &self.bar {
            let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
            bar.set_message(format!("{files} files"));
        }
    }

    /// Takes the bar away while `write` writes lines.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Takes the bar away for good.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
