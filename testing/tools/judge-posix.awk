# SPDX-License-Identifier: MIT OR Apache-2.0
# Judges a run of pjdfstest or generic.py on a mount by the run on the native file system.
#
#   awk -v name=MOUNT -v suite=pjdfstest|generic -f judge-posix.awk EXCEPTIONS NATIVE MOUNT-RUN
#
# EXCEPTIONS has "MOUNT CASE REASON..." lines; the others "CASE ok|FAILED|skipped" lines. Prints "PASSED FAILED REMARK".

function against(text) {
    print name ": " text > "/dev/stderr"
    failed++
}

FNR == 1 { file++ }

file == 1 && !/^#/ && NF {
    if (NF < 3) against("the exception " $0 " gives no reason")
    if ($1 == name && (index($2, "generic::") == 1) == (suite == "generic")) listed[$2] = 1
    next
}
file == 2 { native[$1] = $2 }
file == 3 { mounted[$1] = $2 }

END {
    for (test in native) {
        if (native[test] != "ok") continue
        measured++
        if (mounted[test] == "ok") {
            passed++
            if (test in listed) against(test " passes: take it out of the exceptions")
        } else if (test in listed) {
            excepted++
        } else {
            against(test ": " (test in mounted ? mounted[test] : "missing") ", native ok")
        }
    }
    for (test in listed) if (native[test] != "ok") against(test " is listed, but native does not pass it")
    printf "%d %d %d of the %d cases native ext4 passes", passed, failed, passed, measured
    if (excepted) printf ", %d listed exceptions", excepted
    print ""
}
