#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cases of our own after the numbers of xfstests' group generic/quick, for what only a real mount shows: mappings, direct I/O,
splicing, times after mapped writes, directories that change while they are read.

    generic.py DIR [NAME...]

Runs each case (or those named) in a fresh directory below DIR, as root, and prints `generic::NAME ok|FAILED|skipped` for each
and `Summary: ... N total`, as pjdfstest does. A case is skipped where the file system lacks what it needs.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

CASES = []
LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
SECONDS = 60
AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
KEEP_SIZE, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
NOREPLACE, EXCHANGE = 1, 2
STRANGER = 65533


class Skip(Exception):
    """The file system lacks what the case needs."""


def case(function):
    CASES.append(function)
    return function


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(map(repr, what)))


def same(left, right, *what):
    check(left == right, left, right, *what)


@contextlib.contextmanager
def fails(*numbers):
    """The block fails with one of these errors."""
    try:
        yield
    except OSError as error:
        check(error.errno in numbers, errno.errorcode.get(error.errno), [errno.errorcode[n] for n in numbers])
    else:
        raise AssertionError(f"no error, expected {[errno.errorcode[n] for n in numbers]}")


@contextlib.contextmanager
def needs():
    """What the block does may be missing."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY):
            raise Skip(str(error)) from error
        raise


@contextlib.contextmanager
def opened(path, flags=os.O_RDWR | os.O_CREAT, mode=0o644):
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def call(function, *arguments):
    if getattr(LIBC, function)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fallocate(fd, mode, offset, length):
    call("fallocate", fd, mode, ctypes.c_long(offset), ctypes.c_long(length))


def rename2(old, new, flags):
    call("renameat2", AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)


def write(path, content, mode=0o644):
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode) as fd:
        same(os.write(fd, content), len(content))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def pattern(length, seed=1):
    return bytes((number * 7 + number // 251 + seed) % 256 for number in range(length))


def as_stranger(function, *groups):
    """Runs `function` as another user; its error is that of the call."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            function()
            status = 0
        except OSError as error:
            status = 100 + error.errno if error.errno < 150 else 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status > 100:
        raise OSError(status - 100, os.strerror(status - 100))
    same(status, 0)


def in_child(function):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def later(change, get):
    """Repeats `change` until what `get` gives differs: times of files are as fine as the kernel's clock tick."""
    before = get()
    for _ in range(1000):
        change()
        if get() != before:
            return
        time.sleep(0.002)
    raise AssertionError(f"{before} stays")


# Names and directories.


@case
def g001_copies_of_copies_stay_the_same():
    content = pattern(100_003)
    write("f0", content)
    for number in range(1, 20):
        with opened(f"f{number - 1}", os.O_RDONLY) as source, opened(f"f{number}") as target:
            while os.copy_file_range(source, target, 7001):
                pass
    same(read("f19"), content)


@case
def g002_links_are_counted():
    write("f", b"x")
    for number in range(64):
        os.link("f", f"l{number}")
        same(os.stat("f").st_nlink, number + 2)
    for number in range(64):
        os.unlink(f"l{number}")
        same(os.stat("f").st_nlink, 64 - number)


@case
def g005_links_in_a_circle():
    os.symlink("b", "a")
    os.symlink("a", "b")
    with fails(errno.ELOOP):
        os.stat("a")
    with fails(errno.ELOOP):
        os.open("b", os.O_RDONLY)


