// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of docs/STYLE.md as checks on a [`Tree`] of files.

mod crates;
mod finding;
pub mod rules;
pub mod source;
mod tree;

pub use finding::Finding;
pub use source::product;
pub use tree::Tree;

/// Runs every rule; the findings are sorted by path, then line, and free of duplicates.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = rules::ALL.iter().flat_map(|rule| (rule.check)(tree)).collect();
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_all_rules_come_sorted_by_place() {
        let tree = Tree::from_files(&[
            ("crates/core/src/b.rs", "fn b() {}\n"),
            ("crates/core/src/a.rs", concat!("fn a() { to", "do!() }\n")),
        ]);
        let found: Vec<String> =
            check(&tree).iter().map(|f| format!("{}:{} {}", f.path, f.line, f.rule)).collect();
        assert_eq!(
            found,
            [
                "crates/core/src/a.rs:1 leftovers",
                "crates/core/src/a.rs:1 licence",
                "crates/core/src/b.rs:1 licence"
            ]
        );
    }
}
