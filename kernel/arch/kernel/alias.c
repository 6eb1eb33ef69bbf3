// SPDX-License-Identifier: GPL-2.0-only
/*
 * Scattered pages side by side: vmap() and vm_map_ram() without page tables. The machine's memory is a memory object of
 * the host, which can map pieces of it a second time.
 *
 * The same functions of mm/nommu.c, which refuse, are compiled under other names (see build.sh).
 */
#include <linux/hashtable.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <asm/host.h>

/* Addresses are given away in powers of two of pages, and kept for the next one who needs as many. */
#define ORDERS 16

struct alias {
	struct hlist_node entry;
	void *address;
	unsigned int order;
};

static DEFINE_HASHTABLE(in_use, 8);
static struct hlist_head unused[ORDERS];
static unsigned long window_used;

static struct alias *take(unsigned int order)
{
	unsigned long size = PAGE_SIZE << order;
	struct alias *alias;

	if (order >= ORDERS)
		return NULL;
	if (!hlist_empty(&unused[order])) {
		alias = hlist_entry(unused[order].first, struct alias, entry);
		hlist_del(&alias->entry);
		return alias;
	}
	if (size > host->window_size - window_used)
		return NULL;
	alias = kmalloc(sizeof(*alias), GFP_NOFS);
	if (!alias)
		return NULL;
	alias->address = host->window + window_used;
	alias->order = order;
	window_used += size;
	return alias;
}

/* How many pages from @pages on lie side by side. */
static unsigned int run_length(struct page **pages, unsigned int count)
{
	unsigned int length = 1;

	while (length < count && page_to_pfn(pages[length]) == page_to_pfn(pages[0]) + length)
		length++;
	return length;
}

static bool map(void *address, struct page **pages, unsigned int count)
{
	unsigned int done, length;

	for (done = 0; done < count; done += length) {
		length = run_length(pages + done, count - done);
		if (host->alias(address + ((unsigned long)done << PAGE_SHIFT),
				page_to_phys(pages[done]) - PHYS_OFFSET, (unsigned long)length << PAGE_SHIFT) < 0)
			return false;
	}
	return true;
}

void *vmap(struct page **pages, unsigned int count, unsigned long flags, pgprot_t protection)
{
	struct alias *alias;

	if (!count)
		return NULL;
	if (run_length(pages, count) == count)
		return page_address(pages[0]);
	alias = take(order_base_2(count));
	if (!alias)
		return NULL;
	if (!map(alias->address, pages, count)) {
		hlist_add_head(&alias->entry, &unused[alias->order]);
		return NULL;
	}
	hash_add(in_use, &alias->entry, (unsigned long)alias->address >> PAGE_SHIFT);
	return alias->address;
}

void vunmap(const void *address)
{
	struct alias *alias;

	hash_for_each_possible(in_use, alias, entry, (unsigned long)address >> PAGE_SHIFT) {
		if (alias->address == address) {
			hash_del(&alias->entry);
			hlist_add_head(&alias->entry, &unused[alias->order]);
			return;
		}
	}
}

void *vm_map_ram(struct page **pages, unsigned int count, int node)
{
	return vmap(pages, count, 0, PAGE_KERNEL);
}

void vm_unmap_ram(const void *address, unsigned int count)
{
	vunmap(address);
}
