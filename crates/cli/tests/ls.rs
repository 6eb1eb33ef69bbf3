// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger ls` says the same as the host's GNU ls, byte by byte.

mod specimen;

use specimen::Specimen;

const LISTINGS: &[&str] = &[
    "",
    "-a",
    "-A",
    "-l",
    "-la",
    "-lA",
    "-1",
    "-1l",
    "-l1",
    "-R",
    "-lR",
    "-aR",
    "-r",
    "-t",
    "-tr",
    "-S",
    "-Sr",
    "-U -1 empty-dir",
    "-X",
    "-v",
    "-vr",
    "-c -t",
    "-u -t",
    "-lc",
    "-lu",
    "-ltr",
    "-lS",
    "-lt",
    "--sort=size",
    "--sort=time",
    "--sort=extension",
    "--sort=version",
    "--sort=width",
    "--sort=name",
    "-i empty",
    "-i -1",
    "-li",
    "-lis",
    "-n",
    "-g",
    "-o",
    "-go",
    "-lG",
    "-no",
    "-F",
    "-lF",
    "-p",
    "-lp",
    "--file-type",
    "-l --file-type",
    "--indicator-style=slash",
    "--indicator-style=classify",
    "--indicator-style=none",
    "-d",
    "-d .",
    "-ld",
    "-ld dir",
    "-d dir small",
    "-s",
    "-sh",
    "-s1",
    "-ls",
    "-k -s",
    "-lh",
    "-l --si",
    "-lhs",
    "-l --block-size=K",
    "-l --block-size=1K",
    "-s --block-size=512",
    "-l --block-size=MB",
    "-l --block-size=x",
    "-C",
    "-C -w 40",
    "-x",
    "-x -w 40",
    "-x -w 30 -T 4",
    "-C -w 30 -T0",
    "-C -w0",
    "-m",
    "-m -w 30",
    "-m -s",
    "-m -i",
    "-C -s -i",
    "-x -F",
    "-C -w 1",
    "-C -w 100000",
    "-q odd",
    "-b odd",
    "-N odd",
    "-Q odd",
    "-C odd",
    "-lQ",
    "-lb odd",
    "--quoting-style=literal odd",
    "--quoting-style=shell odd",
    "--quoting-style=shell-always odd",
    "--quoting-style=shell-escape odd",
    "--quoting-style=shell-escape-always odd",
    "--quoting-style=c odd",
    "--quoting-style=c-maybe odd",
    "--quoting-style=escape odd",
    "--quoting-style=locale odd",
    "--quoting-style=clocale odd",
    "-C --quoting-style=shell odd",
    "-C -w 40 --quoting-style=shell-escape odd",
    "-x -w 40 --quoting-style=c-maybe odd",
    "-l --quoting-style=shell-escape odd",
    "-m --quoting-style=shell odd",
    "-q --quoting-style=shell odd",
    "-F --quoting-style=shell odd",
    "-R --quoting-style=escape odd",
    "-L",
    "-lL",
    "-H link-dir",
    "-H link-file",
    "-lH link-dir",
    "-lH link-file",
    "-l link-dir",
    "link-dir",
    "-F link-dir",
    "-lL dangling",
    "-L dangling",
    "-H dangling",
    "dangling",
    "-l dangling",
    "loop",
    "-lL loop",
    "-RL dir/other",
    "-R dir",
    "-RL dir/sub",
    "--dereference-command-line-symlink-to-dir -l link-dir",
    "--group-directories-first",
    "-l --group-directories-first",
    "-lF --group-directories-first",
    "-r --group-directories-first",
    "-U --group-directories-first -d dir small empty-dir",
    "--hide=*.c",
    "-a --hide=*.c",
    "-A --hide=*.c",
    "-I *.c",
    "-a -I .*",
    "-B",
    "-aB",
    "-I b[0-9]* -I s?*",
    "--full-time",
    "-l --time-style=full-iso",
    "-l --time-style=long-iso",
    "-l --time-style=iso",
    "-l --time-style=locale",
    "-l --time-style=posix-long-iso",
    "-l --time-style=+%s",
    "-l --time-style=+%F_%T.%N",
    "-l --time-style=wrong",
    "-l --time=atime",
    "-l --time=ctime",
    "-l --time=birth",
    "--time=use",
    "--time=status",
    "--time=mtime",
    "--zero",
    "-l --zero",
    "-C --zero",
    "-s --zero",
    "--author -l",
    "-Z",
    "-lZ",
    "-mZ",
    "-C -Z",
    "--format=long",
    "--format=across",
    "--format=commas",
    "--format=horizontal",
    "--format=vertical",
    "--format=single-column",
    "--format=verbose",
    "-f empty-dir",
    "-lf empty-dir",
    "-fl empty-dir",
    "-f -s small",
    "small dir",
    "dir small nowhere",
    "-l small dir empty-dir",
    "nowhere",
    "nowhere empty",
    "-d nowhere",
    "-R dir empty-dir",
    "dir dir",
    "small/",
    "dir/",
    "dir//sub",
    "./dir",
    "-l null disk",
    "-l --si sparse big.tar.gz",
    "-lh sparse big.tar.gz",
    "--col=never",
    "--color=wrong",
    "--sort=wrong",
    "-w x",
    "-T x",
    "-C -l",
    "-l -C",
    "-l -x",
    "-x -m",
    "-l -m -g",
    "-g -C",
    "-a -A",
    "-A -a",
    "-t -S",
    "-S -U empty",
    "-tU empty",
    "-F -p",
    "-p -F",
    "-Q -N odd",
    "-h -k -s",
    "-k -h -s",
];

