#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# package.sh: packs the crates that drivers and layers outside of this repository need, as they would be published, and builds
# and tests one such driver, testing/outside, with what is in the packages.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

published=(core core-derive host client runtime sim conformance)
for layer in cache closesim deadline fault fixup journal permissions readonly simulate subtree trace union; do
    published+=("layer-$layer")
done
packages=()
for name in "${published[@]}"; do
    packages+=(--package "outrigger-$name")
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
packed=$target/package

# What is built below is in the packages, so building each by itself would find nothing more.
cargo package --quiet --no-verify --allow-dirty --target-dir "$target" "${packages[@]}"

outside=$target/outside
rm -rf "$outside"
cp -r testing/outside "$outside"
# The same versions of everything else as here.
cp Cargo.lock "$outside/Cargo.lock"
printf '\n[patch.crates-io]\n' >>"$outside/Cargo.toml"
for name in "${published[@]}"; do
    # cargo(1) packs all files with one time: without their own the build would take an older packing for this one.
    tar -xzmf "$packed/outrigger-$name-$version.crate" -C "$outside"
    printf 'outrigger-%s = { path = "outrigger-%s-%s" }\n' "$name" "$name" "$version" >>"$outside/Cargo.toml"
done
cargo test --manifest-path "$outside/Cargo.toml" --target-dir "$target/outside-build"
