// SPDX-License-Identifier: MIT OR Apache-2.0
//! `mv`, `rm`, `mkdir`, `rmdir`, `ln`, `touch`, `chmod`, `chown`, `truncate` against those of GNU coreutils.

mod gnu;
mod support;

use std::fs;
use support::{PROGRAM, Place};

const TREE: &str = r#"
mkdir -p a/s/deep b d
echo one >a/f; echo two >g; ln g h; ln -s g l; ln -s nowhere dang; ln -s ../g d/l; echo x >d/x
touch e; printf x >"it's"
touch -d '2001-02-03 04:05:06.789' g a/f e a
"#;

#[test]
fn mv() {
    gnu::compare(
        TREE,
        &[
            "mv",
            "mv a",
            "mv nope b",
            "mv g g",
            "mv g h",
            "mv a a",
            "mv a a/b",
            "mv a g",
            "mv -T g b",
            "mv -v g b",
            "mv g e nodir",
            "mv g new/",
            "mv -T g new/",
            "mv g e/",
            "mv a new/",
            "mv g e a/f",
            "mv -vn g e",
            "mv -u g a/f",
            "mv -uv e g",
            "mv -i g e",
            "echo y | mv -iv g e",
            "mv l/ x",
            "mv -v a/ a2",
            "mv -v a b",
            "mv -t b g e a",
            "mv -T a b",
            "mv a nodir/x",
            "mv a/f a/s e b",
            "mkdir -p b/a/x; mv a b",
            "mv dang l b",
            "mv -v \"it's\" b",
            "mv -f g e",
        ],
    );
}

#[test]
fn rm() {
    gnu::compare(
        TREE,
        &[
            "rm",
            "rm nope",
            "rm -f nope",
            "rm -f",
            "rm a",
            "rm -d a",
            "rm -d b",
            "rm -dv b",
            "rm -r .",
            "rm -r ./",
            "rm -r ..",
            "rm -r a/.",
            "rm -v l",
            "rm -rv d",
            "rm g/x",
            "rm -f g/x",
            "rm a/",
            "rm -r g/",
            "rm -r a g nope d",
            "rm -i g",
            "echo y | rm -iv g",
            "echo y | rm -ri b",
            "yes | rm -rv a/s",
            "yes | rm -ri d",
            "echo n | rm -I -r a",
            "echo y | rm -Irv b",
            "yes | rm -i e",
            "rm -rf a nope",
            "rm -v \"it's\" dang",
        ],
    );
}

/// A tree has to keep a removed file as long as a client refers to it: `local` opens it for that.
#[test]
fn rm_gives_references_back_first_and_reads_each_directory_once() {
    let place = Place::new();
    place.file("d/f", "");
    let said = place.run(&["--layer", "trace=json", "rm", "-r", "d"]);
    let operations: Vec<String> = said
        .err
        .lines()
        .filter_map(|line| {
            serde_json::from_str::<serde_json::Value>(line).ok()?["op"].as_str().map(str::to_owned)
        })
        .collect();
    let at = |name: &str| operations.iter().position(|operation| operation == name).expect(name);
    assert_eq!(operations[at("unlink") - 1], "forget", "{operations:?}");
    assert_eq!(operations.iter().filter(|operation| *operation == "opendir").count(), 1, "{operations:?}");
}

#[test]
fn rm_asks_before_it_removes_a_directory_that_it_cannot_read() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    for (answers, stays) in [("y\\nn\\n", true), ("y\\ny\\n", false)] {
        let rm = format!("printf '{answers}' | {PROGRAM} --layer fault=op=opendir,error=EACCES rm -ri d");
        let said = place.run_as("sh", &["-c", &rm]);
        assert_eq!(said.err.matches("remove directory").count(), 1, "{said:?}");
        assert_eq!(place.at("d").exists(), stays, "{said:?}");
    }
}

#[test]
fn mkdir_and_rmdir() {
    gnu::compare(
        TREE,
        &[
            "mkdir",
            "mkdir a",
            "mkdir -p a",
            "mkdir -p g",
            "mkdir x/y/z",
            "mkdir -pv x/y/z",
            "mkdir -vm 1777 m",
            "mkdir -m foo n",
            "mkdir -pm 700 n/o/p",
            "mkdir -m u=rwx,go= q",
            "mkdir n nope/x m",
            "mkdir -p g/x",
            "mkdir x/",
            "mkdir -p x/./y",
            "rmdir",
            "rmdir a",
            "rmdir nope",
            "rmdir --ignore-fail-on-non-empty a",
            "rmdir -pv a/s/deep",
            "rmdir b",
            "rmdir g",
            "rmdir -v a/s/deep b nope",
            "rmdir -p --ignore-fail-on-non-empty a/s/deep",
        ],
    );
}

