#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# one-program.sh PROGRAM ARGUMENT...: runs a test program of `cargo test`. One that hangs is ended after ten minutes, having said
# where each of its threads stood, so that the others still run.
set -euo pipefail
limit=600

# Where the threads of process $1 are: by gdb if there is one, else what the kernel tells.
stacks() {
    if command -v gdb >/dev/null; then
        timeout 60 gdb -p "$1" -batch -ex 'thread apply all backtrace 20' 2>/dev/null | grep -E '^(Thread|#)' | cut -c 1-160
    else
        grep -H . /proc/"$1"/task/*/comm /proc/"$1"/task/*/wchan
    fi
}

# watch: ends with its standard input, whose other end this script has; ends the program if that takes too long.
watch() {
    local status=0 child children
    read -r -t "$limit" || status=$?
    # Above 128: the time is over.
    [ "$status" -gt 128 ] || return 0
    read -r -a children <"/proc/$$/task/$$/children" || true
    for child in "${children[@]}"; do
        # This watch is a child too.
        [ "$child" -ne "$BASHPID" ] || continue
        echo "error: $program has not ended within $limit seconds; its threads:"
        stacks "$child" || true
        kill -KILL "$child" || true
    done
}

program=$1
exec {alive}> >(watch)
"$@" {alive}>&-
