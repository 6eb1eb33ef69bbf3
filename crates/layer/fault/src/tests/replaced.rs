// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules that are replaced while requests come, while others replace them, and by a process that dies of it.

use super::*;
use outrigger_core::{HeapKeep, Keep, Region, Result};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::thread;

type Before = Arc<Mutex<Option<Box<dyn FnMut() + Send>>>>;

/// A keep that does something before each access to a region, except to those which that makes itself.
#[derive(Default)]
struct Watched {
    keep: HeapKeep,
    before: Before,
}

impl Watched {
    fn before_each(&self, action: impl FnMut() + Send + 'static) {
        *self.before.lock().expect("no panic before") = Some(Box::new(action));
    }

    fn no_more(&self) {
        *self.before.lock().expect("no panic before") = None;
    }
}

impl Keep for Watched {
    fn region(&self, name: &'static str, words: usize) -> Result<Arc<dyn Region>> {
        let region = self.keep.region(name, words)?;
        Ok(Arc::new(WatchedRegion { region, before: Arc::clone(&self.before) }))
    }

    fn hold(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.keep.hold(fd)
    }

    fn let_go(&self, fd: BorrowedFd<'_>) {
        self.keep.let_go(fd);
    }

    fn adopt(&self, number: RawFd) -> Result<OwnedFd> {
        self.keep.adopt(number)
    }
}

struct WatchedRegion {
    region: Arc<dyn Region>,
    before: Before,
}

impl Region for WatchedRegion {
    fn words(&self) -> usize {
        self.region.words()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let action = self.before.lock().expect("no panic before").take();
        if let Some(mut action) = action {
            action();
            *self.before.lock().expect("no panic before") = Some(action);
        }
        self.region.word(index)
    }
}

const OLD: &str = "op=write,error=EIO;op=read,error=EIO";
const NEW: &str = "op=write,error=ENOSPC,times=1;op=read|write,delay=1ms;seed=7";

/// A layer with the rules that are kept, or else [`OLD`].
fn layer(sim: &Arc<Sim>, keep: &dyn Keep) -> Fault {
    Fault::parse(OLD, sim.clone()).expect("good rules").kept_in(keep).expect("memory")
}

/// The layer's control, and what asks it.
fn in_use(sim: &Arc<Sim>, keep: &dyn Keep) -> (FaultControl, Arc<dyn Fn(Request) -> Reply + Send + Sync>) {
    let fault = layer(sim, keep);
    let control = fault.control();
    let top = Stack::new(Scripted::new(sim, script)).push(fault).expect("any order is good").service();
    let sim = Arc::clone(sim);
    let ask = move |request: Request| {
        let (top, cx) = (Arc::clone(&top), Cx::new(1, Credentials::ROOT, "test"));
        sim.block_on(async move { top.call(&cx, request).await })
    };
    (control, Arc::new(ask))
}

fn errno(reply: &Reply) -> Option<Errno> {
    reply.error().map(|error| error.errno)
}

fn counts(control: &FaultControl) -> Vec<(u64, u64)> {
    control.rules().iter().map(|acted| (acted.matched, acted.acted)).collect()
}

#[test]
fn requests_during_a_replacement_count_in_the_rules_they_met_and_not_in_the_new_ones() {
    let (sim, keep) = (Sim::new(1), Watched::default());
    let (control, ask) = in_use(&sim, &keep);
    for _ in 0..3 {
        let (load, before) = (Arc::clone(&ask), control.rules());
        keep.before_each(move || assert!(load(write(2)).error().is_some()));
        control.replace(NEW).expect("good rules");
        keep.no_more();
        assert!(before.len() == 2 && counts(&control) == [(0, 0); 2], "{:?}", control.rules());
        let hits = [0; 3].map(|_| errno(&ask(write(2))));
        assert_eq!(hits, [Some(Errno::ENOSPC), None, None], "the one time of the new rule is its own");
        control.replace(OLD).expect("good rules");
    }
}

#[test]
fn a_process_that_dies_while_rules_are_replaced_leaves_one_or_the_other_with_their_own_counts() {
    let mut found = Vec::new();
    for accesses in 0.. {
        let (sim, keep) = (Sim::new(1), Watched::default());
        let (control, ask) = in_use(&sim, &keep);
        let _ = [write(2), write(2), read(2)].map(|request| ask(request));
        let mut left = accesses;
        // Dying is a panic here: what comes after it is not stored.
        keep.before_each(move || {
            left -= 1;
            assert!(left >= 0, "dies here");
        });
        let lived = catch_unwind(AssertUnwindSafe(|| control.replace(NEW))).is_ok();
        keep.no_more();
        let next = layer(&sim, &keep).control().rules();
        let counts: Vec<_> = next.iter().map(|acted| (acted.matched, acted.acted)).collect();
        let replaced = next.iter().any(|acted| acted.rule.contains("ENOSPC"));
        let expected = if replaced { [(0, 0); 2] } else { [(2, 2), (1, 1)] };
        assert_eq!(counts, expected, "died before access {accesses}: {next:?}");
        assert!(next[1].rule == if replaced { "op=read|write,delay=1ms" } else { "op=read,error=EIO" });
        found.push(replaced);
        if lived {
            break;
        }
    }
    assert!(found.len() > 5 && found[0] != found[found.len() - 1] && found.is_sorted(), "{found:?}");
}

#[test]
fn what_holds_after_two_replacements_at_once_is_what_is_kept() {
    let (sim, keep) = (Sim::new(1), HeapKeep::default());
    let control = layer(&sim, &keep).control();
    for _ in 0..200 {
        thread::scope(|scope| {
            for rules in [OLD, NEW] {
                let control = &control;
                scope.spawn(move || control.replace(rules).expect("good rules"));
            }
        });
        assert_eq!(layer(&sim, &keep).control().rules(), control.rules());
    }
}
