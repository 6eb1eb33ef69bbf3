#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# client-vm.sh SCRIPT [FILE...]: runs a shell script in a virtual machine with Debian's kernel, whose NFS client this machine's kernel
# may lack. What the machine prints on its console is printed. Exit status 0: the script has exit status 0.
#
# The script runs as root in busybox' shell. 10.0.2.2 is the loopback device of this machine. Each FILE is in the machine: a program
# in /bin, with the libraries it needs, any other file in /. qemu emulates the processor, so no support for virtual machines is
# needed; it boots in about ten seconds. VM_SECONDS (300) is how long it may take.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -ge 1 ] || die "usage: client-vm.sh SCRIPT [FILE...]"
script=$(readlink -f "$1")
shift
client=$target/test-tools/linux-client
[ -e "$client/initrd/init" ] || die "no kernel for the client: make deps"

# put FILE: into the machine, where its memory is small: a program without what only debuggers read.
put() {
    local library
    if ! ldd "$1" >"$scratch/libraries" 2>/dev/null; then
        cp "$1" "$scratch/root/"
        return
    fi
    strip -o "$scratch/root/bin/$(basename "$1")" "$1"
    grep -o '/[^ ]*' "$scratch/libraries" | while read -r library; do
        mkdir -p "$scratch/root$(dirname "$library")"
        cp -L "$library" "$scratch/root$library"
    done
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/client-vm.XXXXXX")
cleanup() { rm -rf "$scratch"; }
cp -a "$client/initrd" "$scratch/root"
install -m 755 "$(dirname "$0")/client-init.sh" "$scratch/root/init"
cp "$script" "$scratch/root/script"
for file; do put "$file"; done
# Unpacking is slow in the machine.
(cd "$scratch/root" && find . | cpio --quiet -o -H newc >"$scratch/initrd")
timeout --kill-after=10 "${VM_SECONDS:-300}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 768 \
    -nographic -no-reboot -nodefaults -serial stdio -kernel "$client/vmlinuz" -initrd "$scratch/initrd" \
    -append "console=ttyS0 quiet panic=-1" -nic user,model=virtio-net-pci </dev/null | tr -d '\r' | tee "$scratch/log"
grep -q '^the script ends with status 0$' "$scratch/log"
