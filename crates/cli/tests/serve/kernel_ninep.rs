// SPDX-License-Identifier: MIT OR Apache-2.0
//! The 9P client of Debian's kernel, in a virtual machine.

use crate::kernel::{has_machine, machine_for, sources};
use crate::support::Place;
use crate::{EVERYONE, Serving};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

/// How long the machine may take.
const SECONDS: u64 = 400;

/// What the client does, as `sh -ex` in a mount of the tree with these options.
const PARTS: [(&str, &str, &str); 5] = [
    ("names_content_and_permissions", "", FILES),
    ("the_same_with_the_caches_of_the_client", ",cache=loose", FILES),
    ("locks_of_two_clients", "", LOCKS),
    ("programs_that_keep_data", ",cache=mmap", PROGRAMS),
    ("other_dialects_and_read_only_exports", "", OTHERS),
];

const COMMON: &str = r#"
fails() { if "$@"; then exit 1; fi; }
mounted() {
    mount -t 9p -o "trans=tcp,port=$1,msize=1048576,aname=$2,$4" 10.0.2.2 "$3"
}
seconds() { cut -d. -f1 /proc/uptime; }
run() {
    began=$(seconds)
    mounted "$tree" / /mnt "version=9p2000.L$2"
    (set -ex; cd /mnt; "$1") 2>&1
    echo "$1 ends with $? after $(($(seconds) - began)) s"
    umount /mnt
}
"#;

#[test]
fn the_9p_client_of_a_kernel() {
    if !has_machine() {
        return;
    }
    let place = Place::patient(Duration::from_secs(SECONDS));
    sources(&place, "tree/core");
    fs::set_permissions(place.at("tree"), fs::Permissions::from_mode(0o777)).unwrap();
    let many = place.at("tree/many");
    fs::create_dir(&many).unwrap();
    (0..2000).for_each(|number| fs::write(many.join(format!("file {number}")), "").unwrap());
    sources(&place, "src/core");
    place.tar("a.tar.gz", "src");
    let trees = ["--export", "/archive=a.tar.gz", "--export", "/dir=src", "--read-only"];
    let read_only = Serving::ninep(&place, &[&trees[..], &EVERYONE].concat());
    let serving = Serving::ninep(&place, &[&["tree"][..], &EVERYONE].concat());
    let parts: String =
        PARTS.iter().map(|(name, _, script)| format!("{name}() {{\n{script}\n}}\n")).collect();
    let runs: String = PARTS.iter().map(|(name, options, _)| format!("run {name} '{options}'\n")).collect();
    let (tree, others) = (serving.port, read_only.port);
    let script = format!("tree={tree}\nread_only={others}\n{COMMON}{parts}{runs}");
    let mut machine = machine_for(&place, &script, SECONDS, "flock");
    let mut said = Vec::new();
    machine.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    machine.wait().unwrap();
    let said = String::from_utf8_lossy(&said);
    said.lines().filter(|line| line.contains(" ends with ")).for_each(|line| println!("{line}"));
    let ended = |name: &str| said.contains(&format!("\n{name} ends with 0 "));
    let failed: Vec<&str> = PARTS.iter().map(|(name, ..)| *name).filter(|name| !ended(name)).collect();
    assert!(failed.is_empty(), "{said}\nfailed: {failed:?}");
    let own = fs::metadata(place.at("tree/own")).unwrap();
    assert_eq!((own.uid(), own.mode() & 0o777, own.mtime()), (1001, 0o600, 1_000_000_000));
    assert_eq!(fs::read(place.at("tree/log")).unwrap(), b"onetwothree");
    place.run_as("git", &["-C", "tree/programs/cloned", "fsck", "--strict"]).ok();
    assert_eq!(place.run_as("sqlite3", &["tree/programs/db", "pragma integrity_check"]).ok(), "ok\n");
    for serving in [serving, read_only] {
        assert_eq!(serving.end("TERM"), Some(143));
    }
}

