// SPDX-License-Identifier: MIT OR Apache-2.0
//! What keeper and workers know of each other, in one shared region.
//!
//! Every word has one writer at a time: the keeper where it says so, else the living worker.

use crate::region::{Mapping, SharedRegion};
use outrigger_core::survive::{Area, Layout, Reads, Stored, Text, Word, is_read_by};
use outrigger_core::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;

const LAYOUT: Layout = Layout::of("keeper");

/// Descriptors that can be held have numbers below this.
pub const DESCRIPTORS: usize = 1 << 20;
/// Most regions.
const REGIONS: usize = 32;
/// How much of the stack of a crashed thread is kept, in words.
pub const STACK_WORDS: usize = 2048;
/// The latest recoveries whose times are kept.
pub const RECOVERIES: usize = 256;

outrigger_core::fields! {
    /// A region that workers have made.
    struct Named {
        /// Its descriptor, plus one; 0 for none.
        descriptor: u64,
        words: u64,
        name: Text<'static, 4>,
    }
}

outrigger_core::fields! {
    pub(crate) struct Words {
        /// See [`Phase`].
        phase: u64,
        /// Number of the descriptor that is served, plus one: `/dev/fuse`, or a connection to the proxy.
        device: u64,
        /// Workers started so far (keeper).
        started: u64,
        /// Workers that died (keeper).
        deaths: u64,
        /// How the last one died, as waitpid(2) says (keeper).
        last_death: u64,
        /// When: nanoseconds since the epoch (keeper).
        died_at: u64,
        /// When, on the monotonic clock (keeper).
        died_monotonic: u64,
        /// Its process (keeper).
        keeper: u64,
        /// The process of the worker (keeper).
        worker: u64,
        /// How many recoveries there were.
        recovered: u64,
        /// How long each took, in a ring.
        recovery_times: [u64; RECOVERIES],
        /// Whether a hang was the reason of the last death, and in which request, plus one (keeper).
        hung: u64,
        /// Number of the descriptor of the proxy's control socket, plus one.
        proxy: u64,
        proxy_process: u64,
        /// Set when the keeper is to become another program (worker), until it does so (keeper).
        upgrade: u64,
        /// Request the crashed thread was working on, plus one.
        culprit: u64,
        signal: u64,
        fault: u64,
        stack_pointer: u64,
        instruction: u64,
        stack: [u64; STACK_WORDS],
        /// How many words of the stack there are.
        stack_len: u64,
        /// Set last by the crash handler, when the words above tell of a crash that was not reported yet.
        crashed: u64,
        /// The outcome of the negotiation with the kernel.
        negotiated: Text<'static, 32>,
        /// The path of a program.
        program: Text<'static, 512>,
        regions: [Named<'static>; REGIONS],
        /// A bit for each descriptor that is held.
        held: [u64; DESCRIPTORS / 64],
    }
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
pub struct State {
    region: Arc<SharedRegion>,
    words: Area<SharedRegion>,
}

impl State {
    /// Fresh state.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn create() -> Result<Self> {
        let region = Arc::new(SharedRegion::create("keeper", Layout::words(Words::WORDS))?);
        let words = LAYOUT.open(Arc::clone(&region))?.area;
        let state = State { region, words };
        state.hold(state.fd().as_raw_fd())?;
        Ok(state)
    }

    /// The state that a former keeper left in `fd`.
    ///
    /// # Errors
    /// `EINVAL` or `EUCLEAN` when it is none, `EPROTO` when it was written by a program of another version.
    pub fn open(fd: OwnedFd) -> Result<Self> {
        let region = Arc::new(SharedRegion::open(fd)?);
        let words = LAYOUT.look(Arc::clone(&region))?.area.take_for::<Words<'_>>()?;
        Ok(State { region, words })
    }

    /// The descriptor of the region.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    pub(crate) fn words(&self) -> Words<'_, SharedRegion> {
        self.words.view::<Words<'_>>()
    }

    /// How far the mount is.
    pub fn phase(&self) -> Phase {
        match self.words().phase().get() {
            0 => Phase::Starting,
            1 => Phase::Serving,
            _ => Phase::Ending,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.words().phase().set(phase as u64);
    }

    fn held_word(&self, number: RawFd) -> Option<(Word<'_>, u64)> {
        let number = usize::try_from(number).ok().filter(|&number| number < DESCRIPTORS)?;
        Some((self.words().held().at(number / 64), 1 << (number % 64)))
    }

    /// Marks a descriptor as one that successors keep.
    ///
    /// # Errors
    /// `EMFILE` for a number that is too large.
    pub fn hold(&self, number: RawFd) -> Result<()> {
        let too_large = || Errno::EMFILE.because(format!("descriptor {number} cannot be held"));
        let (word, bit) = self.held_word(number).ok_or_else(too_large)?;
        word.atomic().fetch_or(bit, AcqRel);
        Ok(())
    }

    /// Ends [`State::hold`].
    pub fn let_go(&self, number: RawFd) {
        if let Some((word, bit)) = self.held_word(number) {
            word.atomic().fetch_and(!bit, AcqRel);
        }
    }

    /// Whether a descriptor is one that successors keep. What is served is one at once.
    pub fn is_held(&self, number: RawFd) -> bool {
        let is_served = number >= 0 && number as u64 + 1 == self.words().device().get();
        is_served || self.held_word(number).is_some_and(|(word, bit)| word.get() & bit != 0)
    }

    /// Every held number, ascending. Allocates nothing.
    pub fn held(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.words().held().iter().enumerate().flat_map(|(index, word)| {
            let bits = word.get();
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (index * 64 + bit) as RawFd)
        })
    }

    /// The descriptor and the number of words of the region called `name`.
    pub(crate) fn region(&self, name: &str) -> Option<(RawFd, usize)> {
        let is_it = |named: &Named<'_, SharedRegion>| {
            named.descriptor().get() != 0 && named.name().get().as_deref() == Some(name.as_bytes())
        };
        let named = self.words().regions().iter().find(is_it)?;
        Some((named.descriptor().get() as RawFd - 1, named.words().get() as usize))
    }

    /// The region of the state itself and those that workers have made: names and descriptors.
    fn regions(&self) -> impl Iterator<Item = (String, RawFd)> + '_ {
        let made = self.words().regions().iter().filter_map(|named| {
            let number = named.descriptor().get().checked_sub(1)?;
            Some((String::from_utf8_lossy(&named.name().get()?).into_owned(), number as RawFd))
        });
        std::iter::once(("keeper".to_owned(), self.fd().as_raw_fd())).chain(made)
    }

    /// Whether a program that reads these layouts can go on with what is kept.
    ///
    /// # Errors
    /// `EPROTO` with what it cannot read.
    pub fn is_read_by(&self, layouts: &[Reads]) -> Result<()> {
        self.regions().try_for_each(|(name, number)| {
            // SAFETY: regions stay open under their numbers.
            let region = Mapping::of(unsafe { BorrowedFd::borrow_raw(number) })?;
            is_read_by(&name, Arc::new(region), layouts)
        })
    }

    pub(crate) fn add_region(&self, name: &str, number: RawFd, words: usize) -> Result<()> {
        let free = self.words().regions().iter().find(|named| named.descriptor().get() == 0);
        let named = free.ok_or_else(|| Errno::ENOSPC.because("too many regions"))?;
        named.name().set(name.as_bytes())?;
        named.words().set(words as u64);
        named.descriptor().set(number as u64 + 1);
        Ok(())
    }

    /// Notes that a worker serves again, this long after the one before died.
    pub(crate) fn note_recovery(&self, nanos: u64) {
        let count = self.words().recovered().get();
        self.words().recovery_times().at(count as usize % RECOVERIES).set(nanos);
        self.words().recovered().set(count + 1);
    }
}

