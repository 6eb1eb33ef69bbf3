// SPDX-License-Identifier: MIT OR Apache-2.0
// What checks of system calls have in common. Each check is a process of its own, which starts in an empty directory of a tree and
// has another one outside of the tree.
#ifndef CALLS_H
#define CALLS_H

#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

struct check {
    const char *name;
    void (*run)(void);
};

extern const struct check name_checks[], at_checks[], file_checks[], content_checks[], process_checks[], signal_checks[];

// The directories of a check as absolute paths: the current one, in the tree, and the one outside.
extern char here[PATH_MAX], there[PATH_MAX];

// Says why the check failed, and ends it.
_Noreturn void fail(const char *file, int line, const char *what);
#define must(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition))
// The call must fail with this error.
#define fails(error, call) must((errno = 0, (call) == -1) && errno == (error))

// DIR/NAME. The last 16 results are valid.
const char *in(const char *dir, const char *name);
// Makes a file with this content, or replaces that of one.
void put(const char *path, const char *text);
bool holds(const char *path, const char *text);
// Whether the rest of an open file is this text.
bool reads(int file, const char *text);
bool exists(const char *path);
// The child ended with status 0; if it failed, it has said why.
void joined(pid_t child);
// A copy of this program, which does what its arguments say (see act).
void put_program(const char *path);
// `say TEXT` prints it; `closed N` and `open N` look at a descriptor; `stay` waits for the end of standard input.
int act(char **arguments);
// Executes in a child, and compares what it prints on standard output.
#define prints(text, execution)                                                                                        \
    do {                                                                                                               \
        int ends[2];                                                                                                   \
        must(pipe(ends) == 0);                                                                                         \
        pid_t child = fork();                                                                                          \
        if (child == 0) {                                                                                              \
            dup2(ends[1], 1);                                                                                          \
            close(ends[0]);                                                                                            \
            close(ends[1]);                                                                                            \
            execution;                                                                                                 \
            dprintf(2, "%s: %s\n", #execution, strerror(errno));                                                       \
            _exit(2);                                                                                                  \
        }                                                                                                              \
        close(ends[1]);                                                                                                \
        must(reads(ends[0], text));                                                                                    \
        close(ends[0]);                                                                                                \
        joined(child);                                                                                                 \
    } while (0)

#endif
