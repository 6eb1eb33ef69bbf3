/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_STRING_H
#define _ASM_OUTRIGGER_STRING_H

#define __HAVE_ARCH_MEMCPY
extern void *memcpy(void *to, const void *from, __kernel_size_t count);

#define __HAVE_ARCH_MEMMOVE
extern void *memmove(void *to, const void *from, __kernel_size_t count);

#define __HAVE_ARCH_MEMSET
extern void *memset(void *to, int value, __kernel_size_t count);

#endif
