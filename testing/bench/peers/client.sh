# shellcheck shell=dash
# SPDX-License-Identifier: MIT OR Apache-2.0
# What the client's machine of the groups `nfs` and `ninep` runs. Before it stand `protocol`, `rounds`, `megabytes`, `servers`, and a
# function `find_server` that sets `port`, `mount_port` and `path` for one of these. It prints one line a sample: "sample SERVER TASK
# CENTISECONDS CALLS", without the calls of 9P, which are not counted.
# shellcheck disable=SC2154

# A fresh mount: nothing is known of the files.
mounted() {
    if [ "$protocol" = 9p ]; then
        mount -t 9p -o "trans=tcp,port=$port,version=9p2000.L,msize=1048576,uname=root,aname=$path" 10.0.2.2 /mnt
        return
    fi
    mount -t nfs -o "addr=10.0.2.2,mountaddr=10.0.2.2,vers=3,proto=tcp,port=$port,mountport=$mount_port,mountproto=tcp,nolock" \
        "10.0.2.2:$path" /mnt
}

# The calls that the mount has sent until now, with those that were sent again.
calls() {
    awk '$1 == "device" { here = $5 == "/mnt"; counts = 0 }
        here && /per-op statistics/ { counts = 1; next }
        here && counts && $1 ~ /:$/ { sum += $3 }
        END { print sum + 0 }' /proc/self/mountstats
}

centiseconds() {
    read -r up _ </proc/uptime
    echo "${up%.*}${up#*.}"
}

# task NAME PREPARE COMMAND CLEAN: for each server in turns; only COMMAND counts.
task() {
    for server in $servers; do
        find_server "$server"
        mounted
        cd /mnt
        eval "$2"
        cd /
        umount /mnt
        mounted
        cd /mnt
        before=$(calls)
        began=$(centiseconds)
        eval "$3"
        ended=$(centiseconds)
        after=$(calls)
        echo "sample $server $1 $((ended - began)) $((after - before))"
        eval "$4"
        cd /
        umount /mnt
    done
}

set -e
find_server "${servers%% *}"
mounted
cp /mnt/sources.tar /tmp
umount /mnt
round=0
while [ "$round" -lt "$rounds" ]; do
    # shellcheck disable=SC2016 # The commands are for eval.
    {
        task ls : 'ls -lR tree >/dev/null' :
        task read : 'cat large >/dev/null' :
        task write : 'dd if=/dev/zero of="of-$server/new" bs=1M count="$megabytes" conv=fsync 2>/dev/null' 'rm "of-$server/new"'
        task untar 'mkdir "of-$server/new"' 'tar xf /tmp/sources.tar -C "of-$server/new"' 'rm -r "of-$server/new"'
    }
    round=$((round + 1))
done
