// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cat` and `diff` against those of GNU.

mod gnu;

const TREE: &str = r#"
mkdir -p a/s b/s a/o
printf '1\n2\n3\n' >a/f; printf '1\n2x\n3' >b/f; printf 'a\0b' >a/bin; printf 'a\0c' >b/bin
ln -s x a/l; ln -s y b/l; mkdir a/k; touch b/k; touch a/only b/onlyb a/s/deep a/e
cp a/f a/same; cp a/f b/same; seq 100 >a/long; seq 100 | sed 's/^20$/twenty/; 50d; 80a new' >b/long
printf 'a\tb\001\200\377\177\n\n\n\nx\r\ny' >z; printf 'a\r' >r; printf '\nb' >r2
touch -d '2001-02-03 04:05:06.789' a/* b/*; touch -h -d '2001-02-03' a/l b/l
"#;

#[test]
fn cat() {
    gnu::compare(
        TREE,
        &[
            "cat nope",
            "cat a",
            "cat a/f nope b/f",
            "cat a/l",
            "cat -A z",
            "cat -s z",
            "cat -n z z",
            "cat -b z a/f",
            "cat -E r r2",
            "cat -T z",
            "cat -v z",
            "cat -e z",
            "cat -t z",
            "cat -bs z z",
            "cat -sn z",
            "cat z/x",
            "echo in | cat",
            "echo in | cat a/f - b/f",
            "echo in | cat -n - a/f",
            "cat a/f >>a/f",
            "cat a/f a/e >>a/e",
            "cat -A a/bin",
        ],
    );
}

#[test]
fn diff() {
    gnu::compare(
        TREE,
        &[
            "diff",
            "diff a",
            "diff a b",
            "diff -r a b",
            "diff -r --no-dereference a b",
            "diff -rq --no-dereference a b",
            "diff -qs a/same b/same",
            "diff -ruN --no-dereference a b",
            "diff -u a/f b/f",
            "diff a/f b",
            "diff b a/f",
            "diff nope b",
            "diff a/f nope",
            "diff a/bin b/bin",
            "diff -s a/bin a/bin",
            "diff -a a/bin b/bin",
            "diff a/k b/f",
            "diff -u a/e a/f",
            "diff a/f a/e",
            "diff -U1 a/long b/long",
            "diff a/long b/long",
            "diff -u a/long b/long",
            "diff --brief a/f b/f",
            "diff --no-dereference a/l b/l",
            "diff a a",
            "diff --no-dereference a/l a/f",
            "diff -rs --no-dereference a b",
            "diff -uN nope a/f",
        ],
    );
}
