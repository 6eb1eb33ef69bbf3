// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger du` and `outrigger df` count the same as those of the host.

mod specimen;

use specimen::Specimen;

const DU: &[&str] = &[
    "",
    ".",
    "-s",
    "-a",
    "-h",
    "-ah",
    "--si -a",
    "-k",
    "-m -a",
    "-b",
    "-ab",
    "--apparent-size",
    "-B 512 -a",
    "-B K -a",
    "--block-size=M -s",
    "-c",
    "-sc dir odd",
    "-d 0",
    "-d 1",
    "--max-depth=2 -a",
    "--time",
    "--time -a -c",
    "--time=status dir small",
    "--time=use small",
    "--time=never",
    "-S",
    "-aS",
    "-0",
    "-l",
    "-al",
    "--exclude=*.c -a",
    "--exclude=sub",
    "--exclude=dir -a",
    "dir dir",
    "dir dir/sub",
    "dir/sub dir",
    "small hard",
    "-l small hard",
    "-c small hard",
    "small",
    "link-dir",
    "-D link-dir",
    "-H link-dir",
    "-L dir/sub",
    "dangling",
    "nowhere",
    "nowhere small",
    "-s -a",
    "-s -d 1",
    "-s -d 0",
    "-d x",
    "--inodes",
    "--inodes -a dir",
    "-t 5K -a",
    "-t -5K -a",
    "--block-size=x",
    "dir/",
    "-sh sparse",
    "-b sparse",
    "-P link-dir",
    "-hs dir odd",
    "-h -k -a dir",
    "-k -h -a dir",
];

#[test]
fn du() {
    Specimen::new().compare("du", DU, &[]);
}

#[test]
fn du_follows_the_environment() {
    let specimen = Specimen::new();
    for variable in
        [("BLOCK_SIZE", "1"), ("DU_BLOCK_SIZE", "K"), ("BLOCKSIZE", "512"), ("POSIXLY_CORRECT", "1")]
    {
        specimen.compare("du", &["-a", "-s"], &[variable]);
    }
}

/// The host's df names where the file system is mounted; the numbers between are the same, unless something writes
/// meanwhile: so only what does not change.
#[test]
fn df() {
    let specimen = Specimen::new();
    for (line, column) in [("-k .", 1), ("-i .", 1), ("-P .", 1), ("-B1 .", 1), ("--block-size=MB .", 1)] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let (host, ours) = specimen.both("df", &args, &[]);
        let field = |text: &str, row: usize| {
            text.lines().nth(row).and_then(|line| line.split_whitespace().nth(column)).map(str::to_owned)
        };
        for row in [0, 1] {
            assert_eq!(field(&host.out, row), field(&ours.out, row), "{line}");
        }
        assert_eq!(host.code, ours.code);
    }
    let (host, ours) = specimen.both("df", &["."], &[]);
    let source =
        |text: &str| text.lines().nth(1).and_then(|line| line.split_whitespace().next().map(str::to_owned));
    assert_eq!(source(&host.out), source(&ours.out), "what is mounted there");
    let (host, ours) = specimen.both("df", &["nowhere"], &[]);
    assert_eq!(host, ours);
    let said = specimen.ours(&["--json", "df", "."]);
    assert!(said.out.contains("\"driver\":\"local\""), "{}", said.out);
}
