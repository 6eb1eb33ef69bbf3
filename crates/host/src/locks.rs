// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who holds locks on files.

use rustix::fs::{fstat, major, minor};
use std::fs;
use std::os::fd::BorrowedFd;

/// The process that has locked a file with flock(2), as far as /proc/locks tells: one that has ended is not named, though others may
/// have the lock from it.
pub fn locked_by(file: BorrowedFd<'_>) -> Option<String> {
    let stat = fstat(file).ok()?;
    let place = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let of_it = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&place.as_str());
        found.then(|| words[4].parse::<u32>().ok()).flatten().filter(|&number| number != 0)
    };
    let number = locks.lines().find_map(of_it)?;
    let name = fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
    Some(match name.trim() {
        "" => format!("process {number}"),
        name => format!("process {number}, {}", name.escape_debug()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};
    use std::os::fd::AsFd;

    #[test]
    fn who_has_locked_a_file_is_named_with_its_number() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(locked_by(file.as_fd()), None);
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let who = locked_by(file.as_fd()).unwrap();
        assert!(who.starts_with(&format!("process {}", std::process::id())), "{who}");
    }
}
