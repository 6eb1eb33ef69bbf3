// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's tools in a directory, and numbers that follow from a seed.

use std::path::PathBuf;
use std::process::Command;

/// A directory with images.
pub struct Place(pub tempfile::TempDir);

impl Place {
    /// None, said so, where the tools are missing.
    pub fn new() -> Option<Self> {
        if Command::new("qemu-img").arg("--version").output().is_err() {
            println!("SKIPPED: needs qemu-img");
            return None;
        }
        Some(Place(tempfile::tempdir().expect("a directory")))
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a program there: its exit status, and what it printed.
    pub fn run(&self, program: &str, words: &[&str]) -> (i32, String) {
        let output = Command::new(program).args(words).current_dir(self.0.path()).output().expect(program);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// `qemu-img` with these words, which succeeds.
    pub fn must(&self, words: &str) {
        let (status, text) = self.run("qemu-img", &words.split(' ').collect::<Vec<_>>());
        assert_eq!(status, 0, "qemu-img {words}: {text}");
    }
}

/// Numbers that follow from a seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % bound
    }
}
