// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damaged images, dying and silent workers: whatever happens costs that worker at worst, every call ends, and the error
//! says why.

use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::{Errno, Service};
use outrigger_driver_kernel::{Kernel, Options};
use outrigger_images::{Image, Tree, WRITTEN, kind};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Longer than anything here takes on a busy machine, and shorter than a test run may hang.
const DEADLINE: Duration = Duration::from_secs(300);

/// The worker that serves this image: its standard input is the image.
fn worker(image: &Image) -> Pid {
    let path = std::fs::canonicalize(image.path()).expect("a path");
    let process = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let command = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let input = std::fs::read_link(entry.path().join("fd/0")).ok()?;
        let is_it = command.starts_with("outrigger-kerne") && input == path;
        is_it.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    let number = std::fs::read_dir("/proc").expect("processes").find_map(process).expect("the worker");
    Pid::from_raw(number).expect("a process")
}

fn reason_of(kernel: &Kernel) -> String {
    kernel.unmount().expect_err("the worker has died").reason.expect("a reason").to_string()
}

#[test]
fn a_worker_that_dies_is_an_error_and_the_image_is_good() {
    let Some(kind) = kind("ext4") else { return };
    for (signal, words) in [(Signal::SEGV, "fault 11"), (Signal::KILL, "signal: 9")] {
        let image = Image::new(kind);
        let kernel = Arc::new(image.open());
        let direct = Direct::new(kernel.clone());
        direct.mkdir(Path::new("dir"), 0o755).expect("mkdir");
        let file = direct.open(Path::new("file"), Flags::NEW, 0o644).expect("create");
        direct.write_at(file, 0, b"kept").expect("write");
        direct.fsync(file, false).expect("fsync");
        kill_process(worker(&image), signal).expect("a signal");
        // A request may still be answered before the signal arrives.
        while direct.stat(Path::new("dir")).is_ok() {}
        assert_eq!(direct.stat(Path::new("dir")).map(drop), Err(Errno::EIO));
        let reason = reason_of(&kernel);
        assert!(reason.contains(words), "{reason}");
        drop((direct, kernel));

        let direct = Direct::new(Arc::new(image.open()));
        let file = direct.open(Path::new("file"), Flags::READ, 0).expect("what was synced is there");
        assert_eq!(direct.read_at(file, 0, 10), Ok(b"kept".to_vec()));
        // Makes the mount writable, so that the journal is replayed into the image.
        direct.unlink(Path::new("file")).expect("unlink");
        drop(direct);
        image.must_be_clean();
    }
}

#[test]
fn a_panic_ends_the_worker_and_says_why() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let direct = Direct::new(Arc::new(image.open()));
    direct.mkdir(Path::new("dir"), 0o755).expect("mkdir");
    direct.mkdir(Path::new("dir/needle-in-a-block"), 0o755).expect("mkdir");
    drop(direct);
    // The blocks with this name: that of the directory, and its copy in the journal.
    let mut bytes = std::fs::read(image.path()).expect("an image");
    for block in bytes.chunks_mut(4096).filter(|block| block.windows(17).any(|at| at == b"needle-in-a-block"))
    {
        block.fill(0xa5);
    }
    std::fs::write(image.path(), bytes).expect("a write");
    let options = Options { passed: vec!["errors=panic".into()], ..Options::default() };
    let kernel = Arc::new(Kernel::start(&image.path(), &options).expect("the image opens"));
    let direct = Direct::new(kernel.clone());
    assert_eq!(direct.stat(Path::new("dir/needle-in-a-block")).map(drop), Err(Errno::EIO));
    let reason = reason_of(&kernel);
    assert!(reason.contains("Kernel panic") && reason.contains("EXT4-fs"), "{reason}");
}

#[test]
fn a_silent_worker_is_given_up_when_unmounting() {
    let Some(kind) = kind("ext4") else { return };
    let image = Image::new(kind);
    let options = Options { patience: Some(Duration::from_secs(1)), ..Options::default() };
    let kernel = Kernel::start(&image.path(), &options).expect("the image opens");
    kill_process(worker(&image), Signal::STOP).expect("a signal");
    let reason = reason_of(&kernel);
    assert!(reason.contains("patience="), "{reason}");
}

