// SPDX-License-Identifier: GPL-2.0-only
//! Accesses that the host carries out while the kernel goes on (`io=uring`, see io_uring(7)).
//!
//! The ring is made before this process gives up its rights, and can do next to nothing from then on: read, write, flush and
//! punch the files it was made for. What is submitted goes to the host at once; mostly the host has what is to be read, and
//! then it is complete by the time it is looked for.

use crate::abi::{self, Access};
use crate::host::STOPPED;
use crate::log;
use io_uring::register::Restriction;
use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};
use outrigger_core::lock;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// How many accesses there can be at a time: as many as the kernel code begins.
const ENTRIES: u32 = 64;
/// What may be asked of the host.
const OPERATIONS: [u8; 4] =
    [opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
/// `IOSQE_FIXED_FILE`: the file is one of those the ring was made for.
const OF_THE_RING: u8 = 1;

/// The ring of this process, if it has one.
static RING: OnceLock<Ring> = OnceLock::new();

/// A ring, and what became of accesses.
pub struct Ring {
    fd: RawFd,
    state: Mutex<State>,
}

struct State {
    uring: IoUring,
    /// Addresses of accesses that were not submitted yet.
    completed: VecDeque<usize>,
}

/// Makes the ring of this process, for the file that disk number 0 is in.
///
/// # Errors
/// When the host refuses, with what to do about it.
pub fn open(file: &impl AsRawFd) -> io::Result<()> {
    let ring = Ring::new(&[file.as_raw_fd()]).map_err(|error| {
        io::Error::other(format!("io=uring: this machine refuses io_uring ({error}); io=buffered needs none"))
    })?;
    RING.set(ring).map_err(|_| io::Error::other("this process has a ring already"))
}

/// The ring of this process.
pub fn get() -> Option<&'static Ring> {
    RING.get()
}

/// The descriptor that is readable when an access has been completed.
pub fn descriptor() -> Option<RawFd> {
    get().map(|ring| ring.fd)
}

/// Waits until an access has been completed, at most for `wait`.
pub fn wait(wait: Duration) {
    let Some(fd) = descriptor() else { return std::thread::sleep(wait) };
    let mut ring = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one complete structure. A task that is woken too early looks again.
    unsafe { libc::poll(&mut ring, 1, wait.as_micros().div_ceil(1000).min(60_000) as i32) };
}

impl Ring {
    /// A ring that can do nothing but what is said above, to these files.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn new(files: &[RawFd]) -> io::Result<Self> {
        let uring = IoUring::builder().setup_r_disabled().build(ENTRIES)?;
        let host = uring.submitter();
        host.register_files(files)?;
        let mut allowed: Vec<Restriction> = OPERATIONS.map(Restriction::sqe_op).into();
        allowed.push(Restriction::sqe_flags_required(OF_THE_RING));
        allowed.push(Restriction::sqe_flags_allowed(OF_THE_RING));
        host.register_restrictions(&mut allowed)?;
        host.register_enable_rings()?;
        Ok(Ring { fd: uring.as_raw_fd(), state: Mutex::new(State { uring, completed: VecDeque::new() }) })
    }

    /// Begins an access, whose disk is the number of a file of this ring and whose offset is one in that file. Whether it
    /// is complete already.
    ///
    /// # Safety
    /// The access and its pieces belong to the ring until it is complete.
    pub unsafe fn begin(&self, access: *mut Access) -> bool {
        let mut state = self.state();
        // SAFETY: it is the ring's from here on.
        state.submit(unsafe { &*access });
        state.collect();
        let place = state.completed.iter().position(|&address| address == access.addr());
        place.and_then(|place| state.completed.remove(place)).is_some()
    }

    /// One that has been completed, each once; null for none.
    pub fn completed(&self) -> *mut Access {
        let mut state = self.state();
        if state.completed.is_empty() {
            state.collect();
        }
        state.completed.pop_front().map_or(null_mut(), with_exposed_provenance_mut)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Hands an access to the host, now.
    fn submit(&mut self, access: &Access) {
        // SAFETY: the task that began it keeps it until it is complete.
        let pushed = unsafe { self.uring.submission().push(&entry(access)) };
        if pushed.is_err() {
            lost("there are more accesses than the ring has room for");
        }
        while let Err(error) = self.uring.submit() {
            // The host is short of memory, or was interrupted.
            if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) {
                lost(&error.to_string());
            }
        }
    }

    /// Takes over what the host has completed; what it has done a part of it is asked to go on with.
    fn collect(&mut self) {
        loop {
            let Some(answer) = self.uring.completion().next() else { return };
            let access = with_exposed_provenance_mut::<Access>(answer.user_data() as usize);
            // SAFETY: it belongs to the ring still, and the host is done with it.
            let access = unsafe { &mut *access };
            match went_on(access, answer.result()) {
                Some(result) => {
                    access.result = result;
                    crate::disk::note(access);
                    self.completed.push_back(answer.user_data() as usize);
                }
                None => self.submit(access),
            }
        }
    }
}

