// SPDX-License-Identifier: MIT OR Apache-2.0
// Processes and threads: all ways to start them, what they share, programs and scripts of the tree, descriptors that are passed on.
#include "calls.h"
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>

extern char **environ;

static void forks(void) {
    put("file", "content");
    int file = open("file", O_RDWR);
    pid_t child = fork();
    if (child == 0) {
        must(mkdir("dir", 0755) == 0 && chdir("dir") == 0 && holds("../file", "content"));
        char found[3];
        must(read(file, found, 3) == 3);
        _exit(0);
    }
    joined(child);
    // The place in a file is shared, the working directory is not.
    must(reads(file, "tent") && exists("dir"));
}

static void vforks(void) {
    put_program("program");
    pid_t child = vfork();
    if (child == 0) {
        execl("./program", "program", "closed", "99", NULL);
        _exit(2);
    }
    joined(child);
    child = vfork();
    if (child == 0)
        _exit(open("none", O_RDONLY) != -1);
    joined(child);
}

// struct clone_args, which not every C library has.
struct clone3 {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

static void clone3s(void) {
    put("file", "content");
    struct clone3 plain = {.exit_signal = SIGCHLD};
    pid_t child = syscall(SYS_clone3, &plain, sizeof plain);
    if (child == 0) {
        must(holds("file", "content") && mkdir("dir", 0755) == 0 && chdir("dir") == 0);
        _exit(0);
    }
    joined(child);
    must(exists("dir"));
    int descriptor = -1;
    struct clone3 sharing = {.flags = CLONE_FS | CLONE_FILES | 0x1000 /* CLONE_PIDFD */,
                             .pidfd = (uintptr_t)&descriptor,
                             .exit_signal = SIGCHLD};
    child = syscall(SYS_clone3, &sharing, sizeof sharing);
    if (child == 0) {
        must(chdir("dir") == 0 && open("../file", O_RDONLY) >= 0);
        _exit(0);
    }
    joined(child);
    must(descriptor >= 0 && holds("../file", "content") && reads(descriptor + 1, "content"));
}

static void spawns(void) {
    put_program("program");
    put("input", "x");
    must(mkdir("dir", 0755) == 0);
    posix_spawn_file_actions_t actions;
    must(posix_spawn_file_actions_init(&actions) == 0);
    must(posix_spawn_file_actions_addopen(&actions, 1, "output", O_WRONLY | O_CREAT | O_TRUNC, 0644) == 0);
    must(posix_spawn_file_actions_addchdir_np(&actions, "dir") == 0);
    must(posix_spawn_file_actions_addopen(&actions, 0, "../input", O_RDONLY, 0) == 0);
    char *arguments[] = {"program", "say", "spawned", NULL};
    pid_t child;
    must(posix_spawn(&child, "../program", &actions, NULL, arguments, environ) == 0);
    joined(child);
    must(holds("output", "spawned\n"));
    must(setenv("PATH", here, 1) == 0);
    must(posix_spawnp(&child, "program", NULL, NULL, (char *[]){"program", "closed", "99", NULL}, environ) == 0);
    joined(child);
    must(posix_spawn(&child, "./none", NULL, NULL, arguments, environ) == ENOENT);
}

static pthread_barrier_t barrier;

static void *in_its_own_directory(void *argument) {
    must(unshare(CLONE_FS) == 0 && chdir("dir") == 0);
    pthread_barrier_wait(&barrier);
    must(holds("file", "below") && holds("../file", "above"));
    umask(077);
    put("made", "below");
    pthread_barrier_wait(&barrier);
    return argument;
}

static void threads_apart(void) {
    must(mkdir("dir", 0755) == 0);
    put("file", "above");
    put("dir/file", "below");
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    must(pthread_create(&thread, NULL, in_its_own_directory, NULL) == 0);
    pthread_barrier_wait(&barrier);
    must(holds("file", "above"));
    put("made", "above");
    pthread_barrier_wait(&barrier);
    must(pthread_join(thread, NULL) == 0 && holds("made", "above") && holds("dir/made", "below"));
    struct stat found;
    must(stat("dir/made", &found) == 0 && (found.st_mode & 0777) == 0600);
    must(stat("made", &found) == 0 && (found.st_mode & 0777) == 0644);
}

static void *changes_directory(void *argument) {
    must(chdir("dir") == 0);
    return argument;
}

static void *works(void *number) {
    char name[32], text[32];
    for (int round = 0; round < 20; round++) {
        sprintf(name, "file-%d-%d", (int)(intptr_t)number, round);
        sprintf(text, "%d of %d", round, (int)(intptr_t)number);
        put(name, text);
        must(holds(name, text) && unlink(name) == 0);
    }
    return NULL;
}

static void threads_together(void) {
    must(mkdir("dir", 0755) == 0);
    put("dir/file", "below");
    pthread_t threads[8];
    must(pthread_create(threads, NULL, changes_directory, NULL) == 0 && pthread_join(*threads, NULL) == 0);
    must(holds("file", "below"));
    for (intptr_t number = 0; number < 8; number++)
        must(pthread_create(&threads[number], NULL, works, (void *)number) == 0);
    for (int number = 0; number < 8; number++)
        must(pthread_join(threads[number], NULL) == 0);
}

static void programs(void) {
    put_program("program");
    prints("absolute\n", execl(in(here, "program"), "program", "say", "absolute", NULL));
    prints("relative\n", execl("./program", "program", "say", "relative", NULL));
    must(setenv("PATH", here, 1) == 0);
    prints("searched\n", execlp("program", "program", "say", "searched", NULL));
    int dir = open(".", O_PATH);
    char *arguments[] = {"program", "say", "at", NULL};
    prints("at\n", syscall(SYS_execveat, dir, "program", arguments, environ, 0));
    must(symlink(in(here, "program"), in(there, "link")) == 0);
    prints("linked\n", execl(in(there, "link"), "program", "say", "linked", NULL));
    must(chmod("program", 0644) == 0);
    fails(EACCES, execl("./program", "program", "say", "no", NULL));
    fails(EACCES, execl(".", "program", NULL));
    put("text", "not a program");
    must(chmod("text", 0755) == 0);
    fails(ENOEXEC, execl("./text", "text", NULL));
}

static void programs_by_descriptor(void) {
    put_program("program");
    int file = open("program", O_RDONLY | O_CLOEXEC), path = open("program", O_PATH | O_CLOEXEC);
    char *arguments[] = {"program", "say", "by descriptor", NULL};
    prints("by descriptor\n", fexecve(file, arguments, environ));
    prints("by descriptor\n", syscall(SYS_execveat, path, "", arguments, environ, AT_EMPTY_PATH));
    must(unlink("program") == 0);
    prints("by descriptor\n", fexecve(file, arguments, environ));
}

static void scripts(void) {
    put_program("program");
    char line[PATH_MAX + 20];
    sprintf(line, "#!%s say\n", in(here, "program"));
    put("script", line);
    put("plain", "#!/bin/sh\necho $0 $1\ncat <&3\n");
    put("file", "content\n");
    must(chmod("script", 0755) == 0 && chmod("plain", 0755) == 0);
    // The interpreter of the tree gets the path of the script.
    prints("./script\n", execl("./script", "script", NULL));
    must(dup2(open("file", O_RDONLY), 3) == 3 || open("file", O_RDONLY) >= 3);
    prints("./plain one\ncontent\n", execl("./plain", "plain", "one", NULL));
    sprintf(line, "#!%s\n", in(here, "script"));
    put("chain", line);
    must(chmod("chain", 0755) == 0);
    sprintf(line, "%s\n", in(here, "script"));
    prints(line, execl("./chain", "chain", NULL));
    int script = open("script", O_RDONLY);
    char expected[64];
    sprintf(expected, "/dev/fd/%d\n", script);
    char *arguments[] = {"script", NULL};
    prints(expected, syscall(SYS_execveat, script, "", arguments, environ, AT_EMPTY_PATH));
    put("lost", "#!/no/such/interpreter\n");
    must(chmod("lost", 0755) == 0);
    fails(ENOENT, execl("./lost", "lost", NULL));
}

// A program that runs cannot be written to, and knows its path.
static void running_programs(void) {
    put_program("program");
    int in_ends[2];
    must(pipe(in_ends) == 0);
    // Its end closes with the execution of the program.
    int started[2];
    must(pipe2(started, O_CLOEXEC) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(in_ends[0], 0);
        close(in_ends[0]);
        close(in_ends[1]);
        execl("./program", "program", "stay", NULL);
        _exit(2);
    }
    close(started[1]);
    char byte, proc[64], found[PATH_MAX];
    must(read(started[0], &byte, 1) == 0);
    fails(ETXTBSY, open("program", O_WRONLY));
    sprintf(proc, "/proc/%d/exe", child);
    ssize_t length = readlink(proc, found, sizeof found);
    must(length == (ssize_t)strlen(in(here, "program")) && memcmp(found, in(here, "program"), length) == 0);
    must(close(in_ends[1]) == 0);
    joined(child);
    must(open("program", O_WRONLY) >= 0);
    int writing = open("program", O_WRONLY);
    fails(ETXTBSY, execl("./program", "program", "say", "no", NULL));
    close(writing);
}

static void duplicates(void) {
    put("file", "content");
    int file = open("file", O_RDWR), copy = dup(file), high = fcntl(file, F_DUPFD_CLOEXEC, 100);
    char byte;
    must(copy >= 0 && high >= 100 && read(file, &byte, 1) == 1 && byte == 'c');
    must(read(copy, &byte, 1) == 1 && byte == 'o' && read(high, &byte, 1) == 1 && byte == 'n');
    must(dup2(file, 50) == 50 && dup3(file, 51, O_CLOEXEC) == 51);
    fails(EINVAL, dup3(file, file, 0));
    must(close(file) == 0 && read(50, &byte, 1) == 1 && byte == 't');
    fails(EBADF, read(file, &byte, 1));
    must(fcntl(51, F_GETFD) == FD_CLOEXEC && fcntl(50, F_GETFD) == 0);
    // They are closed, or not, when a program is executed.
    put_program("program");
    int closing = open("file", O_RDONLY | O_CLOEXEC);
    char number[16];
    const struct {
        const char *what;
        int descriptor;
    } expected[] = {{"open", 50}, {"closed", 51}, {"closed", high}, {"closed", closing}, {"open", copy}};
    for (int at = 0; at < 5; at++) {
        sprintf(number, "%d", expected[at].descriptor);
        prints("", execl("./program", "program", expected[at].what, number, NULL));
    }
}

// A message with a descriptor; the buffer is for both sides.
static ssize_t pass(int socket, int *descriptor, bool send) {
    char byte = 'x';
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (!send) {
        ssize_t length = recvmsg(socket, &message, 0);
        memcpy(descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
        return length;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), descriptor, sizeof(int));
    return sendmsg(socket, &message, 0);
}

static void passed_descriptors(void) {
    put("file", "content");
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        must(chdir("/") == 0);
        int file, dir;
        must(pass(ends[1], &file, false) == 1 && pass(ends[1], &dir, false) == 1);
        must(reads(file, "tent") && pwrite(file, "C", 1, 0) == 1);
        int made = openat(dir, "made", O_WRONLY | O_CREAT, 0644);
        must(made >= 0 && fchdir(dir) == 0 && holds("file", "Content"));
        _exit(0);
    }
    int file = open("file", O_RDWR), dir = open(".", O_PATH);
    must(lseek(file, 3, SEEK_SET) == 3 && pass(ends[0], &file, true) == 1 && close(file) == 0);
    must(pass(ends[0], &dir, true) == 1);
    joined(child);
    must(holds("file", "Content") && exists("made"));
}

