/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_PAGE_H
#define _ASM_OUTRIGGER_PAGE_H

#include <linux/const.h>
#include <vdso/const.h>

#define PAGE_SHIFT 12
#define PAGE_SIZE (_AC(1, UL) << PAGE_SHIFT)
#define PAGE_MASK (~(PAGE_SIZE - 1))

#ifndef __ASSEMBLY__

#define clear_page(page) memset((page), 0, PAGE_SIZE)
#define copy_page(to, from) memcpy((to), (from), PAGE_SIZE)
#define clear_user_page(page, address, struct_page) clear_page(page)
#define copy_user_page(to, from, address, struct_page) copy_page(to, from)

/* There are no page tables, only their types. */
typedef struct { unsigned long pte; } pte_t;
typedef struct { unsigned long pmd; } pmd_t;
typedef struct { unsigned long pgd; } pgd_t;
typedef struct { unsigned long pgprot; } pgprot_t;
typedef struct page *pgtable_t;

#define pte_val(x) ((x).pte)
#define pmd_val(x) ((x).pmd)
#define pgd_val(x) ((x).pgd)
#define pgprot_val(x) ((x).pgprot)
#define __pte(x) ((pte_t) { (x) })
#define __pmd(x) ((pmd_t) { (x) })
#define __pgd(x) ((pgd_t) { (x) })
#define __pgprot(x) ((pgprot_t) { (x) })

/*
 * "Physical" memory is one region of the process, wherever the host put it. Its physical addresses begin above zero, for
 * page 0 and address 0 have meanings of their own.
 */
extern unsigned long outrigger_memory, outrigger_memory_end;

#define PAGE_OFFSET outrigger_memory
#define PHYS_OFFSET 0x100000UL
#define ARCH_PFN_OFFSET (PHYS_OFFSET >> PAGE_SHIFT)

#define __va(x) ((void *)((unsigned long)(x) - PHYS_OFFSET + outrigger_memory))
#define __pa(x) ((unsigned long)(x) - outrigger_memory + PHYS_OFFSET)
#define virt_to_pfn(address) (__pa(address) >> PAGE_SHIFT)
#define pfn_to_virt(pfn) __va((pfn) << PAGE_SHIFT)
#define virt_to_page(address) pfn_to_page(virt_to_pfn(address))
#define page_to_virt(page) pfn_to_virt(page_to_pfn(page))
#define virt_addr_valid(address) \
	((unsigned long)(address) >= outrigger_memory && (unsigned long)(address) < outrigger_memory_end)

#include <asm-generic/getorder.h>
#include <asm-generic/memory_model.h>

#define page_to_phys(page) ((phys_addr_t)page_to_pfn(page) << PAGE_SHIFT)
#define VM_DATA_DEFAULT_FLAGS (VM_READ | VM_WRITE | VM_EXEC)

#endif /* __ASSEMBLY__ */

#endif
