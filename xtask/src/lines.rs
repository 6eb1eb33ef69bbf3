// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many lines of product code each package has: no tests, no comments, no blank lines.

use crate::tidy::{Tree, product};
use std::collections::BTreeMap;

/// Folders of product code; what is below `testing`, `fuzz` and `xtask` is none.
const PRODUCT: &[&str] = &["crates/", "kernel/"];

/// Subjects that several packages share, whose lines are counted together: files, and folders with a slash at the end.
pub const GROUPS: &[Group] = &[
    Group {
        name: "survival: what outlives a process, and what replaces it",
        paths: &[
            "crates/cli/src/guarded.rs",
            "crates/cli/src/notes.rs",
            "crates/cli/src/trees/origin.rs",
            "crates/core/src/keep.rs",
            "crates/core/src/node_table/store.rs",
            "crates/core/src/rebind.rs",
            "crates/core/src/supervise.rs",
            "crates/core/src/survive.rs",
            "crates/core/src/survive/",
            "crates/door/fuse/src/backing.rs",
            "crates/driver/kernel/src/guarded/",
            "crates/driver/libfuse/src/hidden.rs",
            "crates/driver/libfuse/src/history.rs",
            "crates/driver/libfuse/src/identity.rs",
            "crates/driver/libfuse/src/life.rs",
            "crates/driver/libfuse/src/replace.rs",
            "crates/driver/libfuse/src/stored.rs",
            "crates/driver/libfuse/src/turn.rs",
            "crates/driver/libfuse/src/writes.rs",
            "crates/driver/local/src/handles.rs",
            "crates/driver/local/src/held.rs",
            "crates/driver/mem/src/compact.rs",
            "crates/driver/mem/src/record.rs",
            "crates/driver/mem/src/store.rs",
            "crates/driver/mem/src/takeover.rs",
            "crates/driver/program/src/place.rs",
            "crates/driver/sftp/src/kept.rs",
            "crates/driver/sftp/src/line.rs",
            "crates/guard/src/",
            "crates/layer/cache/src/log.rs",
            "crates/layer/cache/src/record.rs",
            "crates/layer/journal/src/",
            "crates/remote/src/login_notes.rs",
            "crates/succession/src/",
            "kernel/worker/src/control.rs",
            "kernel/worker/src/guard.rs",
            "kernel/worker/src/kept.rs",
            "kernel/worker/src/removed.rs",
        ],
    },
    Group {
        name: "remote: trees of other hosts",
        paths: &[
            "crates/driver/nfs/src/",
            "crates/driver/ninep/src/",
            "crates/driver/sftp/src/",
            "crates/layer/cache/src/",
            "crates/mux/src/",
            "crates/remote/src/",
        ],
    },
];

/// See [`GROUPS`].
pub struct Group {
    pub name: &'static str,
    paths: &'static [&'static str],
}

impl Group {
    fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|one| *one == path || one.ends_with('/') && path.starts_with(one))
    }

    /// Lines of its product code.
    pub fn count(&self, tree: &Tree) -> usize {
        files(tree).filter(|(path, _)| self.has(path)).map(|(_, lines)| lines).sum()
    }
}

/// Lines of product code by package, which is the folder above `src`.
pub fn count(tree: &Tree) -> BTreeMap<String, usize> {
    let mut packages = BTreeMap::new();
    for (path, lines) in files(tree) {
        if let Some((package, _)) = path.split_once("/src/") {
            *packages.entry(package.to_owned()).or_default() += lines;
        }
    }
    packages
}

/// Files of product code and their lines.
fn files(tree: &Tree) -> impl Iterator<Item = (&str, usize)> {
    let is_product = |path: &str| {
        let file = path.split_once("/src/").map_or("tests.rs", |(_, file)| file);
        let is_test = format!("/{file}").ends_with("/tests.rs") || format!("/{file}").contains("/tests/");
        PRODUCT.iter().any(|folder| path.starts_with(folder)) && !is_test
    };
    tree.with_extension("rs")
        .filter(move |(path, _)| is_product(path))
        .map(|(path, text)| (path, code_lines(text)))
}

fn code_lines(text: &str) -> usize {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    product(text).lines().map(str::trim).filter(is_code).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_are_no_product() {
        let text = "// Licence\n\nfn f() {\n    // Why.\n    g()\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let files = [
            ("crates/core/src/a.rs", text),
            ("crates/core/src/b/c.rs", text),
            ("crates/core/src/tests.rs", text),
            ("crates/core/src/b/tests/d.rs", text),
            ("crates/core/tests/e.rs", text),
            ("crates/driver/mem/src/lib.rs", text),
            ("testing/sim/src/lib.rs", text),
        ];
        let expected = BTreeMap::from([("crates/core".to_owned(), 6), ("crates/driver/mem".to_owned(), 3)]);
        assert_eq!(count(&Tree::from_files(&files)), expected);
    }

    #[test]
    fn a_group_has_files_and_folders() {
        let group = Group { name: "a", paths: &["crates/core/src/a.rs", "crates/mux/src/"] };
        let text = "fn f() {}\n";
        let files = [
            ("crates/core/src/a.rs", text),
            ("crates/core/src/a.rs.rs", text),
            ("crates/mux/src/b.rs", text),
            ("crates/mux/src/c/d.rs", text),
            ("crates/mux/src/tests.rs", text),
        ];
        assert_eq!(group.count(&Tree::from_files(&files)), 3);
    }
}
