// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls that signals interrupt: each happens once, or fails with EINTR and has not happened. Processes that are killed.
#include "calls.h"
#include <sys/time.h>

static volatile sig_atomic_t signals;

static void count(int signal) {
    (void)signal;
    signals++;
}

// A signal each fifth of a millisecond, which restarts nothing, or what can be restarted.
static void storm(int flags) {
    struct sigaction action = {.sa_handler = count, .sa_flags = flags};
    must(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {.it_interval = {.tv_usec = 200}, .it_value = {.tv_usec = 200}};
    must(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

// Once more if it was interrupted.
#define again(call)                                                                                                    \
    ({                                                                                                                 \
        long result;                                                                                                   \
        while ((result = (call)) == -1 && errno == EINTR)                                                              \
            ;                                                                                                          \
        result;                                                                                                        \
    })

// Works until there were many signals.
static void work(void) {
    char name[32], other[32], text[32], found[32];
    for (int round = 0; signals < 400 || round < 50; round++) {
        sprintf(name, "file-%d", round);
        sprintf(other, "dir-%d", round);
        int length = sprintf(text, "content %d", round);
        int file = again(open(name, O_RDWR | O_CREAT | O_EXCL, 0644));
        must(file >= 0);
        must(again(write(file, text, length)) == length);
        must(again(pread(file, found, sizeof found, 0)) == length && memcmp(found, text, length) == 0);
        struct stat size;
        must(again(stat(name, &size)) == 0 && size.st_size == length);
        must(again(mkdir(other, 0755)) == 0 && again(rename(name, "renamed")) == 0);
        must(again(rmdir(other)) == 0 && again(unlink("renamed")) == 0);
        must(again(fsync(file)) == 0);
        close(file);
        int dir = again(open(".", O_RDONLY | O_DIRECTORY));
        char entries[1024];
        must(dir >= 0 && again(syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0);
        close(dir);
    }
}

static void signal_storm(void) {
    storm(0);
    work();
}

static void signal_storm_restarts(void) {
    storm(SA_RESTART);
    work();
}

// Copies a program while signals come, and executes it.
static void signal_storm_program(void) {
    storm(SA_RESTART);
    for (int round = 0; round < 5; round++) {
        put_program("program");
        // Ignored signals stay ignored in the program, handlers do not exist there.
        prints("said\n", (setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL),
                          execl("./program", "program", "say", "said", NULL)));
        must(unlink("program") == 0);
    }
}

// Processes that are killed in their calls leave a tree that works, and are gone.
static void killed(void) {
    for (int round = 0; round < 20; round++) {
        int ends[2];
        must(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            for (int number = 0;; number++) {
                char name[32];
                sprintf(name, "of-%d-%d", round, number % 10);
                put(name, "text");
                must(holds(name, "text") && unlink(name) == 0);
                // It is at work.
                if (number == 0 && write(ends[1], "x", 1) != 1)
                    _exit(2);
            }
        }
        char byte;
        must(read(ends[0], &byte, 1) == 1);
        usleep(round * 300);
        int status;
        must(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        put("file", "content");
        must(holds("file", "content"));
        close(ends[0]);
        close(ends[1]);
    }
}

const struct check signal_checks[] = {
    {"signal-storm", signal_storm},
    {"signal-storm-restarts", signal_storm_restarts},
    {"signal-storm-program", signal_storm_program},
    {"killed", killed},
    {NULL, NULL},
};
