/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_ATOMIC_H
#define _ASM_OUTRIGGER_ATOMIC_H

#include <asm-generic/atomic.h>

/*
 * One task runs at a time and nothing interrupts it, so an ordinary operation is an atomic one. The generic code has
 * the 32-bit operations; these are the 64-bit ones.
 */
#ifndef ATOMIC64_INIT
#define ATOMIC64_INIT(i) { (i) }
#endif

#define arch_atomic64_read(v) READ_ONCE((v)->counter)
#define arch_atomic64_set(v, i) WRITE_ONCE(((v)->counter), (i))

#define ATOMIC64(name, op)								\
static __always_inline void arch_atomic64_##name(s64 i, atomic64_t *v)			\
{											\
	v->counter = v->counter op i;							\
}											\
static __always_inline s64 arch_atomic64_fetch_##name(s64 i, atomic64_t *v)		\
{											\
	s64 old = v->counter;								\
	v->counter = old op i;								\
	return old;									\
}											\
static __always_inline s64 arch_atomic64_##name##_return(s64 i, atomic64_t *v)		\
{											\
	return v->counter = v->counter op i;						\
}
ATOMIC64(add, +)
ATOMIC64(sub, -)
ATOMIC64(and, &)
ATOMIC64(or, |)
ATOMIC64(xor, ^)
#undef ATOMIC64

#define arch_atomic64_add_return arch_atomic64_add_return
#define arch_atomic64_sub_return arch_atomic64_sub_return
#define arch_atomic64_fetch_add arch_atomic64_fetch_add
#define arch_atomic64_fetch_sub arch_atomic64_fetch_sub
#define arch_atomic64_fetch_and arch_atomic64_fetch_and
#define arch_atomic64_fetch_or arch_atomic64_fetch_or
#define arch_atomic64_fetch_xor arch_atomic64_fetch_xor

static __always_inline s64 arch_atomic64_xchg(atomic64_t *v, s64 new)
{
	s64 old = v->counter;

	v->counter = new;
	return old;
}
#define arch_atomic64_xchg arch_atomic64_xchg

static __always_inline s64 arch_atomic64_cmpxchg(atomic64_t *v, s64 old, s64 new)
{
	s64 found = v->counter;

	if (found == old)
		v->counter = new;
	return found;
}
#define arch_atomic64_cmpxchg arch_atomic64_cmpxchg

#endif
