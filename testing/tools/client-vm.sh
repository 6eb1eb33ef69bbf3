#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# client-vm.sh SCRIPT: runs a shell script in a virtual machine with Debian's kernel, whose clients of NFS and 9P this machine's kernel may lack.
# What the machine prints on its console is printed. Exit status 0: the script has exit status 0.
#
# The script runs as root in busybox' shell. 10.0.2.2 is the loopback device of this machine. qemu emulates the processor, so no
# support for virtual machines is needed; it boots in about ten seconds. VM_SECONDS (300) is how long it may take. VM_PROGRAMS is
# a list, separated by spaces, of further programs: commands of this machine, or paths of files. Each is in the machine's /bin, with
# the libraries that it needs and without its symbols.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || die "usage: client-vm.sh SCRIPT"
script=$(readlink -f "$1")
client=$target/test-tools/linux-client
[ -e "$client/initrd/init" ] || die "no kernel for the client: make deps"

# add_program PROGRAM: into the files of the machine.
add_program() {
    local file library
    file=$(command -v "$1") || die "VM_PROGRAMS: there is no '$1'"
    # A script has no symbols.
    strip -o "$scratch/root/bin/${1##*/}" "$file" 2>/dev/null || cp "$file" "$scratch/root/bin/"
    { ldd "$file" 2>/dev/null || true; } | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) { print $i; break } }' |
        while read -r library; do
            mkdir -p "$scratch/root${library%/*}"
            cp -L -n "$library" "$scratch/root$library"
        done
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/client-vm.XXXXXX")
cleanup() { rm -rf "$scratch"; }
cp -a "$client/initrd" "$scratch/root"
install -m 755 "$(dirname "$0")/client-init.sh" "$scratch/root/init"
cp "$script" "$scratch/root/script"
for program in ${VM_PROGRAMS:-}; do add_program "$program"; done
# no_timer_check: on a busy machine the emulated timer is late, and the kernel would take it for broken.
# Not compressed: the emulated processor would take longer than the copy does.
(cd "$scratch/root" && find . | cpio --quiet -o -H newc >"$scratch/initrd")
timeout --kill-after=10 "${VM_SECONDS:-300}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 768 \
    -nographic -no-reboot -nodefaults -serial stdio -kernel "$client/vmlinuz" -initrd "$scratch/initrd" \
    -append "console=ttyS0 quiet panic=-1 no_timer_check" -nic user,model=virtio-net-pci </dev/null | sed -u 's/\r//g' | tee "$scratch/log" &
# A signal to this script ends the machine at once.
wait "$!"
grep -q '^the script ends with status 0$' "$scratch/log"
