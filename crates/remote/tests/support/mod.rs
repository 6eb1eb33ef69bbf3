// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the servers of these tests share.

use outrigger_core::{Errno, Error};
use outrigger_toolkit_remote::Refusal;

/// There is no such file.
#[derive(Debug, Clone)]
pub struct Missing;

impl Refusal for Missing {
    fn error(&self) -> Error {
        Errno::ENOENT.into()
    }

    fn usual(&self) -> Option<Errno> {
        None
    }

    fn is_for_good(&self) -> bool {
        false
    }
}
