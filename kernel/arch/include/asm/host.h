/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The hypercall interface: everything the kernel code asks of the process it runs in, and everything that process may
 * ask of it. worker/src/abi.rs is the other side of this page.
 */
#ifndef _ASM_OUTRIGGER_HOST_H
#define _ASM_OUTRIGGER_HOST_H

#include <linux/types.h>

/* Changes whenever anything on this page does. */
#define OUTRIGGER_ABI 3

/* Disks have numbers below this. */
#define OUTRIGGER_DISKS 16
/* Their major device number; it is one of those for local use. */
#define OUTRIGGER_DISK_MAJOR 240

/* The most accesses that are begun and not completed. */
#define OUTRIGGER_ACCESSES 64
/* The most pieces of memory of one. */
#define OUTRIGGER_PIECES 64

/* What is done to a disk. */
enum {
	OUTRIGGER_READ,
	OUTRIGGER_WRITE,
	/* All that was completed before it is begun is on the medium when this is completed. */
	OUTRIGGER_FLUSH,
	/* The content of the range is not needed any more. */
	OUTRIGGER_DISCARD,
	/* The same, and it has to read as zeroes. */
	OUTRIGGER_ZERO,
};

/* Memory; laid out as struct iovec is. */
struct outrigger_piece {
	void *data;
	u64 length;
};

/* One access to a disk. What it has of a range and of pieces is undefined when it is completed. */
struct outrigger_access {
	u32 disk;
	/* One of the above. */
	u32 kind;
	/* Bytes. */
	u64 offset;
	u64 length;
	/* What is read into or written: @length bytes. */
	struct outrigger_piece *pieces;
	u64 count;
	/* 0, or a negative errno. */
	s64 result;
};

/*
 * What the host supplies. Calls that may fail answer a negative errno. None may call back into the kernel.
 */
struct outrigger_host {
	/* OUTRIGGER_ABI, of the program. */
	u64 abi;
	/* The machine's memory, aligned to 2 MiB, all zero. */
	void *memory;
	u64 memory_size;
	/* Reserved addresses at which @alias may map pieces of the memory. */
	void *window;
	u64 window_size;

	/* Nanoseconds on a clock that never goes back; nanoseconds since 1970. */
	u64 (*monotonic)(void);
	u64 (*wall)(void);
	/* Waits; only while starting, and for the short delays of drivers. */
	void (*sleep)(u64 nanoseconds);
	/* Kernel messages. */
	void (*print)(const char *text, u64 length);
	/* Ends the process: the kernel has stopped for good. */
	void (*die)(void) __noreturn;
	/* Fills @to with random bytes. */
	void (*random)(void *to, u64 length);
	/* Makes @length bytes of the memory, from @offset on, appear at @address too. */
	s64 (*alias)(void *address, u64 offset, u64 length);

	/*
	 * Carries out all of an access to a disk, or fails. Whether that has happened; if not, the access is the host's until
	 * @completed tells of it.
	 */
	bool (*access)(struct outrigger_access *access);
	/* An access that was completed since it was begun, each once; NULL for none. */
	struct outrigger_access *(*completed)(void);
};

/* A disk for outrigger_add_disk(). */
struct outrigger_disk {
	u32 number;
	/* Bytes; a whole number of sectors. */
	u32 sector_size;
	u64 size;
	bool read_only;
	/* Whether the host's @discard works. */
	bool discards;
};

/* Flash memory for outrigger_add_flash(). */
struct outrigger_flash {
	/* The disk it is made of. */
	u32 number;
	/* Bytes that are erased together; a whole number of pages. */
	u32 erase_size;
	/* Bytes; a whole number of what is erased together. */
	u64 size;
	/* Bytes of it that are on the disk; what follows reads as erased. */
	u64 content;
	bool read_only;
};

/* Something to do inside the kernel: @run is called in a task of its own. Belongs to the kernel until then. */
struct outrigger_job {
	void (*run)(struct outrigger_job *job);
	struct outrigger_job *next;
};

extern const struct outrigger_host *host;

#define OUTRIGGER_EXPORT __attribute__((visibility("default")))

/*
 * Called by the host, outside any job, always by the same thread.
 */

/* Starts the kernel; once in a process. -EPROTO: kernel and program have different interfaces. */
s64 outrigger_start(const struct outrigger_host *host, const char *command_line);
/* Puts a job in the queue. */
void outrigger_submit(struct outrigger_job *job);
/* Lets the kernel run until nothing is left to do; how many nanoseconds until that changes, ~0 for never. */
u64 outrigger_run(void);

/*
 * Called by jobs. All answer what a system call does: a negative errno for failure.
 */

/* A system call by its number in asm-generic/unistd.h. Pointers are the caller's own. */
s64 outrigger_system_call(u64 number, const u64 arguments[6]);
/* Adds a disk: the block device OUTRIGGER_DISK_MAJOR, number. */
s64 outrigger_add_disk(const struct outrigger_disk *disk);
/* Adds flash memory: the MTD device "flashN", N being the disk's number. */
s64 outrigger_add_flash(const struct outrigger_flash *flash);
/* Whose files those are that this job creates, and whose set-id bits its writes clear. All else is done as root. */
s64 outrigger_act_as(u32 uid, u32 gid);
/* Opens the file that @fd, an O_PATH descriptor, refers to. */
s64 outrigger_reopen(u32 fd, u32 flags);
/* The *xattr(2) and truncate(2) that work on an O_PATH descriptor. */
s64 outrigger_truncate(u32 fd, u64 size);
s64 outrigger_get_xattr(u32 fd, const char *name, void *value, u64 size);
s64 outrigger_set_xattr(u32 fd, const char *name, const void *value, u64 size, u32 flags);
s64 outrigger_list_xattr(u32 fd, char *names, u64 size);
s64 outrigger_remove_xattr(u32 fd, const char *name);

/*
 * Among the files of this directory.
 */
void outrigger_interrupt(unsigned int number);
bool outrigger_timer_due(void);
bool outrigger_disks_due(void);
bool outrigger_disks_busy(void);
void outrigger_take_jobs(void);
extern bool outrigger_booted;
u64 outrigger_next_event(void);

#endif
