// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a long command is, on standard error: a bar where that is a terminal, and if it is always wanted, lines elsewhere.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::isatty;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Whether to show progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum When {
    /// When standard error is a terminal.
    #[default]
    Auto,
    /// Always: a line each second where standard error is no terminal.
    Always,
    /// Never.
    Never,
}

/// Counts what is done and shows it. All methods may be called from any thread.
#[derive(Debug, Default)]
pub struct Progress {
    bar: Option<ProgressBar>,
    files: AtomicU64,
    /// When the next line is due, where lines are printed: the bar is invisible then.
    due: Option<Mutex<Instant>>,
}

/// How often a line is printed.
const EVERY: Duration = Duration::from_secs(1);

/// Bytes, files, rate and time left.
const TEMPLATE: &str = "{spinner} {binary_bytes}/{binary_total_bytes} {wide_bar} {msg} {binary_bytes_per_sec} {eta_precise} left";

impl Progress {
    /// A bar that appears after the first tick, or none.
    pub fn new(when: When) -> Self {
        let is_terminal = isatty(io::stderr());
        if when == When::Never || when == When::Auto && !is_terminal {
            return Progress::default();
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(125));
        let due = (!is_terminal).then(|| Mutex::new(Instant::now() + EVERY));
        Progress { bar: Some(bar), files: AtomicU64::new(0), due }
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
        if let Some(Ok(mut due)) = self.due.as_ref().map(Mutex::lock)
            && *due <= Instant::now()
        {
            *due = Instant::now() + EVERY;
            self.print_line();
        }
    }

    fn print_line(&self) {
        let Some(bar) = &self.bar else { return };
        let (done, all) = (HumanBytes(bar.position()), HumanBytes(bar.length().unwrap_or_default()));
        // Without standard error the command goes on.
        let _ = writeln!(io::stderr(), "{done} of {all}, {} files", self.files.load(Ordering::Relaxed));
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
        if self.due.is_some() {
            self.print_line();
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
