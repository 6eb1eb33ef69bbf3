// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dependencies`: docs/DEPENDENCIES.md names exactly the outside crates that the project uses.

use std::collections::BTreeMap;

use super::{Finding, Rule, Tree};
use crate::tidy::crates::{Manifest, manifests};
use crate::tidy::source::numbered;

pub const RULE: Rule = Rule {
    name: "dependencies",
    summary: "every outside crate has a line in docs/DEPENDENCIES.md and a use, and each such line a crate",
    check,
};

const DOCUMENT: &str = "docs/DEPENDENCIES.md";

fn check(tree: &Tree) -> Vec<Finding> {
    let all = manifests(tree);
    let ours: Vec<&str> = all.iter().filter_map(Manifest::package).collect();
    let used = used_packages(&all, &ours);
    let documented = documented_packages(tree.text(DOCUMENT).unwrap_or_default());
    let mut findings = Vec::new();
    for (package, (path, line)) in &used {
        if !documented.contains_key(package.as_str()) {
            let advice = format!("add a row `| {package} | licence | why |` to {DOCUMENT}");
            findings.push(Finding::new(RULE.name, path, *line, advice));
        }
    }
    for (package, line) in documented {
        if !used.contains_key(package) {
            let advice = format!("take out the row of `{package}`: no crate uses it");
            findings.push(Finding::new(RULE.name, DOCUMENT, line, advice));
        }
    }
    for root in &all {
        for dependency in root.workspace_dependencies() {
            let package = dependency.package.as_str();
            if !dependency.by_path && !used.contains_key(package) {
                let advice = format!("take `{package}` out of [workspace.dependencies]: no crate uses it");
                findings.push(Finding::new(RULE.name, root.path, root.line_of(package), advice));
            }
        }
    }
    findings
}

/// The outside packages that crates use, each with the first place that does.
fn used_packages(all: &[Manifest<'_>], ours: &[&str]) -> BTreeMap<String, (String, usize)> {
    let mut used = BTreeMap::new();
    for manifest in all {
        for dependency in manifest.dependencies() {
            let outside = !dependency.by_path && !ours.contains(&dependency.package.as_str());
            if outside {
                let line = manifest.line_of(&dependency.package);
                used.entry(dependency.package).or_insert_with(|| (manifest.path.to_owned(), line));
            }
        }
    }
    used
}

/// The packages in the first column of the document's tables, each with its line.
fn documented_packages(text: &str) -> BTreeMap<&str, usize> {
    let cell = |line: &str| -> Option<(usize, usize)> {
        let row = line.strip_prefix('|')?;
        let name = row.split('|').next()?.trim().trim_matches('`');
        let is_package = !name.is_empty() && name != "crate" && !name.starts_with(['-', ':']);
        let start = line.find(name)?;
        is_package.then_some((start, start + name.len()))
    };
    numbered(text)
        .filter_map(|(number, line)| cell(line).map(|(from, to)| (&line[from..to], number)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn table_and_manifests_must_agree_both_ways() {
        let root = "[workspace.dependencies]\nlibc = \"0.2\"\nunused = \"1\"\nour-core = { path = \"c\" }\n";
        let member = "[package]\nname = \"our-core\"\n[dependencies]\nlibc.workspace = true\n\
                      [dev-dependencies]\nquote = \"1\"\nour-core.workspace = true\n";
        let doc = "# D\n\n| crate | licence | why |\n|---|---|---|\n| `libc` | MIT | calls |\n| gone | MIT | no |\n";
        let files = [("Cargo.toml", root), ("c/Cargo.toml", member), (DOCUMENT, doc)];
        assert_eq!(places(&RULE, &files), ["Cargo.toml:3", "c/Cargo.toml:6", "docs/DEPENDENCIES.md:6"]);
    }
}
