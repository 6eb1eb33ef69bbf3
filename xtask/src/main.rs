// SPDX-License-Identifier: MIT OR Apache-2.0
//! Project chores that `cargo` has no command for.
//!
//! `cargo xtask tidy` checks the rules of docs/STYLE.md on the whole repository and prints one line for each place that
//! breaks one: `path:line: rule: what to do`. It exits with status 1 when there is such a place, and 2 when it could not
//! check at all. `cargo xtask rules` lists the rules. These checks read files only: they need no network, no build of the
//! other crates and no root.
//!
//! `cargo xtask lines` counts product code. `cargo xtask licences` asks cargo for every crate that is linked in and refuses those without a permissive licence.

#![forbid(unsafe_code)]

mod licences;
mod lines;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tidy::Finding;

const USAGE: &str = "usage: cargo xtask COMMAND

  tidy       check the project's own rules on every file
  rules      list these rules
  licences   check the licences of all crates that are linked in
  lines      count the lines of product code of each package and of subjects that several share, without tests, comments
             and blank lines
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => check_files(),
        ["licences"] => check_licences(),
        ["lines"] => count_lines(),
        ["rules"] => {
            for rule in tidy::rules::ALL {
                println!("{:<14} {}", rule.name, rule.summary);
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprint!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(2)
    })
}

/// The repository this program was built from.
fn repository() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask/ has no parent directory")
}

fn check_files() -> Result<ExitCode> {
    let tree = tidy::Tree::read(repository()?)?;
    let scope = format!("tidy: {} rules, {} files", tidy::rules::ALL.len(), tree.len());
    Ok(report(&tidy::check(&tree), &scope))
}

fn check_licences() -> Result<ExitCode> {
    let (findings, crates) = licences::check(repository()?)?;
    Ok(report(&findings, &format!("licences: {crates} crates")))
}

fn count_lines() -> Result<ExitCode> {
    let tree = tidy::Tree::read(repository()?)?;
    let packages = lines::count(&tree);
    for (package, lines) in &packages {
        println!("{lines:>7} {package}");
    }
    println!("{:>7} in all", packages.values().sum::<usize>());
    for group in lines::GROUPS {
        println!("{:>7} {}", group.count(&tree), group.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the findings, then one line that says what was checked.
fn report(findings: &[Finding], scope: &str) -> ExitCode {
    for finding in findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("{scope}: all well");
        return ExitCode::SUCCESS;
    }
    println!("{scope}: {} findings", findings.len());
    ExitCode::FAILURE
}
