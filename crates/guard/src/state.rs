// SPDX-License-Identifier: MIT OR Apache-2.0
//! What keeper and workers know of each other: words at fixed places of one shared region.
//!
//! Every word has one writer at a time: the keeper where it says so, else the living worker.

use crate::region::SharedRegion;
use outrigger_core::{Errno, Region, Result};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// "OUTRIGGR", the mark of a keeper's state.
const MAGIC: u64 = u64::from_be_bytes(*b"OUTRIGGR");
/// Changes whenever anything that outlives a worker changes its form: this layout or that of any region.
pub const VERSION: u64 = 2;

/// Descriptors that can be held have numbers below this.
pub const DESCRIPTORS: usize = 1 << 20;
/// Most regions.
const REGIONS: usize = 16;
/// Words of one entry in the directory of regions: descriptor plus one, words, name.
const REGION_WORDS: usize = 2 + NAME_WORDS;
const NAME_WORDS: usize = 4;
/// Words for the outcome of the negotiation with the kernel.
const NEGOTIATED_WORDS: usize = 32;
/// Words for the path of a program.
const PATH_WORDS: usize = 512;
/// How much of the stack of a crashed thread is kept, in words.
pub const STACK_WORDS: usize = 2048;
/// The latest recoveries whose times are kept.
pub const RECOVERIES: usize = 256;

/// Where each word is.
pub(crate) mod at {
    use super::*;
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    /// See [`super::Phase`].
    pub const PHASE: usize = 2;
    /// Number of the descriptor that is served, plus one: `/dev/fuse`, or a connection to the proxy.
    pub const DEVICE: usize = 3;
    /// Workers started so far (keeper).
    pub const STARTED: usize = 4;
    /// Workers that died (keeper).
    pub const DEATHS: usize = 5;
    /// How the last one died, as waitpid(2) says (keeper).
    pub const LAST_DEATH: usize = 6;
    /// When: nanoseconds since the epoch, and on the monotonic clock (keeper).
    pub const DIED_AT: usize = 7;
    pub const DIED_MONOTONIC: usize = 8;
    /// Processes (keeper).
    pub const KEEPER: usize = 9;
    pub const WORKER: usize = 10;
    /// How many recoveries there were; the time of each is in the ring.
    pub const RECOVERED: usize = 11;
    /// Whether a hang was the reason of the last death, and in which request, plus one (keeper).
    pub const HUNG: usize = 12;
    /// The proxy: number of the descriptor of its control socket plus one, and its process.
    pub const PROXY: usize = 13;
    pub const PROXY_PROCESS: usize = 14;
    /// Set when the keeper is to become another program (worker), until it does so (keeper).
    pub const UPGRADE: usize = 15;
    /// Request the crashed thread was working on, plus one; set last by the crash handler.
    pub const CULPRIT: usize = 16;
    pub const SIGNAL: usize = 17;
    pub const FAULT: usize = 18;
    pub const STACK_POINTER: usize = 19;
    pub const INSTRUCTION: usize = 20;
    pub const STACK_LEN: usize = 21;
    /// Set when the words above tell of a crash that was not reported yet.
    pub const CRASHED: usize = 22;
    pub const NEGOTIATED_LEN: usize = 32;
    pub const NEGOTIATED: usize = 33;
    pub const PROGRAM_LEN: usize = NEGOTIATED + NEGOTIATED_WORDS;
    pub const PROGRAM: usize = PROGRAM_LEN + 1;
    pub const DIRECTORY: usize = PROGRAM + PATH_WORDS;
    pub const RING: usize = DIRECTORY + REGIONS * REGION_WORDS;
    pub const STACK: usize = RING + RECOVERIES;
    pub const HELD: usize = STACK + STACK_WORDS;
    pub const END: usize = HELD + DESCRIPTORS / 64;
}

/// How far a mount is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Nothing is mounted yet: a worker that dies now has failed.
    Starting = 0,
    /// Programs are served: a worker that dies now is replaced.
    Serving = 1,
    /// The mount is being ended.
    Ending = 2,
}

/// The shared words.
#[derive(Debug, Clone)]
pub struct State(Arc<SharedRegion>);

