// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger cp` against GNU cp.

mod gnu;

const TREE: &str = r#"
mkdir -p a/s/deep b 'odd dir'
echo one >a/f; echo two >g; ln g h; ln a/f a/s/hard; ln -s g l; ln -s nowhere dang; ln -s ../g a/up
printf 'x' >"it's"; printf 'y' >'odd dir/new
line'
mkfifo a/p
truncate -s 1M a/sparse; echo end >>a/sparse
chmod 4755 a/f; chmod 640 g; chmod 1777 a/s/deep; chmod 555 a/s
setfattr -n user.colour -v red a/sparse
touch -d '2001-02-03 04:05:06.789' g a/sparse a/s/deep a/s a
touch -h -d '2001-02-03 04:05:06.789' l a/up
"#;

#[test]
fn one_file() {
    gnu::compare(
        TREE,
        &[
            "cp",
            "cp g",
            "cp g new",
            "cp -v g b",
            "cp g g",
            "cp g h",
            "cp g l",
            "cp nope b",
            "cp g dang",
            "cp g nodir/x",
            "cp g g/x",
            "cp g newdir/",
            "cp -T g b",
            "cp -T g h b",
            "cp -n g a/f",
            "cp -nv g a/f",
            "cp -u g a/f",
            "cp -u a/f g",
            "cp -i g a/f",
            "echo y | cp -i g a/f",
            "cp -f g a/f",
            "cp -p g b",
            "cp -p l b",
            "cp -P l b",
            "cp -d l dang",
            "cp -d l g",
            "cp -P l l",
            "cp l b",
            "cp -a g b",
            "cp --preserve=timestamps g b",
            "cp --preserve=mode g b",
            "cp -p --no-preserve=mode g b",
            "cp --no-preserve=mode a/f b",
            "cp a/f b",
            "cp -l g new",
            "cp -lv g a/f",
            "cp -lf g a/f",
            "cp -s g news",
            "cp -s g b",
            "cp --preserve=foo g b",
            "cp --sparse=foo g b",
            "cp --sparse=always a/sparse b",
            "cp --sparse=never a/sparse b",
            "cp --reflink=auto g b",
            "cp --remove-destination -v g a/f",
            "cp --remove-destination g h",
            "cp \"it's\" b",
            "cp -v \"it's\" 'odd dir'",
            "cp g l",
            "cp a/sparse l",
        ],
    );
}

#[test]
fn several_files() {
    gnu::compare(
        TREE,
        &[
            "cp g a/f nodir",
            "cp g a/f h",
            "cp -t nodir g",
            "cp -t g h",
            "cp -t b g a/f",
            "cp g g b",
            "mkdir -p x; cp g a/f b/../b",
            "cp -v g nope l b",
            "cp --parents -v a/f b",
            "cp --parents -rv a/s b",
            "cp --parents a/f g",
            "cp -d g h b",
            "cp --preserve=links g h b",
            "cp -T g h a/f b",
            "cp -dv l dang b",
        ],
    );
}

#[test]
fn directories() {
    gnu::compare(
        TREE,
        &[
            "cp a b",
            "cp -r a new",
            "cp -rv 'odd dir' b",
            "cp -a a new",
            "cp -a a b",
            "cp -a a/. b",
            // Into itself, without other entries: GNU takes them in the order of their inode numbers until it notices.
            "cp -r b b/c",
            "cp -rT a b",
            "cp -r a g",
            "cp -rp a new",
            "cp -rd a new",
            "cp -r --no-preserve=mode a new",
            "cp -r --preserve=links a new",
            "cp -rL b new",
            "cp -rl a new",
            "cp -rn a b",
            "cp -ru a b",
            "cp -a --no-preserve=mode a new",
            "cp -a --no-preserve=timestamps a new",
            "cp --no-preserve=timestamps -a a new",
            "cp -rH l b new",
            "cp -r a/ new",
            "cp -a a/s/ new/",
            "cp -r --attributes-only a new",
        ],
    );
}

#[test]
fn onto_an_existing_tree() {
    let setup = format!(
        "{TREE}\ncp -a a c; echo changed >c/f; rm c/up; mkdir c/up; rm c/p; echo >c/p; rm -r c/s/deep"
    );
    gnu::compare(&setup, &["cp -aT a c", "cp -rT a c", "cp -rTn a c", "cp -aTu a c", "cp -aTf a c"]);
}
