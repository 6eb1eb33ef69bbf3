// SPDX-License-Identifier: MIT OR Apache-2.0
// Files and directories: flags of open(2), names and the border of the tree, listings, attributes, many descriptors.
#include "calls.h"
#include <dirent.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/xattr.h>

static void open_flags(void) {
    int file = open("file", O_WRONLY | O_CREAT | O_EXCL, 0640);
    must(file >= 0 && write(file, "0123456789", 10) == 10);
    fails(EEXIST, open("file", O_WRONLY | O_CREAT | O_EXCL, 0640));
    int more = open("file", O_RDWR | O_APPEND);
    must(more >= 0 && pwrite(file, "x", 1, 0) == 1);
    must(write(more, "more", 4) == 4 && lseek(more, 0, SEEK_CUR) == 14);
    must(write(file, "-", 1) == 1 && holds("file", "x123456789-ore"));
    must(open("file", O_WRONLY | O_TRUNC) >= 0 && holds("file", ""));
    must(write(more, "again", 5) == 5 && holds("file", "again"));
    must(fcntl(more, F_SETFL, 0) == 0 && pwrite(more, "A", 1, 0) == 1 && holds("file", "Again"));
    must((fcntl(more, F_GETFL) & O_ACCMODE) == O_RDWR);
    fails(EBADF, read(open("file", O_WRONLY), (char[1]){0}, 1));
    fails(EBADF, write(open("file", O_RDONLY), "x", 1));
    fails(EISDIR, read(open(".", O_RDONLY), (char[1]){0}, 1));
    umask(077);
    must(open("mine", O_WRONLY | O_CREAT, 0666) >= 0);
    struct stat found;
    must(stat("mine", &found) == 0 && (found.st_mode & 07777) == 0600);
}

// A file that has no name until it gets one.
static void unnamed_files(void) {
    int file = open(".", O_TMPFILE | O_RDWR, 0644);
    must(file >= 0);
    must(write(file, "unnamed", 7) == 7);
    struct stat found;
    must(fstat(file, &found) == 0 && found.st_nlink == 0);
    char proc[64];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", file);
    must(linkat(AT_FDCWD, proc, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0);
    must(holds("named", "unnamed"));
}

// Of several processes that make a file exclusively one succeeds.
static void exclusive_race(void) {
    for (int round = 0; round < 20; round++) {
        char name[32];
        sprintf(name, "file-%d", round);
        pid_t children[4];
        int winners = 0;
        for (int number = 0; number < 4; number++)
            if ((children[number] = fork()) == 0)
                _exit(open(name, O_WRONLY | O_CREAT | O_EXCL, 0644) >= 0 ? 10 : errno == EEXIST ? 11 : 12);
        for (int number = 0; number < 4; number++) {
            int status;
            must(waitpid(children[number], &status, 0) == children[number] && WIFEXITED(status));
            must(WEXITSTATUS(status) != 12);
            winners += WEXITSTATUS(status) == 10;
        }
        must(winners == 1);
    }
}

// Of lines that several processes append none is lost or torn.
static void append_race(void) {
    put("log", "");
    pid_t children[3];
    for (int number = 0; number < 3; number++)
        if ((children[number] = fork()) == 0) {
            int log = open("log", O_WRONLY | O_APPEND);
            char line[16];
            for (int round = 0; round < 100; round++)
                must(write(log, line, sprintf(line, "%d %08d\n", number, round)) == 11);
            _exit(0);
        }
    for (int number = 0; number < 3; number++)
        joined(children[number]);
    int next[3] = {0}, number, round;
    FILE *log = fopen("log", "r");
    while (fscanf(log, "%d %d\n", &number, &round) == 2)
        must(number >= 0 && number < 3 && round == next[number]++);
    must(feof(log) && next[0] == 100 && next[1] == 100 && next[2] == 100);
    fclose(log);
}

static void renames(void) {
    put("a", "a");
    put("b", "b");
    int open_one = open("b", O_RDONLY);
    must(rename("a", "b") == 0 && holds("b", "a") && !exists("a"));
    must(reads(open_one, "b"));
    must(mkdir("dir", 0755) == 0 && mkdir("full", 0755) == 0 && mkdir("dir/sub", 0755) == 0);
    put("full/file", "");
    fails(ENOTEMPTY, rename("dir", "full"));
    fails(EINVAL, rename("dir", "dir/sub/in-itself"));
    fails(ENOTDIR, rename("dir", "b"));
    fails(EISDIR, rename("b", "dir"));
    fails(ENOENT, rename("none", "dir/new"));
    must(rename("full", "dir/sub") == 0 && exists("dir/sub/file"));
    must(link("b", "again") == 0 && rename("b", "again") == 0 && exists("b"));
}

static void border(void) {
    put("file", "inside");
    put(in(there, "other"), "outside");
    fails(EXDEV, rename("file", in(there, "file")));
    fails(EXDEV, rename(in(there, "other"), "other"));
    fails(EXDEV, link("file", in(there, "file")));
    fails(EXDEV, link(in(there, "other"), "other"));
    must(mkdir("dir", 0755) == 0);
    fails(EXDEV, rename("dir", in(there, "dir")));
    fails(EXDEV, syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, in(there, "other"), 2 /* RENAME_EXCHANGE */));
    must(holds("file", "inside") && holds(in(there, "other"), "outside") && exists("dir"));
    struct stat inside, outside;
    must(stat(".", &inside) == 0 && stat(there, &outside) == 0 && inside.st_dev != outside.st_dev);
}

