// SPDX-License-Identifier: MIT OR Apache-2.0
//! `effects`: what an operation does is stated in the operation table alone; code that is no driver asks `Request::effects`.

use super::{Finding, Rule, Tree};
use crate::tidy::source::{numbered, product};

pub const RULE: Rule = Rule {
    name: "effects",
    summary: "doors, layers and what survives a crash name no operation, but for files with a reason",
    check,
};

/// Where operations have no names.
const SCOPE: &[&str] = &[
    "crates/cli/",
    "crates/client/",
    "crates/door/",
    "crates/guard/",
    "crates/layer/",
    "crates/succession/",
];

/// Files that name operations, and what for.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/layer/cache/src/writeback.rs", "decides what delayed writes come first"),
    ("crates/layer/cache/src/contents.rs", "takes the bytes of a write, the times of a setattr"),
    ("crates/layer/cache/src/lib.rs", "has a method for each operation it answers by itself"),
    ("crates/layer/cache/src/async_create.rs", "decides what delayed creation comes first"),
    ("crates/layer/cache/src/open.rs", "opens what was opened here alone"),
    ("crates/layer/fault/src/direct.rs", "cuts what a read answers"),
    ("crates/layer/fault/src/lib.rs", "knows what a sync makes stable"),
    ("crates/layer/journal/src/names.rs", "remembers what the answer to a lookup tells"),
    ("crates/layer/journal/src/redo.rs", "writes the rest of an append"),
    ("crates/layer/simulate/src/lib.rs", "does operations by others"),
    ("crates/layer/subtree/src/lib.rs", "answers what is asked about the path of its root"),
    ("crates/layer/trace/src/describe.rs", "prints arguments"),
    ("crates/succession/src/flight.rs", "takes the content of a write"),
    ("crates/succession/src/log.rs", "measures content, repeats a failed setattr"),
    ("crates/succession/src/state.rs", "makes checkpoints for syncs"),
    ("crates/succession/src/state/looking.rs", "repeats what only looks by another path"),
    ("crates/succession/src/state/removal.rs", "keeps a name for a file made without one"),
];

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        let no_product =
            ["/tests/", "/tests.rs", "/examples/", "/benches/"].iter().any(|part| path.contains(part));
        if no_product || !SCOPE.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let named = names_operation(text);
        let excepted = EXCEPTIONS.iter().any(|(exception, _)| *exception == path);
        match named {
            Some(line) if !excepted => {
                let advice = "ask `Request::effects`, or list the file with its reason in xtask/src/tidy/rules/effects.rs";
                findings.push(Finding::new(RULE.name, path, line, advice));
            }
            None if excepted => {
                let advice = "take this file out of the list in xtask/src/tidy/rules/effects.rs: it names no operation";
                findings.push(Finding::new(RULE.name, path, 1, advice));
            }
            _ => {}
        }
    }
    findings
}

/// The first line, outside of tests and comments, with a pattern of a request by its operation.
fn names_operation(text: &str) -> Option<usize> {
    numbered(product(text))
        .find(|(_, line)| !line.trim_start().starts_with("//") && has_pattern(line))
        .map(|(line, _)| line)
}

/// `Request::Name(` or `Request::Name {`; `Request::new(` and `fuse::Request::decode(` are other things.
fn has_pattern(line: &str) -> bool {
    line.split("Request::").skip(1).any(|rest| {
        let name = rest.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        name.starts_with(char::is_uppercase) && rest[name.len()..].trim_start().starts_with(['(', '{'])
    })
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn an_operation_is_named_by_files_of_the_list_alone() {
        let names = "fn f(request: &Request) -> bool {\n    matches!(request, Request::Rename(_))\n}\n";
        let asks =
            "// Not Request::Rename(_).\nfn f(request: &Request) -> bool {\n    request.changes_tree()\n}\n";
        let tests = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use Request::Rename(_);\n}\n";
        let decodes = "fn f() {\n    fuse::Request::decode(message)\n}\n";
        let files = [
            ("crates/layer/a/src/lib.rs", names),
            ("crates/layer/b/src/lib.rs", asks),
            ("crates/layer/c/src/lib.rs", tests),
            ("crates/layer/d/src/tests.rs", names),
            ("crates/door/fuse/src/reader.rs", decodes),
            ("crates/driver/e/src/lib.rs", names),
            ("crates/layer/journal/src/redo.rs", names),
            ("crates/layer/fault/src/lib.rs", asks),
        ];
        assert_eq!(places(&RULE, &files), ["crates/layer/a/src/lib.rs:2", "crates/layer/fault/src/lib.rs:1"]);
    }
}
