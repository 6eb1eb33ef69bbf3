/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _UAPI_ASM_OUTRIGGER_PTRACE_H
#define _UAPI_ASM_OUTRIGGER_PTRACE_H

/* Nothing runs in user mode, so there are no registers to trace. */

#endif
