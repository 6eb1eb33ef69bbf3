/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_IRQFLAGS_H
#define _ASM_OUTRIGGER_IRQFLAGS_H

/*
 * Interrupts are calls that tasks make when they find something due (kernel/time.c), so whether they are allowed is a
 * variable.
 */
extern unsigned long outrigger_interrupts;

static inline unsigned long arch_local_save_flags(void)
{
	return outrigger_interrupts;
}
#define arch_local_save_flags arch_local_save_flags

static inline void arch_local_irq_restore(unsigned long flags)
{
	barrier();
	outrigger_interrupts = flags;
	barrier();
}
#define arch_local_irq_restore arch_local_irq_restore

#include <asm-generic/irqflags.h>

#endif
