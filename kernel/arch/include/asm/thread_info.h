/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_THREAD_INFO_H
#define _ASM_OUTRIGGER_THREAD_INFO_H

/* Host code that jobs run uses these stacks too, see kernel/jobs.c. */
#define THREAD_SIZE_ORDER 4
#define THREAD_SIZE 65536

#ifndef __ASSEMBLY__
struct thread_info {
	unsigned long flags;
	int preempt_count;
};

#define INIT_THREAD_INFO(task) { .flags = 0, .preempt_count = INIT_PREEMPT_COUNT }
#endif

#define TIF_SYSCALL_TRACE 0
#define TIF_NOTIFY_RESUME 1
#define TIF_SIGPENDING 2
#define TIF_NEED_RESCHED 3
#define TIF_NOTIFY_SIGNAL 5
#define TIF_RESTORE_SIGMASK 9
#define TIF_MEMDIE 17

#define _TIF_NOTIFY_RESUME (1 << TIF_NOTIFY_RESUME)
#define _TIF_SIGPENDING (1 << TIF_SIGPENDING)
#define _TIF_NEED_RESCHED (1 << TIF_NEED_RESCHED)
#define _TIF_NOTIFY_SIGNAL (1 << TIF_NOTIFY_SIGNAL)

#endif
