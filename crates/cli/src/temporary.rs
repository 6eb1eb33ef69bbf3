// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names for files that exist only until they are complete.

use bytes::Bytes;
use outrigger_core::{Errno, Name, Result};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A hidden name in the directory of `name` that no other run of this program uses at the same time. The file should
/// be created with `O_EXCL` nevertheless.
///
/// # Errors
/// Never for a valid `name`.
pub fn name_beside(name: &Name) -> Result<Name> {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let suffix = format!(".outrigger-{}-{count}", std::process::id());
    let kept = name.len().min(outrigger_core::name::NAME_MAX - suffix.len() - 1);
    let mut bytes = b".".to_vec();
    bytes.extend_from_slice(&name[..kept]);
    bytes.extend_from_slice(suffix.as_bytes());
    Name::new(Bytes::from(bytes)).map_err(|error| Errno::EINVAL.because(error.to_string()))
}
