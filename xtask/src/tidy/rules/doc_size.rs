// SPDX-License-Identifier: MIT OR Apache-2.0
//! `doc-size`: documents stay short enough to be read.

use super::{Finding, Rule, Tree};

pub const RULE: Rule =
    Rule { name: "doc-size", summary: "each document keeps to its most lines (docs/STYLE.md)", check };

/// The most lines of each document that has a limit. ARCHITECTURE.md may stand at the top or in docs/.
const LIMITS: &[(&str, usize)] = &[
    ("README.md", 150),
    ("ARCHITECTURE.md", 400),
    ("docs/ARCHITECTURE.md", 400),
    ("docs/GUIDE.md", 400),
    ("docs/MATRIX.md", 350),
    ("docs/SEMANTICS.md", 350),
    ("docs/STYLE.md", 150),
    ("docs/TESTING.md", 150),
];

fn check(tree: &Tree) -> Vec<Finding> {
    let over = |&(path, limit): &(&str, usize)| {
        let lines = tree.text(path)?.lines().count();
        let advice = format!("shorten this to {limit} lines; it has {lines}");
        (lines > limit).then(|| Finding::new(RULE.name, path, limit + 1, advice))
    };
    LIMITS.iter().filter_map(over).collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn the_limit_itself_is_allowed() {
        for &(path, limit) in LIMITS {
            let full = "line\n".repeat(limit);
            assert_eq!(places(&RULE, &[(path, &full)]), [""; 0]);
            let over = format!("{full}one more");
            assert_eq!(places(&RULE, &[(path, &over)]), [format!("{path}:{}", limit + 1)]);
        }
    }
}