/// Turned on in a worker whose keeper has died: no process will replace it.
pub(crate) static UNGUARDED: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_owner_finds_everything() {
        let state = State::create().expect("memory");
        state.words().negotiated().set(&[7; 61]).unwrap();
        state.words().program().set(b"/usr/bin/outrigger").unwrap();
        state.hold(50_000).unwrap();
        state.hold(70_000).unwrap();
        state.add_region("journal", 9, 4096).unwrap();
        let other = State::open(state.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(other.words().negotiated().get().unwrap(), [7; 61]);
        assert_eq!(other.words().program().get().unwrap(), b"/usr/bin/outrigger");
        assert_eq!(other.region("journal"), Some((9, 4096)));
        assert_eq!(other.region("journey"), None);
        let expected = [state.fd().as_raw_fd(), 50_000, 70_000];
        assert_eq!(other.held().collect::<Vec<_>>(), expected);
        state.let_go(50_000);
        assert!(!other.is_held(50_000) && other.is_held(70_000) && !other.is_held(-1));
        state.words().device().set(50_001);
        assert!(other.is_held(50_000), "what is served");
    }

    #[test]
    fn limits_are_errors() {
        let state = State::create().expect("memory");
        assert_eq!(state.hold(DESCRIPTORS as RawFd).unwrap_err().errno, Errno::EMFILE);
        assert_eq!(state.words().negotiated().set(&[0; 1024]).unwrap_err().errno, Errno::ENAMETOOLONG);
        assert_eq!(state.add_region(&"n".repeat(33), 1, 1).unwrap_err().errno, Errno::ENAMETOOLONG);
        for index in 0..REGIONS {
            state.add_region(&format!("region {index}"), index as RawFd, 1).unwrap();
        }
        assert_eq!(state.add_region("one more", 1, 1).unwrap_err().errno, Errno::ENOSPC);
    }

    #[test]
    fn a_program_goes_on_with_layouts_that_it_reads() {
        let state = State::create().expect("memory");
        let region = Arc::new(SharedRegion::create("test", 64).expect("memory"));
        Layout::new("test", 2).open(Arc::clone(&region)).expect("a new one");
        state.add_region("tests", region.fd().as_raw_fd(), 64).expect("room");
        let judge = |oldest, newest| {
            let mut reads = Layout::all_read();
            reads.push(("test".to_owned(), oldest, newest));
            state.is_read_by(&reads).map_err(|error| error.to_string())
        };
        assert_eq!(judge(2, 2), Ok(()));
        assert_eq!(judge(1, 3), Ok(()), "one that reads the former layout, too");
        for (oldest, newest) in [(1, 1), (3, 4)] {
            let why = judge(oldest, newest).expect_err("another layout");
            assert!(why.contains("'tests' is kept in layout version 2"), "{why}");
        }
        assert!(state.is_read_by(&Layout::all_read()).is_err(), "an unknown layout");
        outrigger_core::Region::word(&*region, 0).store(7, std::sync::atomic::Ordering::Relaxed);
        assert!(judge(2, 2).expect_err("no layout").contains("'tests' is kept in no layout"));
        assert!(state.is_read_by(&[("test".to_owned(), 2, 2)]).is_err(), "the keeper's own state");
    }

    #[test]
    fn another_version_is_refused() {
        let region = Arc::new(SharedRegion::create("keeper", Layout::words(Words::WORDS)).unwrap());
        Layout::new("keeper", 999).open(Arc::clone(&region)).unwrap();
        let open =
            |region: &SharedRegion| State::open(region.fd().try_clone_to_owned().unwrap()).unwrap_err();
        assert_eq!(open(&region).errno, Errno::EPROTO);
        assert_eq!(open(&SharedRegion::create("test", 8).unwrap()).errno, Errno::EUCLEAN);
    }
}
