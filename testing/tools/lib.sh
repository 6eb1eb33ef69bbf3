# shellcheck shell=bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# What the test scripts share. Source it from a script that has `set -euo pipefail`.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
# Logs and results of the last run; shown in docs/TESTING.md.
results=$target/test-results
# One line a suite: name, passed, failed, skipped, seconds, remark; separated by tabs.
table=$results/suites.tsv
PATH=$PATH:/usr/sbin:/sbin
export PATH

note() { printf '%s\n' "$*" >&2; }
die() { note "$*"; exit 1; }
is_ci() { [ "${CI:-}" = true ]; }

# heading TEXT: bold on a terminal.
heading() {
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then printf '\n\033[1m== %s\033[0m\n' "$1"; else printf '\n== %s\n' "$1"; fi
}

# deadline SECONDS COMMAND...: runs it without standard input, for SECONDS at most. It waits in a way that a signal to this
# script ends at once; the command runs in a process group of its own, which stop_children ends.
deadline() {
    local seconds=$1
    shift
    timeout --kill-after=15 "$seconds" "$@" </dev/null &
    wait "$!"
}

stop_children() {
    local child
    for child in $(jobs -p); do kill "$child" 2>/dev/null || true; done
    wait
}

# A script that has something to take away defines its own cleanup; it runs however the script ends, to its end: a second signal
# does not cut it short.
cleanup() { :; }
trap 'trap "" HUP INT TERM; stop_children; cleanup' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# record SUITE PASSED FAILED SKIPPED REMARK: notes and prints the result of a suite.
record() {
    mkdir -p "$results"
    touch -a "$table"
    # Suites follow each other, so each has taken the time since the line before it, or since the run began.
    local began
    began=$(stat -c %Y "$([ -s "$table" ] && echo "$table" || echo "$results/began")" 2>/dev/null || date +%s)
    set -- "${@:1:4}" $(($(date +%s) - began)) "$5"
    printf '%s\t%d\t%d\t%d\t%d\t%s\n' "$@" >>"$table"
    print_suite "$@"
}

# reason LOG: the last words of a suite that failed, for its line in the summary, where a log cannot be seen.
reason() {
    local words
    words=$(grep -E '^(error|test .* FAILED|.* panicked at )|✗|[1-9][0-9]* wrong' "$1" | sort -u | head -n 5; tail -n 1 "$1")
    printf '%s; see %s' "$(printf '%s' "$words" | tr '\n\t' '; ' | cut -c 1-400)" "$1"
}

print_suite() {
    local remark=${6:+ ($6)}
    printf '%-20s %6d passed %4d failed %4d skipped %5d s%s\n' "$1" "$2" "$3" "$4" "$5" "$remark"
}

# summary: every suite again, then the totals as the last line. Fails when something failed; where CI=true nothing may skip.
summary() {
    heading Summary
    local name passed failed skipped seconds remark p=0 f=0 s=0
    while IFS=$'\t' read -r name passed failed skipped seconds remark; do
        print_suite "$name" "$passed" "$failed" "$skipped" "$seconds" "$remark"
        p=$((p + passed)) f=$((f + failed)) s=$((s + skipped))
    done <"$table"
    if is_ci && [ "$s" -gt 0 ]; then
        printf 'CI=true: what was skipped counts as failed\n'
        f=$((f + s)) s=0
    fi
    printf '%d passed, %d failed, %d skipped\n' "$p" "$f" "$s" | tee "$results/totals.txt"
    [ "$f" -eq 0 ]
}

# mounts_below DIR: "FSTYPE MINOR MOUNTPOINT" of each mount at or below DIR, the innermost first. Never touches a mount.
mounts_below() {
    awk -v dir="$1" '{
        split($3, device, ":")
        for (i = 7; $i != "-"; i++) continue
        if ($5 == dir || index($5, dir "/") == 1) print $(i + 1), device[2], $5
    }' /proc/self/mountinfo | tac
}

# release_mounts DIR: takes away every mount at or below DIR. A FUSE connection is aborted first, so that no process stays
# stuck in it, even when its server hangs; then a server that is still there is killed.
release_mounts() {
    local type minor mountpoint control=/sys/fs/fuse/connections
    mounts_below "$1" | while read -r type minor mountpoint; do
        case $type in
        fuse | fuse.*)
            [ -e "$control/$minor/abort" ] || mount -t fusectl none "$control" 2>/dev/null || true
            { echo 1 >"$control/$minor/abort"; } 2>/dev/null || true
            ;;
        esac
        timeout 20 umount -l "$mountpoint" 2>/dev/null || timeout 20 fusermount3 -uz "$mountpoint" 2>/dev/null ||
            note "cannot unmount $mountpoint"
    done
    end_servers "$1"
}

# end_servers DIR: kills the processes of Outrigger that were started with DIR in their arguments and still run.
end_servers() {
    local entry program
    for entry in /proc/[0-9]*; do
        program=$(readlink "$entry/exe" 2>/dev/null) || continue
        if [[ $program == */outrigger* ]] && tr '\0' '\n' 2>/dev/null <"$entry/cmdline" | grep -qF -- "$1"; then
            kill -KILL "${entry#/proc/}" 2>/dev/null || true
        fi
    done
}

# is_mounted DIR: by the kernel's table, so it cannot hang.
is_mounted() { mounts_below "$1" | awk -v dir="$1" '$3 == dir { found = 1 } END { exit !found }'; }
