/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What mm/shmem.c needs and Linux declares for machines with page tables only; build.sh includes it there. It is about
 * mapping files, which nobody does, and about a swap, which there is not: only telling its entries from pages matters.
 */
#ifndef _ASM_OUTRIGGER_TMPFS_H
#define _ASM_OUTRIGGER_TMPFS_H

struct mm_struct;
struct file;
/* In kernel/stubs.c. */
unsigned long mm_get_unmapped_area(struct mm_struct *mm, struct file *file, unsigned long address,
				   unsigned long length, unsigned long offset, unsigned long flags);

#define maybe_unlock_mmap_for_io(fault, file) (file)

#define radix_to_swp_entry(entry) ((swp_entry_t) { xa_to_value(entry) })
#define swp_to_radix_entry(entry) xa_mk_value((entry).val)
#define swp_entry(type, offset) ((swp_entry_t) { (offset) })
#define swp_type(entry) 0
#define swp_offset(entry) ((entry).val)
#define make_poisoned_swp_entry() ((swp_entry_t) { 0 })
#define is_poisoned_swp_entry(entry) false
#define arch_swap_restore(entry, folio) do { } while (0)

#endif