// Content goes over the border in the kernel.
static void border_copies(void) {
    put("file", "inside the tree");
    int from = open("file", O_RDONLY), to = open(in(there, "file"), O_RDWR | O_CREAT, 0644);
    must(sendfile(to, from, NULL, 6) == 6);
    int ends[2];
    must(pipe(ends) == 0 && splice(from, NULL, ends[1], NULL, 4, 0) == 4);
    must(splice(ends[0], NULL, to, NULL, 4, 0) == 4);
    ssize_t copied = syscall(SYS_copy_file_range, from, NULL, to, NULL, (size_t)100, 0);
    must(copied == 5 || errno == EXDEV);
    if (copied == 5)
        must(holds(in(there, "file"), "inside the tree"));
    int back = open("back", O_WRONLY | O_CREAT, 0644);
    must(lseek(to, 0, SEEK_SET) == 0 && sendfile(back, to, NULL, 10) == 10 && holds("back", "inside the"));
}

// A file without a name is there until it is closed.
static void removed_files(void) {
    int file = open("file", O_RDWR | O_CREAT, 0644);
    must(write(file, "content", 7) == 7 && unlink("file") == 0 && !exists("file"));
    put("file", "another one");
    struct stat found;
    must(fstat(file, &found) == 0 && found.st_size == 7 && found.st_nlink == 0);
    must(pwrite(file, "C", 1, 0) == 1 && lseek(file, 0, SEEK_SET) == 0 && reads(file, "Content"));
    must(ftruncate(file, 3) == 0 && fstat(file, &found) == 0 && found.st_size == 3);
    must(fchmod(file, 0600) == 0 && holds("file", "another one"));
}

enum { ENTRIES = 200 };

static void entries(void) {
    for (int number = 0; number < ENTRIES; number++) {
        char name[32];
        sprintf(name, "entry-%d", number);
        put(name, "");
    }
}

// Reads on from where the directory is; counts each entry.
static void list(DIR *dir, int *counts) {
    for (struct dirent *entry; (entry = readdir(dir));) {
        int number;
        if (sscanf(entry->d_name, "entry-%d", &number) == 1) {
            must(entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN);
            counts[number]++;
        }
    }
}

static void listings(void) {
    entries();
    int counts[ENTRIES] = {0};
    DIR *dir = opendir(".");
    list(dir, counts);
    rewinddir(dir);
    list(dir, counts);
    for (int number = 0; number < ENTRIES; number++)
        must(counts[number] == 2);
    put("entry-0", "");
    must(unlink("entry-1") == 0);
    rewinddir(dir);
    memset(counts, 0, sizeof counts);
    list(dir, counts);
    must(counts[0] == 1 && counts[1] == 0 && counts[2] == 1);
    closedir(dir);
}

