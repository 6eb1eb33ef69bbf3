// SPDX-License-Identifier: MIT OR Apache-2.0
// Content of files: reads and writes of all forms, sizes, memory maps, locks, and storing it.
#include "calls.h"
#include <poll.h>
#include <setjmp.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/uio.h>

static void reads_and_writes(void) {
    int file = open("file", O_RDWR | O_CREAT, 0644);
    struct iovec parts[2] = {{.iov_base = "abc", .iov_len = 3}, {.iov_base = "defg", .iov_len = 4}};
    must(writev(file, parts, 2) == 7 && lseek(file, 0, SEEK_CUR) == 7);
    must(pwrite(file, "XY", 2, 1) == 2 && lseek(file, 0, SEEK_CUR) == 7);
    char first[3], second[10];
    struct iovec into[2] = {{.iov_base = first, .iov_len = 3}, {.iov_base = second, .iov_len = 10}};
    must(preadv(file, into, 2, 0) == 7 && memcmp(first, "aXY", 3) == 0 && memcmp(second, "defg", 4) == 0);
    must(pwritev(file, parts, 2, 3) == 7 && lseek(file, 0, SEEK_END) == 10);
    must(holds("file", "aXYabcdefg"));
    must(pread(file, second, 10, 10) == 0 && pread(file, second, 10, 8) == 2);
    fails(EINVAL, lseek(file, -1, SEEK_SET));
    must(lseek(file, 3, SEEK_SET) == 3 && reads(file, "abcdefg"));
    struct pollfd ready = {.fd = file, .events = POLLIN | POLLOUT};
    must(poll(&ready, 1, 0) == 1 && ready.revents == (POLLIN | POLLOUT));
}

// A megabyte, written in odd pieces and read in others.
static void large(void) {
    static unsigned char out[1 << 20], back[1 << 20];
    for (size_t at = 0; at < sizeof out; at++)
        out[at] = (at * 2654435761U) >> 13;
    int file = open("file", O_RDWR | O_CREAT, 0644);
    for (size_t at = 0, piece; at < sizeof out; at += piece) {
        piece = at + 12345 > sizeof out ? sizeof out - at : 12345;
        must(write(file, out + at, piece) == (ssize_t)piece);
    }
    for (size_t at = 0, piece; at < sizeof out; at += piece) {
        piece = at + 99999 > sizeof out ? sizeof out - at : 99999;
        must(pread(file, back + at, piece, at) == (ssize_t)piece);
    }
    must(memcmp(out, back, sizeof out) == 0);
}

static void sizes(void) {
    int file = open("file", O_RDWR | O_CREAT, 0644);
    must(write(file, "0123456789", 10) == 10 && ftruncate(file, 4) == 0 && holds("file", "0123"));
    must(truncate("file", 8) == 0);
    char found[9];
    must(pread(file, found, 9, 0) == 8 && memcmp(found, "0123\0\0\0\0", 8) == 0);
    fails(EINVAL, ftruncate(file, -1));
    fails(EINVAL, ftruncate(open("file", O_RDONLY), 1));
    struct stat size;
    off_t far = (off_t)5 << 30;
    must(pwrite(file, "end", 3, far) == 3 && fstat(file, &size) == 0 && size.st_size == far + 3);
    must(pread(file, found, 3, far) == 3 && memcmp(found, "end", 3) == 0);
    must(pread(file, found, 2, far / 2) == 2 && found[0] == 0 && found[1] == 0);
    off_t data = lseek(file, 1 << 20, SEEK_DATA);
    // Where holes are not known, all is data.
    must(data >= 1 << 20 && data <= far);
    must(lseek(file, 0, SEEK_HOLE) >= 0);
    fails(ENXIO, lseek(file, far + 3, SEEK_DATA));
    must(ftruncate(file, 0) == 0 && fallocate(file, 0, 0, 10000) == 0);
    must(fstat(file, &size) == 0 && size.st_size == 10000);
    must(fallocate(file, FALLOC_FL_KEEP_SIZE, 10000, 5000) == 0 && fstat(file, &size) == 0 && size.st_size == 10000);
}

static void stored(void) {
    int file = open("file", O_RDWR | O_CREAT, 0644), dir = open(".", O_RDONLY | O_DIRECTORY);
    must(write(file, "content", 7) == 7 && fsync(file) == 0 && fdatasync(file) == 0);
    must(fsync(dir) == 0 && syncfs(file) == 0);
    must(fsync(open("file", O_RDONLY)) == 0);
    int synchronous = open("file", O_WRONLY | O_SYNC);
    must(write(synchronous, "C", 1) == 1 && holds("file", "Content"));
}

