/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Makes one system call COUNT times, and prints how many microseconds each takes: calls getppid|stat|open COUNT PATH.
 * calls iostone COUNT DIR: what opening, reading or writing, and closing a file takes, of small files, two reads to a write.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FILES 64

static char content[16384];

/* The next of the files in the directory: 1 to 16 KiB. */
static int iostone(const char *dir)
{
	static unsigned long turn;
	unsigned long number = turn % FILES, size = 1024 * (1 + number % 16);
	int fd, writes = turn++ % 3 == 0 || turn <= FILES;
	char path[4096];
	ssize_t done;

	snprintf(path, sizeof(path), "%s/iostone-%lu", dir, number);
	fd = open(path, writes ? O_WRONLY | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0600);
	if (fd < 0)
		return 1;
	done = writes ? write(fd, content, size) : read(fd, content, size);
	return close(fd) || done != (ssize_t)size;
}

static int call(const char *what, const char *path)
{
	struct stat found;
	int fd;

	switch (what[0]) {
	case 'i':
		return iostone(path);
	case 'g':
		return syscall(SYS_getppid) < 0;
	case 's':
		return stat(path, &found);
	default:
		fd = open(path, O_RDONLY | O_CLOEXEC);
		return fd < 0 || close(fd);
	}
}

int main(int argc, char **argv)
{
	struct timespec start, end;
	long count, left;

	if (argc != 4)
		return 2;
	count = atol(argv[2]);
	if (count < 1 || call(argv[1], argv[3]))
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (left = count; left > 0; left--)
		if (call(argv[1], argv[3]))
			return 1;
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%.4f\n", ((end.tv_sec - start.tv_sec) * 1e6 + (end.tv_nsec - start.tv_nsec) / 1e3) / count);
	return 0;
}
