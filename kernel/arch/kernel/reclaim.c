// SPDX-License-Identifier: GPL-2.0-only
/*
 * When memory is short. What was changed and is not in the journal yet cannot be reclaimed; XFS bounds that by the size of
 * its log and not by the machine's memory, so it may be all there is. Here it is committed earlier. Where that does not help
 * either, the kernel ends instead of looking for memory for ever.
 */
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/init.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/shrinker.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>
#include <asm/host.h>

/* Between two attempts. */
#define PAUSE (HZ / 10)
/* So many of them in succession, in which nobody got anywhere, are the end. */
#define ATTEMPTS 300

static struct workqueue_struct *queue;
static unsigned long next_attempt;
static unsigned int attempts;

static void commit(struct super_block *super, void *unused)
{
	if (super->s_bdev && !sb_rdonly(super) && super->s_op->sync_fs)
		super->s_op->sync_fs(super, 1);
}

static void relieve(struct work_struct *work)
{
	struct page *page;

	iterate_supers(commit, NULL);
	/* Most who look for memory are inside of a file system and cannot ask it to give back inodes. This one can. */
	page = alloc_page(GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	if (!page)
		return;
	__free_page(page);
	attempts = 0;
}

static DECLARE_WORK(relief, relieve);

/* Whether more than a third is neither free nor content of files. */
static bool held(void)
{
	unsigned long available = global_zone_page_state(NR_FREE_PAGES) + global_node_page_state(NR_FILE_PAGES);

	return available < totalram_pages() / 3 * 2;
}

/* Called by everyone who looks for memory; has none to give back itself. */
static unsigned long look(struct shrinker *shrinker, struct shrink_control *control)
{
	if (time_before(jiffies, next_attempt) || !held())
		return 0;
	next_attempt = jiffies + PAUSE;
	if (outrigger_disks_busy())
		attempts = 0;
	if (++attempts > ATTEMPTS)
		panic("no memory is found any more; memory= gives more");
	queue_work(queue, &relief);
	return 0;
}

static int __init start_reclaim(void)
{
	struct shrinker *shrinker = shrinker_alloc(0, "outrigger");

	queue = alloc_workqueue("relief", WQ_MEM_RECLAIM | WQ_UNBOUND, 1);
	if (!shrinker || !queue)
		return -ENOMEM;
	next_attempt = jiffies;
	shrinker->count_objects = look;
	shrinker_register(shrinker);
	return 0;
}
late_initcall(start_reclaim);