/// No access at work can be reported then.
fn lost(why: &str) -> ! {
    log::append(format!("Kernel panic - the ring is lost: {why} (io=uring)\n").as_bytes());
    // SAFETY: ends the process without running anything more in it.
    unsafe { libc::_exit(STOPPED) }
}

/// What the host is asked for.
fn entry(access: &Access) -> squeue::Entry {
    let (file, pieces, count) = (Fixed(access.disk), access.pieces.cast_const(), access.count as u32);
    let punched = match access.kind {
        abi::ZERO => libc::FALLOC_FL_ZERO_RANGE,
        _ => libc::FALLOC_FL_PUNCH_HOLE,
    };
    let entry = match access.kind {
        abi::READ => opcode::Readv::new(file, pieces, count).offset(access.offset).build(),
        abi::WRITE => opcode::Writev::new(file, pieces, count).offset(access.offset).build(),
        abi::FLUSH => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        _ => opcode::Fallocate::new(file, access.length)
            .offset(access.offset)
            .mode(punched | libc::FALLOC_FL_KEEP_SIZE)
            .build(),
    };
    entry.user_data(std::ptr::from_ref(access).expose_provenance() as u64)
}

/// Notes what the host answered. The result for the kernel code, or none when the access is to go on.
fn went_on(access: &mut Access, result: i32) -> Option<i64> {
    match result {
        _ if result == -libc::EINTR || result == -libc::EAGAIN => None,
        ..0 => Some(result.into()),
        _ if access.kind != abi::READ && access.kind != abi::WRITE => Some(0),
        // The file ends before its disk does.
        0 if access.length > 0 => Some((-libc::EIO).into()),
        done => {
            skip(access, done as u64);
            (access.length == 0).then_some(0)
        }
    }
}