impl State {
    /// Fresh state.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn create() -> Result<Self> {
        let state = State(Arc::new(SharedRegion::create("keeper", at::END)?));
        state.set(at::MAGIC, MAGIC);
        state.set(at::VERSION, VERSION);
        state.hold(state.0.fd().as_raw_fd())?;
        Ok(state)
    }

    /// The state a former keeper left behind `fd`.
    ///
    /// # Errors
    /// `EINVAL` when it is none, `EPROTO` when it was written by a program of another version.
    pub fn open(fd: OwnedFd) -> Result<Self> {
        let region = SharedRegion::open(fd)?;
        if region.words() != at::END || region.word(at::MAGIC).load(Acquire) != MAGIC {
            return Err(Errno::EINVAL.because("this is not the state of a mount"));
        }
        let version = region.word(at::VERSION).load(Acquire);
        if version != VERSION {
            return Err(Errno::EPROTO.because(format!(
                "the mount was made by a program of state version {version}, not {VERSION}"
            )));
        }
        Ok(State(Arc::new(region)))
    }

    /// The descriptor of the region.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        self.0.word(index)
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        self.word(index).load(Acquire)
    }

    pub(crate) fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Release);
    }

    /// How far the mount is.
    pub fn phase(&self) -> Phase {
        match self.get(at::PHASE) {
            0 => Phase::Starting,
            1 => Phase::Serving,
            _ => Phase::Ending,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.set(at::PHASE, phase as u64);
    }

    /// Stores at most `words` words of bytes behind a word with their number.
    pub(crate) fn set_bytes(&self, len_at: usize, words: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() > words * 8 {
            return Err(Errno::ENAMETOOLONG.because(format!("{} bytes are too many to keep", bytes.len())));
        }
        // A kill in between leaves nothing rather than half.
        self.set(len_at, 0);
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(len_at + 1 + index).store(u64::from_ne_bytes(word), Relaxed);
        }
        self.set(len_at, bytes.len() as u64);
        Ok(())
    }

    pub(crate) fn bytes(&self, len_at: usize, words: usize) -> Vec<u8> {
        let len = (self.get(len_at) as usize).min(words * 8);
        let mut bytes = Vec::with_capacity(len + 8);
        for index in 0..len.div_ceil(8) {
            bytes.extend_from_slice(&self.word(len_at + 1 + index).load(Relaxed).to_ne_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    pub(crate) fn set_negotiated(&self, bytes: &[u8]) -> Result<()> {
        self.set_bytes(at::NEGOTIATED_LEN, NEGOTIATED_WORDS, bytes)
    }

    pub(crate) fn negotiated(&self) -> Vec<u8> {
        self.bytes(at::NEGOTIATED_LEN, NEGOTIATED_WORDS)
    }

    pub(crate) fn set_program(&self, path: &[u8]) -> Result<()> {
        self.set_bytes(at::PROGRAM_LEN, PATH_WORDS, path)
    }

    pub(crate) fn program(&self) -> Vec<u8> {
        self.bytes(at::PROGRAM_LEN, PATH_WORDS)
    }

    fn held_word(&self, number: RawFd) -> Option<(&AtomicU64, u64)> {
        let number = usize::try_from(number).ok().filter(|&number| number < DESCRIPTORS)?;
        Some((self.word(at::HELD + number / 64), 1 << (number % 64)))
    }

    /// Marks a descriptor as one that successors keep.
    ///
    /// # Errors
    /// `EMFILE` for a number that is too large.
    pub fn hold(&self, number: RawFd) -> Result<()> {
        let too_large = || Errno::EMFILE.because(format!("descriptor {number} cannot be held"));
        let (word, bit) = self.held_word(number).ok_or_else(too_large)?;
        word.fetch_or(bit, Release);
        Ok(())
    }

    /// Ends [`State::hold`].
    pub fn let_go(&self, number: RawFd) {
        if let Some((word, bit)) = self.held_word(number) {
            word.fetch_and(!bit, Release);
        }
    }

    /// Whether a descriptor is one that successors keep. What is served is one at once.
    pub fn is_held(&self, number: RawFd) -> bool {
        let is_served = number >= 0 && number as u64 + 1 == self.get(at::DEVICE);
        is_served || self.held_word(number).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    /// Every held number, ascending. Allocates nothing.
    pub fn held(&self) -> impl Iterator<Item = RawFd> + '_ {
        (0..DESCRIPTORS / 64).flat_map(move |index| {
            let bits = self.get(at::HELD + index);
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (index * 64 + bit) as RawFd)
        })
    }

    /// The descriptor and the number of words of the region called `name`.
    pub(crate) fn region(&self, name: &str) -> Result<Option<(RawFd, usize)>> {
        let name = name_words(name)?;
        let entry = (0..REGIONS).map(|index| at::DIRECTORY + index * REGION_WORDS).find(|&entry| {
            self.get(entry) != 0 && (0..NAME_WORDS).all(|i| self.get(entry + 2 + i) == name[i])
        });
        Ok(entry.map(|entry| (self.get(entry) as RawFd - 1, self.get(entry + 1) as usize)))
    }

    pub(crate) fn add_region(&self, name: &str, number: RawFd, words: usize) -> Result<()> {
        let free = (0..REGIONS).map(|index| at::DIRECTORY + index * REGION_WORDS).find(|&e| self.get(e) == 0);
        let entry = free.ok_or_else(|| Errno::ENOSPC.because("too many regions"))?;
        for (index, word) in name_words(name)?.into_iter().enumerate() {
            self.set(entry + 2 + index, word);
        }
        self.set(entry + 1, words as u64);
        self.set(entry, number as u64 + 1);
        Ok(())
    }

    /// Notes that a worker serves again, this long after the one before died.
    pub(crate) fn note_recovery(&self, nanos: u64) {
        let count = self.get(at::RECOVERED);
        self.set(at::RING + count as usize % RECOVERIES, nanos);
        self.set(at::RECOVERED, count + 1);
    }
}

fn name_words(name: &str) -> Result<[u64; NAME_WORDS]> {
    if name.is_empty() || name.len() > NAME_WORDS * 8 {
        return Err(Errno::ENAMETOOLONG.because(format!("a region cannot be called '{name}'")));
    }
    let mut bytes = [0; NAME_WORDS * 8];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let mut words = [0; NAME_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_ne_bytes(eight);
    }
    Ok(words)
}

/// Turned on in a worker whose keeper has died: nobody will replace it.
pub(crate) static UNGUARDED: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_owner_finds_everything() {
        let state = State::create().expect("memory");
        state.set_negotiated(&[7; 61]).unwrap();
        state.set_program(b"/usr/bin/outrigger").unwrap();
        state.hold(50_000).unwrap();
        state.hold(70_000).unwrap();
        state.add_region("journal", 9, 4096).unwrap();
        let other = State::open(state.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(other.negotiated(), [7; 61]);
        assert_eq!(other.program(), b"/usr/bin/outrigger");
        assert_eq!(other.region("journal").unwrap(), Some((9, 4096)));
        assert_eq!(other.region("journey").unwrap(), None);
        let expected = [state.fd().as_raw_fd(), 50_000, 70_000];
        assert_eq!(other.held().collect::<Vec<_>>(), expected);
        state.let_go(50_000);
        assert!(!other.is_held(50_000) && other.is_held(70_000) && !other.is_held(-1));
        state.set(at::DEVICE, 50_001);
        assert!(other.is_held(50_000), "what is served");
    }

    #[test]
    fn limits_are_errors() {
        let state = State::create().expect("memory");
        assert_eq!(state.hold(DESCRIPTORS as RawFd).unwrap_err().errno, Errno::EMFILE);
        assert_eq!(state.set_negotiated(&[0; 1024]).unwrap_err().errno, Errno::ENAMETOOLONG);
        for index in 0..REGIONS {
            state.add_region(&format!("region {index}"), index as RawFd, 1).unwrap();
        }
        assert_eq!(state.add_region("one more", 1, 1).unwrap_err().errno, Errno::ENOSPC);
        assert_eq!(state.region("").unwrap_err().errno, Errno::ENAMETOOLONG);
    }

    #[test]
    fn another_version_is_refused() {
        let state = State::create().expect("memory");
        state.set(at::VERSION, VERSION + 1);
        let error = State::open(state.fd().try_clone_to_owned().unwrap()).unwrap_err();
        assert_eq!(error.errno, Errno::EPROTO);
        let other = SharedRegion::create("test", 8).unwrap();
        assert_eq!(State::open(other.fd().try_clone_to_owned().unwrap()).unwrap_err().errno, Errno::EINVAL);
    }
}
