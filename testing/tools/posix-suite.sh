#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# posix-suite.sh: runs pjdfstest, cases after xfstests (generic.py) and fsx on Outrigger mounts of a directory, of memory and of
# disk images, fsx also on one of an SSH server, and the first two on the ext4 below as the measure: what that passes, the mounts
# must pass, but for the cases in posix-exceptions.txt.
#
#   OUTRIGGER=FILE   the program (default: the debug build, which has overflow checks)
#   FSX_OPS=N        operations of each fsx run (default 100000)
#   FSX_SEED=N       seed of the fsx runs (default 1)
#
# Needs root and a loop device. Results: target/test-results/posix/.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"

outrigger=${OUTRIGGER:-$target/debug/outrigger}
fsx_ops=${FSX_OPS:-100000}
fsx_seed=${FSX_SEED:-1}
tools=$top/testing/tools
logs=$results/posix
scratch=
# Arguments of mount that put layers on the tree.
layers=()
# How pjdfstest and generic.py report a case, as a pattern of awk.
case_lines='/^[a-z_0-9]+(::[a-z_0-9]+)+ +(ok|FAILED|skipped)$/'

cleanup() {
    [ -z "$scratch" ] || { release_mounts "$scratch"; rm -rf --one-file-system "$scratch"; }
}

# skip REASON: leaves, saying that the 20 suites of this script did not run.
skip() {
    record posix 0 0 20 "$1"
    exit 0
}

# mount_outrigger LOCATION OPTIONS: mounts it on $scratch/mnt and fails when it is not there afterwards.
mount_outrigger() {
    deadline 60 "$outrigger" mount "${layers[@]}" -o "allow_other,default_permissions$2" "$1" "$scratch/mnt" \
        >>"$logs/mount.log" 2>&1 &&
        is_mounted "$scratch/mnt"
}

# umount_outrigger: a clean end, which is part of the test.
umount_outrigger() {
    deadline 30 "$outrigger" umount "$scratch/mnt" >>"$logs/mount.log" 2>&1 && ! is_mounted "$scratch/mnt"
}

# run_pjdfstest NAME DIR: writes "CASE RESULT" lines to $logs/pjdfstest-NAME.txt; fails when a run is not complete.
# The cases that remount the file system read-only run by themselves: after others, they find it busy, on ext4 too.
run_pjdfstest() {
    local log=$logs/pjdfstest-$1.log
    deadline 30 mkdir -p -m 777 "$2/t" || return 1
    sed 's/^allow_remount = false/allow_remount = true/' "$tools/pjdfstest.toml" >"$logs/remount.toml"
    pjdfstest "$tools/pjdfstest.toml" "$2/t" "$log" || return 1
    pjdfstest "$logs/remount.toml" "$2/t" "$log.remount" erofs || return 1
    # Later lines win, so the second run answers for the cases that the first one skipped.
    cat "$log" "$log.remount" | awk "$case_lines"' { result[$1] = $2 } END { for (c in result) print c, result[c] }' |
        sort >"$logs/pjdfstest-$1.txt"
}

# pjdfstest CONFIGURATION DIR LOG [FILTER]: one run. Complete when every case it counts has its line.
pjdfstest() {
    local total
    deadline 300 "$programs/pjdfstest" -c "$1" -p "$2" -s "$scratch/other" "${@:4}" >"$3" 2>&1 || true
    total=$(sed -n 's/^Summary:.* \([0-9]*\) total$/\1/p' "$3")
    [ -n "$total" ] && [ "$total" -gt 0 ] && [ "$total" -eq "$(awk "$case_lines" "$3" | wc -l)" ]
}

# run_generic NAME DIR: as run_pjdfstest, with the cases of generic.py.
run_generic() {
    local log=$logs/generic-$1.log
    deadline 30 mkdir -p "$2/g" || return 1
    deadline 300 python3 "$tools/generic.py" "$2/g" >"$log" 2>&1 || return 1
    awk "$case_lines" "$log" | sort >"$logs/generic-$1.txt"
    grep -q '^Summary: .* total$' "$log"
}

# cases SUITE RESULT: how many cases of the native run ended so.
cases() { grep -c " $2\$" "$logs/$1-native.txt" || true; }

# judge SUITE NAME: compares with the native run and the exceptions; prints "PASSED FAILED REMARK" and, on standard error, each
# case that decides against the mount.
judge() {
    awk -v name="$2" -v suite="$1" -f "$tools/judge-posix.awk" \
        "$tools/posix-exceptions.txt" "$logs/$1-native.txt" "$logs/$1-$2.txt"
}

# measure SUITE: runs it on the native file system; what that fails measures nothing.
measure() {
    if ! "run_$1" native "$scratch/ext4/native"; then
        record "$1-native" 0 1 0 "did not finish: see $logs/$1-native.log"
        return 1
    fi
    record "$1-native" "$(cases "$1" ok)" "$(cases "$1" FAILED)" "$(cases "$1" skipped)" "ext4"
}

