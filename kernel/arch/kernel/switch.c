// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tasks are coroutines: switching exchanges stacks and the registers a C function must preserve. Host and kernel are
 * two more of them: outrigger_run() resumes the idle task, and an idle kernel resumes the host.
 */
#include <linux/cpu.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/sched/task_stack.h>
#include <linux/start_kernel.h>
#include <asm/host.h>
#include <asm/setup.h>
#include <asm/switch_to.h>

struct task_struct *outrigger_current = &init_task;
bool outrigger_booted;

static void *host_stack, *idle_stack;
static struct task_struct *previous;

/* Saves the current context at @save and continues the one saved as @stack. */
void outrigger_switch(void **save, void *stack);
asm(".text\n"
    ".globl outrigger_switch\n"
    ".hidden outrigger_switch\n"
    ".type outrigger_switch, @function\n"
    "outrigger_switch:\n"
    "	push %rbp\n"
    "	push %rbx\n"
    "	push %r12\n"
    "	push %r13\n"
    "	push %r14\n"
    "	push %r15\n"
    "	mov %rsp, (%rdi)\n"
    "	mov %rsi, %rsp\n"
    "	pop %r15\n"
    "	pop %r14\n"
    "	pop %r13\n"
    "	pop %r12\n"
    "	pop %rbx\n"
    "	pop %rbp\n"
    "	ret\n"
    ".size outrigger_switch, . - outrigger_switch\n");

/* A stack on which outrigger_switch() continues with @function, which never returns. */
static void *new_stack(void *top, void (*function)(void))
{
	unsigned long *stack = (unsigned long *)((unsigned long)top & ~15UL);

	/* No return address, then what the switch pops: the function and six registers. */
	*--stack = 0;
	*--stack = (unsigned long)function;
	stack -= 6;
	memset(stack, 0, 6 * sizeof(*stack));
	return stack;
}

struct task_struct *__switch_to(struct task_struct *from, struct task_struct *to)
{
	previous = from;
	outrigger_current = to;
	outrigger_switch(&from->thread.stack, to->thread.stack);
	return previous;
}

static void task_entry(void)
{
	struct task_struct *self = outrigger_current;

	schedule_tail(previous);
	outrigger_interrupts = 1;
	self->thread.function(self->thread.argument);
	do_exit(0);
}

int copy_thread(struct task_struct *task, const struct kernel_clone_args *args)
{
	task->thread.function = args->fn;
	task->thread.argument = args->fn_arg;
	task->thread.stack = new_stack(task_stack_page(task) + THREAD_SIZE, task_entry);
	return 0;
}

void arch_cpu_idle_prepare(void)
{
}

/* No task can run: the host goes on, unless an interrupt is due. */
void arch_cpu_idle(void)
{
	if (!outrigger_disks_due() && !outrigger_timer_due()) {
		outrigger_switch(&idle_stack, host_stack);
		outrigger_disks_due();
		outrigger_timer_due();
		outrigger_take_jobs();
	}
}

static void boot(void)
{
	start_kernel();
}

OUTRIGGER_EXPORT u64 outrigger_run(void)
{
	outrigger_switch(&host_stack, idle_stack);
	return outrigger_next_event();
}

OUTRIGGER_EXPORT s64 outrigger_start(const struct outrigger_host *supplied, const char *command_line)
{
	if (supplied->abi != OUTRIGGER_ABI)
		return -EPROTO;
	host = supplied;
	strscpy(boot_command_line, command_line, COMMAND_LINE_SIZE);
	idle_stack = new_stack((char *)init_stack + THREAD_SIZE, boot);
	for (;;) {
		u64 wait = outrigger_run();

		if (outrigger_booted)
			return 0;
		/* A task of the kernel waits for time to pass; nothing else can happen yet. */
		host->sleep(min_t(u64, wait, NSEC_PER_MSEC));
	}
}
