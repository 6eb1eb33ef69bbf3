// SPDX-License-Identifier: MIT OR Apache-2.0
//! `manifests`: every crate takes its version, edition, licence and lints from the workspace and says what it is.

use toml::Value;

use super::{Finding, Rule, Tree};
use crate::tidy::crates::{Manifest, manifests};
use crate::tidy::source::line_of;

pub const RULE: Rule = Rule {
    name: "manifests",
    summary: "every crate inherits version, edition, rust-version, licence and lints, and has a description",
    check,
};

const INHERITED: &[&str] = &["version", "edition", "rust-version", "license"];

fn check(tree: &Tree) -> Vec<Finding> {
    let all = manifests(tree);
    let excluded: Vec<&str> = all.iter().filter(|m| m.dir.is_empty()).flat_map(excluded_dirs).collect();
    all.iter()
        .filter(|manifest| manifest.package().is_some() && !excluded.contains(&manifest.dir))
        .flat_map(check_manifest)
        .collect()
}

/// The directories a workspace excludes: these crates have no workspace to inherit from.
fn excluded_dirs<'a>(root: &'a Manifest<'_>) -> Vec<&'a str> {
    let list =
        root.table.get("workspace").and_then(|workspace| workspace.get("exclude")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn check_manifest(manifest: &Manifest<'_>) -> Vec<Finding> {
    let get = |section: &str, key: &str| manifest.table.get(section).and_then(|table| table.get(key));
    let inherits =
        |value: Option<&Value>| value.and_then(|v| v.get("workspace")).and_then(Value::as_bool) == Some(true);
    let package_line = line_of(manifest.text, "[package]");
    let mut findings = Vec::new();
    let mut report =
        |line, advice: String| findings.push(Finding::new(RULE.name, manifest.path, line, advice));
    for key in INHERITED {
        let own_licence = *key == "license" && manifest.dir.starts_with("kernel");
        let holds = if own_licence {
            get("package", key).and_then(Value::as_str) == Some("GPL-2.0-only")
        } else {
            inherits(get("package", key))
        };
        if !holds {
            let wanted = if own_licence { " = \"GPL-2.0-only\"" } else { ".workspace = true" };
            report(package_line, format!("write `{key}{wanted}` under [package]"));
        }
    }
    if get("package", "description").and_then(Value::as_str).is_none_or(str::is_empty) {
        report(package_line, "say in `description` what the crate is for".to_owned());
    }
    if get("lints", "workspace").and_then(Value::as_bool) != Some(true) {
        report(1, "add `[lints]` with `workspace = true`".to_owned());
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    const GOOD: &str = "[package]\nname = \"a\"\ndescription = \"A\"\nversion.workspace = true\nedition.workspace = true\n\
                        rust-version.workspace = true\nlicense.workspace = true\n[lints]\nworkspace = true\n";

    #[test]
    fn each_missing_line_is_found() {
        assert_eq!(places(&RULE, &[("a/Cargo.toml", GOOD)]), [""; 0]);
        for line in GOOD.lines().filter(|line| line.contains("workspace") || line.contains("description")) {
            let bad = GOOD.replacen(&format!("\n{line}\n"), "\n", 1);
            assert_eq!(places(&RULE, &[("a/Cargo.toml", &bad)]).len(), 1, "without {line}");
        }
    }

    #[test]
    fn kernel_crates_are_gpl_and_excluded_crates_are_left_alone() {
        let gpl = GOOD.replace("license.workspace = true", "license = \"GPL-2.0-only\"");
        let bare = "[package]\nname = \"fuzz\"\n";
        let root = "[workspace]\nexclude = [\"fuzz\"]\n";
        let files = [
            ("Cargo.toml", root),
            ("fuzz/Cargo.toml", bare),
            ("kernel/a/Cargo.toml", &gpl),
            ("kernel/b/Cargo.toml", GOOD),
        ];
        assert_eq!(places(&RULE, &files), ["kernel/b/Cargo.toml:1"]);
    }
}
