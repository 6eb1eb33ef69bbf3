// SPDX-License-Identifier: MIT OR Apache-2.0
//! Targets of symbolic links as text.

use outrigger_core::Target;

/// The names in a path.
pub(crate) fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Whether what a target leads to depends on where its link is, beyond the directory the link is in.
pub(crate) fn depends_on_place(target: &[u8]) -> bool {
    target.starts_with(b"/") || names(target).any(|name| name == b"..")
}

/// The target as a path relative to its link, `depth` levels below the root, where it is an absolute one inside the tree, whose
/// root is at `base` on the server.
pub(crate) fn relative(target: &Target, base: &[u8], depth: usize) -> Target {
    let inside = target.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
    match inside {
        Some(rest) if target.starts_with(b"/") => {
            Target::new(way(rest, depth)).unwrap_or_else(|_| target.clone())
        }
        _ => target.clone(),
    }
}

/// The way from a link `depth` levels below the root to a path from the root.
fn way(path: &[u8], depth: usize) -> Vec<u8> {
    let path = path.iter().position(|&byte| byte != b'/').map_or(&b""[..], |start| &path[start..]);
    let mut target = b"../".repeat(depth.saturating_sub(1));
    target.extend_from_slice(path);
    if target.ends_with(b"/") {
        target.pop();
    }
    if target.is_empty() { b".".to_vec() } else { target }
}

/// Whether a target cannot lead out of the tree: it climbs at its beginning only, where each step is to the directory above,
/// and not above the root. Further on a step up may follow another link, to wherever that leads.
pub(crate) fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let climbs = names(target).take_while(|name| *name == b"..").count();
    climbs < depth.max(1) && names(target).skip(climbs).all(|name| name != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_targets_in_the_tree_become_relative() {
        for (text, depth, expected) in [
            ("/srv/tree/a/b", 1, "a/b"),
            ("/srv/tree/a/b", 3, "../../a/b"),
            ("/srv/tree", 1, "."),
            ("/srv/tree/", 2, ".."),
            ("/srv/treehouse", 1, "/srv/treehouse"),
            ("/etc", 2, "/etc"),
            ("../x", 2, "../x"),
        ] {
            let target = Target::new(text.as_bytes().to_vec()).expect("a target");
            assert_eq!(relative(&target, b"/srv/tree", depth).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn targets_that_could_lead_out_are_known() {
        let out = [
            ("/etc/passwd", 1),
            ("..", 0),
            ("..", 1),
            ("../..", 2),
            ("a/..", 1),
            ("a/../../b", 3),
            ("./../x", 1),
            ("../a/../../b", 2),
        ];
        for (text, depth) in out {
            assert!(depends_on_place(text.as_bytes()) && !stays_inside(text.as_bytes(), depth), "{text}");
        }
        for (text, depth) in [("a/b", 1), ("../x", 2), ("./a", 1), ("..", 2), ("../../a", 3)] {
            assert!(stays_inside(text.as_bytes(), depth), "{text}");
        }
        assert!(!depends_on_place(b"./a/b") && !depends_on_place(b"..a/b.."));
    }
}
