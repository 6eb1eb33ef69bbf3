#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# deps.sh demo|test|bench: installs the Debian packages that are missing for the demo, the tests or the benchmarks, and fetches
# the source that the tests build.
# Installs nothing when nothing is missing; asks no question; without the right to install, says what to install.
set -euo pipefail
# shellcheck source=testing/tools/lib.sh
. "$(dirname "$0")/lib.sh"

# Programs of 32 bits take the library of this version; gcc-multilib would bring more than that.
gcc_version=$(gcc -dumpversion 2>/dev/null || echo 12)
# PACKAGE=PROOF: the command, or the file, that shows that the package is there.
test_packages=(
    fuse3=fusermount3 acl=setfacl attr=setfattr e2fsprogs=mkfs.ext4 mount=losetup util-linux=findmnt
    zsh=zsh fish=fish zstd=zstd xz-utils=xz bzip2=bzip2 zip=zip unzip=unzip cpio=cpio binutils=ar libarchive-tools=bsdtar python3=python3 apache2-bin=/usr/sbin/apache2
    tree=tree groff-base=groff
    bindfs=bindfs sshfs=sshfs openssh-sftp-server=/usr/lib/openssh/sftp-server openssh-server=sshd libwrap0=/usr/share/doc/libwrap0
    openssl=openssl libsodium23=/usr/share/doc/libsodium23 squashfuse=squashfuse
    squashfs-tools=mksquashfs fuse-overlayfs=fuse-overlayfs mergerfs=mergerfs ntfs-3g=ntfs-3g gocryptfs=gocryptfs
    archivemount=archivemount encfs=encfs s3fs=s3fs curl=curl rclone=rclone restic=restic borgbackup=borg fuse-zip=fuse-zip
    python3-pyfuse3=/usr/share/doc/python3-pyfuse3 pkg-config=pkg-config libfuse3-dev=/usr/include/fuse3/fuse.h
    shellcheck=shellcheck tinyproxy-bin=tinyproxy
    linux-source-6.12=/usr/src/linux-source-6.12.tar.xz flex=flex bison=bison bc=bc
    dosfstools=mkfs.vfat xfsprogs=mkfs.xfs btrfs-progs=mkfs.btrfs f2fs-tools=mkfs.f2fs nilfs-tools=mkfs.nilfs2
    jfsutils=mkfs.jfs exfatprogs=mkfs.exfat udftools=mkudffs hfsutils=hformat util-linux-extra=mkfs.cramfs
    genisoimage=genisoimage xorriso=xorriso erofs-utils=mkfs.erofs genromfs=genromfs makefs=makefs mtd-utils=mkfs.jffs2
    fdisk=sfdisk gdisk=sgdisk qemu-utils=qemu-img qemu-system-x86=qemu-system-x86_64 busybox-static=/usr/share/doc/busybox-static kmod=modprobe
    musl-tools=musl-gcc libc6-dev-i386=/usr/lib32/libc.a "lib32gcc-$gcc_version-dev=/usr/lib/gcc/x86_64-linux-gnu/$gcc_version/32/libgcc.a"
    bubblewrap=bwrap strace=strace gdb=gdb vim-tiny=vim.tiny emacs-nox=emacs make=make gcc=gcc
    libnfs-utils=nfs-ls nfs-ganesha=ganesha.nfsd nfs-ganesha-vfs=/usr/share/doc/nfs-ganesha-vfs rpcbind=rpcbind diod=diod git=git sqlite3=sqlite3 systemd=systemd-analyze
)
# What building takes and demo.sh shows; kernel/build.sh downloads the kernel's source by itself.
demo_packages=(
    fuse3=fusermount3 e2fsprogs=mkfs.ext4 xz-utils=xz openssh-sftp-server=/usr/lib/openssh/sftp-server
    gcc=gcc libc6-dev=/usr/include/stdio.h make=make binutils=ld flex=flex bison=bison bc=bc
)
bench_packages=(
    fuse3=fusermount3 libfuse3-dev=/usr/include/fuse3/fuse.h pkg-config=pkg-config gcc=gcc bindfs=bindfs
    archivemount=archivemount zstd=zstd python3=python3 strace=strace e2fsprogs=mkfs.ext4 bubblewrap=bwrap proot=proot fakechroot=fakechroot gdb=gdb
    sshfs=sshfs rclone=rclone curl=curl openssh-server=sshd fuse2fs=fuse2fs
    libfuse2=/usr/share/doc/libfuse2 libcurl3-gnutls=/usr/share/doc/libcurl3-gnutls
    nfs-ganesha=ganesha.nfsd nfs-ganesha-vfs=/usr/share/doc/nfs-ganesha-vfs rpcbind=rpcbind
    qemu-system-x86=qemu-system-x86_64 busybox-static=/usr/share/doc/busybox-static kmod=modprobe cpio=cpio binutils=strip
)
ratarmount_version=1.3.0
moto_version=5.1.21
pyroute2_version=0.9.7
go_fuse_version=v2.7.2

