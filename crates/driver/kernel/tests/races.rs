// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many at once in one directory of a fresh image, on every type that is written.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::Errno;
use outrigger_core::ops::RenameFlags;
use outrigger_driver_kernel::Kernel;
use outrigger_images::{Image, Kind, Tree, WRITTEN, kind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long they go on.
const LOAD: Duration = Duration::from_secs(10);
/// How many names they fight for.
const NAMES: usize = 4;

/// Moves files over each other, makes them and removes them, and nobody knows what the others do.
fn race(kernel: Arc<Kernel>, seed: u64, kind: &str) {
    let tree = Direct::new(kernel);
    let mut random = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + LOAD;
    while Instant::now() < end {
        let mut name = || PathBuf::from(format!("file{}", random.usize(..NAMES)));
        let (from, to) = (name(), name());
        let done = match random.u8(..4) {
            0 => tree.open(&from, Flags::NEW, 0o644).and_then(|file| tree.close(file)),
            1 => tree.unlink(&from),
            _ => tree.rename(&from, &to, RenameFlags::empty()),
        };
        let lost = |errno| matches!(errno, Errno::ENOENT | Errno::EEXIST);
        assert!(done.as_ref().err().is_none_or(|errno| lost(*errno)), "{kind}: {done:?}");
    }
}

fn survives(kind: &'static Kind) {
    let image = Image::new(kind);
    let kernel = Arc::new(image.open());
    thread::scope(|scope| {
        for seed in 0..4 {
            let kernel = Arc::clone(&kernel);
            scope.spawn(move || race(kernel, seed, kind.name));
        }
    });
    let tree = Direct::new(kernel.clone());
    for number in 0..NAMES {
        let _ = tree.unlink(&PathBuf::from(format!("file{number}")));
    }
    // It is as good as a new one.
    Tree::new(&tree).make();
    kernel.unmount().unwrap_or_else(|error| panic!("{}: {error}", kind.name));
    image.must_be_clean();
    let kernel = Arc::new(image.open());
    Tree::new(&Direct::new(kernel.clone())).must_be_there();
}

#[test]
fn renames_that_race_harm_nothing() {
    let kinds: Vec<&'static Kind> = WRITTEN.iter().filter_map(|row| kind(row.name)).collect();
    thread::scope(|scope| {
        for kind in kinds {
            scope.spawn(move || survives(kind));
        }
    });
}
