// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker that takes a mount over and never comes to an end, and SIGTERM: that waits for the worker, and not for ever.
//!
//! This program starts itself as a keeper, whose first worker dies once the mount is there, and whose second one hangs.

use outrigger_guard::{Seat, Settings, supervise};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Set for the process that becomes the keeper.
const IS_KEEPER: &str = "OUTRIGGER_TEST_KEEPER";
/// How long a worker may take over in spite of SIGTERM, at least.
const SPARED: Duration = Duration::from_secs(5);
/// How long all of it may take.
const MOST: Duration = Duration::from_secs(60);

fn main() {
    if std::env::var_os(IS_KEEPER).is_some() {
        let status = supervise(Settings::default(), &mut worker);
        std::process::exit(status.expect("a worker"));
    }
    let program = std::env::current_exe().expect("this program");
    let keeper = Command::new(program).env(IS_KEEPER, "1").stdout(Stdio::piped()).spawn();
    let mut keeper = Ended(keeper.expect("a keeper"));
    let output = BufReader::new(keeper.0.stdout.take().expect("a pipe"));
    let worker = output.lines().next().expect("a worker that takes over").expect("a line");
    let worker: libc::pid_t = worker.parse().expect("its number");
    let begun = Instant::now();
    // SAFETY: takes no pointers; the process is our child, which was not waited for.
    unsafe { libc::kill(keeper.0.id() as libc::pid_t, libc::SIGTERM) };
    let status = keeper.until_it_ends();
    assert!(begun.elapsed() > SPARED, "a worker that is taking over is given time");
    assert_eq!(status.code(), Some(1), "{status}");
    let gone = || {
        // SAFETY: takes no pointers, and sends nothing.
        unsafe { libc::kill(worker, 0) == -1 }
    };
    while !gone() {
        assert!(begun.elapsed() < MOST, "the worker is still there");
        std::thread::yield_now();
    }
    println!("test a_worker_that_never_takes_over_does_not_keep_a_mount_from_ending ... ok");
}

/// A process that is killed if the test fails.
struct Ended(Child);

impl Ended {
    fn until_it_ends(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status;
            }
            assert!(begun.elapsed() < MOST, "SIGTERM waits for ever");
            std::thread::yield_now();
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn worker(seat: Seat) -> i32 {
    if seat.predecessors() == 0 {
        seat.mounted(File::open("/dev/null").expect("a descriptor").into(), b"negotiated").expect("noted");
        // SAFETY: takes no pointers.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    println!("{}", std::process::id());
    loop {
        std::thread::sleep(Duration::from_millis(100));
        // A keeper that dies leaves nothing to wait for.
        if seat.keeper().is_none() {
            return 1;
        }
    }
}
