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

watch() {
    local end=$((SECONDS + limit))
    # One that has ended has no executable, also while its parent waits for the end of its output, which is ours too.
    while [ -e "/proc/$1/exe" ]; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "error: $2 has not ended within $limit seconds; its threads:"
            stacks "$1" || true
            kill -KILL "$1"
            return
        fi
        sleep 0.1
    done
}

# Not its child: a test may count or await those.
(watch "$$" "$1" &)
exec "$@"
