// SPDX-License-Identifier: MIT OR Apache-2.0
//! `layouts`: what outlives a process has names and a version. Words of a region by number, and layouts beside the list, are
//! found in its own folder alone.

use super::{Finding, Rule, Tree};
use crate::tidy::source::{numbered, product};

pub const RULE: Rule = Rule {
    name: "layouts",
    summary: "outside of core/src/survive no word of a region is called by number, and no layout declared",
    check,
};

/// Where it is defined what these are.
const HOME: &str = "crates/core/src/survive";

/// Files with words by number, and what for.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/core/src/node_table/store.rs", "has records and names of its own arrangement in an area"),
    ("crates/driver/local/src/node_set.rs", "has a table of its own process, which grows as it is used"),
    ("crates/guard/src/region.rs", "is a region"),
];

const ADVICE: [(&str, &str); 2] = [
    (".word(", "declare the words with `fields!` or a block of core/src/survive.rs"),
    ("Layout::new(", "add the layout to core/src/survive/layouts.rs, and take it with `Layout::of`"),
];

const SUPERFLUOUS: &str = "take this file out of the list in xtask/src/tidy/rules/layouts.rs: it calls no word by number, and declares no layout";

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        let is_product = (path.starts_with("crates/") || path.starts_with("kernel/"))
            && !["/tests/", "/tests.rs", "/examples/", "/benches/"].iter().any(|part| path.contains(part));
        if !is_product || path.starts_with(HOME) {
            continue;
        }
        let before = findings.len();
        for (number, line) in numbered(product(text)) {
            let code = line.split("//").next().unwrap_or_default();
            for (_, advice) in ADVICE.iter().filter(|(pattern, _)| code.contains(pattern)) {
                findings.push(Finding::new(RULE.name, path, number, *advice));
            }
        }
        if EXCEPTIONS.iter().any(|(file, _)| *file == path) {
            let is_superfluous = findings.len() == before;
            findings.truncate(before);
            findings.extend(is_superfluous.then(|| Finding::new(RULE.name, path, 1, SUPERFLUOUS)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn words_by_number_and_layouts_are_at_home_alone() {
        let text =
            "// region.word(1)\nfn f() {\n    region.word(1).load(Acquire);\n    Layout::new(\"a\", 1);\n}\n";
        let tests = "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn t() { region.word(1); }\n}\n";
        let files = [
            ("crates/core/src/survive/a.rs", text),
            ("crates/core/src/node_table/store.rs", text),
            ("crates/guard/src/region.rs", tests),
            ("crates/driver/a/src/lib.rs", text),
            ("crates/driver/b/src/lib.rs", tests),
            ("crates/driver/b/src/tests.rs", text),
            ("testing/c/src/lib.rs", text),
        ];
        let expected =
            ["crates/driver/a/src/lib.rs:3", "crates/driver/a/src/lib.rs:4", "crates/guard/src/region.rs:1"];
        assert_eq!(places(&RULE, &files), expected);
    }
}
