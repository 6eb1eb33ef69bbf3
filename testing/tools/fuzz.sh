#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# fuzz.sh SECONDS [TARGET...]: runs each fuzz target (or those named) for SECONDS, starting from the corpus in fuzz/corpus.
# Needs a nightly toolchain (rustup toolchain install nightly --profile minimal). A finding is left in fuzz/artifacts.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

seconds=${1:?usage: fuzz.sh SECONDS [TARGET...]}
shift
cargo +nightly --version >/dev/null 2>&1 || die "fuzzing needs: rustup toolchain install nightly --profile minimal"
if ! cargo fuzz --version >/dev/null 2>&1; then
    PATH=$target/test-tools/bin:$PATH
    cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked --root "$target/test-tools"
fi
[ $# -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
[ $# -eq 0 ] || targets=("$@")

rm -f "$table"
for name in "${targets[@]}"; do
    heading "$name, $seconds s"
    # What is found goes into the first folder.
    mkdir -p "fuzz/target/found/$name"
    if deadline $((seconds + 1200)) cargo +nightly fuzz run "$name" "fuzz/target/found/$name" "fuzz/corpus/$name" -- \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1; then
        record "$name" 1 0 0 "$seconds s without a finding"
    else
        record "$name" 0 1 0 "see fuzz/artifacts/$name"
    fi
done
summary
