#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# demo.sh: what Outrigger does, shown on a Debian package and on a generated tree of 20,000 files. Takes about a minute.
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

look_into_package
run_from_package
copy_there_and_back
heading "That was Outrigger. The commands: outrigger --help; the rest: README.md"
