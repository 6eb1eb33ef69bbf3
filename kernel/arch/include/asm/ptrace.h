/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_PTRACE_H
#define _ASM_OUTRIGGER_PTRACE_H

#include <uapi/asm/ptrace.h>

struct task_struct;

/* Interrupts are function calls, so nothing is ever saved here. */
struct pt_regs {
	unsigned long ip, sp;
};

#define user_mode(regs) 0
#define kernel_mode(regs) 1
#define profile_pc(regs) 0
#define instruction_pointer(regs) ((regs)->ip)
#define user_stack_pointer(regs) ((regs)->sp)
#define kernel_stack_pointer(regs) ((regs)->sp)
#define instruction_pointer_set(regs, value) ((regs)->ip = (value))
#define MAX_REG_OFFSET 0

#endif
