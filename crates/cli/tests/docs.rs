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

#[test]
fn bash_loads_the_completions() {
    let place = Place::new();
    place.run(&["generate", "completions", "c"]).ok();
    let script = ". c/outrigger.bash && complete -p outrigger";
    assert!(place.run_as("bash", &["-c", script]).ok().contains("outrigger"));
}
