// SPDX-License-Identifier: MIT OR Apache-2.0
// How paths lead to files: symbolic links and `..` across the border of the tree, the working directory, odd and bad paths.
#include "calls.h"
#include <dirent.h>
#include <sys/mman.h>

// A relative path from the current directory to `there`.
static const char *way_out(void) {
    static char path[PATH_MAX];
    char *end = path;
    for (const char *at = here; *at; at++)
        if (*at == '/')
            end += sprintf(end, "../");
    strcpy(end, there + 1);
    return path;
}

static void symlinks_out(void) {
    put(in(there, "file"), "outside");
    must(symlink(in(there, "file"), "absolute") == 0);
    must(symlink(in(way_out(), "file"), "relative") == 0);
    must(symlink(there, "dir") == 0);
    must(holds("absolute", "outside") && holds("relative", "outside") && holds("dir/file", "outside"));
    struct stat link, file, target;
    must(lstat("absolute", &link) == 0 && S_ISLNK(link.st_mode));
    must(stat("absolute", &file) == 0 && stat(in(there, "file"), &target) == 0);
    must(file.st_ino == target.st_ino && file.st_dev == target.st_dev);
    put("absolute", "changed");
    must(holds(in(there, "file"), "changed"));
    must(chmod("relative", 0600) == 0 && stat("relative", &file) == 0 && (file.st_mode & 0777) == 0600);
    fails(ELOOP, open("absolute", O_RDONLY | O_NOFOLLOW));
    must(mkdir("dir/new", 0755) == 0 && rename("dir/file", "dir/new/moved") == 0);
    must(holds(in(there, "new/moved"), "changed"));
    must(unlink("absolute") == 0 && exists(in(there, "new/moved")));
}

static void symlinks_in(void) {
    put("file", "inside");
    must(mkdir("dir", 0755) == 0);
    must(symlink(in(here, "file"), in(there, "link")) == 0);
    must(symlink(in(here, "dir"), in(there, "dir")) == 0);
    must(holds(in(there, "link"), "inside"));
    put(in(there, "dir/new"), "by a link");
    must(holds("dir/new", "by a link"));
    must(chdir(there) == 0 && holds("dir/../file", "inside"));
    char found[PATH_MAX];
    ssize_t length = readlink("link", found, sizeof found);
    must(length == (ssize_t)strlen(in(here, "file")) && memcmp(found, in(here, "file"), length) == 0);
    must(realpath("dir/new", found) && strcmp(found, in(here, "dir/new")) == 0);
}

static void symlinks_dangling(void) {
    must(symlink(in(here, "made"), in(there, "link")) == 0);
    fails(ENOENT, open(in(there, "link"), O_RDONLY));
    fails(EEXIST, open(in(there, "link"), O_WRONLY | O_CREAT | O_EXCL, 0644));
    put(in(there, "link"), "made by a link");
    must(holds("made", "made by a link"));
    must(symlink("b", "a") == 0 && symlink("a", "b") == 0);
    fails(ELOOP, open("a", O_RDONLY));
    must(symlink("link-0", "link-1") == 0);
    put("link-0", "a chain");
    char from[32], to[32] = "link-1";
    for (int number = 2; number <= 40; number++) {
        strcpy(from, to);
        sprintf(to, "link-%d", number);
        must(symlink(from, to) == 0);
    }
    must(holds("link-40", "a chain"));
    must(symlink("link-40", "link-41") == 0);
    fails(ELOOP, open("link-41", O_RDONLY));
    // A target is text; it need not be a path.
    char text[1001], found[1001];
    memset(text, 'x', 1000);
    text[1000] = 0;
    must(symlink(text, "long") == 0 && readlink("long", found, sizeof found) == 1000);
    must(memcmp(text, found, 1000) == 0);
    must(readlink("long", found, 10) == 10);
}

static void dot_dot(void) {
    put(in(there, "file"), "outside");
    put("file", "inside");
    must(mkdir("dir", 0755) == 0);
    must(holds(in(way_out(), "file"), "outside"));
    must(holds("dir/../file", "inside") && holds("./dir/.././/file", "inside"));
    fails(ENOENT, open("none/../file", O_RDONLY));
    fails(ENOTDIR, open("file/../file", O_RDONLY));
    int dir = open("dir", O_RDONLY | O_DIRECTORY);
    char path[PATH_MAX];
    must(snprintf(path, sizeof path, "../%s/file", way_out()) < PATH_MAX);
    int file = openat(dir, path, O_RDONLY);
    must(file >= 0 && reads(file, "outside"));
    must(chdir(way_out()) == 0 && holds("file", "outside"));
    char found[PATH_MAX];
    must(getcwd(found, sizeof found) && strcmp(found, there) == 0);
    // Above the root is the root.
    must(holds(in("/../..", in(here, "file") + 1), "inside"));
}

