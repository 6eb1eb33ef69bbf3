#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# test.sh [SUITE...]: runs every suite, or those named: format lint docs tidy licences package scripts kernel cargo kill damaged posix. The last line has the totals.
# A suite that fails does not stop the others. Logs: target/test-results/SUITE.log.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

# In CI the versions are those of Cargo.lock; elsewhere a developer may have just added a dependency.
lock=()
# Where the tests were built before, their dependencies have the features they need: the programs alone would be built again.
which=(--bins)
! is_ci || { lock=(--locked); which=(--all-targets); }

# Tests mount below this directory, so that what a crashed test leaves behind can be found and taken away.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/outrigger-test.XXXXXX")
export TMPDIR
# Tests become other users, who must be able to enter, as in /tmp.
chmod 1777 "$TMPDIR"
cleanup() { release_mounts "$TMPDIR"; rm -rf --one-file-system "$TMPDIR"; }

# check SUITE SECONDS COMMAND...: a suite that passes or fails as a whole, and may say what of it cannot run here.
check() {
    local suite=$1 log=$results/$1.log
    shift
    heading "$suite: ${*:2}"
    if deadline "$@" >"$log" 2>&1; then
        record "$suite" 1 0 "$(grep -c '^SKIPPED: ' "$log" || true)" ""
    else
        tail -n 60 "$log"
        record "$suite" 0 1 0 "$(reason "$log")"
    fi
}

suite_format() { check format 120 cargo fmt --all --check; }
suite_lint() { check lint 1800 cargo clippy "${lock[@]}" --workspace --all-targets -- -D warnings; }
suite_tidy() { check tidy 600 cargo xtask tidy; }
suite_docs() { check docs 600 env RUSTDOCFLAGS="-D warnings" cargo doc "${lock[@]}" --workspace --no-deps; }
suite_licences() { check licences 300 cargo xtask licences; }

suite_package() { check package 900 testing/tools/package.sh; }

suite_scripts() {
    local scripts=(.ci/run kernel/build.sh)
    mapfile -t -O 2 scripts < <(find testing -name '*.sh' | sort)
    if command -v shellcheck >/dev/null; then
        check scripts 120 shellcheck -x "${scripts[@]}"
    else
        heading scripts
        record scripts 0 0 1 "needs shellcheck"
    fi
}

# Builds outrigger-kernel, which tests of disk images need, and checks the crate around it as the others.
suite_kernel() {
    local log=$results/kernel.log status=0
    heading "kernel: kernel/build.sh"
    deadline 1500 kernel/build.sh >"$log" 2>&1 || status=$?
    case $status in
    0) ;;
    77) record kernel 0 0 1 "$(tail -n 1 "$log")" && return ;;
    *) tail -n 60 "$log" && record kernel 0 1 0 "$(reason "$log")" && return ;;
    esac
    record kernel 1 0 0 ""
    check kernel-format 120 cargo fmt --manifest-path kernel/worker/Cargo.toml --check
    check kernel-tests 600 env OUTRIGGER_KERNEL_OBJECT="$target/kernel/kernel.o" cargo test --locked --manifest-path kernel/worker/Cargo.toml --target-dir target/kernel/worker
    check kernel-lint 600 cargo clippy --locked --manifest-path kernel/worker/Cargo.toml --target-dir target/kernel/worker -- -D warnings
}