# suite_on SUITE NAME LOCATION
suite_on() {
    local suite=$1-$2 passed failed remark
    if ! mount_outrigger "$3" ""; then
        record "$suite" 0 1 0 "mount failed: see $logs/mount.log"
    elif ! "run_$1" "$2" "$scratch/mnt"; then
        record "$suite" 0 1 0 "did not finish: see $logs/$suite.log"
    else
        read -r passed failed remark < <(judge "$1" "$2")
        umount_outrigger || { failed=$((failed + 1)) remark="$remark; umount failed"; }
        record "$suite" "$passed" "$failed" 0 "$remark"
    fi
    release_mounts "$scratch/mnt"
}

# image TYPE: prints the name of a new image.
image() {
    rm -f "$scratch/$1.img"
    truncate -s 1G "$scratch/$1.img"
    "mkfs.$1" -q "$scratch/$1.img" >/dev/null 2>&1
    echo "$scratch/$1.img"
}

# run_fsx DIR LOG CONFIGURATION OPERATIONS
run_fsx() {
    deadline 30 rm -rf "$1/fsx" && deadline 30 mkdir "$1/fsx" || return 1
    RUST_LOG=error deadline 900 "$programs/fsx" -N "$4" -S "$fsx_seed" -f "$3" -P "$logs" \
        "$1/fsx/file" >"$2" 2>&1 && grep -q 'A-OK' "$2"
}

# fsx_on NAME LOCATION OPTIONS [CONFIGURATION [OPERATIONS]]
fsx_on() {
    local suite=fsx-$1 log=$logs/fsx-$1.log began=$SECONDS outcome
    local configuration=${4:-$tools/fsx.toml} operations=${5:-$fsx_ops}
    if ! mount_outrigger "$2" "$3"; then
        record "$suite" 0 1 0 "mount failed: see $logs/mount.log"
    elif ! run_fsx "$scratch/mnt" "$log" "$configuration" "$operations"; then
        outcome=$(grep -v "^$" "$log" 2>/dev/null | tail -n 1 | cut -c 1-120) || true
        record "$suite" 0 1 0 "seed $fsx_seed: ${outcome:-no output}; see $log"
    elif ! umount_outrigger; then
        record "$suite" 0 1 0 "umount failed: see $logs/mount.log"
    else
        record "$suite" 1 0 0 "$operations operations, seed $fsx_seed, $((SECONDS - began)) s"
    fi
    release_mounts "$scratch/mnt"
}

# prepare: an ext4 image to stand on, with a directory for the native run and one to mount through Outrigger.
prepare() {
    # Directly in /tmp, with short names: the suite binds sockets, whose paths have 107 bytes at most.
    scratch=$(mktemp -d /tmp/posix.XXXXXX)
    chmod 755 "$scratch"
    mkdir "$scratch/ext4" "$scratch/mnt" "$scratch/other"
    truncate -s 2G "$scratch/image"
    mkfs.ext4 -q -F "$scratch/image"
    mount -o loop "$scratch/image" "$scratch/ext4" || skip "no loop device can be mounted here"
    mkdir "$scratch/ext4/native" "$scratch/ext4/below"
    chmod 777 "$scratch/ext4/native" "$scratch/ext4/below" "$scratch/other"
}

rm -rf "$logs"
mkdir -p "$logs"
[ "$(id -u)" -eq 0 ] || skip "needs root"
[ -c /dev/fuse ] || skip "needs /dev/fuse"
[ -x "$outrigger" ] || die "there is no $outrigger: cargo build -p outrigger"
programs=$("$tools/test-programs.sh")
prepare

for suite in pjdfstest generic; do
    measure "$suite" || exit 0
    suite_on "$suite" local "$scratch/ext4/below"
    suite_on "$suite" mem mem:
    suite_on "$suite" ext4 "$(image ext4)"
done
for type in xfs btrfs; do
    suite_on generic "$type" "$(image "$type")"
done
fsx_on local "$scratch/ext4/below" ""
fsx_on local-writeback "$scratch/ext4/below" ",writeback"
fsx_on mem mem: ""
fsx_on mem-writeback mem: ",writeback"
# OpenSSH's server without ssh: what is tested is the protocol, which has neither holes nor allocation.
grep -Ev '^(punch_hole|posix_fallocate) ' "$tools/fsx.toml" >"$logs/fsx-sftp.toml"
fsx_on sftp "host:$scratch/ext4/below" ",command=/usr/lib/openssh/sftp-server" "$logs/fsx-sftp.toml" $((fsx_ops / 10))
# An encrypted directory; 1 MiB of memory for the passphrase, which keeps nothing secret here.
(umask 077 && echo passphrase >"$scratch/pass")
mkdir "$scratch/ext4/crypt"
deadline 60 "$outrigger" crypt init --memory 1 --passes 1 --passfile "$scratch/pass" "$scratch/ext4/crypt"
chmod 777 "$scratch/ext4/crypt"
layers=(--layer "crypt=passfile=$scratch/pass")
suite_on pjdfstest crypt "$scratch/ext4/crypt"
suite_on generic crypt "$scratch/ext4/crypt"
fsx_on crypt "$scratch/ext4/crypt" "" "$tools/fsx.toml" $((fsx_ops / 10))