static void unix_sockets(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    must(bind(server, (struct sockaddr *)&name, sizeof name) == 0 && listen(server, 1) == 0);
    struct stat found;
    must(stat("socket", &found) == 0 && S_ISSOCK(found.st_mode));
    fails(EADDRINUSE, bind(client, (struct sockaddr *)&name, sizeof name));
    must(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    int end = accept(server, NULL, NULL);
    must(end >= 0 && write(client, "hello", 5) == 5 && close(client) == 0 && reads(end, "hello"));
    fails(ENXIO, open("socket", O_RDWR));
    must(close(server) == 0);
    client = socket(AF_UNIX, SOCK_STREAM, 0);
    fails(ECONNREFUSED, connect(client, (struct sockaddr *)&name, sizeof name));
    must(unlink("socket") == 0);
    fails(ENOENT, connect(client, (struct sockaddr *)&name, sizeof name));
}

static void fifos(void) {
    must(mkfifo("fifo", 0644) == 0);
    fails(ENXIO, open("fifo", O_WRONLY | O_NONBLOCK));
    pid_t child = fork();
    if (child == 0) {
        int fifo = open("fifo", O_WRONLY);
        must(fifo >= 0 && write(fifo, "through it", 10) == 10);
        _exit(0);
    }
    must(holds("fifo", "through it"));
    joined(child);
}

const struct check process_checks[] = {
    {"fork", forks},
    {"vfork", vforks},
    {"clone3", clone3s},
    {"posix-spawn", spawns},
    {"threads-apart", threads_apart},
    {"threads-together", threads_together},
    {"programs", programs},
    {"programs-by-descriptor", programs_by_descriptor},
    {"scripts", scripts},
    {"running-programs", running_programs},
    {"duplicates", duplicates},
    {"passed-descriptors", passed_descriptors},
    {"unix-sockets", unix_sockets},
    {"fifos", fifos},
    {NULL, NULL},
};
