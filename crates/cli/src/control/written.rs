// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting until a mount has written what programs wrote to it.

use super::{Answer, Ask, Peer, Unwritten};
use indicatif::HumanBytes;
use outrigger_core::Node;
use outrigger_core::ops::Lookup;
use outrigger_layer_cache::Lost;
use std::io::{self, IsTerminal, Write};

/// How long the mount waits before it says how far it is, in milliseconds.
const STEP: u64 = 500;

/// Waits until what programs have written so far is written back, and shows on a terminal how much is left.
///
/// # Errors
/// A sentence about what was lost, or what may be because the mount does not answer.
pub fn wait_written(peer: &Peer) -> Result<(), String> {
    let shows = io::stderr().is_terminal();
    let (mut shown, mut marks) = (false, Vec::new());
    let left = loop {
        match peer.ask(&Ask::Written { patience: STEP, marks }) {
            Ok(Answer::Unwritten(left)) if left.files == 0 => break left,
            Ok(Answer::Unwritten(left)) => {
                if shows {
                    // Fails only when the terminal has gone.
                    let _ = write!(io::stderr(), "\r\x1b[K{}", left_to_write(&left));
                    shown = true;
                }
                // Wait up to these marks only: later writes do not prolong the wait.
                marks = left.marks;
            }
            Ok(other) => return Err(format!("an unexpected answer: {other:?}")),
            Err(error) => return Err(outrigger_core::Error::from(error).to_string()),
        }
    };
    if shown {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    what_was_lost(&left.lost)
}

/// How many losses a status names.
const NAMED: usize = 10;

/// Lines of a status: what waits to be written, and what was lost.
pub fn unwritten_lines(unwritten: &Unwritten) -> String {
    let Unwritten { files, lost, .. } = unwritten;
    let mut lines = if *files > 0 { format!("  {}\n", left_to_write(unwritten)) } else { String::new() };
    lost.iter().take(NAMED).for_each(|(path, why)| lines += &format!("  not complete: {path} ({why})\n"));
    if lost.len() > NAMED {
        lines += &format!("  and {} more files are not complete\n", lost.len() - NAMED);
    }
    lines
}

fn left_to_write(left: &Unwritten) -> String {
    let files = if left.files == 1 { "file" } else { "files" };
    format!("{} of {} {files} left to write", HumanBytes(left.bytes), left.files)
}

/// Fails when anything was lost.
///
/// # Errors
/// A sentence that names each file and why it is not complete.
pub fn what_was_lost(lost: &[(String, String)]) -> Result<(), String> {
    if lost.is_empty() {
        return Ok(());
    }
    let each: Vec<String> = lost.iter().map(|(path, why)| format!("{path} ({why})")).collect();
    Err(format!("not everything could be written; these files are not complete: {}", each.join(", ")))
}

/// The path of a file of which something was lost, or a number where `path` does not know it.
pub fn lost_name(lost: &Lost, path: impl Fn(Node) -> Option<String>) -> String {
    let unmade = lost.unmade.as_ref().and_then(|Lookup { dir, name }| {
        let dir = path(*dir)?;
        Some(format!("{}/{name}", dir.trim_end_matches('/')))
    });
    let known = || lost.path.as_ref().map(ToString::to_string);
    unmade.or_else(|| path(lost.node)).or_else(known).unwrap_or_else(|| format!("#{}", lost.node.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{Errno, Name, Target};

    #[test]
    fn a_file_that_could_not_be_made_is_named_by_its_directory() {
        let path =
            |node: Node| (node != Node(9)).then(|| if node == Node::ROOT { "/".into() } else { "/d".into() });
        let lost = |node, dir: Option<Node>| Lost {
            node,
            path: (node == Node(9) && dir.is_none()).then(|| Target::new("/was/here").unwrap()),
            unmade: dir.map(|dir| Lookup { dir, name: Name::new("new").unwrap() }),
            error: Errno::EACCES.into(),
        };
        for (node, dir, expected) in [
            (Node(9), Some(Node(5)), "/d/new"),
            (Node(9), Some(Node::ROOT), "/new"),
            (Node(5), None, "/d"),
            (Node(9), None, "/was/here"),
            (Node(9), Some(Node(9)), "#9"),
        ] {
            assert_eq!(lost_name(&lost(node, dir), path), expected);
        }
    }

    #[test]
    fn a_status_names_what_waits_and_the_first_losses() {
        assert_eq!(unwritten_lines(&Unwritten::default()), "");
        let lost = (0..12).map(|number| (format!("/f{number}"), "ENOSPC".to_owned())).collect();
        let lines = unwritten_lines(&Unwritten { bytes: 5, files: 1, lost, marks: Vec::new() });
        assert!(
            lines.starts_with("  5 B of 1 file left to write\n  not complete: /f0 (ENOSPC)\n"),
            "{lines}"
        );
        assert!(lines.ends_with("/f9 (ENOSPC)\n  and 2 more files are not complete\n"), "{lines}");
    }

    #[test]
    fn what_is_left_and_what_was_lost_are_named() {
        let left = Unwritten { bytes: 3 << 20, files: 2, ..Unwritten::default() };
        assert_eq!(left_to_write(&left), "3.00 MiB of 2 files left to write");
        assert_eq!(what_was_lost(&[]), Ok(()));
        let lost = [("/a b".to_owned(), "ENOSPC".to_owned())];
        assert!(what_was_lost(&lost).is_err_and(|text| text.ends_with("not complete: /a b (ENOSPC)")));
    }
}
