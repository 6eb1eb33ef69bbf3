// SPDX-License-Identifier: MIT OR Apache-2.0
//! Man pages and completions as they are installed.

mod support;

use std::fs;
use support::Place;

#[test]
fn man_pages_are_complete_and_roff_takes_them() {
    let place = Place::new();
    place.run(&["generate", "man", "man"]).ok();
    let pages: Vec<_> = fs::read_dir(place.at("man")).unwrap().map(|entry| entry.unwrap().path()).collect();
    for name in ["outrigger.1", "outrigger-mount.1", "mount.outrigger.8", "outrigger-drivers.7"] {
        let text = fs::read_to_string(place.at("man").join(name)).expect(name);
        assert!(text.starts_with(['.', '\'']) && !text.contains("@VERSION@"), "{name}: {text}");
    }
    for page in pages {
        let said = place.run_as("groff", &["-man", "-Tutf8", "-ww", "-z", &page.display().to_string()]);
        assert_eq!((said.code, &*said.err), (Some(0), ""), "{}", page.display());
    }
}

/// The words in bold below this heading.
fn bold_words_below(page: &str, heading: &str) -> Vec<String> {
    let below = page.split(heading).nth(1).unwrap_or_default();
    let section = below.lines().take_while(|line| !line.starts_with(".SH"));
    let bold = section.filter_map(|line| line.strip_prefix(".B "));
    bold.flat_map(|words| words.split(", ").map(|word| word.replace('\\', "")).collect::<Vec<_>>()).collect()
}

#[test]
fn options_that_are_said_to_be_missing_are() {
    let place = Place::new();
    place.run(&["generate", "man", "man"]).ok();
    place.file("a", "");
    place.file("b", "");
    let mut missing = 0;
    for command in ["ls", "stat", "find", "du", "df", "diff", "cp", "mv", "rm", "mkdir", "ln", "chown"] {
        let page = fs::read_to_string(place.at("man").join(format!("outrigger-{command}.1"))).unwrap();
        for option in bold_words_below(&page, ".SH DIFFERENCES FROM GNU") {
            let words: &[&str] = match (command, &*option) {
                ("find", _) => &[command, "a", &option, "a"],
                ("chown", _) => &[command, &option, "0", "a"],
                _ => &[command, &option, "a", "b"],
            };
            assert_ne!(place.run(words).code, Some(0), "{words:?}");
            missing += 1;
        }
    }
    assert!(missing > 40, "{missing}");
    assert_eq!(fs::read_dir(place.at(".")).unwrap().count(), 4, "nothing was done");
}
