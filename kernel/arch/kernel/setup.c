// SPDX-License-Identifier: GPL-2.0-only
/* What a machine tells its kernel at the start: memory, console, and what to do at the end. */
#include <linux/console.h>
#include <linux/cpu.h>
#include <linux/init.h>
#include <linux/memblock.h>
#include <linux/mm.h>
#include <linux/panic.h>
#include <linux/reboot.h>
#include <asm/archrandom.h>
#include <asm/host.h>
#include <asm/setup.h>

const struct outrigger_host *host;

unsigned long outrigger_memory, outrigger_memory_end;
unsigned long memory_start, memory_end;
void *empty_zero_page;
void (*pm_power_off)(void);

static char command_line[COMMAND_LINE_SIZE];

void __init setup_arch(char **line)
{
	unsigned long ends[MAX_NR_ZONES] = { };

	outrigger_memory = memory_start = (unsigned long)host->memory;
	outrigger_memory_end = memory_end = outrigger_memory + host->memory_size;
	high_memory = (void *)memory_end;
	strscpy(command_line, boot_command_line, COMMAND_LINE_SIZE);
	*line = command_line;
	/* A kernel that has panicked ends at once. */
	panic_timeout = -1;

	memblock_add(PHYS_OFFSET, host->memory_size);
	min_low_pfn = PHYS_OFFSET >> PAGE_SHIFT;
	max_pfn = max_low_pfn = (PHYS_OFFSET + host->memory_size) >> PAGE_SHIFT;
	empty_zero_page = memblock_alloc(PAGE_SIZE, PAGE_SIZE);
	ends[ZONE_NORMAL] = max_low_pfn;
	free_area_init(ends);
}

void __init mem_init(void)
{
	memblock_free_all();
}

/* The host can take the pages; a whole kernel's start-up code is smaller than what tracking them would need. */
void free_initmem(void)
{
}

void __init trap_init(void)
{
}

size_t outrigger_random(unsigned long *words, size_t count)
{
	host->random(words, count * sizeof(*words));
	return count;
}

static void console_write(struct console *console, const char *text, unsigned int length)
{
	host->print(text, length);
}

static struct console console = {
	.name = "host",
	.write = console_write,
	.flags = CON_PRINTBUFFER,
	.index = -1,
};

static int __init start_console(void)
{
	register_console(&console);
	return 0;
}
early_initcall(start_console);

void machine_restart(char *command)
{
	host->die();
}

void machine_halt(void)
{
	host->die();
}

void machine_power_off(void)
{
	host->die();
}
