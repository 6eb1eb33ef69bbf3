// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mount that ends by unmounting only always has a worker: one that serves, or one that stands in for those that were given up.
//!
//! This program becomes a keeper, several times. What each worker does, a script says; each notes whether it stands in.

use outrigger_core::Region;
use outrigger_guard::{GIVE_UP, Seat, Settings, SharedRegion, StandIn, TRY_AGAIN, supervise};
use std::fs::File;
use std::sync::atomic::Ordering::Relaxed;

/// Most workers of a mount.
const WORKERS: usize = 64;

fn main() {
    // An end of any kind is a death, and twelve without any use in between are one too many. One that stands in has another one tried,
    // and is replaced by its like when it is killed.
    assert_eq!(workers(true, "mfffffffffff t f k e"), "WWWWWWWWWWWW S W S S");
    println!("test a_worker_stands_in_for_those_that_are_given_up ... ok");
    assert_eq!(workers(false, "m k e"), "W S S");
    println!("test where_nothing_is_restarted_a_worker_stands_in_after_the_first_death ... ok");
    assert_eq!(workers(true, "g e"), "W S");
    println!("test a_worker_may_give_up_by_itself ... ok");
}

/// What the workers of a mount were, by what they do: mount and end (`m`) or give up (`g`), fail (`f`), be killed (`k`), have another one
/// tried (`t`), unmount (`e`).
fn workers(restarts: bool, script: &str) -> String {
    let words = WORKERS + 1;
    let region: &'static SharedRegion =
        Box::leak(Box::new(SharedRegion::create("test", words).expect("memory")));
    let settings = Settings { stand_in: Some(StandIn { restarts }), ..Settings::default() };
    let actions: Vec<u8> = script.bytes().filter(|action| *action != b' ').collect();
    let status = supervise(settings, &mut |seat| {
        let place = region.word(0).fetch_add(1, Relaxed) as usize;
        region.word(1 + place % WORKERS).store(if seat.stands_in() { 2 } else { 1 }, Relaxed);
        work(&seat, actions.get(place).copied().unwrap_or(b'e'))
    });
    assert_eq!(status.expect("a keeper"), 0, "it was unmounted");
    let mut kinds = (0..region.word(0).load(Relaxed) as usize)
        .map(|place| if region.word(1 + place % WORKERS).load(Relaxed) == 2 { 'S' } else { 'W' });
    let seen = script.chars().map_while(|action| if action == ' ' { Some(' ') } else { kinds.next() });
    let seen: String = seen.collect();
    seen + &kinds.collect::<String>()
}

fn work(seat: &Seat, action: u8) -> i32 {
    let mount = || seat.mounted(File::open("/dev/null").expect("a descriptor").into(), b"").expect("noted");
    match action {
        b'm' => {
            mount();
            1
        }
        b'g' => {
            mount();
            GIVE_UP
        }
        b'f' => 3,
        b'k' => {
            seat.took_over();
            // SAFETY: takes no pointers; it ends this process.
            unsafe { libc::raise(libc::SIGKILL) }
        }
        b't' => TRY_AGAIN,
        _ => {
            seat.ending();
            0
        }
    }
}
