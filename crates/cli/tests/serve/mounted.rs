// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger mount --door nfs`: what is said where it cannot be, and a part of what the virtual machine of [`crate::kernel`] runs, whose
//! kernel has an NFS client.

use crate::support::{PROGRAM, Place, can_mount};
use std::fs;

#[test]
fn a_kernel_without_an_nfs_client_is_named() {
    if !can_mount() {
        return;
    }
    if fs::read_to_string("/proc/filesystems").unwrap().contains("\tnfs\n") {
        return eprintln!("SKIPPED: this kernel has an NFS client");
    }
    let place = Place::new();
    place.file("tree/in", "");
    let refused = place.run(&["mount", "--door", "nfs", "tree", "m"]).refused(1);
    assert!(refused.contains("has no NFS client") && refused.contains("FUSE"), "{refused}");
    assert!(!place.is_mounted());
}

#[test]
fn what_a_mount_by_nfs_cannot_have_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: mounting by NFS needs root");
    }
    let place = Place::new();
    place.file("tree/in", "");
    for (list, named) in [
        ("door=nfs,umask=077", "option umask"),
        ("door=nfs,guard=proxy", "guard=proxy"),
        ("door=nfs,timeo=1,soft=yes", "soft"),
        (r"door=nfs,timeo=1\,addr=192.0.2.1", "timeo"),
        ("door=smb", "door=smb"),
        ("soft", "soft"),
    ] {
        let refused = place.run(&["mount", "-o", list, "tree", "m"]).refused(1);
        assert!(refused.contains(named), "{list}: {refused}");
    }
    let refused = place.run(&["mount", "--door", "nfs", "--restart-on-hang", "5", "tree", "m"]).refused(1);
    assert!(refused.contains("--restart-on-hang"), "{refused}");
}

#[test]
fn only_the_superuser_mounts_by_nfs() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: becoming another user needs root");
    }
    let place = Place::new();
    let arguments = ["--reuid=1001", "--clear-groups", PROGRAM, "mount", "-o", "door=nfs", "/", "/mnt"];
    let refused = place.run_as("setpriv", &arguments).refused(1);
    assert!(refused.contains("superuser") && refused.contains("FUSE"), "{refused}");
}

/// A mount outlives its server, and ends without one.
pub const MOUNTED: &str = r#"
# Unlike that of other parts, it may fail and be tried again.
fails() { if "$@"; then return 1; fi; }
running() { (set +x; grep -lx "$1" /proc/[0-9]*/comm 2>/dev/null | cut -d / -f 3 | grep .); }
worker() { running outrigger; }
keeper() { running outrigger-keep; }
comes() { set +x; until "$@" >/tmp/seen 2>&1; do usleep 1000; done; set -x; }
# Nothing is left of a mount.
gone() { ! grep ' /m ' /proc/mounts; }
ended() { gone; comes fails keeper; fails worker; }
# How long something takes, in hundredths of a second.
timed() { set +x; begin=$(tr -d . </proc/uptime | cut -d ' ' -f 1); "$@"; status=$?
    echo "$* took $(($(tr -d . </proc/uptime | cut -d ' ' -f 1) - begin)) hundredths of a second"; set -x; return $status; }
mkdir -p /run /t /m; tar czf /sources.tar.gz core; cd /
# Files here have handles.
mount -t tmpfs tmpfs /t
mkdir /t/tree /t/expected
tar xzf /sources.tar.gz -C /t/expected
chmod 777 /t/tree
outrigger mount --door nfs -o nodev /t/tree /m
grep '^outrigger.localhost:/t/tree /m nfs rw,.*nodev.*vers=3.*hard.*addr=127.0.0.1 ' /proc/mounts
echo one >/m/f; test "$(cat /t/tree/f)" = one; test "$(stat -c %u /m/f)" = 0
su one -c 'echo mine >/m/own; chmod 600 /m/own'; fails su two -c 'cat /m/own'
outrigger status /m | grep 'driver local'
fails outrigger mount --door nfs /t/tree /m
# What the kernel got once nobody else gets, not even the superuser.
port=$(sed -n 's/^outrigger.localhost.*,port=\([0-9]*\),.*/\1/p' /proc/mounts)
mkdir /t/other; here=addr=127.0.0.1,mountaddr=127.0.0.1
fails mount -t nfs -o $here,vers=3,proto=tcp,port=$port,mountport=$port,mountproto=tcp,nolock 127.0.0.1:/t/tree /t/other
mkdir /m/out /m/out/1 /m/out/2 /m/out/3
(for n in 1 2 3; do tar xzf /sources.tar.gz -C /m/out/$n; done) & tars=$!
for n in 1 2; do
    comes test -e /t/tree/out/$n/core/src
    kill -0 $tars
    kill -9 $(worker)
done
timed wait $tars
for n in 1 2 3; do diff -r /t/expected /t/tree/out/$n; done
diff -r /t/expected /m/out/2
outrigger --json status /m | grep '"deaths":2'
timed timeout 30 outrigger umount /m
ended
outrigger mount -o door=nfs,ro /sources.tar.gz /m
diff -r /t/expected /m; fails touch /m/new
# Files of an archive have handles by which a worker finds their paths.
exec 3</m/core/Cargo.toml
kill -9 $(worker); echo 3 >/proc/sys/vm/drop_caches
cat <&3 >/tmp/read; exec 3<&-; cmp /tmp/read /t/expected/core/Cargo.toml
timed timeout 30 umount /m
ended
outrigger mount -o door=nfs mem: /m
cp -r /t/expected/core /m/
kill -9 $(worker)
echo 3 >/proc/sys/vm/drop_caches
diff -r /t/expected/core /m/core
kill -TERM $(keeper)
comes gone
ended
stood_in() { outrigger status | grep 'driver none'; }
serves() { timeout 30 cat /m/own; }
outrigger mount --door nfs /t/tree /m
loops() { for again in 1 2 3 4 5 6; do kill -9 $(worker) || true; usleep 100000; done; stood_in; }
comes loops
# When somebody needs it, another server is tried.
comes serves
test "$(cat /m/own)" = mine
outrigger status /m | grep 'driver local'
timed timeout 30 outrigger umount /m
ended
outrigger mount -o door=nfs,guard=none /t/tree /m
exec 3</m/f
kill -9 $(worker)
fails cat <&3
# Before anything is started that may keep the file open for longer.
exec 3<&-
timed timeout 30 stat /m
(cd /m)
outrigger status /m | grep 'there is no server any more'
fails timeout 30 cat /m/own 2>/tmp/said; grep -i stale /tmp/said
fails timeout 30 outrigger ls /m
timed timeout 30 umount /m
ended
# A mount that is in use when its server is told to end.
outrigger mount --door nfs /t/tree /m
exec 3</m/own
kill -TERM $(keeper)
comes gone
worker
kill -TERM $(keeper)
comes stood_in
fails cat <&3
exec 3<&-
ended
# Without a keeper nothing is restarted, and the mount can be ended all the same.
outrigger mount --door nfs /t/tree /m
kill -9 $(keeper)
kill -9 $(worker)
timed timeout 30 outrigger umount --force /m
fails grep ' /m ' /proc/mounts
"#;