// From each place that telldir(3) names the listing goes on as it did.
static void listing_seeks(void) {
    entries();
    static char names[ENTRIES + 2][32];
    static long places[ENTRIES + 2];
    DIR *dir = opendir(".");
    int count = 0;
    struct dirent *entry;
    for (long place = telldir(dir); (entry = readdir(dir)); place = telldir(dir)) {
        must(count < ENTRIES + 2);
        places[count] = place;
        strcpy(names[count++], entry->d_name);
    }
    must(count == ENTRIES + 2);
    for (int step = 0; step < count; step += 7) {
        int at = step * 131 % count;
        seekdir(dir, places[at]);
        for (int next = at; next < count && next < at + 20; next++)
            must((entry = readdir(dir)) && strcmp(entry->d_name, names[next]) == 0);
    }
    closedir(dir);
}

// Small buffers, two processes at one place, and entries that go while they are listed.
static void listing_pieces(void) {
    entries();
    int dir = open(".", O_RDONLY | O_DIRECTORY), removed = 0;
    char buffer[200];
    fails(EINVAL, syscall(SYS_getdents64, dir, buffer, 10));
    for (long length; (length = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) != 0;) {
        must(length > 0);
        // struct linux_dirent64: number, offset, length, type, name.
        for (long at = 0; at < length; at += *(uint16_t *)(buffer + at + 16)) {
            const char *name = buffer + at + 19;
            if (strncmp(name, "entry-", 6) == 0)
                must(unlink(name) == 0 && ++removed);
        }
    }
    must(removed == ENTRIES);
    fails(ENOTDIR, syscall(SYS_getdents64, open("file", O_CREAT | O_RDONLY, 0644), buffer, sizeof buffer));
}

static void times_and_modes(void) {
    put("file", "content");
    struct stat before, after;
    must(stat("file", &before) == 0 && chmod("file", 0604) == 0 && stat("file", &after) == 0);
    must((after.st_mode & 07777) == 0604 && after.st_mtime == before.st_mtime);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 86400, .tv_nsec = 0}};
    must(utimensat(AT_FDCWD, "file", times, 0) == 0 && stat("file", &after) == 0);
    must(after.st_mtime == 86400 && after.st_atime == before.st_atime);
    must(utimensat(AT_FDCWD, "file", NULL, 0) == 0 && stat("file", &after) == 0);
    must(after.st_mtime >= before.st_mtime);
    must(after.st_nlink == 1 && link("file", "more") == 0 && stat("file", &after) == 0 && after.st_nlink == 2);
    must(after.st_uid == geteuid() && after.st_gid == getegid());
    must(mkdir("dir", 0700) == 0 && chmod("dir", 01755) == 0 && stat("dir", &after) == 0);
    must((after.st_mode & 07777) == 01755);
    struct statvfs whole;
    must(statvfs("file", &whole) == 0 && whole.f_bsize > 0 && whole.f_namemax == 255);
}

// What the mode forbids is forbidden, but not for the superuser.
static void permissions(void) {
    put("file", "content");
    must(mkdir("dir", 0755) == 0 && chmod("file", 0) == 0 && chmod("dir", 0) == 0);
    if (geteuid() == 0) {
        must(holds("file", "content") && open("dir/new", O_CREAT | O_WRONLY, 0600) >= 0);
        return;
    }
    fails(EACCES, open("file", O_RDONLY));
    fails(EACCES, open("dir/new", O_CREAT | O_WRONLY, 0600));
    fails(EACCES, open("dir", O_RDONLY | O_DIRECTORY));
    fails(EACCES, chdir("dir"));
    fails(EACCES, access("file", R_OK));
    must(chmod("dir", 0700) == 0);
}

