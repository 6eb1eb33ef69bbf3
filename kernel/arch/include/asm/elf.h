/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _ASM_OUTRIGGER_ELF_H
#define _ASM_OUTRIGGER_ELF_H

/* No program is ever executed; generic code wants these names. */
#define ELF_CLASS ELFCLASS64
#define ELF_DATA ELFDATA2LSB
#define ELF_ARCH EM_NONE
#define elf_check_arch(header) 0
#define ELF_PLATFORM NULL
#define ELF_HWCAP 0
#define ELF_EXEC_PAGESIZE PAGE_SIZE
#define ELF_ET_DYN_BASE 0

typedef unsigned long elf_greg_t;
typedef elf_greg_t elf_gregset_t[2];
typedef unsigned long elf_fpregset_t;

#endif
