// SPDX-License-Identifier: GPL-2.0-only
/* Copying and filling. Processors of the last ten years do the string instructions fastest at nearly every length. */
#include <linux/export.h>
#include <linux/string.h>

#undef memcpy
#undef memmove
#undef memset

void *memcpy(void *to, const void *from, size_t count)
{
	void *start = to;

	asm volatile("rep movsb" : "+D" (to), "+S" (from), "+c" (count) : : "memory");
	return start;
}

void *memset(void *to, int value, size_t count)
{
	void *start = to;

	asm volatile("rep stosb" : "+D" (to), "+c" (count) : "a" (value) : "memory");
	return start;
}

void *memmove(void *to, const void *from, size_t count)
{
	char *target = to;
	const char *source = from;

	if (target <= source || target >= source + count)
		return memcpy(to, from, count);
	/* From the end, a word at a time: each is read before anything is written over it. */
	while (count >= sizeof(u64)) {
		u64 word;

		count -= sizeof(u64);
		__builtin_memcpy(&word, source + count, sizeof(u64));
		__builtin_memcpy(target + count, &word, sizeof(u64));
	}
	while (count--) {
		target[count] = source[count];
		barrier();
	}
	return to;
}
