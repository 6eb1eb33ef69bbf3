// SPDX-License-Identifier: MIT OR Apache-2.0
//! One place that breaks a rule.

use std::fmt;

/// A place that breaks a rule, and what to do about it. Displays as `path:line: rule: advice`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path relative to the repository, with `/` between the parts.
    pub path: String,
    /// Line number, from 1.
    pub line: usize,
    /// Name of the broken rule.
    pub rule: &'static str,
    /// What is wrong here and what to do.
    pub advice: String,
}

impl Finding {
    /// A finding of `rule` at `path:line`.
    pub fn new(rule: &'static str, path: &str, line: usize, advice: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.advice)
    }
}
