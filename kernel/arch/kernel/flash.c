// SPDX-License-Identifier: GPL-2.0-only
/*
 * Flash memory made of a disk of the host, for file systems that live on nothing else. It can be written anywhere, and
 * erasing fills with ones; what is beyond the end of the disk is erased for ever.
 */
#include <linux/minmax.h>
#include <linux/mtd/mtd.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <asm/host.h>

#define ERASED 0xff

struct flash {
	struct mtd_info mtd;
	u32 number;
	/* How much of it is on the disk, in bytes. */
	u64 content;
	char name[16];
	u8 erased[PAGE_SIZE];
};

static struct flash *flash_of(struct mtd_info *mtd)
{
	return container_of(mtd, struct flash, mtd);
}

/* The host never needs time for what is flash memory. */
static s64 access(struct flash *flash, u32 kind, void *data, u64 length, u64 offset)
{
	struct outrigger_piece piece = { data, length };
	struct outrigger_access access = {
		.disk = flash->number, .kind = kind, .offset = offset, .length = length, .pieces = &piece, .count = 1,
	};

	return host->access(&access) ? access.result : -EIO;
}

static int flash_read(struct mtd_info *mtd, loff_t from, size_t length, size_t *done, u_char *to)
{
	struct flash *flash = flash_of(mtd);
	size_t there = from < flash->content ? min_t(u64, length, flash->content - from) : 0;
	s64 result = there ? access(flash, OUTRIGGER_READ, to, there, from) : 0;

	if (result < 0)
		return result;
	memset(to + there, ERASED, length - there);
	*done = length;
	return 0;
}

static int flash_write(struct mtd_info *mtd, loff_t at, size_t length, size_t *done, const u_char *from)
{
	s64 result = access(flash_of(mtd), OUTRIGGER_WRITE, (void *)from, length, at);

	if (result < 0)
		return result;
	*done = length;
	return 0;
}

static int flash_erase(struct mtd_info *mtd, struct erase_info *range)
{
	struct flash *flash = flash_of(mtd);
	u64 at;

	for (at = range->addr; at < range->addr + range->len; at += PAGE_SIZE) {
		s64 result = access(flash, OUTRIGGER_WRITE, flash->erased, PAGE_SIZE, at);

		if (result < 0) {
			range->fail_addr = at;
			return result;
		}
	}
	return 0;
}

static void flash_sync(struct mtd_info *mtd)
{
	/* Whoever wants to know whether that worked asks the host, see worker/src/tree.rs. */
	access(flash_of(mtd), OUTRIGGER_FLUSH, NULL, 0, 0);
}

OUTRIGGER_EXPORT s64 outrigger_add_flash(const struct outrigger_flash *wanted)
{
	struct flash *flash;
	int result;

	if (!wanted->erase_size || wanted->erase_size % PAGE_SIZE || wanted->size % wanted->erase_size)
		return -EINVAL;
	flash = kzalloc(sizeof(*flash), GFP_KERNEL);
	if (!flash)
		return -ENOMEM;
	memset(flash->erased, ERASED, sizeof(flash->erased));
	snprintf(flash->name, sizeof(flash->name), "flash%u", wanted->number);
	flash->number = wanted->number;
	flash->content = wanted->content;
	flash->mtd.name = flash->name;
	flash->mtd.type = MTD_RAM;
	flash->mtd.flags = wanted->read_only ? MTD_CAP_ROM : MTD_CAP_RAM;
	flash->mtd.size = wanted->size;
	flash->mtd.erasesize = wanted->erase_size;
	flash->mtd.writesize = 1;
	flash->mtd.writebufsize = PAGE_SIZE;
	flash->mtd._read = flash_read;
	flash->mtd._write = flash_write;
	flash->mtd._erase = flash_erase;
	flash->mtd._sync = flash_sync;
	result = mtd_device_register(&flash->mtd, NULL, 0);
	if (result)
		kfree(flash);
	return result;
}
