// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NFS client of Debian's kernel, in one virtual machine, which takes longer to start than most of its parts to run.

use crate::mounted::MOUNTED;
use crate::support::{PROGRAM, Place, has};
use crate::{EVERYONE, Serving};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long the machine may take.
const SECONDS: u64 = 400;

/// What the client does, and what must be so on this side then.
struct Part {
    name: &'static str,
    /// Run with `sh -ex` in a mount of the tree.
    script: &'static str,
    check: fn(&Place),
}

const PARTS: [Part; 6] = [
    Part { name: "names_content_and_permissions", script: FILES, check: files_are_right },
    Part { name: "programs_that_keep_data", script: PROGRAMS, check: others_can_use_what_programs_left },
    Part { name: "the_conformance_suite", script: SUITE, check: |_| () },
    Part { name: "archives_and_read_only_exports", script: READING, check: |_| () },
    Part { name: "mounts_without_fuse", script: MOUNTED, check: |_| () },
    // The last one: only here, the server is expected to be killed.
    Part { name: "a_server_that_is_killed", script: RESTARTED, check: unpacked_as_packed },
];

/// A program that is built beside the tests, or with the tools that they need.
pub fn beside(name: &str) -> PathBuf {
    PathBuf::from(PROGRAM).with_file_name(name)
}

/// Whether there is a machine to run, with its programs; else the test is skipped.
pub fn has_machine() -> bool {
    for (file, how) in [
        (beside("../test-tools/linux-client/initrd/init"), "make deps"),
        (beside("examples/suite"), "cargo build -p outrigger-conformance --examples"),
    ] {
        if !file.exists() {
            eprintln!("SKIPPED: needs {}: {how}", file.display());
            return false;
        }
    }
    ["qemu-system-x86_64", "git", "sqlite3"].into_iter().all(has)
}

