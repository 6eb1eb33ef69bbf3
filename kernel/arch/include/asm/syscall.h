/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_SYSCALL_H
#define _ASM_OUTRIGGER_SYSCALL_H

#include <linux/err.h>

struct pt_regs;

/* System calls are function calls (kernel/calls.c): no task is ever found in the middle of entering one. */
static inline int syscall_get_nr(struct task_struct *task, struct pt_regs *regs)
{
	return -1;
}

static inline int syscall_get_arch(struct task_struct *task)
{
	return 0;
}

#endif
