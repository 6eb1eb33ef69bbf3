// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another program in the place of the one that serves.

use crate::history::Replacement;
use crate::life::Life;
use crate::shared::{Recipe, Shared};
use outrigger_core::{Result, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long requests in flight may keep the old program busy; after that they are the new program's.
const FINISHING: Duration = Duration::from_secs(5);
/// How often it is looked whether they are done.
const PERIOD: Duration = Duration::from_millis(1);

impl Shared {
    /// Ends the program and starts `next` in its place; when that cannot be, the old one again. Blocks.
    ///
    /// Everything that a death needs is done for the new one too: files are found by path and opened again when they are
    /// used, writes that were not flushed are repeated, locks are taken again.
    ///
    /// # Errors
    /// `EBUSY` while a program is being started; else why the new one does not serve.
    pub(crate) fn replace(&self, next: Recipe) -> Result<()> {
        if let Some(old) = self.lives.suspend()? {
            finish(&old, self.options.patience());
        }
        let wanted = next.command.clone();
        let former = std::mem::replace(&mut *lock(&self.recipe), Arc::new(next));
        let outcome = self.take_over();
        if outcome.is_err() {
            *lock(&self.recipe) = Arc::clone(&former);
            self.missing.store(0, Relaxed);
            self.forgive();
            self.restart(None);
        }
        let (at, former) = (SystemTime::now(), former.command.clone());
        let failure = outcome.as_ref().err().map(ToString::to_string);
        self.chronicle.replaced(Replacement { at, former, wanted, failure });
        outcome
    }

    fn take_over(&self) -> Result<()> {
        // The new one may know more than the old one.
        self.missing.store(0, Relaxed);
        self.nodes.next_program();
        let life = self.begin(self.nodes.epoch() + 1)?;
        let epoch = life.epoch;
        self.forgive();
        self.started(life);
        self.look_for_stored(epoch);
        Ok(())
    }
}

/// Lets a program finish what it was asked, and end in order. Nothing new reaches it.
fn finish(old: &Arc<Life>, patience: Duration) {
    let deadline = Instant::now() + FINISHING;
    // Each attempt of a request holds it.
    while Arc::strong_count(old) > 1 && old.conn.over().is_none() && Instant::now() < deadline {
        thread::sleep(PERIOD);
    }
    old.conn.retire();
    match old.conn.over() {
        Some(_) => drop(old.end()),
        // The log has it; what was not stored is looked for.
        None => drop(old.goodbye(patience)),
    }
}
