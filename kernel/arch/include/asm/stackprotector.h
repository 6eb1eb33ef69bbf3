/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_STACKPROTECTOR_H
#define _ASM_OUTRIGGER_STACKPROTECTOR_H

/*
 * The compiler takes the canary from where the C library of the host keeps it, in front of every thread's own variables. It is
 * the same for all threads of a process, so a task may go on in another thread than the one it began in.
 */
static inline void boot_init_stack_canary(void)
{
}

#endif
