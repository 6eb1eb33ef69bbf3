// SPDX-License-Identifier: MIT OR Apache-2.0
//! `functions`: no function is longer than a screen.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, Rule, Tree};

pub const RULE: Rule = Rule {
    name: "functions",
    summary: "no function is longer than 70 lines, from its signature to its closing brace",
    check,
};

/// The most lines a function may have.
const LIMIT: usize = 70;

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        match syn::parse_file(text) {
            Ok(file) => {
                let mut visitor = Lengths { path, findings: Vec::new() };
                visitor.visit_file(&file);
                findings.append(&mut visitor.findings);
            }
            Err(error) => {
                let line = error.span().start().line;
                findings.push(Finding::new(
                    RULE.name,
                    path,
                    line,
                    format!("make this parse as Rust: {error}"),
                ));
            }
        }
    }
    findings
}

struct Lengths<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Lengths<'_> {
    /// Measures from the first line of the signature: attributes and doc comments do not count.
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.span().start().line;
        let lines = block.span().end().line - first + 1;
        if lines > LIMIT {
            let advice = format!("split `{}`: {lines} lines, {LIMIT} at most", signature.ident);
            self.findings.push(Finding::new(RULE.name, self.path, first, advice));
        }
    }
}

impl<'ast> Visit<'ast> for Lengths<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    /// A function of exactly `lines` lines, the signature being the first.
    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn seventy_lines_are_allowed_and_seventy_one_are_not() {
        let (fits, long) = (function(LIMIT), function(LIMIT + 1));
        let documented = format!("/// One.\n/// Two.\n#[inline]\n{fits}");
        let files = [("a/fits.rs", fits.as_str()), ("a/long.rs", &long), ("a/documented.rs", &documented)];
        assert_eq!(places(&RULE, &files), ["a/long.rs:1"]);
    }

    #[test]
    fn measures_methods_defaults_tests_and_inner_functions() {
        let long = function(LIMIT + 1);
        let files = [
            ("a/impl.rs", format!("impl A {{\n{long}}}\n")),
            ("b/trait.rs", format!("trait A {{\n{long}}}\n")),
            ("c/test.rs", format!("mod tests {{\n#[test]\n{long}}}\n")),
            ("d/inner.rs", format!("fn outer() {{\n{long}}}\n")),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        let expected = ["a/impl.rs:2", "b/trait.rs:2", "c/test.rs:3", "d/inner.rs:1", "d/inner.rs:2"];
        assert_eq!(places(&RULE, &files), expected);
    }

    #[test]
    fn a_file_that_does_not_parse_is_no_way_round_the_rule() {
        assert_eq!(places(&RULE, &[("a/bad.rs", "fn f() {\n    let = ;\n}\n")]), ["a/bad.rs:2"]);
    }
}
