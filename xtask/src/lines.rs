// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many lines of product code each package has: no tests, no comments, no blank lines.

use crate::tidy::{Tree, product};
use std::collections::BTreeMap;

/// Folders of product code; what is below `testing`, `fuzz` and `xtask` is none.
const PRODUCT: &[&str] = &["crates/", "kernel/"];

/// Lines of product code by package, which is the folder above `src`.
pub fn count(tree: &Tree) -> BTreeMap<String, usize> {
    let mut packages = BTreeMap::new();
    for (path, text) in tree.with_extension("rs") {
        let Some((package, file)) = path.split_once("/src/") else { continue };
        let is_test =
            file == "tests.rs" || file.ends_with("/tests.rs") || format!("/{file}").contains("/tests/");
        if PRODUCT.iter().any(|folder| path.starts_with(folder)) && !is_test {
            *packages.entry(package.to_owned()).or_default() += code_lines(text);
        }
    }
    packages
}

fn code_lines(text: &str) -> usize {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    product(text).lines().map(str::trim).filter(is_code).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_are_no_product() {
        let text = "// Licence\n\nfn f() {\n    // Why.\n    g()\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let files = [
            ("crates/core/src/a.rs", text),
            ("crates/core/src/b/c.rs", text),
            ("crates/core/src/tests.rs", text),
            ("crates/core/src/b/tests/d.rs", text),
            ("crates/core/tests/e.rs", text),
            ("crates/driver/mem/src/lib.rs", text),
            ("testing/sim/src/lib.rs", text),
        ];
        let expected = BTreeMap::from([("crates/core".to_owned(), 6), ("crates/driver/mem".to_owned(), 3)]);
        assert_eq!(count(&Tree::from_files(&files)), expected);
    }
}