@case
def g006_many_names_come_and_go():
    for _ in range(3):
        for number in range(400):
            os.close(os.open(f"n{number}" + "x" * (number % 100), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        same(len(os.listdir(".")), 400)
        for name in os.listdir("."):
            os.unlink(name)
        same(os.listdir("."), [])


@case
def g011_processes_fill_one_directory():
    def fill(who):
        for number in range(100):
            write(f"{who}.{number}", b"")
            if number % 3 == 0:
                os.unlink(f"{who}.{number}")

    pids = [in_child(lambda who=who: fill(who)) for who in range(4)]
    same([ended(pid) for pid in pids], [0] * 4)
    same(len(os.listdir(".")), 4 * 66)


@case
def g023_rename_replaces():
    write("a", b"a")
    write("b", b"b")
    with opened("b", os.O_RDONLY) as fd:
        os.rename("a", "b")
        same((read("b"), os.read(fd, 9), os.fstat(fd).st_nlink), (b"a", b"b", 0))


@case
def g024_rename_replaces_nothing():
    write("a", b"a")
    write("b", b"b")
    with needs(), fails(errno.EEXIST):
        rename2("a", "b", NOREPLACE)
    os.unlink("b")
    rename2("a", "b", NOREPLACE)
    same(os.listdir("."), ["b"])


@case
def g025_rename_exchanges():
    os.mkdir("d")
    write("d/in", b"")
    write("f", b"f")
    with needs():
        rename2("d", "f", EXCHANGE)
    same((read("d"), os.listdir("f")), (b"f", ["in"]))
    with fails(errno.ENOENT):
        rename2("d", "none", EXCHANGE)


@case
def g028_the_working_directory_while_names_change():
    os.makedirs("a/b/c")
    here = os.getcwd()
    os.chdir("a/b/c")
    stop = threading.Event()

    def rename():
        while not stop.is_set():
            os.rename(f"{here}/a/b", f"{here}/b")
            os.rename(f"{here}/b", f"{here}/a/b")

    thread = threading.Thread(target=rename)
    thread.start()
    try:
        for _ in range(300):
            check(os.getcwd() in (f"{here}/a/b/c", f"{here}/b/c"), os.getcwd())
    finally:
        stop.set()
        thread.join()


@case
def g035_a_replaced_file_has_no_links():
    for make in (lambda name: os.mkdir(name), lambda name: write(name, b"")):
        make("one")
        make("two")
        with opened("two", os.O_RDONLY) as fd:
            os.rename("one", "two")
            same(os.fstat(fd).st_nlink, 0)
        if os.path.isdir("two"):
            os.rmdir("two")


@case
def g084_a_removed_file_is_whole_until_it_is_closed():
    with opened("f") as fd:
        os.unlink("f")
        content = pattern(3 * PAGE)
        same(os.pwrite(fd, content, 0), len(content))
        os.ftruncate(fd, 5000)
        os.fsync(fd)
        same(os.pread(fd, 9999, 0), content[:5000])
        same((os.fstat(fd).st_nlink, os.fstat(fd).st_size), (0, 5000))
        same(os.listdir("."), [])


@case
def g184_nodes_of_devices():
    for kind, name in ((stat.S_IFCHR, "c"), (stat.S_IFBLK, "b"), (stat.S_IFIFO, "p"), (stat.S_IFSOCK, "s")):
        os.mknod(name, kind | 0o600, os.makedev(7, 200))
        found = os.lstat(name)
        same((stat.S_IFMT(found.st_mode), found.st_mode & 0o777), (kind, 0o600))
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            same(found.st_rdev, os.makedev(7, 200))


@case
def g245_a_full_directory_is_not_replaced():
    os.makedirs("a/in")
    os.makedirs("b/in")
    with fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rename("a", "b")
    os.rmdir("b/in")
    os.rename("a", "b")
    same(os.listdir("b"), ["in"])


@case
def g257_positions_in_a_directory():
    names = {f"name{number:04}" for number in range(500)}
    for name in names:
        write(name, b"")
    LIBC.opendir.restype = ctypes.c_void_p
    LIBC.readdir.restype = ctypes.c_void_p
    LIBC.telldir.restype = ctypes.c_long
    directory = ctypes.c_void_p(LIBC.opendir(b"."))

    def entry():
        found = LIBC.readdir(directory)
        return found and ctypes.string_at(found + 19).decode()

    places = []
    while True:
        place = LIBC.telldir(directory)
        name = entry()
        if not name:
            break
        places.append((place, name))
    same({name for _, name in places} - {".", ".."}, names)
    for place, name in places[::37][::-1]:
        LIBC.seekdir(directory, ctypes.c_long(place))
        same(entry(), name)
    LIBC.closedir(directory)


@case
def g309_renaming_changes_the_times_of_directories():
    os.mkdir("a")
    os.mkdir("b")
    write("a/f", b"")
    names = ["a/f", "b/f"]

    def move():
        os.rename(*names)
        names.reverse()

    for directory in ("a", "b"):
        later(move, lambda: os.stat(directory).st_mtime_ns)


@case
def g360_targets_of_every_length():
    for length in (1, 59, 60, 61, 255, 1000, 1023):
        target = "t" * length
        os.symlink(target, "l")
        same((os.readlink("l"), os.lstat("l").st_size), (target, length))
        os.unlink("l")


@case
def g401_listings_know_the_kinds():
    os.mkdir("dir")
    write("file", b"")
    os.symlink("x", "link")
    os.mkfifo("fifo")
    with os.scandir(".") as found:
        kinds = {entry.name: (entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False),
                              entry.is_symlink(), entry.inode()) for entry in found}
    same({name: kind[:3] for name, kind in kinds.items()},
         {"dir": (True, False, False), "file": (False, True, False), "link": (False, False, True),
          "fifo": (False, False, False)})
    same({name: kind[3] for name, kind in kinds.items()}, {name: os.lstat(name).st_ino for name in kinds})


@case
def g471_names_that_come_after_a_directory_was_read():
    before = os.listdir(".")
    write("new", b"")
    same((before, os.listdir(".")), ([], ["new"]))
    os.unlink("new")
    same(os.listdir("."), [])
    with fails(errno.ENOENT):
        os.stat("new")


@case
def g637_new_names_show_in_a_directory_that_is_rewound():
    os.mkdir("d")
    directory = ctypes.c_void_p()
    LIBC.opendir.restype = ctypes.c_void_p
    LIBC.readdir.restype = ctypes.c_void_p
    directory.value = LIBC.opendir(b"d")

    def names():
        found = set()
        while entry := LIBC.readdir(directory):
            found.add(ctypes.string_at(entry + 19).decode())
        return found - {".", ".."}

    same(names(), set())
    write("d/new", b"")
    LIBC.rewinddir(directory)
    same(names(), {"new"})
    LIBC.closedir(directory)


@case
def g736_renaming_while_a_directory_is_read_ends():
    for number in range(500):
        write(f"f{number}", b"")
    seen = 0
    with os.scandir(".") as found:
        for entry in found:
            seen += 1
            check(seen < 5000, "the directory does not end")
            if entry.name != "moved":
                os.rename(entry.name, "moved")
                os.rename("moved", entry.name)
    same(len(os.listdir(".")), 500)


# Content.


@case
def g069_appends_of_several_processes_do_not_mix():
    def append(who):
        with opened("f", os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
            for number in range(200):
                os.write(fd, struct.pack("<II", who, number) * 3)

    pids = [in_child(lambda who=who: append(who)) for who in range(4)]
    same([ended(pid) for pid in pids], [0] * 4)
    content = read("f")
    same(len(content), 4 * 200 * 24)
    following = [0] * 4
    for place in range(0, len(content), 24):
        who, number = struct.unpack_from("<II", content, place)
        same(content[place:place + 24], struct.pack("<II", who, number) * 3)
        same(number, following[who])
        following[who] += 1


@case
def g091_direct_io():
    content = bytearray(pattern(16 * PAGE))
    with mmap.mmap(-1, 16 * PAGE) as memory, needs(), opened("f", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
        memory[:] = bytes(content)
        same(os.pwritev(fd, [memory], 0), 16 * PAGE)
        with opened("f", os.O_RDWR) as cached:
            same(os.pread(cached, 16 * PAGE, 0), content)
            os.pwrite(cached, b"cached", 3 * PAGE + 5)
            content[3 * PAGE + 5:3 * PAGE + 11] = b"cached"
            same(os.preadv(fd, [memory], 0), 16 * PAGE)
            same(memory[:], content)
            memory[:PAGE] = b"d" * PAGE
            same(os.pwritev(fd, [memoryview(memory)[:PAGE]], 8 * PAGE), PAGE)
            content[8 * PAGE:9 * PAGE] = b"d" * PAGE
            same(os.pread(cached, 16 * PAGE, 0), content)


@case
def g124_readers_never_see_what_was_not_written():
    size = 64 * 1024
    write("f", b"\0" * size)

    def change():
        with opened("f", os.O_RDWR) as fd:
            for number in range(100):
                os.pwrite(fd, bytes([number % 2 * 255]) * size, 0)

    # A process: a thread would have to wait for the interpreter's lock, which a reader that never blocks hardly gives away.
    writer = in_child(change)
    with opened("f", os.O_RDONLY) as fd:
        while os.waitid(os.P_PID, writer, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            found = os.pread(fd, size, 0)
            same(len(found), size)
            check(set(found) <= {0, 255}, set(found))
    same(ended(writer), 0)


@case
def g130_vectors():
    with opened("f") as fd:
        same(os.writev(fd, [b"ab", b"", b"cdefg"]), 7)
        parts = [bytearray(3), bytearray(1), bytearray(9)]
        same(os.preadv(fd, parts, 0), 7)
        same(b"".join(parts)[:7], b"abcdefg")


@case
def g169_append_after_truncate():
    with opened("f", os.O_RDWR | os.O_CREAT | os.O_APPEND) as fd:
        os.write(fd, b"x" * 6000)
        os.ftruncate(fd, 100)
        os.write(fd, b"tail")
        same(os.pread(fd, 9999, 0), b"x" * 100 + b"tail")


@case
def g213_room_that_is_not_there():
    with opened("f") as fd:
        stats = os.fstatvfs(fd)
        room = stats.f_bavail * stats.f_frsize
        with needs(), fails(errno.ENOSPC, errno.EFBIG):
            fallocate(fd, 0, 0, room * 16)
        os.ftruncate(fd, 0)
    with opened("g") as fd:
        same(os.write(fd, b"room again"), 10)


@case
def g249_sendfile_within_the_tree():
    content = pattern(300_001)
    write("a", content)
    with opened("a", os.O_RDONLY) as source, opened("b") as target:
        done = 0
        while done < len(content):
            count = os.sendfile(target, source, done, len(content) - done)
            check(count > 0)
            done += count
    same(read("b"), content)


@case
def g255_holes_read_as_zeros():
    content = bytearray(pattern(8 * PAGE))
    write("f", bytes(content))
    with opened("f", os.O_RDWR) as fd:
        with needs():
            fallocate(fd, PUNCH | KEEP_SIZE, PAGE // 2, 3 * PAGE)
        content[PAGE // 2:PAGE // 2 + 3 * PAGE] = bytes(3 * PAGE)
        same(os.pread(fd, 9 * PAGE, 0), content)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        same(os.pread(fd, 9 * PAGE, 0), content)
        fallocate(fd, PUNCH | KEEP_SIZE, 7 * PAGE, 100 * PAGE)
        same(os.fstat(fd).st_size, 8 * PAGE)


@case
def g285_data_and_holes_are_found():
    with opened("f") as fd:
        os.ftruncate(fd, 1 << 24)
        os.pwrite(fd, b"x" * 65536, 1 << 20)
        data = os.lseek(fd, 0, os.SEEK_DATA)
        check(data <= 1 << 20, data)
        hole = os.lseek(fd, 1 << 20, os.SEEK_HOLE)
        check((1 << 20) + 65536 <= hole <= 1 << 24, hole)
        with fails(errno.ENXIO):
            os.lseek(fd, 1 << 24, os.SEEK_DATA)
        same(os.lseek(fd, (1 << 24) - 1, os.SEEK_HOLE), (1 << 24) - (0 if hole == 1 << 24 else 1))


@case
def g308_the_largest_offsets():
    with opened("f") as fd:
        for place in (2**63 - 2, 2**62, 2**45):
            try:
                os.pwrite(fd, b"x", place)
            except OSError as error:
                check(error.errno in (errno.EFBIG, errno.ENOSPC), error)
                same(os.fstat(fd).st_size, 0)
            else:
                same((os.pread(fd, 1, place), os.fstat(fd).st_size), (b"x", place + 1))
            os.ftruncate(fd, 0)
        with fails(errno.EFBIG, errno.EINVAL):
            os.pwrite(fd, b"xx", 2**63 - 1)


@case
def g315_room_behind_the_end():
    with opened("f") as fd:
        with needs():
            fallocate(fd, KEEP_SIZE, 0, 1 << 20)
        check(os.fstat(fd).st_blocks * 512 >= 1 << 20, os.fstat(fd).st_blocks)
        same((os.fstat(fd).st_size, os.pread(fd, 9, 0)), (0, b""))


@case
def g009_ranges_of_zeroes():
    content = bytearray(pattern(16 * PAGE))
    write("f", bytes(content))
    with opened("f", os.O_RDWR) as fd:
        with needs():
            fallocate(fd, ZERO, 100, 2 * PAGE)
        content[100:100 + 2 * PAGE] = bytes(2 * PAGE)
        same(os.pread(fd, 99 * PAGE, 0), content)


@case
def g016_ranges_that_move():
    content = bytearray(pattern(16 * PAGE))
    write("f", bytes(content))
    with opened("f", os.O_RDWR) as fd:
        with needs():
            fallocate(fd, COLLAPSE, 4 * PAGE, 4 * PAGE)
        del content[4 * PAGE:8 * PAGE]
        same(os.pread(fd, 99 * PAGE, 0), content)
        fallocate(fd, INSERT, 4 * PAGE, 4 * PAGE)
        content[4 * PAGE:4 * PAGE] = bytes(4 * PAGE)
        same((os.pread(fd, 99 * PAGE, 0), os.fstat(fd).st_size), (content, 16 * PAGE))


@case
def g393_truncating_makes_zeros():
    write("f", b"x" * 10_000)
    os.truncate("f", 10)
    os.truncate("f", 10_000)
    same(read("f"), b"x" * 10 + bytes(9990))
    os.truncate("f", 0)
    os.truncate("f", 1 << 40)
    with opened("f", os.O_RDONLY) as fd:
        same(os.pread(fd, 16, (1 << 40) - 16), bytes(16))


@case
def g394_the_limit_of_a_process():
    import resource

    def beyond():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        with opened("f") as fd:
            with fails(errno.EFBIG):
                os.ftruncate(fd, (1 << 20) + 1)
            same(os.pwrite(fd, b"xx", (1 << 20) - 1), 1)
            with fails(errno.EFBIG):
                os.pwrite(fd, b"x", 1 << 20)

    same(ended(in_child(beyond)), 0)
    same(os.stat("f").st_size, 1 << 20)


@case
def g430_ranges_are_copied():
    content = pattern(200_000)
    write("a", content)
    with opened("a", os.O_RDONLY) as source, opened("b") as target:
        same(os.copy_file_range(source, target, 5000, 1234, 777), 5000)
        same(os.pread(target, 9999, 777), content[1234:6234])
        same(os.copy_file_range(source, target, 5000, 200_000, 0), 0)
        same(os.copy_file_range(source, target, 5000, 199_990, 0), 10)
    with opened("a", os.O_RDWR) as both, fails(errno.EINVAL):
        os.copy_file_range(both, both, 5000, 0, 100)


@case
def g448_data_that_is_not_stored_yet_is_found():
    with opened("f") as fd:
        os.ftruncate(fd, 1 << 22)
        os.lseek(fd, 0, os.SEEK_DATA) if os.fstat(fd).st_blocks else None
        os.pwrite(fd, b"x" * PAGE, 1 << 21)
        found = os.lseek(fd, 1 << 21, os.SEEK_DATA)
        same(found, 1 << 21)


@case
def g525_the_end_of_the_largest_file():
    with opened("f") as fd:
        size = 1 << 42
        os.ftruncate(fd, size)
        os.pwrite(fd, b"end", size - 3)
        os.fsync(fd)
        same((os.pread(fd, 10, size - 3), os.pread(fd, 10, size)), (b"end", b""))


@case
def g591_splice_to_and_from_pipes():
    content = pattern(60_000)
    write("a", content)
    reader, writer = os.pipe()
    with opened("a", os.O_RDONLY) as source, opened("b") as target:
        done = 0
        while done < len(content):
            count = os.splice(source, writer, len(content) - done, offset_src=done)
            place = done
            while place < done + count:
                place += os.splice(reader, target, done + count - place, offset_dst=place)
            done += count
    os.close(reader)
    os.close(writer)
    same(read("b"), content)


@case
def g615_blocks_of_what_was_just_written():
    with opened("f") as fd:
        os.write(fd, b"x" * 65536)
        check(os.fstat(fd).st_blocks > 0, "no blocks before fsync")
        os.fsync(fd)
        check(os.fstat(fd).st_blocks * 512 >= 65536, os.fstat(fd).st_blocks)


@case
def g680_pages_in_a_pipe_do_not_change_a_file():
    write("f", b"A" * PAGE)
    reader, writer = os.pipe()
    with opened("f", os.O_RDONLY) as fd:
        same(os.splice(fd, writer, 1, offset_src=0), 1)
        os.write(writer, b"overwrites")
    os.close(reader)
    os.close(writer)
    same(read("f"), b"A" * PAGE)


# Mappings.


@contextlib.contextmanager
def mapped(path, size, flags=os.O_RDWR | os.O_CREAT):
    with opened(path, flags) as fd:
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size) as memory:
            yield fd, memory


@case
def g029_mappings_and_the_end_of_files():
    write("f", b"x" * PAGE)
    with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, PAGE) as memory:
        os.ftruncate(fd, 100)
        memory[100:200] = b"y" * 100
        memory.flush()
        same(os.fstat(fd).st_size, 100)
        os.ftruncate(fd, PAGE)
        same(os.pread(fd, PAGE, 0), b"x" * 100 + bytes(PAGE - 100))


@case
def g030_mappings_of_files_that_shrink_and_grow():
    with mapped("f", 4 * PAGE) as (fd, memory):
        memory[:] = b"m" * (4 * PAGE)
        os.ftruncate(fd, PAGE)
        os.ftruncate(fd, 4 * PAGE)
        same(memory[:], b"m" * PAGE + bytes(3 * PAGE))
        same(os.pread(fd, 4 * PAGE, 0), memory[:])


@case
def g080_mapped_writes_change_the_times():
    with mapped("f", PAGE) as (fd, memory):
        os.utime("f", (1000, 1000))
        memory[0:1] = b"x"
        memory.flush()
        os.fsync(fd)
        found = os.fstat(fd)
        check(found.st_mtime > 1000, found.st_mtime)


@case
def g141_a_mapping_outlives_its_descriptor():
    write("f", pattern(PAGE))
    fd = os.open("f", os.O_RDWR)
    memory = mmap.mmap(fd, PAGE)
    os.close(fd)
    os.unlink("f")
    same(memory[:], pattern(PAGE))
    memory[:3] = b"abc"
    memory.flush()
    memory.close()


@case
def g246_mapped_and_written_content_agree():
    with mapped("f", 2 * PAGE) as (fd, memory):
        for number in range(200):
            place = number * 31 % (2 * PAGE - 8)
            text = struct.pack("<Q", number)
            if number % 2:
                memory[place:place + 8] = text
                same(os.pread(fd, 8, place), text)
            else:
                os.pwrite(fd, text, place)
                same(memory[place:place + 8], text)


@case
def g248_writing_a_file_from_its_own_mapping():
    with mapped("f", 8 * PAGE) as (fd, memory):
        memory[:4 * PAGE] = pattern(4 * PAGE)
        memory.flush()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        same(os.pwritev(fd, [memoryview(memory)[:4 * PAGE]], 4 * PAGE), 4 * PAGE)
        same(os.pread(fd, 4 * PAGE, 4 * PAGE), pattern(4 * PAGE))


@case
def g452_programs_run_and_are_busy():
    with open("/bin/true", "rb") as source:
        write("true", source.read(), 0o755)
    same(subprocess.run(["./true"], check=False).returncode, 0)
    with open("/bin/sleep", "rb") as source:
        write("sleep", source.read(), 0o755)
    with subprocess.Popen(["./sleep", "30"]) as running:
        try:
            while os.readlink(f"/proc/{running.pid}/exe").split("/")[-1] != "sleep":
                time.sleep(0.001)
            with fails(errno.ETXTBSY):
                os.open("sleep", os.O_WRONLY)
        finally:
            running.kill()


@case
def g567_holes_in_what_is_mapped():
    with mapped("f", 4 * PAGE) as (fd, memory):
        memory[:] = b"m" * (4 * PAGE)
        with needs():
            fallocate(fd, PUNCH | KEEP_SIZE, PAGE, PAGE)
        same(memory[:], b"m" * PAGE + bytes(PAGE) + b"m" * (2 * PAGE))
        memory[PAGE:PAGE + 1] = b"n"
        memory.flush()
        same(os.pread(fd, 2, PAGE), b"n\0")


@case
def g647_reading_into_a_mapping_of_the_same_file():
    with mapped("f", 4 * PAGE) as (fd, memory):
        os.pwrite(fd, b"s" * PAGE, 0)
        same(os.preadv(fd, [memoryview(memory)[2 * PAGE:3 * PAGE]], 0), PAGE)
        same(os.pread(fd, PAGE, 2 * PAGE), b"s" * PAGE)


@case
def g749_behind_the_last_page_there_is_nothing():
    def touch():
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, 4 * PAGE) as memory:
            os.ftruncate(fd, PAGE + 1)
            same(memory[PAGE:PAGE + 2], b"m\0")
            bytes(memory[2 * PAGE:2 * PAGE + 1])

    write("f", b"m" * (4 * PAGE))
    same(ended(in_child(touch)), -signal.SIGBUS)


@case
def g080b_two_processes_share_a_mapping():
    with mapped("f", PAGE) as (_, memory):
        def other():
            with opened("f", os.O_RDWR) as fd, mmap.mmap(fd, PAGE) as mine:
                mine[0:5] = b"other"

        same(ended(in_child(other)), 0)
        same(memory[0:5], b"other")


# Owners, permissions, attributes.


@case
def g087_who_may_change_times():
    write("f", b"", 0o666)
    os.chown("f", 0, 0)
    os.chmod("f", 0o666)
    os.chmod(".", 0o755)
    as_stranger(lambda: os.utime("f"))
    with fails(errno.EPERM):
        as_stranger(lambda: os.utime("f", (1, 1)))
    os.chmod("f", 0o644)
    with fails(errno.EACCES):
        as_stranger(lambda: os.utime("f"))


@case
def g088_root_may_what_the_mode_forbids():
    write("f", b"secret", 0)
    os.chmod("f", 0)
    same(read("f"), b"secret")
    with fails(errno.EACCES):
        as_stranger(lambda: os.open("f", os.O_RDONLY))
    with fails(errno.EACCES):
        os.execv("f", ["f"])


@case
def g193_set_id_bits_after_chown_and_write():
    os.chmod(".", 0o777)
    for change in (lambda: os.chown("f", STRANGER, STRANGER), lambda: as_stranger(append)):
        write("f", b"x")
        os.chown("f", 0, 0)
        os.chmod("f", 0o6777)
        change()
        same(oct(os.stat("f").st_mode & 0o7777), oct(0o777))
        os.unlink("f")


def append():
    with opened("f", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"y")


@case
def g314_the_group_of_a_set_gid_directory():
    os.mkdir("d")
    os.chown("d", 0, 12345)
    os.chmod("d", 0o2777)
    as_stranger(lambda: (write("d/f", b""), os.mkdir("d/sub")))
    same((os.stat("d/f").st_gid, os.stat("d/sub").st_gid), (12345, 12345))
    check(os.stat("d/sub").st_mode & stat.S_ISGID, "a directory inherits set-gid")


@case
def g375_set_gid_goes_with_a_foreign_group():
    write("f", b"")
    os.chown("f", STRANGER, 12345)
    as_stranger(lambda: os.chmod("f", 0o2755))
    check(not os.stat("f").st_mode & stat.S_ISGID, "set-gid for a group the owner is not in")


@case
def g020_extended_attributes():
    write("f", b"")
    with needs():
        os.setxattr("f", "user.one", b"1")
    os.setxattr("f", "user.two", b"2" * 1000)
    os.setxattr("f", "user.empty", b"")
    same(sorted(name for name in os.listxattr("f") if name.startswith("user.")), ["user.empty", "user.one", "user.two"])
    with fails(errno.EEXIST):
        os.setxattr("f", "user.one", b"", os.XATTR_CREATE)
    with fails(errno.ENODATA):
        os.setxattr("f", "user.none", b"", os.XATTR_REPLACE)
    with fails(errno.ENODATA):
        os.getxattr("f", "user.none")
    os.setxattr("f", "user.one", b"new", os.XATTR_REPLACE)
    os.removexattr("f", "user.two")
    same((os.getxattr("f", "user.one"), os.getxattr("f", "user.empty")), (b"new", b""))


@case
def g377_lists_of_attributes_that_do_not_fit():
    write("f", b"")
    with needs():
        os.setxattr("f", "user.name", b"value")
    for size in (1, 5):
        LIBC.listxattr.restype = ctypes.c_ssize_t
        buffer = ctypes.create_string_buffer(size)
        same((LIBC.listxattr(b"f", buffer, size), ctypes.get_errno()), (-1, errno.ERANGE))
        LIBC.getxattr.restype = ctypes.c_ssize_t
        same(LIBC.getxattr(b"f", b"user.name", buffer, 1), -1)
    check(LIBC.listxattr(b"f", None, 0) >= len(b"user.name\0"))


@case
def g319_default_access_lists():
    def entries(*found):
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in found)

    nobody = 0xFFFFFFFF
    os.mkdir("d")
    wanted = entries((1, 7, nobody), (2, 6, 1234), (4, 5, nobody), (16, 7, nobody), (32, 0, nobody))
    with needs():
        os.setxattr("d", "system.posix_acl_default", wanted)
    os.umask(0o077)
    os.mkdir("d/sub")
    write("d/file", b"", 0o666)
    same(os.getxattr("d/sub", "system.posix_acl_default"), wanted)
    same((oct(os.stat("d/sub").st_mode & 0o777), oct(os.stat("d/file").st_mode & 0o777)), ("0o770", "0o660"))
    check(os.getxattr("d/file", "system.posix_acl_access"), "the file has a list")


@case
def g444_access_lists_count():
    write("f", b"x")
    os.chmod("f", 0o600)
    nobody = 0xFFFFFFFF
    entries = ((1, 6, nobody), (2, 4, STRANGER), (4, 0, nobody), (16, 4, nobody), (32, 0, nobody))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    with needs():
        os.setxattr("f", "system.posix_acl_access", value)
    as_stranger(lambda: read("f"))
    with fails(errno.EACCES):
        as_stranger(lambda: os.open("f", os.O_WRONLY))
    os.chmod("f", 0o600)
    with fails(errno.EACCES):
        as_stranger(lambda: os.open("f", os.O_RDONLY))


@case
def g697_umask_and_set_gid():
    os.umask(0o027)
    os.mkdir("d", 0o777)
    write("f", b"", 0o666)
    same((oct(os.stat("d").st_mode & 0o777), oct(os.stat("f").st_mode & 0o777)), ("0o750", "0o640"))


# Times.


@case
def g221_setting_times_changes_ctime():
    write("f", b"")
    later(lambda: os.utime("f", (5, 5)), lambda: os.stat("f").st_ctime_ns)


@case
def g236_linking_changes_ctime():
    write("f", b"")

    def link():
        os.link("f", "g")
        os.unlink("g")

    later(link, lambda: os.stat("f").st_ctime_ns)


@case
def g258_times_before_1970():
    write("f", b"")
    for seconds in (-1, -315593940, 0, 2147483647):
        os.utime("f", ns=(seconds * 10**9, seconds * 10**9))
        found = os.stat("f")
        same((found.st_atime_ns, found.st_mtime_ns), (seconds * 10**9, seconds * 10**9))


@case
def g313_truncating_changes_times():
    write("f", b"xx")
    sizes = [1, 2]

    def truncate():
        os.truncate("f", sizes[0])
        sizes.reverse()

    later(truncate, lambda: (os.stat("f").st_mtime_ns))
    later(truncate, lambda: (os.stat("f").st_ctime_ns))


@case
def g423_when_a_file_was_made():
    write("f", b"")
    buffer = ctypes.create_string_buffer(256)
    call("statx", AT_FDCWD, b"f", 0, 0xFFF, buffer)
    mask, = struct.unpack_from("<I", buffer)
    mode, = struct.unpack_from("<H", buffer, 28)
    size, = struct.unpack_from("<Q", buffer, 40)
    same((mask & 0x7FF, stat.S_IFMT(mode), size), (0x7FF, stat.S_IFREG, 0))
    if mask & 0x800:
        born, = struct.unpack_from("<q", buffer, 80)
        check(abs(born - time.time()) < 3600, born)


@case
def g634_times_in_nanoseconds():
    write("f", b"")
    os.utime("f", ns=(1_500_000_000_123_456_789, 1_600_000_000_987_654_321))
    found = os.stat("f")
    same((found.st_atime_ns, found.st_mtime_ns), (1_500_000_000_123_456_789, 1_600_000_000_987_654_321))


# Locks, leases, sockets.


@case
def g131_ranges_are_locked():
    write("f", b"x" * 100)

    def locked(start):
        def attempt():
            with opened("f", os.O_RDWR) as fd:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)

        return ended(in_child(attempt))

    with opened("f", os.O_RDWR) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
        same((locked(0), locked(15) != 0, locked(25) != 0, locked(30)), (0, True, True, 0))
        fcntl.lockf(fd, fcntl.LOCK_UN, 10, 20)
        same(locked(20), 0)


@case
def g478_locks_of_open_descriptions():
    write("f", b"")
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with opened("f", os.O_RDWR) as one, opened("f", os.O_RDWR) as two:
        fcntl.fcntl(one, 37, lock)
        with fails(errno.EAGAIN, errno.EACCES):
            fcntl.fcntl(two, 37, lock)
    with opened("f", os.O_RDWR) as three:
        fcntl.fcntl(three, 37, lock)


@case
def g504_locks_of_whole_files():
    write("f", b"")
    with opened("f", os.O_RDWR) as one, opened("f", os.O_RDWR) as two:
        fcntl.flock(one, fcntl.LOCK_SH)
        fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with fails(errno.EAGAIN):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)


