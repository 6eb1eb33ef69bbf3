// SPDX-License-Identifier: GPL-2.0-only
/* Constants for assembler code. There is none; the build wants the file. */
#include <linux/kbuild.h>
#include <linux/sched.h>

int main(void)
{
	DEFINE(OUTRIGGER_THREAD_SIZE, THREAD_SIZE);
	return 0;
}