// Each directory on the way up is the one that its path says.
static void parents(void) {
    char path[PATH_MAX];
    strcpy(path, here);
    char *slash;
    while ((slash = strrchr(path, '/'))) {
        *slash = 0;
        struct stat above, named;
        must(stat("..", &above) == 0 && stat(*path ? path : "/", &named) == 0);
        must(above.st_dev == named.st_dev && above.st_ino == named.st_ino);
        must(chdir("..") == 0);
    }
}

static void getcwd_follows(void) {
    char found[PATH_MAX];
    must(getcwd(found, sizeof found) && strcmp(found, here) == 0);
    must(mkdir("dir", 0755) == 0 && mkdir("dir/sub", 0755) == 0 && chdir("dir/sub") == 0);
    must(getcwd(found, sizeof found) && strcmp(found, in(here, "dir/sub")) == 0);
    must(rename(in(here, "dir"), in(here, "renamed")) == 0);
    must(getcwd(found, sizeof found) && strcmp(found, in(here, "renamed/sub")) == 0);
    put("file", "in a renamed directory");
    must(holds(in(here, "renamed/sub/file"), "in a renamed directory"));
    ssize_t length = readlink("/proc/self/cwd", found, sizeof found);
    must(length == (ssize_t)strlen(in(here, "renamed/sub")));
    must(memcmp(found, in(here, "renamed/sub"), length) == 0);
    int back = open(here, O_PATH | O_DIRECTORY);
    must(chdir(there) == 0 && fchdir(back) == 0);
    must(getcwd(found, sizeof found) && strcmp(found, here) == 0);
    fails(ERANGE, syscall(SYS_getcwd, found, 2));
}

static void getcwd_removed(void) {
    must(mkdir("dir", 0755) == 0 && chdir("dir") == 0 && rmdir(in(here, "dir")) == 0);
    char found[PATH_MAX];
    fails(ENOENT, syscall(SYS_getcwd, found, sizeof found));
    fails(ENOENT, open("file", O_WRONLY | O_CREAT, 0644));
    must(chdir("..") == 0 && getcwd(found, sizeof found) && strcmp(found, here) == 0);
}

static void long_names(void) {
    char name[257], path[2 * PATH_MAX];
    memset(name, 'n', 256);
    name[256] = 0;
    fails(ENAMETOOLONG, open(name, O_WRONLY | O_CREAT, 0644));
    fails(ENAMETOOLONG, mkdir(name, 0755));
    struct stat found;
    fails(ENAMETOOLONG, stat(name, &found));
    name[255] = 0;
    put(name, "a long name");
    must(holds(name, "a long name") && rename(name, "short") == 0);
    // The longest path has 4095 bytes.
    memset(path, '/', sizeof path);
    strcpy(path + 4095 - 5, "short");
    must(memmove(path, here, strlen(here)) && strlen(path) == 4095 && holds(path, "a long name"));
    path[4090] = '/';
    strcpy(path + 4091, "short");
    fails(ENAMETOOLONG, open(path, O_RDONLY));
}

// Directories deeper than a path can name.
static void deep_directories(void) {
    char name[201];
    memset(name, 'd', 200);
    name[200] = 0;
    for (int depth = 0; depth < 25; depth++)
        must(mkdir(name, 0755) == 0 && chdir(name) == 0);
    put("file", "deep");
    must(holds("file", "deep"));
    char found[PATH_MAX];
    fails(ENAMETOOLONG, syscall(SYS_getcwd, found, sizeof found));
    for (int depth = 0; depth < 25; depth++)
        must(chdir("..") == 0);
    must(getcwd(found, sizeof found) && strcmp(found, here) == 0);
}

// Two pages, of which the second one cannot be used; the end of the first.
static char *page_end(void) {
    size_t size = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(pages != MAP_FAILED && mprotect(pages + size, size, PROT_NONE) == 0);
    return pages + size;
}

static const char *at_end(char *end, const char *path) {
    return strcpy(end - strlen(path) - 1, path);
}

static void page_ends(void) {
    put("file", "content");
    char *end = page_end(), *other = page_end();
    struct stat found;
    must(holds(at_end(end, "file"), "content"));
    must(holds(at_end(end, in(here, "file")), "content"));
    must(stat(at_end(end, "file"), &found) == 0);
    must(rename(at_end(end, "file"), at_end(other, "renamed")) == 0);
    must(symlink(at_end(end, "renamed"), at_end(other, "link")) == 0);
    must(mkdir(at_end(end, "d"), 0755) == 0 && chdir(at_end(end, here)) == 0);
    must(unlink(at_end(end, "link")) == 0);
    // One that goes on over a page end, at each place.
    size_t size = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const char *path = in(here, "renamed");
    for (size_t before = 0; before <= strlen(path) + 1; before++)
        must(holds(strcpy(pages + size - before, path), "content"));
    // One without an end.
    memcpy(end - 4, "/abc", 4);
    fails(EFAULT, open(end - 4, O_RDONLY));
    fails(EFAULT, stat(end - 4, &found));
}

