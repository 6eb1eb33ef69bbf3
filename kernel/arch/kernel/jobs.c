// SPDX-License-Identifier: GPL-2.0-only
/*
 * The host's jobs, each run by one of a few tasks. A job is host code: it makes system calls as function calls, and
 * while one of them waits, other jobs run.
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/init.h>
#include <linux/kthread.h>
#include <linux/resource.h>
#include <linux/sched/signal.h>
#include <linux/task_work.h>
#include <linux/wait.h>
#include <asm/host.h>

#define SERVERS 16

static struct outrigger_job *first, **last = &first;
static DECLARE_WAIT_QUEUE_HEAD(waiting);

OUTRIGGER_EXPORT void outrigger_submit(struct outrigger_job *job)
{
	job->next = NULL;
	*last = job;
	last = &job->next;
}

/* The host was here, and may have left something to do. */
void outrigger_take_jobs(void)
{
	struct outrigger_job *job;

	for (job = first; job; job = job->next)
		wake_up(&waiting);
}

static struct outrigger_job *take(void)
{
	struct outrigger_job *job = first;

	first = job->next;
	if (!first)
		last = &first;
	return job;
}

static int serve(void *unused)
{
	unsigned int files = sysctl_nr_open;

	/* As in a process, what a call closes is closed when it ends, and not by a task of the kernel some time later. */
	current->flags &= ~PF_KTHREAD;
	current->fs->umask = 0;
	current->signal->rlim[RLIMIT_NOFILE] = (struct rlimit) { files, files };
	for (;;) {
		struct outrigger_job *job;

		wait_event_idle_exclusive(waiting, first);
		job = take();
		job->run(job);
		if (task_work_pending(current))
			task_work_run();
	}
	return 0;
}

static int __init jobs_start(void)
{
	unsigned int count;

	for (count = 0; count < SERVERS; count++) {
		struct task_struct *task = kthread_run(serve, NULL, "job/%u", count);

		if (IS_ERR(task))
			return PTR_ERR(task);
	}
	system_state = SYSTEM_RUNNING;
	outrigger_booted = true;
	/* Everything is there; what the first process would do after this is to become a program. */
	for (;;) {
		set_current_state(TASK_IDLE);
		schedule();
	}
	return 0;
}
late_initcall_sync(jobs_start);
