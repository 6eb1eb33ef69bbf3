#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# demo.sh: what Outrigger does, shown on a Debian package, a disk image, a mount whose server is killed, an SSH server and a
# generated tree of 20,000 files. Takes about a minute.
# Every command is printed before it runs. Works as any user who may use FUSE. All files go to target/demo.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"

work=$target/demo
PATH=$target/release:$PATH
command -v outrigger >/dev/null || die "build it first: cargo build --release"
mkdir -p "$work"
cd "$work"

cleanup() { release_mounts "$work"; }
cleanup

# run COMMAND: prints a shell command, then runs it, for three minutes at most.
run() {
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then printf '\033[32m$\033[0m %s\n' "$1"; else printf '$ %s\n' "$1"; fi
    deadline 180 bash -euo pipefail -c "$1"
}

# A public package, fetched once.
fetch_package() {
    local found
    found=$(find . -maxdepth 1 -name 'coreutils_*.deb' | head -n 1)
    if [ -z "$found" ]; then
        command -v apt-get >/dev/null || die "the demo needs apt-get to fetch a package"
        run "apt-get download -q coreutils 2>/dev/null"
        found=$(find . -maxdepth 1 -name 'coreutils_*.deb' | head -n 1)
    fi
    [ -n "$found" ] || die "apt-get could not download coreutils: is there a network, and did apt-get update run?"
    deb=${found#./}
}

# 100 directories of 200 files, and one of each special thing: hard link, symlink, hole, long name, empty directory.
make_tree() {
    local number long
    rm -rf tree
    for number in $(seq 1000 1099); do
        mkdir -p "tree/dir-$number"
        seq "$number" $((number + 1999)) | split -l 10 -a 3 -d - "tree/dir-$number/file-"
    done
    long=$(printf 'x%.0s' $(seq 200))
    ln tree/dir-1000/file-000 tree/hard-link
    ln -s dir-1001/file-001 tree/symlink
    truncate -s 10M tree/sparse
    printf 'end\n' >>tree/sparse
    mkdir -p tree/empty "tree/$long"
    printf 'long\n' >"tree/$long/$long"
    tar -cSJf tree.tar.xz tree
}

look_into_package() {
    heading "A file inside a package: no unpacking, no root, nothing mounted"
    fetch_package
    run "outrigger ls -l $deb::/"
    run "outrigger ls -l $deb::/data.tar.xz::/usr/bin | sed -n 1,12p"
    run "outrigger cat $deb::/data.tar.xz::/usr/share/doc/coreutils/copyright | sed -n 1,6p"
}

run_from_package() {
    heading "The same tree mounted: any program can use it"
    mkdir -p package
    # Debian 13 moved ls from /bin to /usr/bin.
    bin=usr/bin
    deadline 60 outrigger stat "$deb::/data.tar.xz::/$bin/ls" >/dev/null 2>&1 || bin=bin
    run "outrigger mount $deb::/data.tar.xz package"
    run "outrigger status package"
    run "package/$bin/ls --version | sed -n 1p"
    run "package/$bin/ls -l package/$bin | sed -n 1,5p"
    run "outrigger umount package"
}

copy_there_and_back() {
    heading "20,000 files: from an archive to memory, to a directory, and compared"
    [ -s tree.tar.xz ] || make_tree
    rm -rf back
    mkdir -p memory back
    run "outrigger ls tree.tar.xz::/tree | wc -l"
    run "outrigger mount mem: memory"
    run "time outrigger cp -a tree.tar.xz::/tree memory"
    run "time outrigger cp -a memory/tree back"
    run "diff -r --no-dereference tree back/tree && echo identical"
    run "find back/tree -type f | wc -l"
    run "outrigger status memory"
    run "outrigger umount memory"
    run "outrigger cp -a tree.tar.xz::/tree back/straight"
    run "diff -r --no-dereference tree back/straight && echo identical"
    rm -rf back
}

# Written and read without a mount and without root; e2fsck, which knows nothing of us, has the last word.
write_an_image() {
    heading "A disk image: written and read without mounting it, by Linux' own ext4 in a process without rights"
    PATH=$PATH:/usr/sbin:/sbin
    rm -f disk.img
    run "truncate -s 256M disk.img && mkfs.ext4 -q disk.img"
    run "outrigger inspect disk.img"
    run "outrigger cp -a $deb::/data.tar.xz::/usr/share/doc disk.img::/"
    run "outrigger ls -l disk.img::/doc/coreutils | sed -n 1,5p"
    run "outrigger diff -r $deb::/data.tar.xz::/usr/share/doc disk.img::/doc && echo identical"
    run "e2fsck -fn disk.img"
}

# What a program has open stays open, and what it wrote is there.
survive_a_kill() {
    heading "The server of a mount is killed while a program writes: the program does not notice"
    mkdir -p guarded
    run "outrigger mount mem: guarded"
    # shellcheck disable=SC2016 # the shell that runs it expands it
    run 'exec 3>guarded/file && echo one >&3
  server=$(outrigger --json status guarded | sed "s/.*\"pid\":\([0-9]*\).*/\1/")
  kill -KILL "$server" && echo "killed process $server" && echo two >&3
  cat guarded/file'
    run "outrigger status guarded"
    run "outrigger umount guarded"
}

# The SSH server is OpenSSH's own program for it, started directly: no login, and nothing of this machine's sshd is touched.
mount_an_ssh_server() {
    heading "A directory of an SSH server (OpenSSH's sftp-server, started without a login)"
    local server=/usr/lib/openssh/sftp-server
    if [ ! -x "$server" ]; then
        note "skipped: openssh-sftp-server is not installed"
        return
    fi
    mkdir -p remote
    run "outrigger mount -o command=$server demo:$work remote"
    run "ls -l remote | sed -n 1,5p"
    run "cmp remote/$deb $deb && echo identical"
    run "outrigger umount remote"
}

look_into_package
run_from_package
write_an_image
survive_a_kill
mount_an_ssh_server
copy_there_and_back
heading "That was Outrigger. The commands: outrigger --help; the rest: README.md"
