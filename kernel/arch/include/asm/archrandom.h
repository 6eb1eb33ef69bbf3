/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_ARCHRANDOM_H
#define _ASM_OUTRIGGER_ARCHRANDOM_H

#include <linux/types.h>

/* Fills @words with @count random words of the host; all of them are good as seeds. */
size_t outrigger_random(unsigned long *words, size_t count);

static inline size_t __must_check arch_get_random_longs(unsigned long *words, size_t count)
{
	return outrigger_random(words, count);
}

static inline size_t __must_check arch_get_random_seed_longs(unsigned long *words, size_t count)
{
	return outrigger_random(words, count);
}

#endif
