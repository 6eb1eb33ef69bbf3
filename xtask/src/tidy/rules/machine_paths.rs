// SPDX-License-Identifier: MIT OR Apache-2.0
//! `machine-paths`: nothing names a directory of the machine it was written on.

use super::{Finding, Rule, Tree};
use crate::tidy::source::numbered;

pub const RULE: Rule = Rule {
    name: "machine-paths",
    summary: "no absolute path that exists only on its writer's machine",
    check,
};

/// Top directories of single machines or users: a checkout, root's home, a home on macOS, a build farm.
const PRIVATE: &[&str] = &["work", "root", "farm", "Users"];

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (number, line) in numbered(text) {
            if let Some(name) = PRIVATE.iter().find(|name| names_directory(line, name)) {
                let advice =
                    format!("replace the path below /{name} by one relative to the repository or a variable");
                findings.push(Finding::new(RULE.name, path, number, advice));
            }
        }
    }
    findings
}

/// Whether `line` holds the absolute path `/name/...`: not `a/name/b`, `./name/b` or `host:/name/b`, nor `$VAR/name/b`.
fn names_directory(line: &str, name: &str) -> bool {
    let within_path = |c: char| c.is_alphanumeric() || "_-.:~}/)*".contains(c);
    line.match_indices(&format!("/{name}/")).any(|(at, _)| !line[..at].ends_with(within_path))
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn absolute_paths_are_found_and_relative_ones_are_not() {
        for name in PRIVATE {
            let text = format!(
                "cp \"/{name}/a\" b\nls x/{name}/a\nls $D/{name}/a ${{D}}/{name}/a ../{name}/a\n/{name}/\n"
            );
            assert_eq!(places(&RULE, &[("docs/A.md", &text)]), ["docs/A.md:1", "docs/A.md:4"], "{text}");
        }
    }
}
