// SPDX-License-Identifier: MIT OR Apache-2.0
//! `file-size`: a file has one subject and stays short enough to be read at once.

use super::{Finding, Rule, Tree};

pub const RULE: Rule =
    Rule { name: "file-size", summary: "no Rust file has more than 600 lines, tests included", check };

/// The most lines of a file.
const LIMIT: usize = 600;

/// One long table: every operation in one place is what it is for.
const TABLES: &[&str] = &["crates/core/src/ops.rs"];

fn check(tree: &Tree) -> Vec<Finding> {
    let over = |(path, text): (&str, &str)| {
        let lines = text.lines().count();
        let advice = format!("split this by subject: {lines} lines, {LIMIT} at most");
        (lines > LIMIT && !TABLES.contains(&path)).then(|| Finding::new(RULE.name, path, LIMIT + 1, advice))
    };
    tree.with_extension("rs").filter_map(over).collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn the_limit_itself_is_allowed_and_tables_may_be_longer() {
        let (fits, long) = ("\n".repeat(LIMIT), "\n".repeat(LIMIT + 1));
        let files = [("a/fits.rs", fits.as_str()), ("a/long.rs", &long), (TABLES[0], &long)];
        assert_eq!(places(&RULE, &files), ["a/long.rs:601"]);
    }
}
