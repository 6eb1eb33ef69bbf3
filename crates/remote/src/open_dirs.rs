// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open directories: what is listed in them is taken when they are opened, and again for rewinddir(3) or by the process that takes over.

use outrigger_core::reply::Opened;
use outrigger_core::{Handle, Result, lock};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// All open directories of a tree; `L` is what is listed in one.
pub struct OpenDirs<L> {
    last: AtomicU64,
    /// With whether it was read.
    open: Mutex<HashMap<Handle, (L, bool)>>,
}

impl<L> Default for OpenDirs<L> {
    fn default() -> Self {
        OpenDirs { last: AtomicU64::new(0), open: Mutex::default() }
    }
}

impl<L: Clone> OpenDirs<L> {
    /// Opens a directory in which this is listed.
    pub fn add(&self, listing: L) -> Opened {
        let handle = Handle(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        lock(&self.open).insert(handle, (listing, false));
        Opened { handle, ..Opened::default() }
    }

    /// What is listed in a directory, to be read from `cookie` on: what was taken when it was opened, or what `list` gives where it is
    /// read from its beginning again, or was opened by a former process or by nobody.
    ///
    /// # Errors
    /// Those of `list`.
    pub async fn listing(
        &self,
        handle: Handle,
        cookie: u64,
        list: impl AsyncFnOnce() -> Result<L>,
    ) -> Result<L> {
        if let Some((listing, was_read)) = lock(&self.open).get_mut(&handle)
            && (cookie != 0 || !*was_read)
        {
            *was_read = true;
            return Ok(listing.clone());
        }
        // There need not be room for both.
        self.close(handle);
        let listing = list().await?;
        if handle != Handle::NONE {
            lock(&self.open).insert(handle, (listing.clone(), true));
        }
        Ok(listing)
    }

    /// Closes a directory, if it is open.
    pub fn close(&self, handle: Handle) {
        lock(&self.open).remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    #[tokio::test]
    async fn a_directory_is_listed_once_until_it_is_read_from_its_beginning_again() {
        let dirs = OpenDirs::default();
        let handle = dirs.add(1).handle;
        for (handle, cookie, fresh, expected) in [
            (handle, 0, Err(Errno::EIO.into()), Ok(1)),
            (handle, 7, Err(Errno::EIO.into()), Ok(1)),
            (handle, 0, Ok(2), Ok(2)),
            (handle, 7, Ok(3), Ok(2)),
            (Handle(99), 7, Ok(4), Ok(4)),
            (Handle(99), 9, Ok(5), Ok(4)),
            (Handle::NONE, 7, Ok(6), Ok(6)),
            (Handle::NONE, 7, Ok(7), Ok(7)),
            (handle, 0, Err(Errno::EIO.into()), Err(Errno::EIO.into())),
            (handle, 7, Ok(8), Ok(8)),
        ] {
            assert_eq!(dirs.listing(handle, cookie, async || fresh).await, expected, "{handle:?} {cookie}");
        }
        dirs.close(handle);
        assert_eq!(dirs.listing(handle, 7, async || Ok(9)).await, Ok(9));
    }
}
