#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# test-programs.sh: builds the public test programs once, into target/test-tools, and prints the directory they are in.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"

root=$target/test-tools

# install NAME VERSION: a stamp says which version is there, so that a new version here is built and an old one is not.
install() {
    local stamp=$root/$1-$2.stamp
    if [ ! -e "$stamp" ] || [ ! -x "$root/bin/$1" ]; then
        note "building $1 $2"
        deadline 900 cargo install "$1" --version "$2" --locked --quiet --force --root "$root" >&2
        rm -f "$root/$1"-*.stamp
        touch "$stamp"
    fi
}

mkdir -p "$root"
install pjdfstest 0.2.2
install fsx 0.3.2
printf '%s\n' "$root/bin"
