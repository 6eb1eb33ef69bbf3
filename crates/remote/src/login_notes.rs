// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has logged in and where the tree begins, for the process that takes over: in memory that only these processes share.

use crate::login::{Login, Secret};
use outrigger_core::{Keep, Region, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Words of each of the three texts: its length and one, and its bytes.
const TEXT: usize = 1024;

/// The login and the beginning of a tree, noted.
pub struct LoginNotes(Arc<dyn Region>);

impl LoginNotes {
    /// The notes in `keep`.
    ///
    /// # Errors
    /// Those of [`Keep::region`].
    pub fn open(keep: &dyn Keep) -> Result<Self> {
        keep.region("remote-login", 3 * TEXT).map(LoginNotes)
    }

    /// What a former process noted.
    pub fn origin(&self) -> Option<(Login, Vec<u8>)> {
        let text = |index| String::from_utf8(self.get(index)?).ok();
        // The user is noted last.
        let login = Login { user: text(0)?, password: Secret::new(text(1)?) };
        Some((login, self.get(2)?))
    }

    /// Notes who has logged in, and the path of the root at the server.
    pub fn note_origin(&self, login: &Login, base: &[u8]) {
        for (index, text) in [(2, base), (1, login.password.reveal().as_bytes()), (0, login.user.as_bytes())]
        {
            self.put(index, text);
        }
    }

    fn get(&self, index: usize) -> Option<Vec<u8>> {
        let word = |at| self.0.word(index * TEXT + at).load(Acquire);
        let len = usize::try_from(word(0)).ok()?.checked_sub(1)?.min((TEXT - 1) * 8);
        Some((0..len.div_ceil(8)).flat_map(|at| word(1 + at).to_le_bytes()).take(len).collect())
    }

    fn put(&self, index: usize, text: &[u8]) {
        let text = &text[..text.len().min((TEXT - 1) * 8)];
        for (at, eight) in text.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.0.word(index * TEXT + 1 + at).store(u64::from_le_bytes(word), Release);
        }
        self.0.word(index * TEXT).store(text.len() as u64 + 1, Release);
    }
}
