// SPDX-License-Identifier: GPL-2.0-only
/* What every architecture has to have and this one has nothing to say about. */
#include <linux/mm.h>
#include <linux/ptrace.h>
#include <linux/sched/debug.h>
#include <linux/seq_file.h>
#include <asm/tmpfs.h>

void show_regs(struct pt_regs *regs)
{
}

void show_stack(struct task_struct *task, unsigned long *stack, const char *level)
{
}

long arch_ptrace(struct task_struct *child, long request, unsigned long address, unsigned long data)
{
	return -EIO;
}

void ptrace_disable(struct task_struct *child)
{
}

/* Nobody maps the files of a tmpfs. */
unsigned long mm_get_unmapped_area(struct mm_struct *mm, struct file *file, unsigned long address,
				   unsigned long length, unsigned long offset, unsigned long flags)
{
	return -ENODEV;
}

/* Nor are they shared memory that could be locked. */
int user_shm_lock(size_t size, struct ucounts *counts)
{
	return 0;
}

void user_shm_unlock(size_t size, struct ucounts *counts)
{
}

static void *cpuinfo_start(struct seq_file *file, loff_t *position)
{
	return NULL;
}

static void *cpuinfo_next(struct seq_file *file, void *item, loff_t *position)
{
	return NULL;
}

static void cpuinfo_stop(struct seq_file *file, void *item)
{
}

static int cpuinfo_show(struct seq_file *file, void *item)
{
	return 0;
}

const struct seq_operations cpuinfo_op = {
	.start = cpuinfo_start,
	.next = cpuinfo_next,
	.stop = cpuinfo_stop,
	.show = cpuinfo_show,
};
