// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another writer changes the same files at every step of ours: beside a mount of a directory, at the SSH server, and through a
//! second mount of it. What we read is what is there, after the time the mount promises and from then on; what we write is
//! there when fsync(2) returns, together with what the others wrote before.

use crate::Far;
use crate::support::{Place, can_mount, within};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const NAMES: [&str; 4] = ["a", "b", "d/c", "d/e"];
const LENGTHS: [usize; 5] = [0, 10, 4096, 70_000, 400_000];
/// How often the other writer and we change something.
const STEPS: u32 = 24;

/// Numbers that follow from the first one (a linear congruential generator; Knuth, The Art of Computer Programming, 3.3.4).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Content unlike any before.
    fn content(&mut self, step: u32) -> Vec<u8> {
        let line = format!("{step:4}|");
        line.bytes().cycle().take(self.of(&LENGTHS)).collect()
    }
}

/// One tree, and three ways to it.
struct Ways {
    /// Our mount.
    ours: PathBuf,
    /// Where the other writer changes it.
    theirs: PathBuf,
    /// The directory that is served.
    truth: PathBuf,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Replace,
    Overwrite,
    Append,
    Truncate,
    Remove,
    Make,
}

const CHANGES: [Change; 6] =
    [Change::Replace, Change::Overwrite, Change::Append, Change::Truncate, Change::Remove, Change::Make];

impl Change {
    /// Makes the change to the file `path`, as a program does that has it on its own disk.
    fn to(self, path: &Path, content: &[u8]) {
        let existing = || File::options().write(true).open(path).ok();
        match self {
            Change::Replace => {
                let beside = path.with_extension("new");
                fs::write(&beside, content).unwrap();
                fs::rename(&beside, path).unwrap();
            }
            Change::Overwrite => {
                let Some(file) = existing() else { return };
                let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
                file.write_all_at(&content[..len.min(content.len())], 0).unwrap();
            }
            Change::Append => {
                let Ok(mut file) = File::options().append(true).open(path) else { return };
                file.write_all(content).unwrap();
            }
            Change::Truncate => {
                let Some(file) = existing() else { return };
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            Change::Remove => drop(fs::remove_file(path)),
            Change::Make => drop(File::create_new(path).map(|mut file| file.write_all(content))),
        }
    }
}

impl Ways {
    /// Whether our mount shows the file as it is: what a new handle reads, its size, and whether its directory lists it.
    fn agree_on(&self, name: &str) -> bool {
        let (ours, truth) = (self.ours.join(name), self.truth.join(name));
        let listed = fs::read_dir(ours.parent().unwrap()).unwrap();
        let is_listed = listed.flatten().any(|entry| Some(&*entry.file_name()) == ours.file_name());
        match fs::read(&truth) {
            Ok(content) => {
                let size = fs::metadata(&ours).map(|metadata| metadata.len());
                let len = u64::try_from(content.len()).unwrap();
                is_listed
                    && size.is_ok_and(|size| size == len)
                    && fs::read(&ours).is_ok_and(|read| read == content)
            }
            Err(_) => !is_listed && fs::read(&ours).is_err(),
        }
    }

    /// Appends a line to the file and syncs it. It must be there then, after the old content.
    fn append(&self, name: &str, line: &str) {
        let Ok(before) = fs::read_to_string(self.truth.join(name)) else { return };
        let mut file = File::options().append(true).open(self.ours.join(name)).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        file.sync_all().unwrap();
        let after = fs::read_to_string(self.truth.join(name)).unwrap();
        assert!(after == before + line, "{name}: what was appended and synced is not there");
        assert!(self.agree_on(name), "{name}: our own change is not seen");
    }

    fn explore(&self, seed: u64) {
        let mut numbers = Numbers(seed);
        for dir in [&self.truth, &self.theirs, &self.ours] {
            within("the directory is there", || fs::create_dir_all(dir.join("d")).is_ok());
        }
        let mut held: Vec<File> = Vec::new();
        for step in 0..STEPS {
            let (name, change) = (numbers.of(&NAMES), numbers.of(&CHANGES));
            // Part of it is known before, by a handle that stays open.
            if let Ok(file) = File::open(self.ours.join(name)) {
                let _ = file.read_at(&mut [0; 5000], 0);
                held.push(file);
            }
            change.to(&self.theirs.join(name), &numbers.content(step));
            let others = NAMES.iter().filter(|other| **other != name);
            for other in others {
                assert!(self.agree_on(other), "step {step}: {other} was right before {change:?} of {name}");
            }
            // What old handles read is old or new, and must not be taken for the other one.
            for mut file in held.iter().chain(&File::open(self.ours.join(name)).ok()) {
                let _ = file.read(&mut [0; 9000]);
            }
            within(&format!("step {step}: {change:?} of {name} is seen"), || self.agree_on(name));
            if numbers.below(2) == 0 {
                self.append(name, &format!("line {step}\n"));
                within("the others see it", || {
                    fs::read(self.theirs.join(name)).ok() == fs::read(self.truth.join(name)).ok()
                });
            }
            held.truncate(4);
        }
    }
}

#[test]
fn a_directory_that_changes_below_its_mount_is_read_as_it_is() {
    if !can_mount() {
        return;
    }
    for options in ["default_permissions", "no_passthrough"] {
        let place = Place::new();
        fs::create_dir(place.at("truth")).unwrap();
        place.run(&["mount", "truth", "m", "-o", options]).ok();
        let [ours, truth] = ["m", "truth"].map(|name| place.at(name));
        Ways { ours, theirs: truth.clone(), truth }.explore(1);
        place.run(&["umount", "m"]).ok();
    }
}

#[test]
fn a_directory_that_changes_at_its_server_is_read_as_it_is() {
    for options in
        ["cache=1,ahead=1", "cache=1,ahead=1,write=behind", "cache=1,disk_cache=64m", "cache=never"]
    {
        let Some(far) = Far::new() else { return };
        far.mount(&["-o", options]);
        let [ours, truth] = ["m", "far"].map(|name| far.place.at(name));
        Ways { ours, theirs: truth.clone(), truth }.explore(2);
    }
}

#[test]
fn two_mounts_of_a_server_see_what_the_other_writes() {
    let Some(far) = Far::new() else { return };
    let [ours, theirs, truth] = ["m", "n", "far"].map(|name| far.place.at(name));
    fs::create_dir(&theirs).unwrap();
    for dir in ["m", "n"] {
        far.mount_on(dir, &far.option(), &["-o", "cache=1,ahead=1"]);
    }
    Ways { ours, theirs, truth }.explore(3);
    far.place.run(&["umount", "n"]).ok();
}
