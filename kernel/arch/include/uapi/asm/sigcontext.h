/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _UAPI_ASM_OUTRIGGER_SIGCONTEXT_H
#define _UAPI_ASM_OUTRIGGER_SIGCONTEXT_H

/* No signal is ever delivered; the structure only has to exist. */
struct sigcontext {
	unsigned long unused;
};

#endif
