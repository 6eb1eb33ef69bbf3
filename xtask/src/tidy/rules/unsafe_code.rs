// SPDX-License-Identifier: MIT OR Apache-2.0
//! `unsafe-code`: `unsafe` stays in the few folders that talk to the kernel or to C, and says why it is sound.

use proc_macro2::{TokenStream, TokenTree};

use super::{Finding, Rule, Tree};
use crate::tidy::source::for_each_run;

pub const RULE: Rule = Rule {
    name: "unsafe-code",
    summary: "`unsafe` only in the folders that need it; a SAFETY comment stands above each block and impl",
    check,
};

/// The folders, and the one file (docs/design/0001-file-handles.md), whose work cannot be done without `unsafe`.
const ALLOWED: &[&str] = &[
    "crates/door/fuse/",
    "crates/door/intercept/",
    "crates/door/capi/",
    "crates/door/python/",
    "crates/driver/kernel/",
    "crates/driver/libfuse/",
    "crates/driver/local/src/fileattr.rs",
    "crates/driver/local/src/handle.rs",
    "crates/guard/",
    "crates/host/",
    "kernel/",
];

fn check(tree: &Tree) -> Vec<Finding> {
    tree.with_extension("rs").flat_map(|(path, text)| check_file(path, text)).collect()
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    // What does not lex is reported by the `functions` rule, which parses every file.
    let Ok(tokens) = text.parse::<TokenStream>() else { return Vec::new() };
    let allowed = ALLOWED.iter().any(|folder| path.starts_with(folder));
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for_each_run(tokens, &mut |run| {
        for (index, token) in run.iter().enumerate() {
            let TokenTree::Ident(ident) = token else { continue };
            if ident != "unsafe" {
                continue;
            }
            let line = ident.span().start().line;
            if !allowed {
                let advice =
                    "find a safe way, or move this to a folder that may use `unsafe` (docs/STYLE.md)";
                findings.push(Finding::new(RULE.name, path, line, advice));
            } else if needs_reason(run.get(index + 1)) && !has_reason(&lines, line) {
                let advice = "say why this is sound in a `// SAFETY:` comment directly above";
                findings.push(Finding::new(RULE.name, path, line, advice));
            }
        }
    });
    findings
}

/// Whether what follows the keyword makes it a promise by the writer: a block or an impl. `unsafe fn` and `unsafe trait`
/// hand the duty to the caller and are documented under `# Safety`.
fn needs_reason(next: Option<&TokenTree>) -> bool {
    match next {
        Some(TokenTree::Group(_)) => true,
        Some(TokenTree::Ident(ident)) => ident == "impl",
        _ => false,
    }
}

/// Whether a SAFETY comment stands on `line` (from 1) or above it, with nothing between but the beginning of the same
/// statement, attributes and further comment lines.
fn has_reason(lines: &[&str], line: usize) -> bool {
    let is_reason = |line: &str| line.contains("SAFETY:");
    if is_reason(lines[line - 1]) {
        return true;
    }
    for above in lines[..line - 1].iter().rev().map(|above| above.trim()) {
        let is_comment = above.starts_with("//") || above.starts_with("#[");
        if is_comment && is_reason(above) {
            return true;
        }
        let ends_before = above.is_empty() || above.ends_with([';', '{', '}', ',']);
        if !is_comment && ends_before {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn the_keyword_is_refused_outside_the_allowed_folders() {
        let text = "// SAFETY: no excuse here.\nfn f() {\n    unsafe { g() }\n}\n";
        let hidden = "macro_rules! m {\n    () => { unsafe { g() } };\n}\n";
        let innocent = "#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe { }\";\n";
        let files = [
            ("crates/core/src/a.rs", text),
            ("crates/driver/mem/src/b.rs", hidden),
            ("crates/driver/mem/src/c.rs", innocent),
            ("crates/door/fuse-tests/src/d.rs", "unsafe fn f() {}\n"),
        ];
        let expected =
            ["crates/core/src/a.rs:3", "crates/door/fuse-tests/src/d.rs:1", "crates/driver/mem/src/b.rs:2"];
        assert_eq!(places(&RULE, &files), expected);
    }

    #[test]
    fn each_block_needs_a_reason_above() {
        for (text, holds) in [
            ("fn f() {\n    // SAFETY: checked.\n    unsafe { g() }\n}", true),
            (
                "fn f() {\n    // SAFETY: checked\n    // at length.\n    #[allow(x)]\n    unsafe { g() }\n}",
                true,
            ),
            ("fn f() {\n    // SAFETY: checked.\n    let a =\n        unsafe { g() };\n}", true),
            ("fn f() {\n    let a = unsafe { g() }; // SAFETY: checked.\n}", true),
            ("// SAFETY: no state.\nunsafe impl Send for A {}", true),
            ("/// # Safety\n/// Caller checks.\nunsafe fn f() {}", true),
            ("fn f() {\n    unsafe { g() }\n}", false),
            ("// SAFETY: too far.\nfn f() {\n    unsafe { g() }\n}", false),
            ("fn f() {\n    // SAFETY: of the first.\n    unsafe { g() };\n    unsafe { g() }\n}", false),
            ("fn f() {\n    // SAFETY: cut off.\n\n    unsafe { g() }\n}", false),
            ("unsafe impl Send for A {}", false),
        ] {
            let found = places(&RULE, &[("crates/door/fuse/src/a.rs", text)]);
            assert_eq!(found.is_empty(), holds, "{text}\n{found:?}");
        }
    }
}
