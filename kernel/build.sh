#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# build.sh [--stats]: builds target/kernel/outrigger-kernel, Linux' file systems as a program (README.md says how and why).
# Installs nothing. Needs Debian's linux-source-6.12 (installed, or apt-get to download it), flex, bison, bc, make, gcc,
# binutils, xz-utils and cargo. The kernel object is kept in $XDG_CACHE_HOME/outrigger/kernel; JOBS= sets the parallelism.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../target}/kernel
package=linux-source-6.12
archive=/usr/src/$package.tar.xz
jobs=${JOBS:-$(nproc)}
export KBUILD_BUILD_TIMESTAMP=@0 KBUILD_BUILD_USER=outrigger KBUILD_BUILD_HOST=outrigger LC_ALL=C

note() { printf '%s\n' "$*" >&2; }
die() { note "kernel/build.sh: $*"; exit 1; }
# Exit status 77: this machine lacks something, and nothing is wrong with the code.
lacks() { note "kernel/build.sh: $*"; exit 77; }

# mm/nommu.c refuses to map pages side by side; arch/kernel/alias.c can. Both are linked, under different names.
renamed=(vmap vunmap vm_map_ram vm_unmap_ram)
nommu_flags=""
for function in "${renamed[@]}"; do nommu_flags+=" -D$function=nommu_$function"; done
# mm/shmem.c lacks a few declarations on a machine without page tables.
shmem_flags="-include asm/tmpfs.h"

for program in make gcc ld objcopy flex bison bc xz cargo; do
    command -v "$program" >/dev/null || lacks "needs $program (make deps installs what is missing)"
done
mkdir -p "$target"

# The installed package, else one that is downloaded and only unpacked.
version=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null) || version=
if [ -z "$version" ] || [ ! -e "$archive" ]; then
    version=$(apt-cache policy "$package" 2>/dev/null | awk '$1 == "Candidate:" { print $2 }')
    { [ -n "$version" ] && [ "$version" != "(none)" ]; } || lacks "there is no package $package: apt-get update, or install it"
    archive=
fi

key=$({ printf '%s\n' "$version" "$(gcc -dumpfullversion)" "$nommu_flags"
    cd "$here" && find arch configs exports build.sh -type f -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -c1-32)
cache=${XDG_CACHE_HOME:-${HOME:-$target}/.cache}/outrigger/kernel
object=$cache/$key/kernel.o

fetch() {
    note "downloading $package $version"
    mkdir -p "$target/package"
    (cd "$target/package" && rm -f ./*.deb && apt-get download -q "$package=$version" >/dev/null)
    dpkg-deb --fsys-tarfile "$target"/package/*.deb | tar -xf - -C "$target/package" "./usr/src/$package.tar.xz"
    archive=$target/package/usr/src/$package.tar.xz
}

# The pristine tree; most drivers' code is left in the archive, for only their Kconfig files are read.
unpack() {
    [ "$(cat "$target/source/version" 2>/dev/null)" != "$version" ] || return 0
    [ -n "$archive" ] || fetch
    note "unpacking $package $version"
    rm -rf "$target/source"
    mkdir -p "$target/source"
    tar -xJf "$archive" -C "$target/source" --strip-components=1 \
        --exclude="$package/drivers/gpu/*.[ch]" --exclude="$package/drivers/media/*.[ch]" \
        --exclude="$package/drivers/net/*.[ch]" --exclude="$package/drivers/staging/*.[ch]" \
        --exclude="$package/sound/*.[ch]" --exclude="$package/Documentation/*.rst" --exclude="$package/tools/testing"
    printf '%s\n' "$version" >"$target/source/version"
}

kbuild() {
    make -C "$target/source" O="$target/build" ARCH=outrigger CFLAGS_nommu.o="$nommu_flags" \
        CFLAGS_shmem.o="$shmem_flags" "$@" >>"$target/build.log" 2>&1 || {
        tail -n 40 "$target/build.log" >&2
        die "make ${*: -1} failed; the whole log is $target/build.log"
    }
}

build_object() {
    unpack
    note "building the kernel object ($jobs jobs)"
    : >"$target/build.log"
    mkdir -p "$target/build"
    rm -rf "$target/source/arch/outrigger"
    cp -rp "$here/arch" "$target/source/arch/outrigger"
    kbuild KCONFIG_ALLCONFIG="$here/configs/kernel.config" allnoconfig
    check_config
    kbuild -j"$jobs" vmlinux_o
    kbuild init/version-timestamp.o
    local out=$target/build
    ld -r -z noexecstack -T "$out/arch/outrigger/kernel/vmlinux.lds" -o "$target/whole.o" \
        "$out/vmlinux.o" "$out/init/version-timestamp.o"
    # Only what arch/include/asm/host.h exports keeps its name: the program has a memcpy of its own.
    mkdir -p "$cache/$key"
    objcopy --strip-debug --remove-section=.export_symbol --remove-section=.rela.export_symbol \
        --keep-global-symbols="$here/exports" "$target/whole.o" "$object.new"
    mv "$object.new" "$object"
}

# Every line of our configuration must have survived the dependencies between options.
check_config() {
    local line
    grep '^CONFIG_' "$here/configs/kernel.config" | while read -r line; do
        grep -qxF -- "$line" "$target/build/.config" || die "the kernel does not take $line"
    done
}

# stats: lines that are ours beside lines of the kernel that are compiled, both without blank ones.
stats() {
    local count='xargs -0 cat | grep -cv "^[[:space:]]*$"' part
    [ -d "$target/build" ] || die "there is nothing to count: the object came from the cache; remove $cache/$key and build"
    printf '%-44s %9s\n' part lines
    for part in arch worker/src; do
        printf '%-44s %9d\n' "ours: kernel/$part" "$(cd "$here" && find "$part" -type f -print0 | eval "$count")"
    done
    for part in fs block mm kernel lib crypto drivers init security; do
        printf '%-44s %9d\n' "of the kernel: $part" "$(cd "$target/build" && compiled "$part" | eval "$count")"
    done
}

# compiled FOLDER: the C files of the kernel that went into the object, from the commands kbuild noted.
compiled() {
    { grep -hoE '^source_[^ ]+ := [^ ]+\.c$' -r "$1" --include='.*.o.cmd' || true; } | awk '{ print $3 }' | sort -u | tr '\n' '\0'
}

[ -e "$object" ] || build_object
ln -sfn "$object" "$target/kernel.o"
if [ "${1:-}" = --stats ]; then
    stats
    exit
fi
OUTRIGGER_KERNEL_OBJECT=$object cargo build --release --locked --quiet \
    --manifest-path "$here/worker/Cargo.toml" --target-dir "$target/worker"
cp "$target/worker/release/outrigger-kernel" "$target/outrigger-kernel.new"
mv "$target/outrigger-kernel.new" "$target/outrigger-kernel"
note "built $target/outrigger-kernel"
