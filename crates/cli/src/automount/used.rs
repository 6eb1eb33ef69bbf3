// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a program is inside of a tree, where the kernel cannot be asked to give back what no program uses.

use outrigger_layer_demux::IsUsed;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first Linux that gives back nodes when asked to (`FUSE_NOTIFY_PRUNE`).
const PRUNES: (u32, u32) = (6, 18);

/// Looks for programs whose working or root directory is in a tree below `mountpoint`; `None` where the kernel tells by itself. Open and
/// mapped files are known without.
pub fn detector(mountpoint: PathBuf) -> Option<Arc<IsUsed>> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if version(&release) >= PRUNES {
        return None;
    }
    Some(Arc::new(move |path: &str| is_within(&mountpoint.join(path.trim_start_matches('/')))))
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-']).map(|part| part.trim().parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether a process of this user is in a directory. The links are read, never followed: nothing is asked of the mount.
fn is_within(directory: &Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|process| process.path()).any(|process| {
        ["cwd", "root"]
            .iter()
            .any(|link| fs::read_link(process.join(link)).is_ok_and(|path| path.starts_with(directory)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_found_by_its_working_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (within, beside) = (dir.path().join("a/b"), dir.path().join("ab"));
        fs::create_dir_all(&within).unwrap();
        fs::create_dir(&beside).unwrap();
        // It stays there until its standard input ends.
        let mut child = Command::new("cat").current_dir(&within).stdin(Stdio::piped()).spawn().unwrap();
        assert!(is_within(&dir.path().join("a")) && is_within(&within));
        assert!(!is_within(&beside) && !is_within(&within.join("c")));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_within(&within));
    }

    #[test]
    fn releases_are_compared_by_number() {
        for (release, prunes) in [
            ("6.18.44-x\n", true),
            ("6.9.1", false),
            ("7.0-rc1", true),
            ("5.15.0-generic", false),
            ("", false),
        ] {
            assert_eq!(version(release) >= PRUNES, prunes, "{release}");
        }
    }
}