#[test]
fn a_file_larger_than_the_memory_is_written_and_read() {
    for name in ["ext4", "xfs", "btrfs"] {
        let Some(kind) = kind(name) else { continue };
        let image = Image::new(kind);
        let options = Options { memory: Some(32 << 20), ..Options::default() };
        let kernel = Arc::new(Kernel::start(&image.path(), &options).expect("the image opens"));
        let direct = Direct::new(kernel.clone());
        let file = direct.open(Path::new("file"), Flags::NEW, 0o644).expect("create");
        let piece = |number: u64| vec![number as u8; 1 << 20];
        for number in 0..40 {
            assert_eq!(direct.write_at(file, number << 20, &piece(number)), Ok(1 << 20), "{name}");
        }
        for number in 0..40 {
            assert!(direct.read_at(file, number << 20, 1 << 20) == Ok(piece(number)), "{name}");
        }
        direct.close(file).expect("close");
        kernel.unmount().expect("it unmounts");
        image.must_be_clean();
    }
}

/// The blocks of an image that are not empty.
struct Blocks {
    size: u64,
    blocks: Vec<(u64, Vec<u8>)>,
}

/// How much is looked at as one, in bytes.
const BLOCK: usize = 4096;

impl Blocks {
    fn of(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("an image");
        let used = |(_, block): &(usize, &[u8])| block.iter().any(|&byte| byte != 0);
        let blocks = bytes.chunks(BLOCK).enumerate().filter(used);
        let blocks = blocks.map(|(number, block)| ((number * BLOCK) as u64, block.to_vec())).collect();
        Blocks { size: bytes.len() as u64, blocks }
    }

    /// Writes the image with a few bytes, or a whole block, of it changed; mostly near the start, where formats keep
    /// what leads to everything else.
    fn write_damaged(&self, path: &Path, seed: u64) {
        use std::os::unix::fs::FileExt;
        let mut random = fastrand::Rng::with_seed(seed);
        let file = std::fs::File::create(path).expect("a file");
        file.set_len(self.size).expect("a size");
        for (offset, block) in &self.blocks {
            file.write_all_at(block, *offset).expect("a write");
        }
        for _ in 0..random.u8(1..=4) {
            let count = self.blocks.len();
            let most = if random.bool() { count.min(8) } else { count };
            let (offset, block) = &self.blocks[random.usize(..most)];
            let mut block = block.clone();
            let used: Vec<usize> = (0..block.len()).filter(|&at| block[at] != 0).collect();
            match random.u8(..8) {
                0 => block.fill(random.u8(..)),
                _ => {
                    for _ in 0..random.u8(1..=8) {
                        block[used[random.usize(..used.len())]] ^= 1 << random.u8(..8);
                    }
                }
            }
            file.write_all_at(&block, *offset).expect("a write");
        }
    }
}

/// Opens the image, looks at everything and changes something. Whatever fails, fails.
fn try_everything(path: &Path, name: &str) {
    let options = Options { kind: Some(name.to_owned()), ..Options::default() };
    let Ok(kernel) = Kernel::start(path, &options) else { return };
    let kernel: Arc<dyn Service> = Arc::new(kernel);
    let direct = Direct::new(kernel);
    let tree = Tree::new(&direct);
    tree.look();
    let _ = direct.mkdir(Path::new("new"), 0o755);
    if let Ok(file) = direct.open(Path::new("new/file"), Flags::NEW, 0o644) {
        let _ = direct.write_at(file, 0, &[7; 100_000]);
        let _ = direct.fsync(file, false);
        let _ = direct.close(file);
    }
    let _ = direct.unlink(Path::new("dir/file"));
}

/// How many damaged images of each type; `OUTRIGGER_DAMAGED=` asks for more.
fn how_many() -> u64 {
    std::env::var("OUTRIGGER_DAMAGED").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

#[test]
fn damaged_images_cost_a_worker_at_worst() {
    for kind in WRITTEN.iter().filter_map(|row| kind(row.name)) {
        let image = Image::new(kind);
        let direct = Direct::new(Arc::new(image.open()));
        Tree::new(&direct).make();
        drop(direct);
        let blocks = Blocks::of(&image.path());
        for seed in 0..how_many() {
            blocks.write_damaged(&image.path(), seed);
            let (sender, receiver) = channel();
            let path = image.path();
            let work = std::thread::spawn(move || {
                try_everything(&path, kind.name);
                drop(sender);
            });
            let ended: Result<(), _> = receiver.recv_timeout(DEADLINE);
            assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "{} with seed {seed} hangs", kind.name);
            work.join().unwrap_or_else(|_| panic!("{} with seed {seed}", kind.name));
        }
    }
}
