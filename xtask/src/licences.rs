// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask licences`: every crate that is linked in, directly or not, has a permissive licence, and
//! docs/DEPENDENCIES.md states the licences of those we name.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::tidy::Finding;
use crate::tidy::source::numbered;

/// The licences (SPDX names) whose code may be linked into the program.
const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CDLA-Permissive-2.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "bzip2-1.0.6",
];
const RULE: &str = "licences";
const DOCUMENT: &str = "docs/DEPENDENCIES.md";

/// What `cargo metadata` says of all packages.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// One package; `source` is `None` for the crates of this repository.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

/// Asks cargo for all crates and checks them. Returns the findings and how many crates were checked.
///
/// # Errors
/// When cargo cannot tell, or the document cannot be read.
pub fn check(root: &Path) -> Result<(Vec<Finding>, usize)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--quiet"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let document =
        std::fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let outside: Vec<Package> =
        metadata.packages.into_iter().filter(|package| package.source.is_some()).collect();
    Ok((judge(&outside, &document), outside.len()))
}

fn judge(packages: &[Package], document: &str) -> Vec<Finding> {
    let documented = documented_licences(document);
    let mut findings = Vec::new();
    for Package { name, version, license, .. } in packages {
        let licence = license.as_deref().unwrap_or("none declared");
        if !is_permissive(licence) {
            let advice = format!(
                "replace {name} {version}: its licence ({licence}) is not on the list of permissive ones"
            );
            findings.push(Finding::new(RULE, "Cargo.lock", 1, advice));
        }
    }
    for (name, (line, stated)) in documented {
        let declared: Vec<&str> = packages
            .iter()
            .filter(|package| package.name == name)
            .filter_map(|p| p.license.as_deref())
            .collect();
        if !declared.is_empty() && !declared.contains(&stated) {
            let advice =
                format!("write `{}`, which {name} declares, for `{stated}`", declared.join("` or `"));
            findings.push(Finding::new(RULE, DOCUMENT, line, advice));
        }
    }
    findings
}

/// The second column of the document's tables by the first, with the line.
fn documented_licences(document: &str) -> BTreeMap<&str, (usize, &str)> {
    numbered(document)
        .filter_map(|(number, line)| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            Some((cells.next()?, (number, cells.next()?)))
        })
        .collect()
}

/// Whether an SPDX expression can be satisfied by permissive licences alone: one alternative of `OR` (written `/` in old
/// manifests) of which every part of `AND` is permissive.
fn is_permissive(expression: &str) -> bool {
    let expression = expression.trim();
    if let Some(inner) = strip_parentheses(expression) {
        return is_permissive(inner);
    }
    for (operator, all) in [(" OR ", false), ("/", false), (" AND ", true)] {
        let parts = split_outside_parentheses(expression, operator);
        if parts.len() > 1 {
            return if all {
                parts.into_iter().all(is_permissive)
            } else {
                parts.into_iter().any(is_permissive)
            };
        }
    }
    PERMISSIVE.contains(&expression)
}

/// What one pair of parentheses around the whole expression encloses.
fn strip_parentheses(expression: &str) -> Option<&str> {
    let inner = expression.strip_prefix('(')?.strip_suffix(')')?;
    let mut depth = 0_i32;
    let closes_early = inner.chars().any(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth < 0
    });
    (!closes_early).then_some(inner)
}

fn split_outside_parentheses<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let depth_at = |at: usize| {
        let count = |parenthesis| expression[..at].matches(parenthesis).count();
        count('(').saturating_sub(count(')'))
    };
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in expression.match_indices(operator).filter(|(at, _)| depth_at(*at) == 0) {
        parts.push(&expression[start..at]);
        start = at + operator.len();
    }
    parts.push(&expression[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_permissive_alternative_is_enough() {
        for (expression, expected) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("GPL-2.0-only", false),
            ("GPL-2.0-only OR MIT", true),
            ("GPL-2.0-only AND MIT", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0-or-later", false),
            ("(GPL-2.0-only) OR (ISC)", true),
            ("(MIT AND GPL-2.0-only) OR LGPL-2.1-only", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", true),
            ("none declared", false),
            ("", false),
            ("(MIT", false),
        ] {
            assert_eq!(is_permissive(expression), expected, "{expression}");
        }
    }

    #[test]
    fn a_copyleft_crate_and_a_wrong_row_are_found() {
        let package = |name: &str, license: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source: Some("registry".to_owned()),
        };
        let packages =
            [package("good", Some("MIT")), package("copyleft", Some("GPL-3.0-only")), package("bare", None)];
        let document =
            "| crate | licence | why |\n|---|---|---|\n| good | ISC | x |\n| copyleft | GPL-3.0-only | x |\n";
        let found: Vec<String> = judge(&packages, document).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("copyleft 1.0.0") && found[1].contains("bare 1.0.0"), "{found:?}");
        assert!(found[2].starts_with("docs/DEPENDENCIES.md:3: ") && found[2].contains("`MIT`"), "{found:?}");
    }
}
