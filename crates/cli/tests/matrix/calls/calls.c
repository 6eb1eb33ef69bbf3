// SPDX-License-Identifier: MIT OR Apache-2.0
// calls DIR OUTSIDE [CHECK...]: checks system calls with files of DIR, a directory of a tree, and of OUTSIDE, which is elsewhere. Prints a line
// for each check: `ok NAME`, or `FAILED NAME why`. What is left of a check that failed stays there.
#include "calls.h"
#include <stdarg.h>

char here[PATH_MAX], there[PATH_MAX];
static const char *current;

// No check takes longer, unless it hangs.
enum { DEADLINE = 30 };

static void say(const char *format, ...) {
    // In one piece: a check may consist of several processes.
    char line[1024];
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    if (length >= (int)sizeof line)
        length = sizeof line - 1;
    if (write(1, line, length) != length)
        _exit(3);
}

_Noreturn void fail(const char *file, int line, const char *what) {
    const char *slash = strrchr(file, '/');
    say("FAILED %s %s:%d: %s (%s)\n", current, slash ? slash + 1 : file, line, what, strerror(errno));
    _exit(1);
}

const char *in(const char *dir, const char *name) {
    static char paths[16][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 16];
    must(snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX);
    return path;
}

void put(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    must(file >= 0);
    must(write(file, text, strlen(text)) == (ssize_t)strlen(text));
    must(close(file) == 0);
}

bool reads(int file, const char *text) {
    char found[4096];
    size_t length = 0;
    ssize_t count;
    while ((count = read(file, found + length, sizeof found - length)) > 0)
        length += count;
    return count == 0 && length == strlen(text) && memcmp(found, text, length) == 0;
}

bool holds(const char *path, const char *text) {
    int file = open(path, O_RDONLY);
    if (file < 0)
        return false;
    bool same = reads(file, text);
    close(file);
    return same;
}

bool exists(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0;
}

void joined(pid_t child) {
    int status;
    must(child > 0);
    must(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        _exit(1);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void put_program(const char *path) {
    int from = open("/proc/self/exe", O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
    must(from >= 0 && to >= 0);
    char piece[65536];
    ssize_t count;
    while ((count = read(from, piece, sizeof piece)) > 0)
        must(write(to, piece, count) == count);
    must(count == 0 && close(to) == 0);
    close(from);
}

int act(char **arguments) {
    const char *what = arguments[0], *value = arguments[1] ? arguments[1] : "";
    if (strcmp(what, "say") == 0)
        return printf("%s\n", value) < 0;
    if (strcmp(what, "closed") == 0)
        return !(fcntl(atoi(value), F_GETFD) == -1 && errno == EBADF);
    if (strcmp(what, "open") == 0)
        return fcntl(atoi(value), F_GETFD) == -1;
    char byte;
    return read(0, &byte, 1) != 0;
}

// Runs one check. What it reports itself is not repeated.
static bool run(const struct check *check, const char *dir, const char *outside) {
    snprintf(here, sizeof here, "%s/%s", dir, check->name);
    snprintf(there, sizeof there, "%s/%s", outside, check->name);
    current = check->name;
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        alarm(DEADLINE);
        errno = 0;
        must(mkdir(here, 0755) == 0 && mkdir(there, 0755) == 0 && chdir(here) == 0);
        check->run();
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        fail(__FILE__, __LINE__, "no process for it");
    // What it has started and not waited for, as it failed.
    kill(-child, SIGKILL);
    if (WIFSIGNALED(status)) {
        bool late = WTERMSIG(status) == SIGALRM;
        say("FAILED %s %s\n", check->name, late ? "it does not end" : strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) == 0) {
        say("ok %s\n", check->name);
        return true;
    }
    return false;
}

static bool is_wanted(const char *name, char **wanted) {
    for (char **word = wanted; *word; word++)
        if (strcmp(*word, name) == 0)
            return true;
    return *wanted == NULL;
}

int main(int count, char **arguments) {
    if (count >= 2 && arguments[1][0] != '/')
        return act(arguments + 1);
    if (count < 3) {
        fprintf(stderr, "usage: calls DIR OUTSIDE [CHECK...]; both are absolute paths\n");
        return 2;
    }
    umask(022);
    bool all = true;
    const struct check *groups[] = {name_checks,    at_checks,      file_checks,
                                    content_checks, process_checks, signal_checks};
    for (size_t group = 0; group < sizeof groups / sizeof *groups; group++)
        for (const struct check *check = groups[group]; check->name; check++)
            if (is_wanted(check->name, arguments + 3))
                all &= run(check, arguments[1], arguments[2]);
    return !all;
}
