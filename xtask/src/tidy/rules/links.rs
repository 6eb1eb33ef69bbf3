// SPDX-License-Identifier: MIT OR Apache-2.0
//! `links`: every relative link of a document leads to a file, and its `#anchor` to a heading.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{Finding, Rule, Tree};

pub const RULE: Rule = Rule {
    name: "links",
    summary: "relative links and anchors in every .md file lead somewhere inside the repository",
    check,
};

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("md") {
        for (target, offset) in links(text).filter(|(target, _)| !has_scheme(target)) {
            if let Err(advice) = resolve(tree, path, &target) {
                let line = text[..offset].matches('\n').count() + 1;
                findings.push(Finding::new(RULE.name, path, line, advice));
            }
        }
    }
    findings
}

/// Targets of the links and images of a document with their byte offsets; code blocks hold no links.
fn links(text: &str) -> impl Iterator<Item = (String, usize)> {
    Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter().filter_map(
        |(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some((dest_url.into_string(), range.start))
            }
            _ => None,
        },
    )
}

/// Whether the target is a URL with a scheme, such as `https:` or `mailto:`.
fn has_scheme(target: &str) -> bool {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    scheme.is_some_and(|s| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)))
}

/// Checks one relative link from the document `from`.
///
/// # Errors
/// Says what to do when it leads nowhere.
fn resolve(tree: &Tree, from: &str, target: &str) -> Result<(), String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() {
        from.to_owned()
    } else {
        join(from, file)
            .ok_or_else(|| format!("`{target}` leaves the repository: link to a file inside, or to a URL"))?
    };
    if !tree.exists(&path) {
        return Err(format!("`{target}` leads nowhere: there is no {path}"));
    }
    let missing = |text: &str| !anchors(text).iter().any(|known| known == anchor);
    if !anchor.is_empty() && path.ends_with(".md") && tree.text(&path).is_some_and(missing) {
        return Err(format!("`{target}` leads nowhere: {path} has no heading #{anchor}"));
    }
    Ok(())
}

/// The path that `target` names from the document `from`; `None` when it climbs out of the repository.
fn join(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The anchors of a document's headings, made the way GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut heading: Option<String> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => found.extend(heading.take().map(|heading| slug(&heading))),
            _ => {}
        }
    }
    found
}

/// Lower case; spaces become hyphens; punctuation goes.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn dead_links_are_found_and_live_ones_are_not() {
        let guide = "# Guide\n\n## Your first `driver`: 60 lines\n";
        for (link, alive) in [
            ("docs/GUIDE.md", true),
            ("./docs/", true),
            ("docs/GUIDE.md#your-first-driver-60-lines", true),
            ("#top", true),
            ("https://example.org/x", true),
            ("mailto:a@example.org", true),
            ("docs/GONE.md", false),
            ("docs/GUIDE.md#second", false),
            ("#gone", false),
            ("../outside.md", false),
        ] {
            let readme = format!("# Top\n\nSee [this]({link}).\n");
            let found = places(&RULE, &[("README.md", &readme), ("docs/GUIDE.md", guide)]);
            assert_eq!(found, if alive { vec![] } else { vec!["README.md:3"] }, "{link}");
        }
    }

    #[test]
    fn links_are_relative_to_their_document_and_code_is_no_link() {
        let text =
            "| a |\n|---|\n| [up](../README.md) ![i](gone.svg) |\n\n```\n[no](link)\n```\n`[no](link)`\n";
        assert_eq!(places(&RULE, &[("docs/A.md", text), ("README.md", "# R\n")]), ["docs/A.md:3"]);
    }
}
