// SPDX-License-Identifier: MIT OR Apache-2.0
//! The columns, as Markdown.

use crate::{Column, Door};
use outrigger_conformance::{Outcome, cases};

const HEAD: &str = "# Conformance matrix\n\nWritten by `make matrix`; do not edit. One suite (`testing/conformance`) runs on each \
    driver, asked directly as a service,\nand through a FUSE mount as `outrigger mount` makes it, with its cache. Each server is a real \
    one, started for this:\n";

const SERVERS: &[(&str, &str)] = &[
    ("ext4", "an image made by mkfs.ext4, served by `outrigger-kernel`"),
    ("archive", "the sample tree, packed by tar and xz"),
    ("sftp", "OpenSSH"),
    ("9p", "diod"),
    ("nfs", "nfs-ganesha"),
    ("serve nfs", "`mem:` by `outrigger serve nfs`, opened by the driver `nfs`"),
    ("ftp", "vsftpd, which has no MLSD"),
    ("ftp MLSD", "pure-ftpd"),
    ("dav", "Apache with mod_dav"),
    ("http", "the sample tree, by nginx"),
    (
        "native",
        "the file system of the kernel below the temporary directory: what holds there is what Linux does",
    ),
];

/// The whole document.
pub fn text(columns: &[Column]) -> String {
    let mut text = format!("{HEAD}\n");
    for (name, what) in SERVERS.iter().filter(|(name, _)| columns.iter().any(|column| column.name == *name)) {
        text.push_str(&format!("- {name}: {what}\n"));
    }
    text.push_str("\n## By theme\n\nHow many cases hold, of those that apply. `-`: none applies.\n");
    for (title, is_mount) in [("As a service", false), ("Through a FUSE mount", true)] {
        let some: Vec<&Column> =
            columns.iter().filter(|column| (column.door != Door::Service) == is_mount).collect();
        text.push_str(&format!("\n### {title}\n\n{}", themes(&some)));
    }
    text.push_str(
        "\n## Each case that does not hold everywhere\n\nCases that are not here hold wherever they apply. \
         `no` is an exception, whose reason is below; some hold, and \
         only take too long. `-` does not apply: the driver\nlacks the operation, the tree is only read, or the \
         case is about another door. `A / B`: A as a service, B through a mount.\n\n",
    );
    text.push_str(&differing(columns));
    text.push_str("\n## Exceptions\n\nWhat applies and does not hold, and why.\n");
    text.push_str(&exceptions(columns));
    text
}

fn row(first: &str, cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {first} | {} |\n", cells.join(" | "))
}

fn header(first: &str, names: &[&str]) -> String {
    row(first, names.iter().map(|name| (*name).to_owned()))
        + &format!("|---|{}\n", "---|".repeat(names.len()))
}

fn theme(case: &str) -> &str {
    case.split('/').next().unwrap_or(case)
}

fn themes(columns: &[&Column]) -> String {
    let mut all: Vec<&str> = cases::all().map(|case| theme(case.name)).collect();
    all.dedup();
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let cells =
        |of: &dyn Fn(&str) -> bool| columns.iter().map(|column| count(column, of)).collect::<Vec<_>>();
    let mut out = header("theme", &names);
    for one in all {
        out.push_str(&row(one, cells(&|case| theme(case) == one)));
    }
    out + &row("**all**", cells(&|_| true))
}

fn count(column: &Column, of: &dyn Fn(&str) -> bool) -> String {
    let results = column.report.results.iter().filter(|(case, _)| of(case)).map(|(_, outcome)| outcome);
    let applying: Vec<_> = results.filter(|outcome| !matches!(outcome, Outcome::Skipped(_))).collect();
    let passed = applying.iter().filter(|outcome| ***outcome == Outcome::Passed).count();
    if applying.is_empty() { "-".into() } else { format!("{passed}/{}", applying.len()) }
}

fn mark(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "ok",
        Outcome::Skipped(_) => "-",
        Outcome::Excepted(_) => "no",
        Outcome::Failed(_) => "**FAIL**",
    }
}

/// The columns of each tree, with its name.
fn trees(columns: &[Column]) -> Vec<(&'static str, Vec<&Column>)> {
    let mut trees: Vec<(&str, Vec<&Column>)> = Vec::new();
    for column in columns {
        match trees.last_mut().filter(|(name, _)| *name == column.name) {
            Some((_, of_tree)) => of_tree.push(column),
            None => trees.push((column.name, vec![column])),
        }
    }
    trees
}

fn differing(columns: &[Column]) -> String {
    let trees = trees(columns);
    let names: Vec<&str> = trees.iter().map(|(name, _)| *name).collect();
    let mut out = header("case", &names);
    for (index, case) in cases::all().enumerate() {
        let mut somewhere_not = false;
        let cells: Vec<String> = trees
            .iter()
            .map(|(_, of_tree)| {
                let mut marks: Vec<&str> =
                    of_tree.iter().map(|column| mark(&column.report.results[index].1)).collect();
                somewhere_not |= marks.iter().any(|mark| !["ok", "-"].contains(mark));
                marks.dedup();
                marks.join(" / ")
            })
            .collect();
        if somewhere_not {
            out.push_str(&row(case.name, cells));
        }
    }
    out
}

/// The exceptions of each tree, by reason. Of a case that holds through the other door, the door is said.
fn exceptions(columns: &[Column]) -> String {
    let mut out = String::new();
    for (name, of_tree) in trees(columns) {
        let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
        for (index, case) in cases::all().enumerate() {
            let outcomes = || of_tree.iter().map(|column| (column.door, &column.report.results[index].1));
            let holds = outcomes().any(|(_, outcome)| *outcome == Outcome::Passed);
            for (door, outcome) in outcomes() {
                let Outcome::Excepted(reason) = outcome else { continue };
                let reason = if holds { format!("{}: {reason}", said(door)) } else { reason.clone() };
                match reasons.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, cases)) if cases.contains(&case.name) => {}
                    Some((_, cases)) => cases.push(case.name),
                    None => reasons.push((reason, vec![case.name])),
                }
            }
        }
        if !reasons.is_empty() {
            out.push_str(&format!("\n### {name}\n\n"));
        }
        for (reason, cases) in reasons {
            out.push_str(&format!("- {reason}: {}\n", listed(&cases, &of_tree)));
        }
    }
    out
}

fn said(door: Door) -> &'static str {
    if door == Door::Service { "as a service" } else { "through a mount" }
}

/// Names of cases; one for a theme of which they are all that apply.
fn listed(names: &[&str], of_tree: &[&Column]) -> String {
    let applies = |index: usize| {
        of_tree.iter().any(|column| !matches!(column.report.results[index].1, Outcome::Skipped(_)))
    };
    let applying = |of: &str| {
        cases::all().enumerate().filter(|(index, case)| theme(case.name) == of && applies(*index)).count()
    };
    let in_theme = |of: &str| names.iter().filter(|name| theme(name) == of).count();
    let is_whole = |of: &str| in_theme(of) > 1 && in_theme(of) == applying(of);
    let one = |name: &&str| match is_whole(theme(name)) {
        true => format!("all of `{}/`", theme(name)),
        false => format!("`{name}`"),
    };
    let mut listed: Vec<String> = names.iter().map(one).collect();
    listed.dedup();
    listed.join(", ")
}
