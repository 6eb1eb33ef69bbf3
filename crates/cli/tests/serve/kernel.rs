// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NFS client of Debian's kernel, in a virtual machine.

use crate::support::{Place, within};
use crate::{EVERYONE, Serving};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// How long a machine may take.
const SECONDS: u64 = 280;

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/tools")
}

/// Whether there is a machine to run; else the test is skipped.
fn has_machine() -> bool {
    let target =
        PathBuf::from(crate::support::PROGRAM).ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
    let there = target.join("test-tools/linux-client/initrd/init").exists()
        && crate::support::has("qemu-system-x86_64");
    if !there {
        eprintln!("SKIPPED: needs the kernel of a client: make deps");
    }
    there
}

/// A machine that mounts the export on /mnt and runs `script` there, with `sh -e`.
fn machine(place: &Place, port: u16, script: &str) -> Command {
    machine_at(place, port, "/", script)
}

/// The same with the export `path`; `$options` are those of the mount.
fn machine_at(place: &Place, port: u16, path: &str, script: &str) -> Command {
    let options = format!(
        "addr=10.0.2.2,mountaddr=10.0.2.2,vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock"
    );
    let mount = format!("mount -t nfs -o $options 10.0.2.2:{path} /mnt");
    let script = format!("set -ex\noptions={options}\n{mount}\ncd /mnt\n{script}\ncd /\numount /mnt\n");
    let file = place.file(&format!("script-{port}"), script);
    let mut command = Command::new(tools().join("client-vm.sh"));
    command.arg(file).env("VM_SECONDS", SECONDS.to_string()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn succeeded(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// A tree of source code: this repository's crates.
fn sources(place: &Place, name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core");
    fs::create_dir_all(place.at(name).parent().unwrap()).unwrap();
    place.run_as("cp", &["-a", from.to_str().unwrap(), place.at(name).to_str().unwrap()]).ok();
}

#[test]
fn files_names_and_attributes() {
    if !has_machine() {
        return;
    }
    let place = Place::patient(Duration::from_secs(SECONDS));
    sources(&place, "tree/core");
    fs::set_permissions(place.at("tree"), fs::Permissions::from_mode(0o777)).unwrap();
    let many = place.at("tree/many");
    fs::create_dir(&many).unwrap();
    (0..20_000).for_each(|number| fs::write(many.join(format!("file {number}")), "").unwrap());
    let serving = Serving::start(&place, 0, &[&["tree"][..], &EVERYONE].concat());
    let output = machine(&place, serving.port, FILES).output().unwrap();
    succeeded(&output);
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

const FILES: &str = r#"
fails() { if "$@"; then exit 1; fi; }
# Names.
mkdir d; echo one >d/f; ln d/f hard; ln -s d/f soft; test "$(cat soft)" = one; test "$(stat -c %h hard)" = 2
mv d/f g; fails test -e d/f; test "$(cat g)" = one; rm hard g soft; rmdir d; fails ls d
mkdir -p a/b; mv a/b c; rmdir c a
mkfifo pipe; test -p pipe; rm pipe
ls -a | grep -qx '\.\.'
# A large directory, while it changes.
test "$(ls many | wc -l)" = 20000
(for i in 1 2 3 4 5 6 7 8 9; do rm "many/file $i"; echo >"many/new $i"; done) &
(cd many; for f in *; do echo "$f"; done) >/tmp/seen; wait
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
# A file that is removed while it is open.
echo kept >open; exec 3<open; rm open; fails test -e open; test "$(cat <&3)" = kept; exec 3<&-
# Permissions of three users.
su one -c 'echo mine >own; chmod 600 own; touch -d @1000000000 own'
su one -c 'cat own'; fails su two -c 'cat own'; fails su two -c 'echo >>own'
fails su two -c 'chmod 777 own'; fails su two -c 'chown two own'; cat own; test "$(stat -c %u:%a own)" = 1001:600
mkdir private; chmod 700 private; echo s >private/s; fails su one -c 'cat private/s'; rm -r private
# A tree.
cp -a core copy; diff -r core copy; tar cf /tmp/t.tar core; mkdir out; tar xf /tmp/t.tar -C out; diff -r core out/core
rm -rf copy out; fails test -e copy
df . | grep -q 10.0.2.2
"#;

/// A client asks for all permissions at once, and must learn of those that it has.
#[test]
fn archives_and_read_only_exports_can_be_read() {
    if !has_machine() {
        return;
    }
    let place = Place::patient(Duration::from_secs(SECONDS));
    sources(&place, "src/core");
    place.tar("a.tar.gz", "src");
    let trees = ["--export", "/archive=a.tar.gz", "--export", "/dir=src", "--read-only"];
    let serving = Serving::start(&place, 0, &[&trees[..], &EVERYONE].concat());
    let script = format!(
        "cd /; umount /mnt; mkdir /a /d; {} /archive /a; {} /dir /d\n{READING}",
        "remount", "remount"
    );
    let script = format!("remount() {{ mount -t nfs -o $options 10.0.2.2:$1 $2; }}\n{script}");
    succeeded(&machine_at(&place, serving.port, "/dir", &script).output().unwrap());
}

const READING: &str = r#"
fails() { if "$@"; then exit 1; fi; }
diff -r /a/core /d/core
fails touch /d/new; fails rm -f /d/core/Cargo.toml; fails sh -c 'echo >>/a/core/Cargo.toml'
umount /a; umount /d; mount -t nfs -o $options 10.0.2.2:/dir /mnt
"#;

/// The client repeats what it did not get an answer to, with the handles it has: of a directory, whose files are found by their
/// numbers, and of an image, whose files are found by their paths.
#[test]
fn a_server_that_is_killed_and_started_again_is_not_noticed() {
    if !has_machine() {
        return;
    }
    let place = Place::patient(Duration::from_secs(SECONDS));
    sources(&place, "tree/core");
    let large: Vec<u8> = (0..8_000_000_u32).flat_map(u32::to_le_bytes).collect();
    place.file("tree/large", &large);
    let (mut args, mut image) = (vec!["--export", "/=tree"], "mkdir /i");
    if crate::support::can_serve() && crate::support::has("mkfs.ext4") {
        fs::File::create(place.at("disk.img")).unwrap().set_len(64 << 20).unwrap();
        place.run_as("mkfs.ext4", &["-q", place.at("disk.img").to_str().unwrap()]).ok();
        args.extend(["--export", "/image=disk.img"]);
        image = "mkdir /i; mount -t nfs -o $options 10.0.2.2:/image /i";
    }
    args.extend(EVERYONE);
    let serving = Serving::start(&place, 0, &args);
    let port = serving.port;
    let running = machine(&place, port, &format!("{image}\n{RESTARTED}")).spawn().unwrap();
    let done = thread::spawn(move || running.wait_with_output().unwrap());
    let mut serving = Some(serving);
    for sign in ["out/core/src", "reading", "read"] {
        let sign = place.at("tree").join(sign);
        while !sign.exists() && !done.is_finished() {
            thread::yield_now();
        }
        drop(serving.take());
        serving = Some(Serving::start(&place, port, &args));
    }
    succeeded(&done.join().unwrap());
    within("the server answers", || {
        serving.as_mut().is_some_and(|serving| serving.child.try_wait().unwrap().is_none())
    });
    let same = place.run_as("diff", &["-r", "tree/core", "tree/out/core"]);
    assert_eq!((same.code, &*same.out), (Some(0), ""));
}

const RESTARTED: &str = r#"
tar cf /tmp/t.tar core
md5sum large >/tmp/sum; echo 3 >/proc/sys/vm/drop_caches
mkdir out; tar xf /tmp/t.tar -C /i & tar xf /tmp/t.tar -C out; wait $!
touch reading; md5sum -c /tmp/sum; touch read; echo 3 >/proc/sys/vm/drop_caches; md5sum -c /tmp/sum
diff -r core out/core; diff -r core /i/core; ! mountpoint -q /i || umount /i
"#;