const COLOURED: &[&str] = &[
    "",
    "-l",
    "-C",
    "-F",
    "-lF",
    "-a",
    "-R",
    "-L",
    "-x -w 30",
    "-m",
    "-C -w 20",
    "-s",
    "-li",
    "-lL",
    "-Q odd",
    "-d dir",
    "-f empty-dir",
    "--zero",
    "-l dangling link-dir link-file loop",
    "-1 dangling",
    "nowhere",
];

/// `LS_COLORS` that make a difference.
const COLOURS: &[&str] = &[
    "",
    "di=01;35:*.c=33:*.gz=31:ln=36:or=41:mi=5;31:ex=32:mh=44",
    "ln=target:or=31;1:di=34:*.C=7",
    "no=2:di=1:fi=3",
    "lc=<:rc=>:ec=</>:di=D:ln=target",
    "su=0:sg=00:st=0:ow=0:tw=1:ca=0:ex=0",
    "rs=5:di=1;4:cl=CL",
    "*z=35:*.tar=\\e:pi=^A:so=\\x41",
    "di=1:wrong",
    "xx=1",
];

#[test]
fn listings() {
    Specimen::new().compare("ls", LISTINGS, &[]);
}

#[test]
fn listings_in_utf8() {
    let table = [
        "odd",
        "-C odd",
        "-b odd",
        "-Q odd",
        "-q odd",
        "-C --quoting-style=shell-escape odd",
        "-x -w 30 odd",
    ];
    Specimen::new().compare("ls", &table, &[("LC_ALL", "C.UTF-8")]);
}

#[test]
fn colours() {
    let specimen = Specimen::new();
    for colours in COLOURS {
        let table: Vec<String> = COLOURED.iter().map(|line| format!("--color {line}")).collect();
        let table: Vec<&str> = table.iter().map(String::as_str).collect();
        specimen.compare("ls", &table, &[("LS_COLORS", colours)]);
    }
    specimen.compare("ls", &["--color", "--color=auto", "--color=force -l"], &[("TERM", "dumb")]);
    specimen.compare("ls", &["--color -C"], &[("TERM", "dumb"), ("COLORTERM", "truecolor")]);
}

#[test]
fn the_environment() {
    let specimen = Specimen::new();
    let cases: &[(&str, &str)] = &[
        ("COLUMNS", "40"),
        ("COLUMNS", "x"),
        ("TABSIZE", "4"),
        ("TABSIZE", "x"),
        ("BLOCK_SIZE", "human-readable"),
        ("LS_BLOCK_SIZE", "1"),
        ("BLOCKSIZE", "512"),
        ("POSIXLY_CORRECT", "1"),
        ("QUOTING_STYLE", "c"),
        ("QUOTING_STYLE", "wrong"),
        ("TIME_STYLE", "long-iso"),
        ("TIME_STYLE", "+%Y"),
        ("TZ", "America/New_York"),
        ("TZ", "UTC0"),
    ];
    for variable in cases {
        specimen.compare("ls", &["-C", "-ls", "-C odd"], &[*variable]);
    }
}

#[test]
fn one_json_object_a_file() {
    let specimen = Specimen::new();
    let said = specimen.ours(&["--json", "ls", "-a", "odd", "link-file", "small"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let files: Vec<serde_json::Value> =
        said.out.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let file = |path: &str| files.iter().find(|file| file["path"] == path).expect(path);
    assert_eq!(file("small")["size"], 5);
    assert_eq!(file("small")["mtime"], "2001-09-09T01:46:40.123456789Z");
    assert_eq!(file("link-file")["target"], "small");
    assert_eq!(file("odd/new\nline")["kind"], "file");
    assert!(
        files.iter().any(|file| file["path_hex"] == "6f64642ffffe"),
        "names that are not UTF-8 keep their bytes"
    );
}
