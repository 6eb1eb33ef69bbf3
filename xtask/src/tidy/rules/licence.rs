// SPDX-License-Identifier: MIT OR Apache-2.0
//! `licence`: every Rust file says its licence in its first line.

use super::{Finding, Rule, Tree};

pub const RULE: Rule = Rule {
    name: "licence",
    summary: "the first line of every .rs file is its SPDX licence (GPL-2.0-only below kernel/)",
    check,
};

/// The licence of the file at `path`.
pub fn licence_of(path: &str) -> &'static str {
    if path.starts_with("kernel/") { "GPL-2.0-only" } else { "MIT OR Apache-2.0" }
}

fn check(tree: &Tree) -> Vec<Finding> {
    tree.with_extension("rs")
        .filter_map(|(path, text)| {
            let header = format!("// SPDX-License-Identifier: {}", licence_of(path));
            let holds = text.lines().next() == Some(header.as_str());
            (!holds).then(|| Finding::new(RULE.name, path, 1, format!("make the first line `{header}`")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn wants_the_header_of_the_folder_in_line_one() {
        let free = "// SPDX-License-Identifier: MIT OR Apache-2.0\n";
        let gpl = "// SPDX-License-Identifier: GPL-2.0-only\n";
        let late = format!("\n{free}");
        let files = [
            ("a/good.rs", free),
            ("kernel/good.rs", gpl),
            ("b/empty.rs", ""),
            ("b/gpl.rs", gpl),
            ("b/late.rs", &late),
            ("kernel/free.rs", free),
            ("docs/free.md", "text"),
        ];
        assert_eq!(places(&RULE, &files), ["b/empty.rs:1", "b/gpl.rs:1", "b/late.rs:1", "kernel/free.rs:1"]);
    }
}
