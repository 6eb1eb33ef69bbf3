// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper allocates nothing while programs are served.
//!
//! This program becomes a keeper. Its worker sends it signals, each of which makes it look at everything it watches and
//! pass the signal on, and compares what the keeper had allocated before with what it has allocated after.

use outrigger_core::Region;
use outrigger_guard::{Seat, Settings, SharedRegion, supervise};
use outrigger_layer_journal::Journal;
use outrigger_runtime::Threads;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::ptr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often the keeper is woken.
const ROUNDS: usize = 1000;

/// The keeper, and where its allocations are counted.
static KEEPER: OnceLock<(u32, &AtomicU64)> = OnceLock::new();

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some((keeper, count)) = KEEPER.get()
            && *keeper == std::process::id()
        {
            count.fetch_add(1, Relaxed);
        }
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory came from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let region: &'static SharedRegion = Box::leak(Box::new(SharedRegion::create("test", 1).expect("memory")));
    KEEPER.set((std::process::id(), region.word(0))).expect("set once");
    // As a service, for the manager is told when everything that allocates is over.
    let name = format!("outrigger-keeper-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let manager = UnixDatagram::bind_addr(&address).expect("a socket");
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("NOTIFY_SOCKET", format!("@{name}")) };
    let settings = Settings { restart_on_hang: Some(Duration::from_secs(3600)), ..Settings::default() };
    let status = supervise(settings, &mut |seat| worker(&seat, &manager, region.word(0)));
    assert_eq!(status.expect("a worker"), 0, "the worker has said why");
    println!("test the_keeper_allocates_nothing_while_programs_are_served ... ok");
}

fn worker(seat: &Seat, manager: &UnixDatagram, allocations: &AtomicU64) -> i32 {
    // SAFETY: an all-zero set is a valid place to fill, the signal is valid, the old mask is not wanted.
    let hangup = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGHUP);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        set
    };
    let _journal = Journal::attach(seat, Arc::new(Threads::new()), None).expect("a journal");
    seat.mounted(File::open("/dev/null").expect("a descriptor").into(), b"negotiated").expect("noted");
    let mut text = [0; 4096];
    while manager.recv(&mut text).map(|length| !text[..length].starts_with(b"READY=1")).expect("a message") {}
    let keeper = seat.keeper().expect("a keeper");
    // Once around: whatever is looked for the first time is found.
    wake(keeper, &hangup);
    let before = allocations.load(Relaxed);
    (0..ROUNDS).for_each(|_| wake(keeper, &hangup));
    let after = allocations.load(Relaxed);
    if before == 0 || after != before {
        eprintln!("the keeper had allocated {before} times, and {after} after {ROUNDS} signals");
        return 1;
    }
    0
}

/// Sends the keeper a signal and waits until it has passed it on.
fn wake(keeper: u32, hangup: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: the keeper is our parent; the set is initialised and `signal` a valid place for the result.
    unsafe {
        libc::kill(keeper as libc::pid_t, libc::SIGHUP);
        libc::sigwait(hangup, &raw mut signal);
    }
}
