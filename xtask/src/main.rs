// SPDX-License-Identifier: MIT OR Apache-2.0
//! Project chores that `cargo` has no command for.
//!
//! `cargo xtask tidy` checks the rules of docs/STYLE.md on the whole repository and prints one line for each place that
//! breaks one: `path:line: rule: what to do`. It exits with status 1 when there is such a place, and 2 when it could not
//! check at all. `cargo xtask rules` lists the rules.
//!
//! The checks read files only: they need no network, no build of the other crates and no root.

#![forbid(unsafe_code)]

mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

const USAGE: &str = "usage: cargo xtask COMMAND

  tidy    check the project's own rules on every file
  rules   list these rules
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => check_repository().unwrap_or_else(|error| {
            eprintln!("tidy: {error:#}");
            ExitCode::from(2)
        }),
        ["rules"] => {
            for rule in tidy::rules::ALL {
                println!("{:<14} {}", rule.name, rule.summary);
            }
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs every rule on the repository this program was built from.
fn check_repository() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask/ has no parent directory")?;
    let tree = tidy::Tree::read(root)?;
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    let (rules, files) = (tidy::rules::ALL.len(), tree.len());
    if findings.is_empty() {
        println!("tidy: {rules} rules hold in {files} files");
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} places break a rule ({rules} rules, {files} files)", findings.len());
    Ok(ExitCode::FAILURE)
}
