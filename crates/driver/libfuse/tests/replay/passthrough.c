// SPDX-License-Identifier: MIT OR Apache-2.0
// passthrough STORE MOUNTPOINT [OPTION...]: shows a directory, with locks, exchange and ranges. Some names make it die, the
// first time, between two steps of its own.
#define _GNU_SOURCE
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int store;
static const char *at(const char *path) { return path[1] ? path + 1 : "."; }
static int result(long value) { return value < 0 ? -errno : (int)value; }

static void die_once(const char *path, const char *name)
{
    if (!strcmp(path, name) && !mkdirat(store, ".died", 0700))
        abort();
}

static int do_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    int done = result(fi ? fstat(fi->fh, st) : fstatat(store, at(path), st, AT_SYMLINK_NOFOLLOW));
    // Numbers that no other program tells.
    if (path[1] && !faccessat(store, ".renumber", F_OK, 0))
        st->st_ino += getpid();
    return done;
}
static int do_mkdir(const char *path, mode_t mode)
{
    int made = mkdirat(store, at(path), 0700);
    die_once(path, "/unfinished");
    return made ? -errno : result(fchmodat(store, at(path), mode, 0));
}
static int do_unlink(const char *path) { return result(unlinkat(store, at(path), 0)); }
static int do_rmdir(const char *path)
{
    struct stat st;
    // A directory that is not finished is unknown to it.
    if (!fstatat(store, at(path), &st, 0) && (st.st_mode & 0777) == 0700)
        return -ENOENT;
    return result(unlinkat(store, at(path), AT_REMOVEDIR));
}
static int do_rename(const char *from, const char *to, unsigned flags)
{
    if (!strcmp(from, "/one name") && !linkat(store, at(from), store, at(to), 0))
        die_once(from, from);
    return result(renameat2(store, at(from), store, at(to), flags));
}
static int do_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
    int fd = fi ? (int)fi->fh : openat(store, at(path), O_WRONLY);
    int done = fd < 0 ? -errno : result(ftruncate(fd, size));
    if (!fi && fd >= 0)
        close(fd);
    return done;
}
static int do_open(const char *path, struct fuse_file_info *fi)
{
    int fd = openat(store, at(path), fi->flags);
    fi->fh = fd;
    return fd < 0 ? -errno : 0;
}
static int do_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    int fd = openat(store, at(path), fi->flags | O_CREAT, mode);
    fi->fh = fd;
    return fd < 0 ? -errno : 0;
}
static int do_read(const char *path, char *data, size_t size, off_t offset, struct fuse_file_info *fi)
{
    return result(pread(fi->fh, data, size, offset));
}
static int do_write(const char *path, const char *data, size_t size, off_t offset, struct fuse_file_info *fi)
{
    struct stat st;
    if (!strcmp(path, "/no room")) {
        // Its end is noted before there is room for content: what lies between cannot be written.
        if (fstat(fi->fh, &st) || st.st_size > offset || ftruncate(fi->fh, offset + size))
            return -EIO;
        die_once(path, path);
    }
    return result(pwrite(fi->fh, data, size, offset));
}
static int do_readdir(const char *path, void *list, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *fi,
                      enum fuse_readdir_flags flags)
{
    DIR *dir = fdopendir(openat(store, at(path), O_DIRECTORY));
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        fill(list, entry->d_name, NULL, 0, 0);
    return dir ? closedir(dir) : -errno;
}
static int do_release(const char *path, struct fuse_file_info *fi) { return result(close(fi->fh)); }
static int do_fallocate(const char *path, int mode, off_t offset, off_t length, struct fuse_file_info *fi)
{
    return result(fallocate(fi->fh, mode, offset, length));
}
static int do_lock(const char *path, struct fuse_file_info *fi, int command, struct flock *lock)
{
    // Locks of an open file instead of a process: all who use this program are one process.
    lock->l_pid = 0;
    int own = command == F_GETLK ? F_OFD_GETLK : command == F_SETLK ? F_OFD_SETLK : F_OFD_SETLKW;
    int done = result(fcntl(fi->fh, own, lock));
    lock->l_pid = 0;
    return done;
}
static int do_flock(const char *path, struct fuse_file_info *fi, int operation)
{
    return result(flock(fi->fh, operation));
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    // The inode numbers of the store, which two names of a file share.
    config->use_ino = 1;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = do_init,
    .getattr = do_getattr, .mkdir = do_mkdir, .unlink = do_unlink, .rmdir = do_rmdir, .rename = do_rename,
    .truncate = do_truncate, .open = do_open, .create = do_create, .read = do_read, .write = do_write,
    .readdir = do_readdir, .release = do_release, .fallocate = do_fallocate, .lock = do_lock, .flock = do_flock,
};

int main(int count, char *words[])
{
    store = count > 1 ? open(words[1], O_DIRECTORY) : -1;
    if (store < 0)
        return 2;
    words[1] = words[0];
    return fuse_main(count - 1, words + 1, &operations, NULL);
}
