// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger stat` and `outrigger readlink` say the same as those of the host.

mod specimen;

use specimen::Specimen;

/// Without `Device:`, which a tree does not know.
const STAT: &[&str] = &[
    "-c %n|%N|%s|%b|%B|%o|%F|%i|%h empty small dir link-dir dangling pipe socket null disk sparse",
    "-c %a|%A|%#a|%04a|%f|%u|%U|%g|%G B.C a~ b2.c b10.c dir/sub empty-dir k z null",
    "-c %t|%T|%Hr|%Lr|%R null disk small",
    "-c %x|%y|%w small k z sparse b1.c dir",
    "-c %X|%Y|%Z|%W small k b1.c",
    "-c %.X|%.3Y|%.9Y|%12Y|%-12Y|%20.3Y small k",
    "-c %10s|%-10s|%010s|%.3n|%8.2A small",
    "-c %q|%% small",
    "-c %",
    "-L -c %n|%F|%N link-dir link-file small",
    "-L -c %n dangling",
    "-c %N odd/it's odd/{ odd/~tilde link-dir",
    "--printf=%n\\t%s\\n\\101 small dir",
    "--printf %n small",
    "--format %n --printf %s small",
    "-c %n nowhere small nowhere",
    "-c %n small/",
    "-c %n dir/ ./dir dir/../small",
];

const READLINK: &[&str] = &[
    "link-dir",
    "small",
    "nowhere",
    "-v small",
    "-v nowhere",
    "dangling link-file root",
    "-n link-dir",
    "-n link-dir root",
    "-z link-dir root",
    "-f dangling",
    "-f link-dir/file",
    "-f link-dir/up",
    "-f nowhere",
    "-f nowhere/x",
    "-vf nowhere/x",
    "-e nowhere",
    "-ve nowhere",
    "-e small",
    "-ve loop",
    "-f loop",
    "-m loop",
    "-m nowhere/x/../y",
    "-m small/x",
    "-vf small/x",
    "-e small/",
    "-f dir/",
    "-f dir/..",
    "-f .",
    "-f ..",
    "-f /",
    "-f root",
    "-e root/tmp/..",
    "-m dangling/x",
    "-f odd/.././dir//sub",
];

#[test]
fn stat() {
    Specimen::new().compare("stat", STAT, &[]);
}

#[test]
fn stat_in_full_but_for_the_device() {
    let specimen = Specimen::new();
    // Reading a link for the first time changes its time of access.
    std::fs::read_link(specimen.path().join("link-dir")).unwrap();
    for name in ["small", "dir", "link-dir", "null", "z", "b2.c"] {
        for terse in [false, true] {
            let args = if terse { vec!["-t", name] } else { vec![name] };
            let (host, ours) = specimen.both("stat", &args, &[]);
            let without_device = |text: &str| {
                let mut fields: Vec<String> = text.split(' ').map(str::to_owned).collect();
                if terse {
                    fields[6].clear();
                    return fields.join(" ");
                }
                let start = text.find("Device: ").expect("a device");
                let end = start + text[start..].find('\\').expect("a tab");
                format!("{}{}", &text[..start], &text[end..])
            };
            assert_eq!(without_device(&host.out), without_device(&ours.out));
        }
    }
}

#[test]
fn stat_of_a_tree() {
    let specimen = Specimen::new();
    let (host, ours) = specimen.both("stat", &["-f", "-c", "%n %l %s %S %b %c", "small"], &[]);
    assert_eq!(host, ours);
    let said = specimen.ours(&["stat", "-f", "."]);
    assert!(said.out.contains("Type: local"), "{}", said.out);
}

#[test]
fn readlink() {
    Specimen::new().compare("readlink", READLINK, &[]);
}
