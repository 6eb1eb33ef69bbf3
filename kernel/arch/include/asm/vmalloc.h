/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_VMALLOC_H
#define _ASM_OUTRIGGER_VMALLOC_H

/* See kernel/alias.c for what stands in for mapped memory. */

#endif