const FILES: &str = r#"
# Names.
mkdir d; echo one >d/f; ln d/f hard; ln -s d/f soft; test "$(cat soft)" = one; test "$(stat -c %h d/f)" = 2
mv d/f g; fails test -e d/f; test "$(cat g)" = one; rm hard g soft; rmdir d; fails ls d
mkdir -p a/b; mv a/b c; rmdir c a
mkfifo pipe; test -p pipe; rm pipe; mknod null c 1 3; echo >null; rm null
ls -a | grep -qx '\.\.'
# A large directory, while it changes.
test "$(ls many | wc -l)" = 2000
(for i in 1 2 3 4 5 6 7 8 9; do mv "many/file $i" "many/new $i"; done) &
(cd many; printf '%s\n' *) >/tmp/seen; wait
for i in 10 11 500 1999; do grep -qx "file $i" /tmp/seen; done
test "$(sort /tmp/seen | uniq -d | wc -l)" = 0
(for i in 1 2 3 4 5 6 7 8 9; do mv "many/new $i" "many/file $i"; done)
# Content: holes, more than 4 GiB, appending, truncation.
dd if=/dev/zero of=sparse bs=1 count=0 seek=5368709120 2>/dev/null; printf tail >>sparse
test "$(stat -c %s sparse)" = 5368709124; test "$(tail -c 4 sparse)" = tail
test "$(dd if=sparse bs=4096 count=1 2>/dev/null | tr -d '\0' | wc -c)" = 0; rm sparse
rm -f log; printf one >log; printf two >>log; printf three >>log
printf 0123456789 >t; truncate -s 4 t; test "$(cat t)" = 0123; truncate -s 0 t; test ! -s t; rm t
dd if=/dev/urandom of=/tmp/large bs=1M count=5 2>/dev/null; cp /tmp/large large; cmp /tmp/large large; rm large
# Exclusive creation.
(set -C; echo first >x); fails sh -c "set -C; echo second >x"; test "$(cat x)" = first; rm x
# A file that is removed while it is open.
echo kept >open; exec 3<open; rm open; fails test -e open; test "$(cat <&3)" = kept; exec 3<&-
# Permissions of three users.
su one -c 'echo mine >own; chmod 600 own; touch -d @1000000000 own'
su one -c 'cat own'; fails su two -c 'cat own'; fails su two -c 'echo >>own'
fails su two -c 'chmod 777 own'; fails su two -c 'chown two own'; cat own; test "$(stat -c %u:%a own)" = 1001:600
mkdir private; chmod 700 private; echo s >private/s; fails su one -c 'cat private/s'; rm -r private
# A tree.
cp -a core copy; diff -r core copy; tar cf /tmp/t.tar core; mkdir unpacked; tar xf /tmp/t.tar -C unpacked; diff -r core unpacked/core
rm -rf copy unpacked; fails test -e copy
df . | grep -q 10.0.2.2
"#;

/// Two mounts have a connection each.
const LOCKS: &str = r#"
mkdir /two; mounted "$tree" / /two version=9p2000.L
echo >locked
flock -n locked sh -c 'fails() { if "$@"; then exit 1; fi; }; fails flock -n /two/locked true'
flock -n /two/locked true
flock -s -n locked flock -s -n /two/locked true
(flock locked sleep 2) & sleep 1; flock /two/locked test -e locked; wait
umount /two; rm locked
"#;

const PROGRAMS: &str = r#"
export HOME=/tmp GIT_EXEC_PATH=/bin
git config --global user.name Someone; git config --global user.email someone@example.org
for name in git-upload-pack git-receive-pack; do ln -s git "/bin/$name"; done
mkdir programs; cd programs
cp -r ../core origin; cd origin; git init -q -b main .; git add .; git commit -qm one; cd ..
git clone -q "file://$PWD/origin" cloned; diff -r origin/src cloned/src
cd cloned; echo '// more' >>src/lib.rs; git commit -qam two; git push -q origin HEAD:other; git gc -q; git fsck --strict; cd ..
sqlite3 db 'create table t(n integer primary key, s text); create index i on t(s)'
sqlite3 db 'with recursive c(n) as (select 1 union all select n+1 from c where n<3000) insert into t select n, hex(n*7919) from c'
fails sqlite3 db "begin; delete from t; insert into t values('no number', 1); commit"
sqlite3 db 'delete from t where n%3=0; vacuum'
test "$(sqlite3 db 'pragma integrity_check; select count(*), sum(n) from t')" = "$(printf 'ok\n2000|3000000')"
"#;

const OTHERS: &str = r#"
mkdir /a /d /u /p; mounted "$read_only" /archive /a version=9p2000.L; mounted "$read_only" /dir /d version=9p2000.L
diff -r /a/core /d/core
fails touch /d/new; fails rm -f /d/core/Cargo.toml; fails sh -c 'echo >>/a/core/Cargo.toml'
umount /a; umount /d
fails mounted "$read_only" /none /a version=9p2000.L
mounted "$tree" / /u version=9p2000.u,access=any; mounted "$tree" / /p version=9p2000,access=any
diff -r core /u/core; diff -r core /p/core
mkdir /u/made; echo text >/u/made/f; ln -s f /u/made/l; test "$(cat /u/made/l)" = text; mv /u/made/f /u/made/g
mkdir /p/made/deep; echo more >/p/made/deep/f; chmod 600 /p/made/deep/f; test "$(cat made/deep/f)" = more
test "$(stat -c %a made/deep/f)" = 600; rm -r /p/made/deep /u/made; fails test -e made
umount /u; umount /p
"#;