/// A machine that runs this script, with the programs it needs, and `more`.
pub fn machine_for(place: &Place, script: &str, seconds: u64, more: &str) -> Child {
    let file = place.file("script", script);
    let mut command =
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/tools/client-vm.sh"));
    command.arg(file).env("VM_SECONDS", seconds.to_string()).stdin(Stdio::null());
    command.env("VM_PROGRAMS", format!("git sqlite3 {} {more}", beside("examples/suite").display()));
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// A machine that runs all parts; `ports` are those of the tree, with an image where there is one, and of the trees that are only read.
fn machine(place: &Place, ports: (u16, u16), image: bool) -> Child {
    let parts: String =
        PARTS.iter().map(|part| format!("{}() {{\n{}\n}}\n", part.name, part.script)).collect();
    let runs: String = PARTS.iter().map(|part| format!("run {}\n", part.name)).collect();
    let script = format!("tree={}\nread_only={}\nimage={image}\n{COMMON}{parts}{runs}", ports.0, ports.1);
    machine_for(place, &script, SECONDS, PROGRAM)
}

const COMMON: &str = r#"
fails() { if "$@"; then exit 1; fi; }
mounted() {
    mount -t nfs -o "addr=10.0.2.2,mountaddr=10.0.2.2,vers=3,proto=tcp,port=$1,mountport=$1,mountproto=tcp,nolock" "10.0.2.2:$2" "$3"
}
seconds() { cut -d. -f1 /proc/uptime; }
run() {
    began=$(seconds)
    mounted "$tree" / /mnt
    (set -ex; cd /mnt; "$1") 2>&1
    echo "$1 ends with $? after $(($(seconds) - began)) s"
    umount /mnt
}
"#;

/// A tree of source code: this repository's crates.
pub fn sources(place: &Place, name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core");
    fs::create_dir_all(place.at(name).parent().unwrap()).unwrap();
    place.run_as("cp", &["-a", from.to_str().unwrap(), place.at(name).to_str().unwrap()]).ok();
}

#[test]
fn the_client_of_a_kernel() {
    if !has_machine() {
        return;
    }
    let place = Place::patient(Duration::from_secs(SECONDS));
    sources(&place, "tree/core");
    fs::set_permissions(place.at("tree"), fs::Permissions::from_mode(0o777)).unwrap();
    let many = place.at("tree/many");
    fs::create_dir(&many).unwrap();
    (0..20_000).for_each(|number| fs::write(many.join(format!("file {number}")), "").unwrap());
    let large: Vec<u8> = (0..8_000_000_u32).flat_map(u32::to_le_bytes).collect();
    place.file("tree/large", &large);
    sources(&place, "src/core");
    place.tar("a.tar.gz", "src");
    let trees = [
        "--export",
        "/archive=a.tar.gz",
        "--export",
        "/dir=src",
        "--read-only",
        "--state",
        "state/read-only",
    ];
    let read_only = Serving::start(&place, 0, &[&trees[..], &EVERYONE].concat());
    let image = crate::support::can_serve() && has("mkfs.ext4");
    let mut args = vec!["--export", "/=tree"];
    if image {
        fs::File::create(place.at("disk.img")).unwrap().set_len(64 << 20).unwrap();
        place.run_as("mkfs.ext4", &["-q", place.at("disk.img").to_str().unwrap()]).ok();
        args.extend(["--export", "/image=disk.img"]);
    }
    args.extend(EVERYONE);
    let serving = Serving::start(&place, 0, &args);
    let machine = machine(&place, (serving.port, read_only.port), image);
    let said = outlived(&place, machine, &args, serving);
    let ended = |part: &Part| said.contains(&format!("\n{} ends with 0 ", part.name));
    said.lines().filter(|line| line.contains(" ends with ")).for_each(|line| println!("{line}"));
    let failed: Vec<&str> = PARTS.iter().filter(|part| !ended(part)).map(|part| part.name).collect();
    assert!(failed.is_empty(), "{said}\nfailed: {failed:?}");
    PARTS.iter().for_each(|part| (part.check)(&place));
}

/// What the machine says. Whenever it says one of [`SIGNS`], the server is killed and started again.
fn outlived(place: &Place, mut machine: Child, args: &[&str], serving: Serving) -> String {
    let (port, mut serving) = (serving.port, Some(serving));
    let (mut said, mut signs) = (String::new(), SIGNS.iter().peekable());
    for line in BufReader::new(machine.stdout.take().unwrap()).split(b'\n') {
        let line = String::from_utf8_lossy(&line.unwrap()).into_owned();
        if signs.next_if(|sign| **sign == line).is_some() {
            drop(serving.take());
            serving = Some(Serving::start(place, port, args));
        }
        said.extend([&line, "\n"]);
    }
    machine.wait().unwrap();
    assert!(signs.next().is_none(), "{said}");
    said
}

const FILES: &str = r#"
# Names.
mkdir d; echo one >d/f; ln d/f hard; ln -s d/f soft; test "$(cat soft)" = one; test "$(stat -c %h hard)" = 2
mv d/f g; fails test -e d/f; test "$(cat g)" = one; rm hard g soft; rmdir d; fails ls d
mkdir -p a/b; mv a/b c; rmdir c a
mkfifo pipe; test -p pipe; rm pipe
ls -a | grep -qx '\.\.'
# A large directory, while it changes.
test "$(ls many | wc -l)" = 20000
(for i in 1 2 3 4 5 6 7 8 9; do rm "many/file $i"; echo >"many/new $i"; done) &
(cd many; printf '%s\n' *) >/tmp/seen; wait
for i in 10 11 500 19999; do grep -qx "file $i" /tmp/seen; done
test "$(sort /tmp/seen | uniq -d | wc -l)" = 0
# Content: holes, more than 4 GiB, appending, truncation.
dd if=/dev/zero of=sparse bs=1 count=0 seek=5368709120 2>/dev/null; printf tail >>sparse
test "$(stat -c %s sparse)" = 5368709124; test "$(tail -c 4 sparse)" = tail
test "$(dd if=sparse bs=4096 count=1 2>/dev/null | tr -d '\0' | wc -c)" = 0
printf one >log; printf two >>log; printf three >>log
printf 0123456789 >t; truncate -s 4 t; test "$(cat t)" = 0123; truncate -s 0 t; test ! -s t; rm t
# Exclusive creation.
(set -C; echo first >x); fails sh -c "set -C; echo second >x"; test "$(cat x)" = first; rm x
# A file that is removed while it is open has another name until it is closed.
echo kept >open; exec 3<open; rm open; fails test -e open; ls -a | grep -q '^\.nfs'
test "$(cat <&3)" = kept; exec 3<&-; fails sh -c "ls -a | grep '^\.nfs'"
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

fn files_are_right(place: &Place) {
    let tree = |name: &str| fs::metadata(place.at("tree").join(name)).unwrap();
    assert_eq!(tree("sparse").size(), (5 << 30) + 4);
    assert!(tree("sparse").blocks() < 1000, "{} blocks", tree("sparse").blocks());
    assert_eq!((tree("own").uid(), tree("own").mode() & 0o777), (1001, 0o600));
    assert_eq!(tree("own").mtime(), 1_000_000_000);
    assert_eq!(fs::read(place.at("tree/log")).unwrap(), b"onetwothree");
    let left: Vec<_> =
        fs::read_dir(place.at("tree")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".nfs")), "{left:?}");
}

