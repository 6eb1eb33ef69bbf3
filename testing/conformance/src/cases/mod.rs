// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases, one module for each theme.
//!
//! A case is a function that works in an empty directory of its own and panics when something is not as it must be.

mod content;
mod copies;
mod directories;
mod fallocate;
mod holes;
mod limits;
mod links;
mod listing;
mod locks;
mod names;
pub mod owners;
mod rename;
mod sample;
mod service;
mod special;
mod stateless;
mod times;
mod unlinked;
mod xattrs;

use crate::report::Case;

const THEMES: &[&[Case]] = &[
    names::CASES,
    directories::CASES,
    listing::CASES,
    rename::CASES,
    links::CASES,
    special::CASES,
    content::CASES,
    holes::CASES,
    fallocate::CASES,
    copies::CASES,
    times::CASES,
    owners::CASES,
    xattrs::CASES,
    locks::CASES,
    unlinked::CASES,
    limits::CASES,
    sample::CASES,
    service::CASES,
    stateless::CASES,
];

/// Every case, theme by theme.
pub fn all() -> impl Iterator<Item = &'static Case> {
    THEMES.iter().flat_map(|cases| cases.iter())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn names_of_cases_are_unique_and_have_a_theme() {
        let names: Vec<&str> = super::all().map(|case| case.name).collect();
        let set: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), set.len());
        assert!(names.iter().all(|name| name.matches('/').count() == 1), "{names:?}");
    }
}
