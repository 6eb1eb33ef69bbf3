// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that is received part by part, of a server that sends any part of a file: how far it has come, and what to ask for next.

use crate::fault::Fault;
use crate::tree::Version;
use outrigger_core::{Errno, Result};

/// How much of a file is asked for first, in bytes; it is received at once, so that its connection is free again.
const FIRST: u64 = 256 << 10;
/// How much is asked for at most, after twice as much each time.
const MOST: u64 = 64 << 20;

/// Where in a file a transfer is.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The next byte that comes.
    at: u64,
    /// Where the part ends that is coming; `None` for a whole file whose size is not told.
    end: Option<u64>,
    /// How much is asked for next.
    step: u64,
    version: Version,
}

impl Parts {
    /// The first and the last byte to ask for of a file that is read from `at` on.
    pub fn first(at: u64) -> (u64, u64) {
        (at, at.saturating_add(FIRST - 1))
    }

    /// A part has begun that goes from `at` to `end`, of a file that is this.
    pub fn begun(at: u64, end: Option<u64>, version: Version) -> Self {
        Parts { at, end, step: 2 * FIRST, version }
    }

    /// The first and the last byte to ask for when a part has come; `None` at the end of the file.
    pub fn next(&self) -> Option<(u64, u64)> {
        let size = self.version.size?;
        // Some servers refuse a part that would reach beyond the end.
        (self.at < size).then(|| (self.at, self.at.saturating_add(self.step - 1).min(size - 1)))
    }

    /// The next part has begun and goes to `end`, of a file that is now `version`.
    ///
    /// # Errors
    /// `ESTALE` when that is another one.
    pub fn go_on(&mut self, end: u64, version: Version) -> Result<()> {
        if version != self.version {
            return Err(Errno::ESTALE.because("the file was changed at the server while it was read"));
        }
        (self.step, self.end) = ((self.step * 2).min(MOST), Some(end));
        Ok(())
    }

    /// So many bytes have come.
    ///
    /// # Errors
    /// `EIO` when these are more than the part has.
    pub fn came(&mut self, len: usize) -> Result<()> {
        self.at = self.at.saturating_add(len as u64);
        match self.end {
            Some(end) if self.at > end => {
                let why = format!(
                    "the server sends more of the file than up to byte {end}, where it says that this ends"
                );
                Err(Errno::EIO.because(why))
            }
            _ => Ok(()),
        }
    }

    /// No more comes of the part.
    ///
    /// # Errors
    /// A loss of the connection when something is missing.
    pub fn ended<R>(&mut self) -> Result<(), Fault<R>> {
        match self.end {
            Some(end) if self.at < end => {
                let why = format!("the server sends the file up to byte {} only, not to {end}", self.at);
                Err(Fault::Lost(Errno::EIO.because(why)))
            }
            _ => Ok(()),
        }
    }

    /// Whether so little of the part is still to come that it is received at once.
    pub fn is_nearly_there(&self) -> bool {
        self.end.is_some_and(|end| end.saturating_sub(self.at) <= FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_a_file_once_and_become_larger(size in 1_u64..1 << 33, at in 0_u64..1 << 33) {
            let (version, at) = (Version { size: Some(size), ..Version::default() }, at.min(size - 1));
            let (first, last) = Parts::first(at);
            let (mut end, mut asked) = ((last + 1).min(size), 1);
            let mut parts = Parts::begun(first, Some(end), version);
            loop {
                parts.came((end - parts.at) as usize).expect("what was asked for");
                parts.ended::<()>().expect("all of it");
                let Some((next, last)) = parts.next() else { break };
                prop_assert_eq!(next, end);
                end = (last + 1).min(size);
                parts.go_on(end, version).expect("the same file");
                asked += 1;
            }
            prop_assert_eq!(end, size);
            prop_assert!(asked <= 10 + size / MOST);
        }
    }

    #[test]
    fn what_is_too_much_too_little_or_of_another_file_is_an_error() {
        let version = Version { size: Some(100), ..Version::default() };
        let mut parts = Parts::begun(0, Some(10), version);
        parts.came(9).expect("less");
        assert!(matches!(parts.ended::<()>(), Err(Fault::Lost(error)) if error.errno == Errno::EIO));
        assert_eq!(parts.came(2).unwrap_err().errno, Errno::EIO);
        let other = Version { tag: Some(1), ..version };
        assert_eq!(Parts::begun(0, Some(10), version).go_on(20, other).unwrap_err().errno, Errno::ESTALE);
        let mut unknown = Parts::begun(0, None, Version::default());
        unknown.came(1 << 30).expect("any number");
        assert!(unknown.ended::<()>().is_ok() && unknown.next().is_none() && !unknown.is_nearly_there());
    }
}