const PROGRAMS: &str = r#"
export HOME=/tmp GIT_EXEC_PATH=/bin
git config --global user.name Someone; git config --global user.email someone@example.org
for name in git-upload-pack git-receive-pack; do ln -s git "/bin/$name"; done
mkdir programs; cd programs
cp -r ../core origin; cd origin; git init -q -b main .; git add .; git commit -qm one; cd ..
git clone -q "file://$PWD/origin" cloned; git clone -q origin linked; diff -r origin/src cloned/src; diff -r origin/src linked/src
cd cloned; echo '// more' >>src/lib.rs; git commit -qam two; git push -q origin HEAD:other; git gc -q; git fsck --strict
cd ../origin; git merge -q other; git reset -q --hard; cmp src/lib.rs ../cloned/src/lib.rs; test -z "$(git status --porcelain)"; cd ..
# A database whose locks the client keeps by itself.
sqlite3 db 'create table t(n integer primary key, s text); create index i on t(s)'
sqlite3 db 'with recursive c(n) as (select 1 union all select n+1 from c where n<3000) insert into t select n, hex(n*7919) from c'
for n in 1 2 3 4 5; do sqlite3 db "update t set s='changed' where n%7=$n"; done
fails sqlite3 db "begin; delete from t; insert into t values('no number', 1); commit"
sqlite3 db 'delete from t where n%3=0; vacuum'
test "$(sqlite3 db 'pragma integrity_check; select count(*), sum(n) from t')" = "$(printf 'ok\n2000|3000000')"
test "$(sqlite3 'file:db?nolock=1' 'pragma quick_check')" = ok
"#;

fn others_can_use_what_programs_left(place: &Place) {
    place.run_as("git", &["-C", "tree/programs/linked", "fsck", "--strict"]).ok();
    place.run_as("git", &["-C", "tree/programs/cloned", "fsck", "--strict"]).ok();
    let checked = place.run_as("sqlite3", &["tree/programs/db", "pragma integrity_check"]).ok();
    assert_eq!(checked, "ok\n");
}

const SUITE: &str = r#"
mkdir suite; chmod 777 suite; suite nfs /mnt/suite
"#;

/// A client asks for all permissions at once, and must learn of those that it has.
const READING: &str = r#"
mkdir /a /d; mounted "$read_only" /archive /a; mounted "$read_only" /dir /d
diff -r /a/core /d/core
fails touch /d/new; fails rm -f /d/core/Cargo.toml; fails sh -c 'echo >>/a/core/Cargo.toml'
umount /a; umount /d
"#;

/// The client repeats what it did not get an answer to, with the handles it has: of a directory, whose files are found by their
/// numbers, and of an image, whose files are found by their paths.
const RESTARTED: &str = r#"
mkdir /i; if $image; then mounted "$tree" /image /i; fi
tar cf /tmp/t.tar core
md5sum large >/tmp/sum; echo 3 >/proc/sys/vm/drop_caches
mkdir out; tar xf /tmp/t.tar -C /i & tar xvf /tmp/t.tar -C out; wait $!
md5sum -c /tmp/sum; echo 3 >/proc/sys/vm/drop_caches; md5sum -c /tmp/sum
diff -r core out/core; diff -r core /i/core; if $image; then umount /i; fi
"#;

/// What is said in the middle of unpacking, and before each of the two long reads.
const SIGNS: [&str; 3] = ["core/src/", READ, READ];
const READ: &str = "+ md5sum -c /tmp/sum";

fn unpacked_as_packed(place: &Place) {
    let same = place.run_as("diff", &["-r", "tree/core", "tree/out/core"]);
    assert_eq!((same.code, &*same.out), (Some(0), ""));
}