static void private_maps(void) {
    put("file", "content");
    int file = open("file", O_RDONLY);
    char *map = mmap(NULL, 7, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    must(map != MAP_FAILED && close(file) == 0 && memcmp(map, "content", 7) == 0);
    memcpy(map, "mine", 4);
    must(memcmp(map, "mineent", 7) == 0 && holds("file", "content"));
    must(unlink("file") == 0 && memcmp(map, "mineent", 7) == 0 && munmap(map, 7) == 0);
}

static void shared_maps(void) {
    int file = open("file", O_RDWR | O_CREAT, 0644);
    must(ftruncate(file, 10000) == 0);
    char *map = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(map != MAP_FAILED);
    memcpy(map + 5000, "by the map", 10);
    char found[10];
    must(pread(file, found, 10, 5000) == 10 && memcmp(found, "by the map", 10) == 0);
    must(pwrite(file, "by a write", 10, 9000) == 10 && memcmp(map + 9000, "by a write", 10) == 0);
    pid_t child = fork();
    if (child == 0) {
        memcpy(map, "by a child", 10);
        _exit(0);
    }
    joined(child);
    must(memcmp(map, "by a child", 10) == 0);
    must(msync(map, 10000, MS_SYNC) == 0 && munmap(map, 10000) == 0 && close(file) == 0);
    file = open("file", O_RDONLY);
    must(pread(file, found, 10, 0) == 10 && memcmp(found, "by a child", 10) == 0);
    must(mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED && errno == EACCES);
    // Execution from a file that is mapped.
    must(mmap(NULL, 100, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) != MAP_FAILED);
}

// Two descriptions of one file, each mapped and written.
static void maps_of_two(void) {
    int one = open("file", O_RDWR | O_CREAT, 0644), two = open("file", O_RDWR);
    must(ftruncate(one, 4096) == 0);
    char *first = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, one, 0);
    char *second = mmap(NULL, 4096, PROT_READ, MAP_SHARED, two, 0);
    must(first != MAP_FAILED && second != MAP_FAILED);
    strcpy(first, "the same");
    must(strcmp(second, "the same") == 0);
}

static sigjmp_buf beyond;

static void beyond_the_end(int signal) {
    (void)signal;
    siglongjmp(beyond, 1);
}

static void truncated_maps(void) {
    int file = open("file", O_RDWR | O_CREAT, 0644);
    size_t page = sysconf(_SC_PAGESIZE);
    must(ftruncate(file, 2 * page) == 0);
    volatile char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(map != MAP_FAILED);
    map[page] = 1;
    must(ftruncate(file, 10) == 0);
    signal(SIGBUS, beyond_the_end);
    if (sigsetjmp(beyond, 1) == 0) {
        map[page] = 2;
        must(!"a page beyond the end of a file");
    }
    must(map[9] == 0);
}

static void locks(void) {
    int file = open("file", O_RDWR | O_CREAT, 0644);
    struct flock part = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    must(flock(file, LOCK_EX) == 0 && fcntl(file, F_SETLK, &part) == 0);
    pid_t child = fork();
    if (child == 0) {
        int other = open("file", O_RDWR);
        fails(EWOULDBLOCK, flock(other, LOCK_SH | LOCK_NB));
        struct flock same = part;
        must(fcntl(other, F_SETLK, &same) == -1 && (errno == EAGAIN || errno == EACCES));
        must(fcntl(other, F_GETLK, &same) == 0 && same.l_type == F_WRLCK && same.l_pid == getppid());
        same = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
        must(fcntl(other, F_SETLK, &same) == 0);
        _exit(0);
    }
    joined(child);
    must(flock(file, LOCK_UN) == 0);
    int description = open("file", O_RDWR);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    must(fcntl(description, F_OFD_SETLK, &whole) == -1 && errno == EAGAIN);
    part.l_type = F_UNLCK;
    must(fcntl(file, F_SETLK, &part) == 0 && fcntl(description, F_OFD_SETLK, &whole) == 0);
}

const struct check content_checks[] = {
    {"reads-and-writes", reads_and_writes},
    {"large", large},
    {"sizes", sizes},
    {"stored", stored},
    {"private-maps", private_maps},
    {"shared-maps", shared_maps},
    {"maps-of-two", maps_of_two},
    {"truncated-maps", truncated_maps},
    {"locks", locks},
    {NULL, NULL},
};
