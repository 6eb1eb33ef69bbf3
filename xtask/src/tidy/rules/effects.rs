// SPDX-License-Identifier: MIT OR Apache-2.0
//! `effects`: what an operation does is stated in the operation table alone; code that is no driver asks `Request::effects`.

use super::{Finding, Rule, Tree};
use crate::tidy::source::product;

pub const RULE: Rule = Rule {
    name: "effects",
    summary: "doors, layers and what survives a crash name no operation, but for files with a reason",
    check,
};

/// Where operations have no names.
const SCOPE: &[&str] = &[
    "kernel/worker/",
    "crates/cli/",
    "crates/client/",
    "crates/door/",
    "crates/guard/",
    "crates/layer/",
    "crates/succession/",
];

/// Files that name operations, and what for.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/client/src/client.rs", "counts an exchange, which is no request, as a write"),
    (
        "crates/layer/cache/src/contents.rs",
        "takes the bytes of a write, knows that a path does not depend on content",
    ),
    ("crates/door/fuse/src/translate.rs", "has an error of Linux for operations that a tree lacks"),
    ("crates/door/intercept/src/mountpoints.rs", "answers for the directories that trees are mounted on"),
    ("crates/door/wire/src/connection.rs", "bounds what one reply has"),
    ("crates/door/wire/src/known.rs", "returns no more references than were given out"),
    ("crates/layer/cache/src/lib.rs", "has a method for each operation it answers by itself"),
    ("crates/layer/cache/src/open.rs", "takes a handle out that attributes do not need"),
    ("crates/layer/closesim/src/ask.rs", "makes a file open that its owner could not open"),
    ("crates/layer/closesim/src/held.rs", "puts cookies of its own in the place of a tree's"),
    ("crates/layer/demux/src/directory.rs", "answers for the directories above the trees"),
    ("crates/layer/demux/src/up.rs", "answers what a tree lacks"),
    ("crates/layer/contain/src/lib.rs", "answers with targets of its own"),
    ("crates/layer/crypt/src/lib.rs", "does operations by others, and answers none that it does not know"),
    ("crates/layer/fault/src/lib.rs", "cuts and spoils what is read and written"),
    ("crates/layer/fault/src/rule.rs", "says which operations have content, and which can be lost"),
    ("crates/layer/fixup/src/lib.rs", "looks for a name before it makes it"),
    ("crates/layer/journal/src/names.rs", "remembers what the answer to a lookup tells"),
    ("crates/layer/journal/src/redo.rs", "writes the rest of an append"),
    ("crates/layer/permissions/src/adapt.rs", "takes out of arguments what the caller may not set"),
    ("crates/layer/simulate/src/lib.rs", "does operations by others"),
    ("crates/layer/subtree/src/lib.rs", "answers with paths that begin at its root"),
    ("crates/layer/trace/src/describe.rs", "prints arguments"),
    ("crates/layer/union/src/files.rs", "closes files that need not be stored"),
    ("crates/layer/union/src/lib.rs", "has a method for each operation it answers by itself"),
    ("crates/layer/union/src/names.rs", "puts the directory of the upper tree into what makes a name"),
    ("crates/succession/src/flight.rs", "takes the content of a write"),
    ("crates/succession/src/log.rs", "measures content, repeats a failed setattr"),
    (
        "crates/succession/src/state.rs",
        "refuses writes after a failed checkpoint, and makes one for those of O_DSYNC",
    ),
    ("kernel/worker/src/removed.rs", "answers requests: operations on files that keep a name"),
    ("kernel/worker/src/tree.rs", "answers requests"),
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

/// The first line, outside of tests and comments, that names an operation.
fn names_operation(text: &str) -> Option<usize> {
    let code = product(text);
    let is_code = |at: usize| !code[..at].rsplit('\n').next().unwrap_or_default().contains("//");
    let first = |of_type: &str, names: fn(&str, &str) -> bool| {
        let places = code.match_indices(of_type).map(|(at, _)| at);
        places.filter(|&at| is_code(at)).find(|&at| names(&code[..at], &code[at + of_type.len()..]))
    };
    let at = [first("Request::", is_pattern), first("OpCode::", is_judged)].into_iter().flatten().min()?;
    Some(code[..at].matches('\n').count() + 1)
}

/// The name at the start of `rest`, if it can be that of an operation: `ALL` and `from_name` cannot.
fn operation(rest: &str) -> Option<&str> {
    let name = rest.split(|letter: char| !letter.is_alphanumeric()).next()?;
    (name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)).then_some(name)
}

/// `Request::Name(` or `Request::Name {`; `Request::new(` and `fuse::Request::decode(` are other things.
fn is_pattern(_: &str, rest: &str) -> bool {
    operation(rest).is_some_and(|name| rest[name.len()..].trim_start().starts_with(['(', '{']))
}

/// `OpCode::Name`, unless it is asked whether a tree has the operation, or a set of operations is made.
fn is_judged(before: &str, rest: &str) -> bool {
    let asks = [".has(", ".supplied("].iter().any(|call| before.trim_end().ends_with(call));
    let in_set = before.rfind("OpSet::of(&[").is_some_and(|start| !before[start..].contains("])"));
    operation(rest).is_some() && !asks && !in_set
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
            ("kernel/worker/src/guard.rs", names),
        ];
        let expected = [
            "crates/layer/a/src/lib.rs:2",
            "crates/layer/fault/src/lib.rs:1",
            "kernel/worker/src/guard.rs:2",
        ];
        assert_eq!(places(&RULE, &files), expected);
    }

    #[test]
    fn the_number_of_an_operation_is_for_abilities_alone() {
        let judges = "fn f(op: OpCode) -> bool {\n    op == OpCode::Forget\n}\n";
        let lists = "const SYNCS: &[OpCode] =\n    &[OpCode::FSync];\n";
        let able = "const OPS: OpSet = OpSet::of(&[\n    OpCode::Read,\n    OpCode::Write,\n]);\n\
                    fn f(ops: OpSet) -> bool {\n    ops.has(OpCode::Read) && OpCode::ALL.len() > 1\n}\n";
        let both = format!("{able}fn g() -> OpCode {{\n    OpCode::Read\n}}\n");
        let files = [
            ("crates/layer/a/src/lib.rs", judges),
            ("crates/layer/b/src/lib.rs", lists),
            ("crates/layer/c/src/lib.rs", able),
            ("crates/layer/d/src/lib.rs", &*both),
        ];
        let expected =
            ["crates/layer/a/src/lib.rs:2", "crates/layer/b/src/lib.rs:2", "crates/layer/d/src/lib.rs:9"];
        assert_eq!(places(&RULE, &files), expected);
    }
}
