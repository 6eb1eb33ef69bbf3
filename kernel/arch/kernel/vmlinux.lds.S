/* SPDX-License-Identifier: GPL-2.0-only */
/* The kernel as one relocatable object: the tables that generic code finds by the symbols around them. */
#define RUNTIME_DISCARD_EXIT
#include <asm-generic/vmlinux.lds.h>
#include <asm/cache.h>
#include <asm/page.h>
#include <asm/thread_info.h>

jiffies = jiffies_64;

SECTIONS
{
	__init_begin = .;
	.init.text : { _sinittext = .; *(.init.text .init.text.*) _einittext = .; }
	INIT_DATA_SECTION(16)
	.data..percpu : {
		__per_cpu_load = .;
		__per_cpu_start = .;
		*(.data..percpu..first)
		*(.data..percpu..page_aligned)
		*(.data..percpu..read_mostly)
		*(.data..percpu)
		*(.data..percpu..shared_aligned)
		__per_cpu_end = .;
	}
	__init_end = .;

	/* Inside, for a symbol between two sections belongs to either. */
	.text : {
		_stext = .;
		_text = .;
		TEXT_TEXT SCHED_TEXT LOCK_TEXT KPROBES_TEXT IRQENTRY_TEXT SOFTIRQENTRY_TEXT *(.fixup)
		_etext = .;
	}

	_sdata = .;
	RO_DATA(4096)
	RW_DATA(64, 4096, THREAD_SIZE)
	_edata = .;
	EXCEPTION_TABLE(16)

	__bss_start = .;
	.bss : { *(.bss..page_aligned) *(.dynbss) *(.bss .bss.*) *(COMMON) }
	__bss_stop = .;
	_end = .;
}
