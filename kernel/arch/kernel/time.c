// SPDX-License-Identifier: GPL-2.0-only
/*
 * Time comes from the host's clock. Interrupts are calls, made where the kernel is about to leave, has just asked a disk for
 * something, or offers to let other tasks run. That of the timer is made when the moment it was set for has passed.
 */
#include <linux/clockchips.h>
#include <linux/clocksource.h>
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/sched/clock.h>
#include <linux/timekeeping.h>
#include <asm/host.h>
#include <asm/irq_regs.h>

#define TIMER_INTERRUPT 0

unsigned long outrigger_interrupts;

/* When the timer is due, on the host's monotonic clock. */
static u64 next_event = U64_MAX;

u64 outrigger_next_event(void)
{
	u64 now = host->monotonic();

	if (next_event == U64_MAX)
		return U64_MAX;
	return next_event > now ? next_event - now : 0;
}

/* Calls the handler of an interrupt as a processor would. */
void outrigger_interrupt(unsigned int number)
{
	struct pt_regs none = { }, *outer;
	unsigned long flags;

	local_irq_save(flags);
	irq_enter();
	outer = set_irq_regs(&none);
	generic_handle_irq(number);
	set_irq_regs(outer);
	irq_exit();
	local_irq_restore(flags);
}

/* Delivers the timer's interrupt if it is due; whether it was. */
bool outrigger_timer_due(void)
{
	if (next_event > host->monotonic())
		return false;
	next_event = U64_MAX;
	outrigger_interrupt(TIMER_INTERRUPT);
	return true;
}

/*
 * A task that neither waits nor ends must not be alone for ever: what it waits for may be the work of others. Reclaim of
 * memory turns in such a circle until what it gave back is free, which takes a grace period of RCU.
 */
void outrigger_interruptible(void)
{
	static unsigned int calls;

	/* The clock is asked rarely: this is called for each page that is read or written. */
	if (++calls % 32 || irqs_disabled() || in_interrupt() || !outrigger_booted)
		return;
	outrigger_timer_due();
}

static u64 clock_read(struct clocksource *source)
{
	return host->monotonic();
}

static struct clocksource clock = {
	.name = "host",
	.rating = 499,
	.read = clock_read,
	.flags = CLOCK_SOURCE_IS_CONTINUOUS,
	.mask = CLOCKSOURCE_MASK(64),
};

static int timer_set(unsigned long nanoseconds, struct clock_event_device *timer)
{
	next_event = host->monotonic() + nanoseconds;
	return 0;
}

static int timer_stop(struct clock_event_device *timer)
{
	next_event = U64_MAX;
	return 0;
}

static struct clock_event_device timer = {
	.name = "host",
	.features = CLOCK_EVT_FEAT_ONESHOT,
	.rating = 499,
	.set_next_event = timer_set,
	.set_state_shutdown = timer_stop,
};

static irqreturn_t timer_interrupt(int number, void *unused)
{
	timer.event_handler(&timer);
	return IRQ_HANDLED;
}

unsigned long long sched_clock(void)
{
	return host->monotonic();
}

void read_persistent_clock64(struct timespec64 *time)
{
	*time = ns_to_timespec64(host->wall());
}

void __init time_init(void)
{
	clocksource_register_khz(&clock, USEC_PER_SEC);
	if (request_irq(TIMER_INTERRUPT, timer_interrupt, IRQF_TIMER, "timer", NULL))
		panic("no interrupt for the timer");
	timer.cpumask = cpumask_of(0);
	clockevents_config_and_register(&timer, NSEC_PER_SEC, 1, LONG_MAX);
}

static void ignore(struct irq_data *data)
{
}

static struct irq_chip chip = {
	.name = "outrigger",
	.irq_mask = ignore,
	.irq_unmask = ignore,
	.irq_ack = ignore,
};

void __init init_IRQ(void)
{
	unsigned int number;

	for (number = 0; number < NR_IRQS; number++)
		irq_set_chip_and_handler(number, &chip, handle_simple_irq);
}

void calibrate_delay(void)
{
	loops_per_jiffy = USEC_PER_SEC;
}

void __delay(unsigned long loops)
{
}

void __ndelay(unsigned long nanoseconds)
{
	host->sleep(nanoseconds);
}

void __udelay(unsigned long microseconds)
{
	host->sleep(microseconds * NSEC_PER_USEC);
}

/* @scaled is microseconds times 2^32 / 10^6, see asm-generic/delay.h. */
void __const_udelay(unsigned long scaled)
{
	host->sleep(scaled * NSEC_PER_USEC / 0x10c7);
}