#[test]
fn ln() {
    gnu::compare(
        TREE,
        &[
            "ln",
            "ln nope y",
            "ln g g",
            "ln g b",
            "ln -v g h2",
            "ln g e",
            "ln -f g e",
            "ln -sv g s",
            "ln -s g l",
            "ln -sfv e l",
            "ln -s d sd",
            "ln -T g d",
            "ln b c",
            "ln -srv d/x b/relx",
            "ln -s a b nodir",
            "ln -t nodir g",
            "ln -sv g d",
            "ln -fv g g",
            "ln -fv g h",
            "ln -sf s s",
            "ln -i g e",
            "echo y | ln -iv g e",
            "ln -t b g e",
            "ln d/x",
            "ln -s d/x",
            "ln -sfn e l",
            "ln -P l pl",
            "ln -L l pl",
            "ln -sT g d",
            "ln -sr a/s/deep b",
        ],
    );
}

#[test]
fn touch() {
    gnu::compare(
        TREE,
        &[
            "touch",
            "touch -c nope",
            "touch nodir/x",
            "touch -d nonsense g",
            "touch -t 202001021112.13 g",
            "touch -d '2020-01-02 03:04:05.123456789 +0100' g",
            "touch -t 99 g",
            "touch -r nope g",
            "touch -h l2",
            "touch -d x -t 202001021112 g",
            "touch new/",
            "touch -d @1000000000 dang",
            "touch -h -d @5 l",
            "touch -a -d @7 g",
            "touch -m -d @7 g",
            "touch -r g e",
            "touch -r g -d '1 day' e",
            "touch -d 2020-01-02 new",
            "touch -d 'yesterday' -c nope",
            "touch --time=mtime -d @9 g",
            "touch new1 new2 nodir/y",
            "touch -t 7001010000 l",
        ],
    );
}

#[test]
fn chmod() {
    gnu::compare(
        TREE,
        &[
            "chmod",
            "chmod 755",
            "chmod foo g",
            "chmod 755 nope",
            "chmod -v 755 g",
            "chmod -v 644 g",
            "chmod -c 644 g",
            "chmod -c u+s,g-x g",
            "chmod 755 dang",
            "chmod -v 755 dang",
            "chmod -f 755 nope",
            "chmod -Rv 700 d",
            "chmod --reference=g -v e",
            "chmod --reference=nope e",
            "chmod -v 7777 d",
            "chmod -v u=rwx d",
            "chmod -v +w g",
            "chmod -v -- -w g",
            "chmod -w g",
            "chmod -x d",
            "chmod -R u=rwX,go= a",
            "chmod 77777 g",
            "chmod -v =u g",
            "chmod u+x g nope e",
            "chmod -v 600 l",
            "chmod -rwx g",
        ],
    );
}

#[test]
fn chown() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: only root may give files away");
    }
    gnu::compare(
        TREE,
        &[
            "chown",
            "chown 0",
            "chown 12 g",
            "chown -v 12:13 g",
            "chown -v 0 g",
            "chown -c 0:0 g",
            "chown -v nosuch g",
            "chown -v 0:nosuch g",
            "chown -v :5 g",
            "chown -v 1234: g",
            "chown -v 0 nope",
            "chown -hv 12 dang",
            "chown -hv 12 l",
            "chown -v 12 l",
            "chown -Rv 12:13 d",
            "chown --reference=g -v e",
            "chown -v '' g",
            "chown --from=12 5 g",
            "chown --from=0 5 g",
            "chown 0:0:0 g",
            "chown 1 g nope e",
            "chown -R 7 a",
        ],
    );
}

#[test]
fn truncate() {
    gnu::compare(
        TREE,
        &[
            "truncate",
            "truncate g",
            "truncate -s 10 g",
            "truncate -s +5 g",
            "truncate -s '<2' g",
            "truncate -s '>8' g",
            "truncate -s '%5' g",
            "truncate -s /3 g",
            "truncate -s 1K g",
            "truncate -s 1KB g",
            "truncate -s foo g",
            "truncate -s -99999 g",
            "truncate -s 5 d",
            "truncate -c -s 5 nope",
            "truncate -s 5 new",
            "truncate -r g zz",
            "truncate -r g -s 5 zz",
            "truncate -r g -s +5 zz",
            "truncate -s 5 nodir/x",
            "truncate -s '%0' g",
            "truncate -r nope zz",
            "truncate -s 5 g nodir/x e",
        ],
    );
}

#[test]
fn what_trees_cannot_do_is_refused_with_the_reason_and_what_to_use() {
    let place = Place::new();
    for (args, why) in [
        (&["cp", "-x", "a", "b"][..], "where another file system is mounted"),
        (&["rm", "--one-file-system", "a"], "-o xdev=off"),
        (&["mv", "-Z", "a", "b"], "--preserve=xattr"),
        (&["ln", "-b", "a", "b"], "-n keeps what is there"),
    ] {
        let said = place.run(args).refused(1);
        assert!(said.contains("no option -") && said.contains(why), "{said}");
    }
    for args in [&["umount", "--opt", "x", "m"][..], &["doctor", "--layer", "readonly"]] {
        let said = place.run(args);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains("it is for trees that a command opens"), "{said:?}");
    }
}
