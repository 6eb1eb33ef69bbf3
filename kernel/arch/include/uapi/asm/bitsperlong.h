/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _UAPI_ASM_OUTRIGGER_BITSPERLONG_H
#define _UAPI_ASM_OUTRIGGER_BITSPERLONG_H

#define __BITS_PER_LONG 64
#include <asm-generic/bitsperlong.h>

#endif