static void bad_pointers(void) {
    char *bad = page_end();
    put("file", "content");
    int file = open("file", O_RDWR), dir = open(".", O_RDONLY | O_DIRECTORY);
    // By number: a library looks at what it is given.
    fails(EFAULT, syscall(SYS_openat, AT_FDCWD, bad, O_RDONLY, 0));
    fails(EFAULT, syscall(SYS_openat, AT_FDCWD, NULL, O_RDONLY, 0));
    fails(EFAULT, syscall(SYS_mkdirat, AT_FDCWD, bad, 0755));
    fails(EFAULT, syscall(SYS_unlinkat, AT_FDCWD, bad, 0));
    fails(EFAULT, syscall(SYS_renameat2, AT_FDCWD, "file", AT_FDCWD, bad, 0));
    fails(EFAULT, syscall(SYS_renameat2, AT_FDCWD, bad, AT_FDCWD, "file", 0));
    fails(EFAULT, syscall(SYS_linkat, AT_FDCWD, "file", AT_FDCWD, bad, 0));
    fails(EFAULT, syscall(SYS_symlinkat, bad, AT_FDCWD, "link"));
    must(symlink("file", "link") == 0);
    fails(EFAULT, syscall(SYS_readlinkat, AT_FDCWD, "link", bad, 100));
    fails(EFAULT, syscall(SYS_statx, AT_FDCWD, "file", 0, 0x7ff, bad));
    fails(EFAULT, syscall(SYS_read, file, bad, 7));
    fails(EFAULT, syscall(SYS_write, file, bad, 7));
    fails(EFAULT, syscall(SYS_getdents64, dir, bad, 1000));
    fails(EFAULT, syscall(SYS_getcwd, bad, 1000));
    fails(EFAULT, syscall(SYS_chdir, bad));
    fails(EFAULT, syscall(SYS_execve, bad, NULL, NULL));
    must(holds("file", "content") && !exists(""));
}

static void path_forms(void) {
    put("file", "content");
    must(mkdir("dir/", 0755) == 0 && exists("dir/") && exists("dir/."));
    fails(ENOENT, open("", O_RDONLY));
    fails(ENOTDIR, open("file/", O_RDONLY));
    fails(ENOTDIR, open("file/x", O_RDONLY));
    fails(EISDIR, open("new/", O_WRONLY | O_CREAT, 0644));
    fails(EISDIR, open("dir", O_WRONLY));
    fails(ENOTDIR, open("file", O_RDONLY | O_DIRECTORY));
    fails(ENOENT, open("none/file", O_WRONLY | O_CREAT, 0644));
    fails(EEXIST, mkdir("file", 0755));
    fails(ENOTDIR, rmdir("file"));
    fails(EISDIR, unlink("dir"));
    fails(EINVAL, rmdir("dir/."));
    fails(ENOTEMPTY, rmdir("dir/.."));
    fails(EINVAL, readlink("file", (char[10]){0}, 10));
    must(symlink("dir", "link") == 0);
    struct stat found;
    must(lstat("link/", &found) == 0 && S_ISDIR(found.st_mode));
    must(holds(in(in(here, "//dir///.."), "//file"), "content"));
}

// Any byte but two can be in a name.
static void odd_names(void) {
    char name[3] = "?x";
    for (int byte = 1; byte < 256; byte++) {
        name[0] = (char)byte;
        if (byte != '/')
            put(name, "odd");
    }
    int count = 0;
    DIR *dir = opendir(".");
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[1] == 'x' && entry->d_name[2] == 0)
            must(holds(entry->d_name, "odd") && unlink(entry->d_name) == 0 && ++count);
    must(count == 254);
    closedir(dir);
}

const struct check name_checks[] = {
    {"symlinks-out", symlinks_out},
    {"symlinks-in", symlinks_in},
    {"symlinks-dangling", symlinks_dangling},
    {"dot-dot", dot_dot},
    {"parents", parents},
    {"getcwd", getcwd_follows},
    {"getcwd-removed", getcwd_removed},
    {"long-names", long_names},
    {"deep-directories", deep_directories},
    {"page-ends", page_ends},
    {"bad-pointers", bad_pointers},
    {"path-forms", path_forms},
    {"odd-names", odd_names},
    {NULL, NULL},
};