/// Shortens an access by what has been done of it.
fn skip(access: &mut Access, done: u64) {
    access.offset += done;
    access.length = access.length.saturating_sub(done);
    let mut rest = done as usize;
    while rest > 0 && access.count > 0 {
        // SAFETY: there are so many pieces.
        let piece = unsafe { &mut *access.pieces };
        let part = rest.min(piece.iov_len);
        piece.iov_base = piece.iov_base.wrapping_byte_add(part);
        piece.iov_len -= part;
        rest -= part;
        if piece.iov_len == 0 {
            // SAFETY: at most one past the last of them.
            access.pieces = unsafe { access.pieces.add(1) };
            access.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    /// An access and its one piece of memory.
    struct Asked {
        access: Box<Access>,
        _pieces: Vec<libc::iovec>,
        buffer: Vec<Vec<u8>>,
    }

    impl Asked {
        fn new(disk: u32, kind: u32, offset: u64, mut buffer: Vec<Vec<u8>>) -> Self {
            let length = buffer.iter().map(Vec::len).sum::<usize>() as u64;
            let piece =
                |part: &mut Vec<u8>| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
            let mut pieces: Vec<libc::iovec> = buffer.iter_mut().map(piece).collect();
            let (start, count) = (pieces.as_mut_ptr(), pieces.len() as u64);
            let access = Access { disk, kind, offset, length, pieces: start, count, result: 1 };
            Asked { access: Box::new(access), _pieces: pieces, buffer }
        }

        /// Whether it is complete at once.
        fn begin(&mut self, ring: &Ring) -> bool {
            // SAFETY: what is begun here is waited for before it is dropped.
            unsafe { ring.begin(&mut *self.access) }
        }

        /// What came of it.
        fn done(&mut self, ring: &Ring) -> i64 {
            if !self.begin(ring) {
                assert!(std::ptr::eq(wait_for_one(ring), &*self.access));
            }
            self.access.result
        }
    }

    fn wait_for_one(ring: &Ring) -> *mut Access {
        loop {
            let completed = ring.completed();
            if !completed.is_null() {
                return completed;
            }
            let mut readable = libc::pollfd { fd: ring.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one complete structure.
            assert_eq!(unsafe { libc::poll(&mut readable, 1, 60_000) }, 1, "nothing is completed");
        }
    }

    /// A ring for a pipe, which answers when somebody writes into it, and a file; none where the machine has no rings.
    fn ring() -> Option<(Ring, std::io::PipeWriter, File)> {
        let (slow, writer) = std::io::pipe().expect("a pipe");
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(b"0123456789", 0).expect("a write");
        match Ring::new(&[OwnedFd::from(slow).as_raw_fd(), file.as_raw_fd()]) {
            Ok(ring) => Some((ring, writer, file)),
            Err(error) => {
                println!("SKIPPED: this machine refuses io_uring: {error}");
                None
            }
        }
    }

    #[test]
    fn a_slow_file_does_not_keep_others_waiting() {
        let Some((ring, mut writer, _file)) = ring() else { return };
        let mut slow = Asked::new(0, abi::READ, 0, vec![vec![0; 2], vec![0; 3]]);
        assert!(!slow.begin(&ring));
        let mut quick = Asked::new(1, abi::READ, 2, vec![vec![0; 3], vec![0; 4]]);
        assert_eq!(quick.done(&ring), 0);
        assert_eq!(quick.buffer, [b"234".to_vec(), b"5678".to_vec()]);
        assert!(ring.completed().is_null());
        // In portions that end in the middle of a piece.
        for portion in [b"abc".as_slice(), b"de"] {
            assert!(ring.completed().is_null());
            writer.write_all(portion).expect("a write");
        }
        assert!(std::ptr::eq(wait_for_one(&ring), &*slow.access));
        assert_eq!((slow.access.result, slow.buffer.concat()), (0, b"abcde".to_vec()));
    }

    #[test]
    fn each_access_is_what_it_says() {
        let Some((ring, _writer, file)) = ring() else { return };
        assert_eq!(Asked::new(1, abi::WRITE, 1, vec![b"ab".to_vec(), b"c".to_vec()]).done(&ring), 0);
        assert_eq!(Asked::new(1, abi::FLUSH, 0, vec![]).done(&ring), 0);
        let mut content = [0; 10];
        file.read_exact_at(&mut content, 0).expect("a read");
        assert_eq!(&content, b"0abc456789");
        let mut discarded = Asked::new(1, abi::DISCARD, 2, vec![]);
        discarded.access.length = 3;
        assert_eq!(discarded.done(&ring), 0);
        file.read_exact_at(&mut content, 0).expect("a read");
        assert_eq!(&content, b"0a\x00\x00\x0056789");
        assert_eq!(
            Asked::new(1, abi::READ, 8, vec![vec![0; 3]]).done(&ring),
            i64::from(-libc::EIO),
            "the end"
        );
        assert_eq!(Asked::new(0, abi::WRITE, 0, vec![vec![0; 3]]).done(&ring), i64::from(-libc::EBADF));
    }

    /// What is not asked for by the kernel code cannot be asked for by an attacker in this process either.
    #[test]
    fn the_ring_does_nothing_else() {
        let Some((ring, ..)) = ring() else { return };
        let mut state = ring.state();
        let open = opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), c"/".as_ptr()).build();
        let other = opcode::Fsync::new(io_uring::types::Fd(0)).build();
        for entry in [open, other] {
            // SAFETY: the name lives for ever.
            unsafe { state.uring.submission().push(&entry) }.expect("room");
            state.uring.submit_and_wait(1).expect("an answer");
            let answer = state.uring.completion().next().map(|answer| answer.result());
            assert_eq!(answer, Some(-libc::EACCES));
        }
        let refused = state.uring.submitter().register_files_update(0, &[2]).expect_err("not any more");
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    }
}
