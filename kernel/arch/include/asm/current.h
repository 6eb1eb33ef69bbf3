/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_CURRENT_H
#define _ASM_OUTRIGGER_CURRENT_H

struct task_struct;

extern struct task_struct *outrigger_current;

#define get_current() outrigger_current
#define current outrigger_current

#endif
