// SPDX-License-Identifier: MIT OR Apache-2.0
//! Putting tables into docs/PERFORMANCE.md, between marker comments that name them.

use crate::table::Table;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Replaces the generated parts of the document by `tables` and `machine`.
///
/// # Errors
/// When the document cannot be read or written, or has no place for a table.
pub fn write(tables: &[Table], machine: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PERFORMANCE.md");
    let mut text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for table in tables {
        let content = format!("{machine}\n\n{}", table.markdown());
        text = replace(&text, table.name, &content)
            .with_context(|| format!("{} has no markers for {}", path.display(), table.name))?;
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// `text` with what is between the markers of `name` replaced.
fn replace(text: &str, name: &str, content: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{}\n{end}{after}", content.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn only_the_named_part_changes() {
        let text = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n<!-- begin y -->\n<!-- end y -->\n";
        let expected = "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n<!-- begin y -->\n<!-- end y -->\n";
        assert_eq!(replace(text, "x", "new\n").as_deref(), Some(expected));
        assert_eq!(replace(text, "z", "new"), None);
    }
}
