// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open files of a tree, and those that are being closed.

use crate::connection::Connection;
use crate::programs::Groups;
use outrigger_core::{Cancel, Errno, Handle, Result, Runtime, lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// See the [module](self).
pub(crate) struct Files {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// How many are being closed.
    closing: Mutex<usize>,
    /// Signalled when one less is.
    closed: Condvar,
    /// Raised when the tree ends.
    ends: Cancel,
    groups: Arc<Groups>,
}

impl Files {
    /// None; the first has the handle `first`. The programs among them lead `groups`.
    pub(crate) fn new(first: u64, groups: Arc<Groups>) -> Self {
        let (open, next) = (Mutex::default(), AtomicU64::new(first));
        let (closing, closed, ends) = (Mutex::default(), Condvar::new(), Cancel::default());
        Files { open, next, closing, closed, ends, groups }
    }

    pub(crate) fn add(&self, connection: Connection) -> (Handle, Arc<Connection>) {
        let (number, connection) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(connection));
        lock(&self.open).insert(number, Arc::clone(&connection));
        (Handle(number), connection)
    }

    /// The open file with this handle.
    ///
    /// # Errors
    /// `ENOTCONN` for one that another process had open.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<Connection>> {
        let found = lock(&self.open).get(&handle.0).cloned();
        found.ok_or_else(|| {
            Errno::ENOTCONN
                .because("the connection has ended with the process that made it: open the file again")
        })
    }

    /// Closes a file, in the background.
    pub(crate) fn close(self: &Arc<Self>, handle: Handle, runtime: &dyn Runtime) {
        let connection = lock(&self.open).remove(&handle.0);
        connection.into_iter().for_each(|connection| self.wind_up(connection, runtime));
    }

    fn wind_up(self: &Arc<Self>, connection: Arc<Connection>, runtime: &dyn Runtime) {
        *lock(&self.closing) += 1;
        let closing = Closing(Arc::clone(self));
        runtime.spawn(Box::pin(async move { connection.end(&closing.0.ends).await }));
    }

    /// Closes what is open, waits until all is closed, at most so long, and kills the programs that are left.
    pub(crate) fn end(self: &Arc<Self>, runtime: &dyn Runtime, limit: Duration) {
        self.ends.raise();
        let open = std::mem::take(&mut *lock(&self.open));
        open.into_values().for_each(|connection| self.wind_up(connection, runtime));
        let waited = self.closed.wait_timeout_while(lock(&self.closing), limit, |closing| *closing > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.groups.end();
    }
}

/// A file that is being closed.
struct Closing(Arc<Files>);

impl Drop for Closing {
    fn drop(&mut self) {
        *lock(&self.0.closing) -= 1;
        self.0.closed.notify_all();
    }
}
