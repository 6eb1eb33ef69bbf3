// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images where nothing is allowed: an ordinary user in namespaces of its own, without capabilities, without `/dev/fuse`
//! and loop devices, as in a plain container.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use support::{PROGRAM, Place, can_serve, has};

/// The user `nobody`.
const USER: u32 = 65_534;

/// Gives up what an ordinary user has in namespaces of its own, then does `work`.
const INSIDE: &str = "set -eu
mount -t tmpfs none /dev
: >/dev/null
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs sh -eu work
";

/// Every command that matters, on an image that is empty at first. The last line says that it came so far.
const WORK: &str = "
grep -q '^CapEff:.0*$' /proc/self/status
if mount -t tmpfs none /mnt 2>/dev/null || test -e /dev/fuse || test -e /dev/loop-control; then exit 9; fi
export HOME=$PWD OUTRIGGER_KERNEL=$PWD/outrigger-kernel
./outrigger cp -R src image::/
./outrigger cp -R image::/src back
diff -r --no-dereference src back
test \"$(./outrigger ls image::/src)\" = \"$(ls src)\"
test \"$(./outrigger cat image::/src/link)\" = content
echo new | ./outrigger write image::/new
test \"$(./outrigger find image::/ -name new)\" = image::/new
./outrigger mv image::/new image::/src/moved
./outrigger rm -r image::/src/dir
./outrigger mkdir image::/made
./outrigger stat image::/made
./outrigger du image::/
./outrigger df image::/
./outrigger tree image::/
./outrigger inspect image
echo everything works
";

#[test]
fn images_are_used_without_any_right() {
    if !can_serve() || !["mkfs.ext4", "e2fsck", "unshare", "setpriv"].into_iter().all(has) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: becoming another user needs root");
        return;
    }
    let place = Place::new();
    let beside = PathBuf::from(PROGRAM).ancestors().nth(2).unwrap().join("kernel/outrigger-kernel");
    let kernel = std::env::var_os("OUTRIGGER_KERNEL").map_or(beside, PathBuf::from);
    fs::copy(PROGRAM, place.at("outrigger")).unwrap();
    fs::copy(kernel, place.at("outrigger-kernel")).unwrap();
    place.file("src/dir/file", "content\n");
    std::os::unix::fs::symlink("dir/file", place.at("src/link")).unwrap();
    place.file("inside", INSIDE);
    place.file("work", WORK);
    let image = place.file("image", "");
    fs::File::options().write(true).open(&image).unwrap().set_len(32 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    for path in [place.at(""), image] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let user = USER.to_string();
    let become_user = ["--reuid", &user, "--regid", &user, "--clear-groups"];
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "inside"];
    let said = place.run_as("setpriv", &[&become_user[..], &unshare[..]].concat()).ok();
    assert!(said.ends_with("everything works\n"), "{said}");
    place.run_as("e2fsck", &["-fn", "image"]).ok();
}
