// SPDX-License-Identifier: GPL-2.0-only
/* Disks: a bio becomes calls of the host, made by the task that submits it. */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/device.h>
#include <linux/hardirq.h>
#include <asm/host.h>

static struct gendisk *disks[OUTRIGGER_DISKS];

static s64 transfer(u32 number, struct bio *bio)
{
	u64 offset = (u64)bio->bi_iter.bi_sector << SECTOR_SHIFT;
	struct bvec_iter iter;
	struct bio_vec piece;
	s64 result;

	bio_for_each_bvec(piece, bio, iter) {
		void *data = bvec_virt(&piece);

		result = op_is_write(bio_op(bio)) ? host->write(number, data, piece.bv_len, offset)
						  : host->read(number, data, piece.bv_len, offset);
		if (result < 0)
			return result;
		offset += piece.bv_len;
	}
	return 0;
}

static s64 perform(u32 number, struct bio *bio)
{
	u64 offset = (u64)bio->bi_iter.bi_sector << SECTOR_SHIFT;
	s64 result = 0;

	if (bio->bi_opf & REQ_PREFLUSH)
		result = host->flush(number);
	if (result < 0)
		return result;
	switch (bio_op(bio)) {
	case REQ_OP_READ:
	case REQ_OP_WRITE:
		result = transfer(number, bio);
		break;
	case REQ_OP_FLUSH:
		return host->flush(number);
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		result = host->discard(number, offset, bio->bi_iter.bi_size, bio_op(bio) == REQ_OP_WRITE_ZEROES);
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (result >= 0 && bio->bi_opf & REQ_FUA)
		result = host->flush(number);
	return result;
}

static void submit(struct bio *bio)
{
	u32 number = (unsigned long)bio->bi_bdev->bd_disk->private_data;
	s64 result = perform(number, bio);

	bio->bi_status = errno_to_blk_status(result < 0 ? result : 0);
	bio_endio(bio);
	/* That took time, which long operations must notice. */
	if (!irqs_disabled() && !in_interrupt())
		outrigger_timer_due();
}

static const struct block_device_operations operations = {
	.submit_bio = submit,
};

OUTRIGGER_EXPORT s64 outrigger_add_disk(const struct outrigger_disk *wanted)
{
	struct queue_limits limits = {
		.logical_block_size = wanted->sector_size,
		.physical_block_size = PAGE_SIZE,
		.max_hw_sectors = SZ_1M >> SECTOR_SHIFT,
		.features = BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA,
	};
	struct gendisk *disk;
	s64 result;

	if (wanted->number >= OUTRIGGER_DISKS)
		return -EINVAL;
	if (disks[wanted->number])
		return -EBUSY;
	if (wanted->discards) {
		limits.max_hw_discard_sectors = limits.max_write_zeroes_sectors = UINT_MAX >> SECTOR_SHIFT;
		limits.discard_granularity = PAGE_SIZE;
	}
	disk = blk_alloc_disk(&limits, NUMA_NO_NODE);
	if (IS_ERR(disk))
		return PTR_ERR(disk);
	disk->major = OUTRIGGER_DISK_MAJOR;
	disk->first_minor = wanted->number;
	disk->minors = 1;
	disk->flags |= GENHD_FL_NO_PART;
	disk->fops = &operations;
	disk->private_data = (void *)(unsigned long)wanted->number;
	snprintf(disk->disk_name, DISK_NAME_LEN, "disk%u", wanted->number);
	set_capacity(disk, wanted->size >> SECTOR_SHIFT);
	set_disk_ro(disk, wanted->read_only);
	result = add_disk(disk);
	if (result)
		put_disk(disk);
	else
		disks[wanted->number] = disk;
	return result;
}

static int __init disk_start(void)
{
	return register_blkdev(OUTRIGGER_DISK_MAJOR, "disk") < 0 ? -EBUSY : 0;
}
device_initcall(disk_start);