# Counts what the test programs report. A test that cannot run here prints a line "SKIPPED: reason" and returns.
suite_cargo() {
    local log=$results/cargo.log status=0 passed failed ignored skipped remark
    local runner="target.'cfg(unix)'.runner=['$top/testing/tools/one-program.sh']"
    heading "cargo: cargo test --workspace"
    deadline 3300 cargo test "${lock[@]}" --config "$runner" --workspace --no-fail-fast -- --show-output >"$log" 2>&1 || status=$?
    read -r passed failed ignored < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p + 0, f + 0, i + 0 }' "$log")
    skipped=$(grep -c '^SKIPPED: ' "$log" || true)
    grep '^SKIPPED: ' "$log" | sort | uniq -c || true
    remark="see $log"
    if [ "$status" -ne 0 ]; then
        remark=$(reason "$log")
        grep -E '^(error|test .* FAILED)' "$log" | sort -u || true
        # What each program says of its failures, and where there is nothing of that kind, its last words.
        awk '/^failures:$/ { shown = 1 } shown { print; some = 1 } /^test result:/ { shown = 0 } END { exit !some }' "$log" |
            head -n 400 || tail -n 60 "$log"
        # A crash, a deadline or a compile error ends without a count of its own.
        [ "$failed" -gt 0 ] || failed=1
    fi
    record cargo $((passed - skipped)) "$failed" $((ignored + skipped)) "$remark"
}

# Deaths of real servers, few of each kind: make table4 and make table5 have more.
suite_kill() {
    local program=${CARGO_TARGET_DIR:-target}/debug/outrigger-kill
    if [ "$(id -u)" -ne 0 ] || [ ! -w /dev/fuse ]; then
        heading kill
        record kill 0 0 1 "needs root and /dev/fuse"
        return
    fi
    check kill-build 1200 cargo build "${lock[@]}" --workspace "${which[@]}"
    check kill-tools 1200 testing/tools/test-programs.sh
    check kill-table4 600 "$program" table4 --subject local --subject mem --rounds 4
    check kill-proxy 300 "$program" table4 --subject local-proxy --subject mem-proxy --rounds 2
    check kill-sftp 300 "$program" table4 --subject sftp --rounds 2 --operation create --operation mkdir --operation symlink \
        --operation rename --operation "rename over" --operation open --operation read --operation readdir --operation write \
        --operation append --operation unlink --operation rmdir --operation truncate --operation chmod --operation utime --operation stat
    check kill-rows 300 "$program" table4 --subject ext4 --subject xfs --subject vfat --rounds 3 --operation create \
        --operation "rename over" --operation append --operation fsync
    check kill-table5 600 "$program" table5 --subject local --subject mem --deaths 25
    check kill-soak 300 "$program" soak --restarts 60
    check kill-recovery 120 "$program" recovery --subject local --subject mem --deaths 50
    check kill-programs 300 "$program" table4 --subject bindfs --subject sshfs --rounds 2 \
        --operation create --operation mkdir --operation rename --operation append --operation unlink --operation readdir
    check kill-images 300 "$program" crash --kills 8 --type ext4 --type xfs --type vfat --victim everything --victim unguarded
    check kill-frozen 120 "$program" frozen
}

# Few images of each type, one in five of those that are damaged on purpose: make damaged has all.
suite_damaged() {
    check damaged-build 1200 cargo build "${lock[@]}" --workspace "${which[@]}"
    check damaged 600 "${CARGO_TARGET_DIR:-target}/debug/outrigger-damaged" --images 2 --crafted 5
}

suite_posix() {
    local log=$results/posix-build.log
    # There the time is bounded.
    ! is_ci || export FSX_OPS=${FSX_OPS:-40000}
    heading "posix: pjdfstest, generic and fsx on native ext4, local, mem and images; fsx on sftp"
    if deadline 1200 cargo build "${lock[@]}" --workspace "${which[@]}" >"$log" 2>&1; then
        deadline 2700 testing/tools/posix-suite.sh || record posix 0 1 0 "posix-suite.sh did not finish"
    else
        tail -n 30 "$log"
        record posix 0 1 0 "the program does not build: $(reason "$log")"
    fi
}

rm -rf "$results"
mkdir -p "$results"
touch "$results/began"
[ $# -gt 0 ] || set -- format lint docs tidy licences package scripts kernel cargo kill damaged posix
for suite; do
    declare -F "suite_$suite" >/dev/null || die "there is no suite '$suite': format lint docs tidy licences package scripts kernel cargo kill damaged posix"
done
for suite; do "suite_$suite"; done
summary