// Only the superuser gives files away.
static void owners(void) {
    put("file", "content");
    struct stat found;
    if (geteuid() == 0) {
        must(chown("file", 1, 2) == 0 && stat("file", &found) == 0 && found.st_uid == 1 && found.st_gid == 2);
        must(lchown("file", -1, 3) == 0 && stat("file", &found) == 0 && found.st_uid == 1 && found.st_gid == 3);
    } else {
        fails(EPERM, chown("file", 0, 0));
    }
}

static void attributes(void) {
    put("file", "content");
    char found[100];
    fails(ENODATA, getxattr("file", "user.none", found, sizeof found));
    must(setxattr("file", "user.one", "first", 5, XATTR_CREATE) == 0);
    fails(EEXIST, setxattr("file", "user.one", "x", 1, XATTR_CREATE));
    fails(ENODATA, setxattr("file", "user.two", "x", 1, XATTR_REPLACE));
    must(getxattr("file", "user.one", found, sizeof found) == 5 && memcmp(found, "first", 5) == 0);
    must(getxattr("file", "user.one", NULL, 0) == 5);
    fails(ERANGE, getxattr("file", "user.one", found, 2));
    int file = open("file", O_RDONLY);
    must(fsetxattr(file, "user.empty", "", 0, 0) == 0 && fgetxattr(file, "user.empty", found, sizeof found) == 0);
    must(lsetxattr("file", "user.one", "another value", 13, 0) == 0);
    must(lgetxattr("file", "user.one", found, sizeof found) == 13);
    ssize_t length = listxattr("file", found, sizeof found);
    must(length >= 20 && memmem(found, length, "user.one", 9) && memmem(found, length, "user.empty", 11));
    must(removexattr("file", "user.one") == 0);
    fails(ENODATA, fgetxattr(file, "user.one", found, sizeof found));
    fails(ENOTSUP, setxattr("file", "strange.name", "x", 1, 0));
}

// A program that watches a directory (inotify) gets an event for each change of its names.
static void watches(void) {
    int watch = inotify_init1(IN_NONBLOCK);
    must(inotify_add_watch(watch, ".", IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_CLOSE_WRITE) > 0);
    put("file", "content");
    must(rename("file", "renamed") == 0 && unlink("renamed") == 0);
    const struct {
        uint32_t mask;
        const char *name;
    } expected[] = {{IN_CREATE, "file"}, {IN_CLOSE_WRITE, "file"}, {IN_MOVED_TO, "renamed"}, {IN_DELETE, "renamed"}};
    _Alignas(struct inotify_event) char buffer[1000];
    ssize_t length = read(watch, buffer, sizeof buffer);
    char *at = buffer;
    for (int number = 0; number < 4; number++) {
        struct inotify_event *event = (struct inotify_event *)at;
        must(at < buffer + length && event->mask == expected[number].mask);
        must(strcmp(event->name, expected[number].name) == 0);
        at += sizeof *event + event->len;
    }
}

// As many open files as a process may have, up to a few thousand.
static void many_descriptors(void) {
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max < 1500 ? limit.rlim_max : 1500;
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    put("file", "content");
    static int files[1500];
    int count = 0, file;
    while ((file = open("file", O_RDONLY)) >= 0)
        files[count++] = file;
    must(errno == EMFILE && count > 500);
    fails(EMFILE, open("new", O_WRONLY | O_CREAT, 0644));
    for (int number = 0; number < count; number += 97)
        must(reads(files[number], "content"));
    for (int number = 0; number < count; number++)
        must(close(files[number]) == 0);
    must(holds("file", "content"));
}

const struct check file_checks[] = {
    {"open-flags", open_flags},
    {"unnamed-files", unnamed_files},
    {"exclusive-race", exclusive_race},
    {"append-race", append_race},
    {"renames", renames},
    {"border", border},
    {"border-copies", border_copies},
    {"removed-files", removed_files},
    {"listings", listings},
    {"listing-seeks", listing_seeks},
    {"listing-pieces", listing_pieces},
    {"times-and-modes", times_and_modes},
    {"permissions", permissions},
    {"owners", owners},
    {"attributes", attributes},
    {"watches", watches},
    {"many-descriptors", many_descriptors},
    {NULL, NULL},
};
