// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules, one module each.

mod circles;
mod dependencies;
mod doc_size;
mod effects;
mod file_size;
mod functions;
mod imports;
mod layouts;
mod leftovers;
mod licence;
mod links;
mod machine_paths;
mod manifests;
mod unsafe_code;

use super::{Finding, Tree};

/// One rule of the project.
pub struct Rule {
    /// Short name, as printed with each finding.
    pub name: &'static str,
    /// The rule in one line.
    pub summary: &'static str,
    /// Finds every place that breaks it.
    pub check: fn(&Tree) -> Vec<Finding>,
}

/// Every rule, in alphabetical order.
pub const ALL: &[Rule] = &[
    circles::RULE,
    dependencies::RULE,
    doc_size::RULE,
    effects::RULE,
    file_size::RULE,
    functions::RULE,
    imports::RULE,
    layouts::RULE,
    leftovers::RULE,
    licence::RULE,
    links::RULE,
    machine_paths::RULE,
    manifests::RULE,
    unsafe_code::RULE,
];

/// The places (`path:line`) that `rule` finds in a tree of `files`: what its unit tests compare.
#[cfg(test)]
fn places(rule: &Rule, files: &[(&str, &str)]) -> Vec<String> {
    let mut found = (rule.check)(&Tree::from_files(files));
    found.sort();
    assert!(found.iter().all(|finding| finding.rule == rule.name && !finding.advice.is_empty()));
    found.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
}