@case
def g423b_sockets_and_pipes_with_names():
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s")
        server.listen()
        client.connect("s")
        accepted, _ = server.accept()
        client.sendall(b"hello")
        same(accepted.recv(9), b"hello")
        accepted.close()
    os.mkfifo("p")
    pid = in_child(lambda: write("p", b"through"))
    same(read("p"), b"through")
    same(ended(pid), 0)


@case
def g004_files_without_a_name():
    with needs():
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"hidden")
    same((os.listdir("."), os.fstat(fd).st_nlink), ([], 0))
    call("linkat", AT_FDCWD, os.fsencode(f"/proc/self/fd/{fd}"), AT_FDCWD, b"named", AT_SYMLINK_FOLLOW)
    same((read("named"), os.fstat(fd).st_nlink), (b"hidden", 1))
    os.close(fd)


def run(function, top):
    """Runs one case in a process of its own."""
    directory = tempfile.mkdtemp(prefix=function.__name__[:4], dir=top)
    os.chmod(directory, 0o755)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(SECONDS)
            os.umask(0o022)
            os.chdir(directory)
            function()
            status = 0
        except Skip as why:
            print(f"# {function.__name__}: {why}")
            status = 2
        except BaseException:
            print(f"# {function.__name__}:", traceback.format_exc().replace("\n", "\n#   "))
        finally:
            sys.stdout.flush()
            os._exit(status)
    status = ended(pid)
    subprocess.run(["rm", "-rf", "--one-file-system", directory], check=False)
    return {0: "ok", 2: "skipped"}.get(status, "FAILED")


def main():
    top, names = sys.argv[1], sys.argv[2:]
    chosen = [function for function in CASES if not names or function.__name__ in names]
    results = []
    for function in chosen:
        results.append(run(function, top))
        print(f"generic::{function.__name__} {results[-1]}")
    counts = ", ".join(f"{results.count(result)} {result}" for result in ("ok", "FAILED", "skipped"))
    print(f"Summary: {counts}, {len(results)} total")


main()
