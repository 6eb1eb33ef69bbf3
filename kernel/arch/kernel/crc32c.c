// SPDX-License-Identifier: GPL-2.0-only
/* The checksum of nearly all metadata, with the instruction for it. Stands in for the weak function of lib/crc32.c. */
#include <linux/bits.h>
#include <linux/crc32.h>

static bool has_instruction(void)
{
	unsigned int a = 1, b, c = 0, d;

	asm("cpuid" : "+a" (a), "=b" (b), "+c" (c), "=d" (d));
	return c & BIT(20);
}

__attribute__((target("sse4.2")))
static u32 with_instruction(u32 crc, const unsigned char *data, size_t length)
{
	u64 sum = crc;

	for (; length >= sizeof(u64); data += sizeof(u64), length -= sizeof(u64))
		sum = __builtin_ia32_crc32di(sum, *(const u64 *)data);
	while (length--)
		sum = __builtin_ia32_crc32qi(sum, *data++);
	return sum;
}

u32 __pure __crc32c_le(u32 crc, unsigned char const *data, size_t length)
{
	static int known = -1;

	if (known < 0)
		known = has_instruction();
	return known ? with_instruction(crc, data, length) : __crc32c_le_base(crc, data, length);
}