# missing PACKAGE=PROOF...: the packages whose proof is absent.
missing() {
    local entry
    for entry; do
        case ${entry#*=} in
        /*) [ -e "${entry#*=}" ] || printf '%s\n' "${entry%%=*}" ;;
        *) command -v "${entry#*=}" >/dev/null || printf '%s\n' "${entry%%=*}" ;;
        esac
    done
}

install_packages() {
    local as_root=()
    [ $# -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "install these first (Debian's names): $*"
    if [ "$(id -u)" -ne 0 ]; then
        { command -v sudo && sudo -n true; } >/dev/null 2>&1 || die "install these first: sudo apt-get install $*"
        as_root=(sudo -n)
    fi
    note "installing: $*"
    deadline 300 "${as_root[@]}" apt-get update -q >/dev/null
    deadline 900 "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@" >/dev/null
}

# install_python DIRECTORY PROOF PACKAGE...: Python packages and their programs, in an environment of their own.
install_python() {
    local venv=$1 proof=$1/bin/$2
    shift 2
    [ ! -x "$proof" ] || return 0
    python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv python3-pip
    python3 -m venv "$venv"
    deadline 600 "$venv/bin/pip" install --quiet "$@"
}

# go-fuse's example, which splices its replies where it can.
install_loopback() {
    local bin=$target/test-tools/bin PATH=$PATH:/usr/local/go/bin
    [ ! -x "$bin/loopback" ] || return 0
    command -v go >/dev/null || install_packages golang-go
    scratch=$(mktemp -d)
    deadline 600 env GOBIN="$bin" GOPATH="$scratch" GOCACHE="$scratch/cache" GOFLAGS=-modcacherw \
        go install "github.com/hanwen/go-fuse/v2/example/loopback@$go_fuse_version"
    rm -rf "$scratch"
}

# unpack NAME PACKAGE...: the programs of packages in target/test-tools/NAME, without installing them: vsftpd and nginx would be started
# on ports 21 and 80, and pure-ftpd cannot be installed beside vsftpd.
unpack() {
    local dir=$target/test-tools/$1 package
    [ ! -d "$dir/usr/sbin" ] || return 0
    shift
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    (cd "$scratch" && deadline 300 apt-get -q -o "APT::Sandbox::User=$(id -un)" download "$@" >/dev/null)
    mkdir -p "$dir"
    for package in "$scratch"/*.deb; do dpkg -x "$package" "$dir"; done
    rm -rf "$scratch"
}

# Debian's kernel with its clients of NFS and 9P, and the first files of a machine that runs it, for client-vm.sh.
unpack_client() {
    local client=$target/test-tools/linux-client package version module
    # Former versions had no client of 9P.
    ! grep -qs '^9p\.ko' "$client/initrd/modules" || return 0
    note "fetching Debian's kernel"
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1)
    (cd "$scratch" && deadline 300 apt-get -q -o "APT::Sandbox::User=$(id -un)" download "$package" >/dev/null)
    dpkg -x "$scratch/$package"_*.deb "$scratch/kernel"
    [ -d "$scratch/kernel/lib" ] || ln -s usr/lib "$scratch/kernel/lib"
    version=$(ls "$scratch/kernel/lib/modules")
    depmod -b "$scratch/kernel" "$version"
    rm -rf "$client"
    mkdir -p "$client/initrd"/{bin,lib,proc,sys,dev,mnt,tmp,etc}
    cp "$(command -v busybox)" "$client/initrd/bin/busybox"
    cp "$scratch/kernel/boot/vmlinuz-$version" "$client/vmlinuz"
    for module in virtio_pci virtio_net nfs nfsv3 9p 9pnet_fd; do
        modprobe -d "$scratch/kernel" -S "$version" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
        cp "$module" "$client/initrd/lib/"
        basename "$module" >>"$client/initrd/modules"
    done
    printf 'root:x:0:0::/:/bin/sh\none:x:1001:1001::/:/bin/sh\ntwo:x:1002:1002::/:/bin/sh\n' >"$client/initrd/etc/passwd"
    printf 'root:x:0:\none:x:1001:\ntwo:x:1002:\n' >"$client/initrd/etc/group"
    install -m 755 "$(dirname "$0")/client-init.sh" "$client/initrd/init"
    rm -rf "$scratch"
}

# read_lists TYPE [SUITE]: makes `scratch` and reads the package lists of TYPE (deb, deb-src) into it, from where the system's packages
# come from; of the release SUITE when it is given. No right to install is needed. `options` is for apt-get(8) afterwards.
read_lists() {
    local edit="s/^deb /$1 /; s/^Types:.*/Types: $1/"
    # shellcheck source=/dev/null
    [ $# -eq 1 ] || edit+="; s/$(. /etc/os-release && echo "$VERSION_CODENAME")/$2/g"
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    mkdir -p "$scratch/lists" "$scratch/cache" "$scratch/parts" "$target/test-tools"
    [ ! -e /etc/apt/sources.list ] || sed "$edit" /etc/apt/sources.list >"$scratch/sources.list"
    [ ! -e /etc/apt/sources.list.d/debian.sources ] ||
        sed "$edit" /etc/apt/sources.list.d/debian.sources >"$scratch/parts/debian.sources"
    options=(-q -o "Dir::Etc::sourcelist=$scratch/sources.list" -o "Dir::Etc::sourceparts=$scratch/parts"
        -o "Dir::State::lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" -o "APT::Sandbox::User=$(id -un)")
    deadline 300 apt-get "${options[@]}" update >/dev/null
}

# fetch_source PACKAGE: its upstream source as Debian signs it, in target/test-tools/PACKAGE.orig.tar, compressed somehow.
fetch_source() {
    local file=$target/test-tools/$1.orig.tar options
    [ ! -e "$file" ] || return 0
    note "fetching the source of $1"
    read_lists deb-src
    (cd "$scratch" && timeout 300 apt-get "${options[@]}" source --download-only "$1" </dev/null >/dev/null)
    rm -f "$scratch"/*.asc
    mv "$scratch/$1"_*.orig.tar.* "$file"
}

# unpack_of SUITE PACKAGE: as `unpack`, a package that this release of Debian lacks.
unpack_of() {
    local dir=$target/test-tools/$2 options
    [ ! -d "$dir/usr" ] || return 0
    read_lists deb "$1"
    (cd "$scratch" && timeout 300 apt-get "${options[@]}" download "$2" >/dev/null)
    mkdir -p "$dir"
    dpkg -x "$scratch/$2"_*.deb "$dir"
    rm -rf "$scratch"
}
scratch=
cleanup() { [ -z "$scratch" ] || rm -rf "$scratch"; }

packages=()
case ${1:-} in
demo) mapfile -t packages < <(missing "${demo_packages[@]}") ;;
test) mapfile -t packages < <(missing "${test_packages[@]}") ;;
bench) mapfile -t packages < <(missing "${bench_packages[@]}") ;;
*) die "usage: deps.sh demo|test|bench" ;;
esac
install_packages "${packages[@]}"
case $1 in
test)
    fetch_source zlib
    unpack pure-ftpd pure-ftpd pure-ftpd-common
    unpack vsftpd vsftpd
    unpack nginx nginx
    unpack_client
    install_loopback
    # moto is a server of the S3 protocol.
    install_python "$target/test-tools/venv" ratarmount "ratarmount==$ratarmount_version"
    install_python "$target/test-tools/venv" moto_server "moto[server,s3]==$moto_version"
    # pyroute2 has a server of 9P2000.
    install_python "$target/test-tools/venv" pyroute2-decoder "pyroute2==$pyroute2_version"
    ;;
bench)
    install_python "$target/bench-venv" ratarmount "ratarmount==$ratarmount_version"
    unpack pure-ftpd pure-ftpd pure-ftpd-common
    unpack_of bullseye curlftpfs
    unpack_client
    ;;
esac
