// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many round trips things take: how often the client says something after it has heard something.

use crate::support::Far;
use outrigger_client::{Client, Follow, Settings};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Name, lock};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

/// What went by.
#[derive(Default)]
struct Passed {
    /// The server has said something since the client did.
    heard: bool,
    turns: usize,
}

/// Passes the bytes of one connection on, and counts.
struct Counter(Arc<Mutex<Passed>>);

impl Counter {
    /// Stands at `at` before `target`.
    fn before(target: &Path, at: &Path) -> Counter {
        let passed = Arc::<Mutex<Passed>>::default();
        let (listener, target, counted) =
            (UnixListener::bind(at).unwrap(), target.to_owned(), Arc::clone(&passed));
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = UnixStream::connect(&target).unwrap();
                let (up, down) = (Arc::clone(&counted), Arc::clone(&counted));
                pass([near.try_clone().unwrap(), far.try_clone().unwrap()], move || {
                    let mut passed = lock(&up);
                    let is_turn = std::mem::take(&mut passed.heard);
                    passed.turns += usize::from(is_turn);
                });
                pass([far, near], move || lock(&down).heard = true);
            }
        });
        Counter(passed)
    }

    /// How many turns `work` takes, the first included.
    fn turns(&self, work: impl FnOnce()) -> usize {
        *lock(&self.0) = Passed { heard: true, turns: 0 };
        work();
        lock(&self.0).turns
    }
}

fn pass([mut from, mut to]: [UnixStream; 2], mut each: impl FnMut() + Send + 'static) {
    thread::spawn(move || {
        let mut piece = vec![0; 1 << 20];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            each();
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[test]
fn walking_listing_reading_and_writing_wait_for_few_answers() {
    let far = Far::local();
    std::fs::create_dir_all(far.at("a/b/c")).unwrap();
    for number in 0..1000 {
        std::fs::write(far.at(&format!("a/b/c/file {number}")), "content").unwrap();
    }
    let at = far.beside("counted");
    let counter = Counter::before(&far.socket(), &at);
    let wire = far.connect_to(&at, Default::default(), None).unwrap();
    let tree = Client::new(Arc::new(wire), far.runtime.clone(), Settings::default());
    let walk = |path: &[u8]| tree.walk(path, Follow::Yes).unwrap();
    let walked = counter.turns(|| drop(walk(b"/a/b/c")));
    assert!(walked <= 2, "{walked} for a path of any length: one, and references come back without waiting");
    let dir = walk(b"/a/b/c");
    let listed = counter.turns(|| assert_eq!(dir.entries().unwrap().count(), 1000));
    // How many of the pieces that are asked for ahead arrive before the next question depends on the machine.
    assert!(listed <= 10, "{listed}: at most one for each piece of the listing, none to open and close");
    let (name, flags) = (Name::try_from("new").unwrap(), OpenFlags::READ_WRITE);
    let written = counter.turns(|| {
        let (_, file) = dir.create(&name, 0o644, flags).unwrap();
        file.write_all_at(0, bytes::Bytes::from_static(b"content")).unwrap();
    });
    assert!(written <= 2, "{written}: made and opened at once, written, and closed without waiting");
}
