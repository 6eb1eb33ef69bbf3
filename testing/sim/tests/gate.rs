// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that wait at a [`Gate`].

use outrigger_core::Runtime;
use outrigger_core::gate::Gate;
use outrigger_sim::Sim;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn all_who_wait_are_woken_and_ask_again() {
    let sim = Sim::new(1);
    let shared = Arc::new((Gate::default(), AtomicU32::new(0)));
    let done = Arc::new(AtomicU32::new(0));
    for wanted in 1..=3 {
        let (shared, done) = (Arc::clone(&shared), Arc::clone(&done));
        sim.spawn(Box::pin(async move {
            let (gate, state) = &*shared;
            gate.wait(|| (state.load(Ordering::SeqCst) >= wanted).then_some(())).await;
            done.fetch_add(1, Ordering::SeqCst);
        }));
    }
    for (value, finished) in [(0, 0), (2, 2), (3, 3)] {
        shared.1.store(value, Ordering::SeqCst);
        shared.0.open();
        assert_eq!(sim.run() as u32, 3 - finished);
        assert_eq!(done.load(Ordering::SeqCst), finished);
    }
}
