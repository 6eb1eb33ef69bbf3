/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_PROCESSOR_H
#define _ASM_OUTRIGGER_PROCESSOR_H

#include <asm/page.h>
#include <asm/ptrace.h>

/* What is kept of a task that does not run: its stack pointer. A new task starts with @function. */
struct thread_struct {
	void *stack;
	int (*function)(void *argument);
	void *argument;
};

#define INIT_THREAD { }

#define TASK_SIZE ((unsigned long)-1)
#define TASK_UNMAPPED_BASE 0
#define STACK_TOP TASK_SIZE
#define STACK_TOP_MAX STACK_TOP

#define cpu_relax() barrier()
#define task_pt_regs(task) ((struct pt_regs *)NULL)
#define KSTK_EIP(task) 0
#define KSTK_ESP(task) 0

static inline unsigned long __get_wchan(struct task_struct *task)
{
	return 0;
}

static inline void start_thread(struct pt_regs *regs, unsigned long pc, unsigned long sp)
{
}

static inline void flush_thread(void)
{
}

#endif
