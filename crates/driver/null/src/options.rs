// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the user can choose.

use crate::Null;
use outrigger_core::option::option;
use outrigger_core::registry::{DriverInfo, Follows, Lasts, Scheme};
use outrigger_core::{Inline, OptionTable, Result};
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "null",
    opens: "one constant file, to measure everything around it",
    location: "null:[PATH]",
    writable: false,
    options: &[&OPTIONS],
    schemes: &[Scheme {
        name: "null",
        follows: Follows::Path,
        lasts: Lasts::Stored,
        open: |_, given, site| {
            let mut options = Options::default();
            given.apply(&mut |key, value| options.set(key, value))?;
            Ok(Arc::new(Inline::new(Null::new(options.size), site.runtime.clone())))
        },
    }],
    ..DriverInfo::NONE
};

/// Every option of `-o` and `--opt`.
pub const OPTIONS: OptionTable =
    OptionTable { owner: "null", options: &[option("size", "BYTES", "1g", "how long the file is")] };

/// How the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long the file is, in bytes.
    pub size: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { size: 1 << 30 }
    }
}

impl Options {
    /// Sets one option.
    ///
    /// # Errors
    /// `EINVAL` for an option that does not exist or a value it cannot have; the reason names both.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        OPTIONS.check(key)?;
        // Offsets in files are signed (off_t).
        let size: i64 = OPTIONS.bytes(key, value)?;
        self.size = size.unsigned_abs();
        Ok(())
    }
}
