/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_PREEMPT_H
#define _ASM_OUTRIGGER_PREEMPT_H

/* Code that runs for long asks now and then whether it should let others run: there the timer's interrupt can come. */
#define should_resched generic_should_resched
#include <asm-generic/preempt.h>
#undef should_resched

void outrigger_interruptible(void);

static __always_inline bool should_resched(int preempt_offset)
{
	outrigger_interruptible();
	return generic_should_resched(preempt_offset);
}

#endif
