// SPDX-License-Identifier: MIT OR Apache-2.0
//! `circles`: modules of the command line import each other in no circle, so that each can be read with what it uses alone.

use super::{Finding, Rule, Tree};
use crate::tidy::source::{line_of, product};
use std::collections::{BTreeMap, BTreeSet};

pub const RULE: Rule = Rule {
    name: "circles",
    summary: "no module of the command line imports one that imports it, directly or by way of others",
    check,
};

/// Where the modules are.
const ROOT: &str = "crates/cli/src/";

/// The modules by name, as in `commands::find::clock`, with the files they are in and what each imports.
type Modules<'a> = BTreeMap<String, (&'a str, BTreeSet<String>)>;

fn check(tree: &Tree) -> Vec<Finding> {
    let files: BTreeMap<String, (&str, &str)> = tree
        .with_extension("rs")
        .filter_map(|(path, text)| Some((name_of(path.strip_prefix(ROOT)?), (path, text))))
        .collect();
    let imports = |name: &String, text: &str| -> BTreeSet<String> {
        let paths = paths(name, product(text)).into_iter();
        paths.filter_map(|path| nearest(path, &files)).filter(|module| module != name).collect()
    };
    let modules: Modules<'_> =
        files.iter().map(|(name, (path, text))| (name.clone(), (*path, imports(name, text)))).collect();
    let (mut done, mut findings) = (BTreeSet::new(), Vec::new());
    for name in modules.keys() {
        if let Some(circle) = circle(name, &modules, &mut Vec::new(), &mut done) {
            let (path, text) = files[&circle[0]];
            let line = circle.get(1).map_or(1, |next| line_of(text, last(next)));
            findings.push(Finding::new(
                RULE.name,
                path,
                line,
                format!("break the circle {}", circle.join(" -> ")),
            ));
        }
    }
    findings
}

/// `commands/find/mod.rs` is `commands::find`.
fn name_of(path: &str) -> String {
    let path = path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs")).unwrap_or(path);
    path.replace('/', "::")
}

fn last(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

fn parent(name: &str) -> &str {
    name.rsplit_once("::").map_or("", |(parent, _)| parent)
}

/// What the text of a module names with `crate::` and `super::`, from the root on.
fn paths(name: &str, text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (mark, start) in [("crate::", ""), ("super::", parent(name))] {
        for rest in text.split(mark).skip(1) {
            expand(start, rest, &mut all);
        }
    }
    all
}

/// Adds the path at the beginning of `rest` below `start`; for `{a, b::c}` those of the items.
fn expand(start: &str, rest: &str, all: &mut Vec<String>) {
    let joined = |name: &str| if start.is_empty() { name.to_owned() } else { format!("{start}::{name}") };
    if let Some(items) = rest.strip_prefix('{') {
        let items = items.split('}').next().unwrap_or_default();
        items.split(',').for_each(|item| expand(start, item.trim_start(), all));
        return;
    }
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    match (&rest[..end], rest[end..].strip_prefix("::")) {
        ("", _) => all.push(start.to_owned()),
        (name, Some(more)) => expand(&joined(name), more, all),
        (name, None) => all.push(joined(name)),
    }
}

/// The module a path is in.
fn nearest(mut path: String, files: &BTreeMap<String, (&str, &str)>) -> Option<String> {
    while !path.is_empty() && !files.contains_key(&path) {
        path = parent(&path).to_owned();
    }
    (!path.is_empty()).then_some(path)
}

/// A circle that is reached from `name` and was not looked at, from its first module to the same again.
fn circle(
    name: &String,
    modules: &Modules<'_>,
    way: &mut Vec<String>,
    done: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    if let Some(at) = way.iter().position(|module| module == name) {
        return Some(way[at..].iter().chain([name]).cloned().collect());
    }
    if !done.insert(name.clone()) {
        return None;
    }
    way.push(name.clone());
    let found = modules.get(name)?.1.iter().find_map(|next| circle(next, modules, way, done));
    way.pop();
    found
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn a_circle_is_found_whatever_the_imports_look_like() {
        let files = [
            ("crates/cli/src/a.rs", "use crate::{b::One, c};\n"),
            ("crates/cli/src/b.rs", "fn f() -> crate::d::Two {}\n"),
            ("crates/cli/src/c.rs", "use std::fmt;\n"),
            ("crates/cli/src/d/mod.rs", "mod e;\nuse crate::c::X;\n"),
            ("crates/cli/src/d/e.rs", "use super::X;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
            ("crates/client/src/x.rs", "use crate::a;\n"),
        ];
        assert_eq!(places(&RULE, &files), [""; 0]);
        let mut circular = files;
        circular[4].1 = "use super::X;\nuse crate::a::Y;\n";
        circular[3].1 = "mod e;\nuse self::e::Z;\nfn f() { crate::d::e::g() }\n";
        assert_eq!(places(&RULE, &circular), ["crates/cli/src/a.rs:1"]);
    }
}
