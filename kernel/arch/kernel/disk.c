// SPDX-License-Identifier: GPL-2.0-only
/*
 * Disks: a bio becomes accesses of the host, one after the other. Where the host needs time for one, the task that has
 * submitted the bio goes on, and an interrupt tells how it went.
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/device.h>
#include <linux/hardirq.h>
#include <linux/interrupt.h>
#include <linux/wait.h>
#include <asm/host.h>

#define DISK_INTERRUPT 1

/* What a bio needs. */
#define FLUSH_BEFORE 1
#define ITSELF 2
#define FLUSH_BEHIND 4

/* A bio at work. */
struct work {
	struct outrigger_access access;
	struct outrigger_piece pieces[OUTRIGGER_PIECES];
	struct bio *bio;
	/* What it needs still. */
	u32 needs;
	struct work *next;
};

static struct gendisk *disks[OUTRIGGER_DISKS];

static struct work works[OUTRIGGER_ACCESSES], *unused;
static unsigned int used;
/* Whether any was, since somebody wanted to know. */
static bool busy;
static DECLARE_WAIT_QUEUE_HEAD(room);
/* What the interrupt is about. */
static struct outrigger_access *completed;

static int kind_of(struct bio *bio)
{
	switch (bio_op(bio)) {
	case REQ_OP_READ:
		return OUTRIGGER_READ;
	case REQ_OP_WRITE:
		return OUTRIGGER_WRITE;
	case REQ_OP_FLUSH:
		return OUTRIGGER_FLUSH;
	case REQ_OP_DISCARD:
		return OUTRIGGER_DISCARD;
	case REQ_OP_WRITE_ZEROES:
		return OUTRIGGER_ZERO;
	default:
		return -EOPNOTSUPP;
	}
}

static u32 needs_of(struct bio *bio)
{
	u32 needs = 0;

	if (bio->bi_opf & REQ_PREFLUSH || bio_op(bio) == REQ_OP_FLUSH)
		needs |= FLUSH_BEFORE;
	if (bio->bi_iter.bi_size)
		needs |= bio->bi_opf & REQ_FUA ? ITSELF | FLUSH_BEHIND : ITSELF;
	return needs;
}

/* Makes the access that a bio itself is. */
static void prepare(struct work *work)
{
	struct outrigger_access *access = &work->access;
	struct bio *bio = work->bio;
	struct bvec_iter iter;
	struct bio_vec piece;

	access->kind = kind_of(bio);
	access->offset = (u64)bio->bi_iter.bi_sector << SECTOR_SHIFT;
	access->length = bio->bi_iter.bi_size;
	access->pieces = work->pieces;
	access->count = 0;
	if (!bio_has_data(bio))
		return;
	bio_for_each_bvec(piece, bio, iter)
		work->pieces[access->count++] = (struct outrigger_piece) { bvec_virt(&piece), piece.bv_len };
}

/* Makes the next access that is needed; false when none is. */
static bool prepare_next(struct work *work)
{
	u32 next = work->needs & -work->needs;

	work->needs -= next;
	if (next == ITSELF)
		prepare(work);
	else
		work->access.kind = OUTRIGGER_FLUSH;
	return next;
}

/* Goes on with a bio until the host needs time, or until it is done. */
static void proceed(struct work *work)
{
	struct bio *bio = work->bio;

	while (work->access.result >= 0 && prepare_next(work))
		if (!host->access(&work->access))
			return;
	bio->bi_status = errno_to_blk_status(min(work->access.result, 0));
	work->next = unused;
	unused = work;
	used--;
	wake_up(&room);
	bio_endio(bio);
}

/* Whether anything is asked of disks, or was since the last call. */
bool outrigger_disks_busy(void)
{
	bool was = used || busy;

	busy = false;
	return was;
}

static irqreturn_t disk_interrupt(int number, void *none)
{
	for (; completed; completed = host->completed())
		proceed(container_of(completed, struct work, access));
	return IRQ_HANDLED;
}

/* Delivers the disks' interrupt if it is due; whether it was. */
bool outrigger_disks_due(void)
{
	completed = host->completed();
	if (!completed)
		return false;
	outrigger_interrupt(DISK_INTERRUPT);
	return true;
}

static void submit(struct bio *bio)
{
	struct work *work;

	bio = bio_split_to_limits(bio);
	if (!bio)
		return;
	if (kind_of(bio) < 0) {
		bio->bi_status = errno_to_blk_status(kind_of(bio));
		bio_endio(bio);
		return;
	}
	if (!unused && bio->bi_opf & REQ_NOWAIT) {
		bio_wouldblock_error(bio);
		return;
	}
	wait_event(room, unused);
	work = unused;
	unused = work->next;
	used++;
	busy = true;
	work->bio = bio;
	work->needs = needs_of(bio);
	work->access.disk = (unsigned long)bio->bi_bdev->bd_disk->private_data;
	work->access.result = 0;
	proceed(work);
	/* That took time, which long operations must notice. */
	if (!irqs_disabled() && !in_interrupt()) {
		outrigger_disks_due();
		outrigger_timer_due();
	}
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
		.max_segments = OUTRIGGER_PIECES,
		.max_segment_size = SZ_1M,
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
	struct work *work;

	for (work = works; work < works + OUTRIGGER_ACCESSES; work++) {
		work->next = unused;
		unused = work;
	}
	if (request_irq(DISK_INTERRUPT, disk_interrupt, 0, "disk", NULL))
		return -EBUSY;
	return register_blkdev(OUTRIGGER_DISK_MAJOR, "disk") < 0 ? -EBUSY : 0;
}
device_initcall(disk_start);
