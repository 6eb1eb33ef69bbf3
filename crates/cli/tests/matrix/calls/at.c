// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls with a directory: the current one, one that is open, one that is open with O_PATH, and absolute paths, for which it does
// not count; empty paths; openat2(2).
#include "calls.h"
#include <sys/syscall.h>

// As in linux/openat2.h and linux/stat.h, which not every C library has.
struct how {
    uint64_t flags, mode, resolve;
};
enum { NO_XDEV = 1, NO_MAGICLINKS = 2, NO_SYMLINKS = 4, BENEATH = 8, IN_ROOT = 16 };

struct extended {
    uint32_t mask, blksize;
    uint64_t attributes;
    uint32_t nlink, uid, gid;
    uint16_t mode, spare;
    uint64_t ino, size;
    uint64_t rest[26];
};

static long openat2(int dir, const char *path, uint64_t flags, uint64_t resolve) {
    struct how how = {.flags = flags, .mode = flags & O_CREAT ? 0644 : 0, .resolve = resolve};
    return syscall(SYS_openat2, dir, path, &how, sizeof how);
}

static int extended(int dir, const char *path, int flags, struct extended *found) {
    return syscall(SYS_statx, dir, path, flags, 0x7ff, found);
}

// All calls that take a directory; `base` is put before each name.
static void all_with(int dir, const char *base) {
    char file[PATH_MAX], other[PATH_MAX], sub[PATH_MAX];
    snprintf(file, sizeof file, "%sfile", base);
    snprintf(other, sizeof other, "%sother", base);
    snprintf(sub, sizeof sub, "%ssub", base);
    int made = openat(dir, file, O_RDWR | O_CREAT | O_EXCL, 0644);
    must(made >= 0 && write(made, "text", 4) == 4 && close(made) == 0);
    must(mkdirat(dir, sub, 0700) == 0);
    struct stat found, same;
    must(fstatat(dir, file, &found, 0) == 0 && found.st_size == 4);
    struct extended more;
    must(extended(dir, file, 0, &more) == 0 && more.ino == found.st_ino && more.size == 4);
    must(linkat(dir, file, dir, other, 0) == 0 && fstatat(dir, other, &same, 0) == 0);
    must(same.st_ino == found.st_ino && same.st_nlink == 2);
    fails(EEXIST, syscall(SYS_renameat2, dir, file, dir, sub, 1 /* RENAME_NOREPLACE */));
    must(syscall(SYS_renameat2, dir, file, dir, sub, 2 /* RENAME_EXCHANGE */) == 0);
    must(fstatat(dir, file, &same, 0) == 0 && S_ISDIR(same.st_mode));
    must(syscall(SYS_renameat2, dir, file, dir, sub, 2) == 0);
    must(unlinkat(dir, other, 0) == 0 && renameat(dir, file, dir, other) == 0);
    must(symlinkat("other", dir, file) == 0);
    char target[10];
    must(readlinkat(dir, file, target, sizeof target) == 5 && memcmp(target, "other", 5) == 0);
    must(fstatat(dir, file, &same, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(same.st_mode));
    must(fchmodat(dir, file, 0640, 0) == 0);
    must(fchownat(dir, file, geteuid(), getegid(), 0) == 0);
    must(fchownat(dir, file, geteuid(), getegid(), AT_SYMLINK_NOFOLLOW) == 0);
    struct timespec times[2] = {{.tv_sec = 1000000000, .tv_nsec = 5000}, {.tv_sec = 1000000001, .tv_nsec = 6000}};
    must(utimensat(dir, file, times, 0) == 0);
    must(fstatat(dir, other, &found, 0) == 0 && found.st_mtime == 1000000001 && (found.st_mode & 0777) == 0640);
    must(found.st_mtim.tv_nsec == 6000);
    must(faccessat(dir, other, R_OK | W_OK, 0) == 0);
    fails(EACCES, faccessat(dir, other, X_OK, 0));
    must(unlinkat(dir, file, 0) == 0 && mknodat(dir, file, S_IFIFO | 0600, 0) == 0);
    must(fstatat(dir, file, &found, 0) == 0 && S_ISFIFO(found.st_mode));
    fails(ENOTDIR, unlinkat(dir, file, AT_REMOVEDIR));
    must(unlinkat(dir, file, 0) == 0 && unlinkat(dir, other, 0) == 0 && unlinkat(dir, sub, AT_REMOVEDIR) == 0);
    fails(ENOENT, fstatat(dir, file, &found, 0));
}

static void at_cwd(void) {
    all_with(AT_FDCWD, "");
}

static void at_dir(void) {
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    must(chdir(there) == 0);
    all_with(dir, "");
    must(rmdir(here) == 0);
}

static void at_path_dir(void) {
    int dir = open(here, O_PATH);
    must(chdir("/") == 0);
    all_with(dir, "");
}

static void at_absolute(void) {
    char base[PATH_MAX];
    must(snprintf(base, sizeof base, "%s/", here) < PATH_MAX);
    int dir = open(there, O_PATH);
    all_with(dir, base);
    all_with(-1, base);
    fails(EBADF, openat(-1, "file", O_RDONLY));
    put("file", "text");
    fails(ENOTDIR, openat(open("file", O_RDONLY), "x", O_RDONLY));
}

static void at_renamed(void) {
    must(mkdir("dir", 0755) == 0);
    int dir = open("dir", O_PATH);
    must(rename("dir", "renamed") == 0);
    all_with(dir, "");
    must(mkdir("dir", 0755) == 0);
    int file = openat(dir, "file", O_WRONLY | O_CREAT, 0644);
    must(file >= 0 && exists("renamed/file") && !exists("dir/file"));
}

static void empty_paths(void) {
    put("file", "content");
    int file = open("file", O_RDWR), path = open("file", O_PATH), dir = open(".", O_PATH);
    struct stat named, found;
    struct extended more;
    must(stat("file", &named) == 0);
    must(fstatat(file, "", &found, AT_EMPTY_PATH) == 0 && found.st_ino == named.st_ino);
    must(fstatat(path, "", &found, AT_EMPTY_PATH) == 0 && found.st_ino == named.st_ino);
    must(fstatat(dir, "", &found, AT_EMPTY_PATH) == 0 && S_ISDIR(found.st_mode));
    must(fstatat(AT_FDCWD, "", &found, AT_EMPTY_PATH) == 0 && S_ISDIR(found.st_mode));
    fails(ENOENT, fstatat(file, "", &found, 0));
    must(extended(path, "", AT_EMPTY_PATH, &more) == 0 && more.ino == named.st_ino);
    must(fchownat(path, "", geteuid(), getegid(), AT_EMPTY_PATH) == 0);
    // faccessat2(2) of Linux 5.8
    must(syscall(439, path, "", R_OK, AT_EMPTY_PATH) == 0);
    must(symlink("file", "link") == 0);
    int link = open("link", O_PATH | O_NOFOLLOW);
    char target[10];
    must(readlinkat(link, "", target, sizeof target) == 4);
    must(fstatat(link, "", &found, AT_EMPTY_PATH) == 0 && S_ISLNK(found.st_mode));
}

static void path_descriptors(void) {
    put("file", "content");
    int path = open("file", O_PATH);
    char byte;
    fails(EBADF, read(path, &byte, 1));
    fails(EBADF, write(path, "x", 1));
    // A library may find another way.
    fails(EBADF, syscall(SYS_fchmod, path, 0600));
    struct stat found;
    must(fstat(path, &found) == 0 && found.st_size == 7);
    char proc[64];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", path);
    must(holds(proc, "content"));
    put(proc, "by /proc");
    must(holds("file", "by /proc"));
    must(chmod(proc, 0600) == 0 && stat("file", &found) == 0 && (found.st_mode & 0777) == 0600);
    must(linkat(AT_FDCWD, proc, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW) == 0 && holds("linked", "by /proc"));
    char name[PATH_MAX];
    ssize_t length = readlink(proc, name, sizeof name);
    must(length == (ssize_t)strlen(in(here, "file")) && memcmp(name, in(here, "file"), length) == 0);
    must(unlink("file") == 0 && holds(proc, "by /proc"));
}

static void openat2_resolve(void) {
    put("file", "inside");
    put(in(there, "file"), "outside");
    must(mkdir("dir", 0755) == 0);
    put("dir/file", "below");
    must(symlink("../file", "dir/up") == 0 && symlink("/file", "dir/root") == 0);
    must(symlink(in(there, "file"), "out") == 0 && symlink("dir", "link") == 0);
    int dir = open("dir", O_PATH);
    int file = openat2(dir, "up", O_RDONLY, 0);
    must(file >= 0 && reads(file, "inside"));
    fails(EXDEV, openat2(dir, "up", O_RDONLY, BENEATH));
    fails(EXDEV, openat2(dir, "/file", O_RDONLY, BENEATH));
    fails(EXDEV, openat2(dir, "..", O_RDONLY, BENEATH));
    file = openat2(dir, "root", O_RDONLY, IN_ROOT);
    must(file >= 0 && reads(file, "below"));
    file = openat2(dir, "../../../file", O_RDONLY, IN_ROOT);
    must(file >= 0 && reads(file, "below"));
    fails(ELOOP, openat2(AT_FDCWD, "link/file", O_RDONLY, NO_SYMLINKS));
    file = openat2(AT_FDCWD, "link/file", O_RDONLY, NO_XDEV);
    must(file >= 0 && reads(file, "below"));
    file = openat2(dir, "new", O_WRONLY | O_CREAT | O_EXCL, BENEATH);
    must(file >= 0 && exists("dir/new"));
    fails(EINVAL, openat2(dir, "file", O_RDONLY, 1 << 20));
    fails(EINVAL, openat2(dir, "file", 1ULL << 40, 0));
    struct how how = {.flags = O_RDONLY};
    fails(EINVAL, syscall(SYS_openat2, dir, "file", &how, 8));
    char proc[64];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", dir);
    must(openat2(AT_FDCWD, proc, O_PATH, 0) >= 0);
    fails(ELOOP, openat2(AT_FDCWD, proc, O_PATH, NO_MAGICLINKS));
}

// What leaves the tree leaves its file system.
static void openat2_border(void) {
    put(in(there, "file"), "outside");
    must(symlink(in(there, "file"), "out") == 0);
    int file = openat2(AT_FDCWD, "out", O_RDONLY, 0);
    must(file >= 0 && reads(file, "outside"));
    fails(EXDEV, openat2(AT_FDCWD, "out", O_RDONLY, NO_XDEV));
    must(chdir(there) == 0 && symlink(here, "in") == 0 && exists("in/.."));
    fails(EXDEV, openat2(AT_FDCWD, "in", O_PATH, NO_XDEV));
}

const struct check at_checks[] = {
    {"at-cwd", at_cwd},
    {"at-dir", at_dir},
    {"at-path-dir", at_path_dir},
    {"at-absolute", at_absolute},
    {"at-renamed", at_renamed},
    {"empty-paths", empty_paths},
    {"path-descriptors", path_descriptors},
    {"openat2", openat2_resolve},
    {"openat2-border", openat2_border},
    {NULL, NULL},
};
