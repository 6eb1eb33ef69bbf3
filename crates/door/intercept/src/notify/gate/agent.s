// SPDX-License-Identifier: MIT OR Apache-2.0
// The code of agent.rs, which says what it does and what the names in braces are.

    // The registers of the program, but for rax and rcx.
    .macro outrigger_gate_restore
    mov rsp, rbp
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r9
    pop r8
    pop r10
    pop rdx
    pop rsi
    pop rdi
    .endm

    // Back to the program.
    .macro outrigger_gate_return
    pop rcx
    lea rsp, [rsp + 128]
    notrack jmp rcx
    .endm

    .pushsection .rodata.outrigger_gate, "a"
    .balign 16
    .globl outrigger_gate_start, outrigger_gate_enter, outrigger_gate_allowed, outrigger_gate_scan, outrigger_gate_end
    .hidden outrigger_gate_start, outrigger_gate_enter, outrigger_gate_allowed, outrigger_gate_scan, outrigger_gate_end
outrigger_gate_start:
    .ascii "outrigger gate 1"

outrigger_gate_enter:
    endbr64
    lea rsp, [rsp - 128]
    push rcx
    push rdi
    push rsi
    push rdx
    push r10
    push r8
    push r9
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    mov rbp, rsp
    sub rsp, {FRAME}
    // ebx: the number. r12: the path. r13d: where it begins. r14d: how. r15d: it is known where it begins.
    mov ebx, eax
    xor r14d, r14d
    xor r15d, r15d
    mov r12, rdi
    mov r13d, {AT_FDCWD}
    cmp dword ptr [rip + outrigger_gate_start + {FACTS}], {CLOSED}
    je 70f
    cmp eax, {STAT_CALL}
    je 40f
    cmp eax, {ACCESS}
    je 40f
    cmp eax, {LSTAT}
    je 39f
    cmp eax, {READLINK}
    je 39f
    cmp eax, {OPEN}
    je 42f
    mov r12, rsi
    mov r13d, edi
    cmp eax, {OPENAT}
    je 41f
    cmp eax, {FACCESSAT}
    je 40f
    cmp eax, {READLINKAT}
    je 39f
    mov ecx, r10d
    cmp eax, {FACCESSAT2}
    je 38f
    cmp eax, {NEWFSTATAT}
    je 37f
    mov ecx, edx
    cmp eax, {STATX}
    jne 70f
37:
    or r14d, {MAY_BE_EMPTY}
38:
    test ecx, {AT_SYMLINK_NOFOLLOW}
    jz 40f
39:
    or r14d, {NO_FOLLOW}
40:
    mov eax, ebx
    call 90f
    jmp 50f

    // Opening: how is in esi.
41:
    mov esi, edx
42:
    test esi, {NOT_LOOKING}
    jnz 70f
    or r14d, {OPENS}
    test esi, {O_NOFOLLOW}
    jz 43f
    or r14d, {NO_FOLLOW}
43:
    mov eax, esi
    mov [rbp + {HOW}], rax
    mov qword ptr [rbp + {HOW} + 8], 0
    mov qword ptr [rbp + {HOW} + 16], {NO_MAGICLINKS}
    cmp dword ptr [rip + outrigger_gate_start + {FACTS}], {PLAIN}
    je 44f
    // It is looked where the path begins before anything is opened. The kernel says first whether the path can be read.
    call 91f
    cmp rax, -{EFAULT}
    je 70f
    call 80f
    test eax, eax
    jnz 70f
44:
    mov edi, r13d
    mov rsi, r12
    lea rdx, [rbp + {HOW}]
    mov r10d, 24
    mov eax, {OPENAT2}
    call 90f

    // What the kernel says.
50:
    test rax, rax
    jns 51f
    cmp rax, -{ENOENT}
    je 60f
    cmp rax, -{EINTR}
    je 76f
    cmp rax, -{ENOTDIR}
    je 48f
    cmp rax, -{EACCES}
    je 48f
    cmp rax, -{EINVAL}
    jne 70f
    // No link, unless there is no room for its target: the kernel looks at that before it reads the path.
    mov ecx, [rbp + {SAVED_RDX}]
    cmp ebx, {READLINK}
    je 47f
    mov ecx, [rbp + {SAVED_R10}]
    cmp ebx, {READLINKAT}
    jne 70f
47:
    test ecx, ecx
    jle 70f
48:
    mov [rbp + {RESULT}], rax
    test r12, r12
    jz 70f
    cmp byte ptr [r12], 0
    je 70f
    call 80f
    test eax, eax
    jnz 70f
    mov rsi, r12
    call outrigger_gate_scan
    test eax, eax
    jnz 70f
    jmp 75f

    // It has found something.
51:
    mov [rbp + {RESULT}], rax
    test r12, r12
    jz 52f
    cmp byte ptr [r12], 0
    jne 53f
52:
    // The file that is open under the number.
    test r14d, {MAY_BE_EMPTY}
    jz 57f
    jmp 75f
53:
    call 80f
    test eax, eax
    jnz 57f
    mov rsi, r12
    call outrigger_gate_scan
    cmp eax, 1
    ja 57f
    je 55f
    lea rcx, [rbp + {SAVED_RSI}]
    cmp ebx, {READLINK}
    je 54f
    lea rcx, [rbp + {SAVED_RDX}]
    cmp ebx, {READLINKAT}
    jne 75f
54:
    // The target of a link of /proc may be a copy.
    mov rsi, [rcx]
    mov rcx, [rbp + {RESULT}]
    test rcx, rcx
    jz 75f
    cmp byte ptr [rsi], '/'
    jne 75f
    cmp rcx, {PATH_MAX} - 1
    ja 70f
    lea rdi, [rbp + {PATH}]
    rep movsb
    mov byte ptr [rdi], 0
    lea rsi, [rbp + {PATH}]
    call outrigger_gate_scan
    test eax, eax
    jnz 70f
    jmp 75f
55:
    // A file of /proc or /dev that was opened is the right one. The server wants to know of directories.
    test r14d, {OPENS}
    jz 70f
    mov edi, [rbp + {RESULT}]
    lea rsi, [rbp + {STAT}]
    mov eax, {FSTAT}
    call 90f
    mov eax, [rbp + {STAT} + {MODE}]
    and eax, {KIND}
    cmp eax, {DIRECTORY}
    jne 75f
57:
    test r14d, {OPENS}
    jz 70f
    mov edi, [rbp + {RESULT}]
    mov eax, {CLOSE}
    call 90f
    jmp 70f

    // It has found nothing.
60:
    test r12, r12
    jz 70f
    call 80f
    test eax, eax
    jnz 70f
    mov rsi, r12
    call outrigger_gate_scan
    test eax, eax
    jnz 70f
    cmp rdi, rsi
    je 70f
    mov [rbp + {LAST}], rdi
    test r14d, {NO_FOLLOW}
    jnz 61f
    call 91f
    cmp rax, -{ENOENT}
    jne 70f
61:
    // r14: the length of the path of the directory, which is what stands before the last name.
    mov r14, [rbp + {LAST}]
    sub r14, r12
    cmp r14, {PATH_MAX} - 1
    ja 70f
    mov rcx, r14
    lea rdi, [rbp + {PATH}]
    mov rsi, r12
    rep movsb
62:
    // Where the path begins, if nothing stands before.
    test r14, r14
    jnz 64f
    mov word ptr [rbp + {PATH}], '.'
    jmp 66f
64:
    // Without slashes at the end, by which lstat(2) would follow a link.
    cmp byte ptr [rbp + r14 + {PATH} - 1], '/'
    jne 65f
    dec r14
    jz 70f
    jmp 64b
65:
    mov byte ptr [rbp + r14 + {PATH}], 0
66:
    xor r10d, r10d
    call 92f
    test rax, rax
    jz 68f
    // It is missing: then it is the name that counts, in the directory above it.
    cmp rax, -{ENOENT}
    jne 70f
    test r14, r14
    jz 70f
    mov r10d, {AT_SYMLINK_NOFOLLOW}
    call 92f
    cmp rax, -{ENOENT}
    jne 70f
67:
    cmp byte ptr [rbp + r14 + {PATH} - 1], '/'
    je 62b
    dec r14
    jnz 67b
    jmp 62b
68:
    mov rax, [rbp + {STAT}]
    cmp rax, [rip + outrigger_gate_start + {FACTS} + {ROOT}]
    jne 63f
    mov rax, [rbp + {STAT} + 8]
    cmp rax, [rip + outrigger_gate_start + {FACTS} + {ROOT} + 8]
    je 70f
63:
    mov rax, -{ENOENT}
    jmp 76f

    // The server is asked.
70:
    mov eax, ebx
    outrigger_gate_restore
    syscall
    outrigger_gate_return

    // It is known.
75:
    mov rax, [rbp + {RESULT}]
76:
    outrigger_gate_restore
    outrigger_gate_return

    // eax: 0 if the path begins where all is local.
80:
    xor eax, eax
    cmp dword ptr [rip + outrigger_gate_start + {FACTS}], {PLAIN}
    je 86f
    cmp byte ptr [r12], '/'
    je 86f
    test r15d, r15d
    jnz 86f
    cmp r13d, {AT_FDCWD}
    jne 81f
    lea rdi, [rbp + {PATH}]
    mov esi, {PATH_MAX}
    mov eax, {GETCWD}
    call 90f
    test rax, rax
    jg 84f
    mov eax, 2
    ret
81:
    mov eax, r13d
    test eax, eax
    js 85f
    // The link in /proc, whose number is written from its end.
    lea rdi, [rbp + {LINK}]
    lea rsi, [rip + 95f]
    mov ecx, 21
    rep movsb
    lea rdi, [rbp + {LINK} + 40]
    mov byte ptr [rdi], 0
    mov ecx, 10
82:
    xor edx, edx
    div ecx
    add edx, '0'
    dec rdi
    mov [rdi], dl
    test eax, eax
    jnz 82b
    mov rsi, rdi
    lea rdi, [rbp + {LINK} + 21]
83:
    lodsb
    stosb
    test al, al
    jnz 83b
    lea rdi, [rbp + {LINK}]
    lea rsi, [rbp + {PATH}]
    mov edx, {PATH_MAX} - 1
    mov eax, {READLINK}
    call 90f
    test rax, rax
    jle 85f
    cmp rax, {PATH_MAX} - 1
    jge 85f
    mov byte ptr [rbp + rax + {PATH}], 0
84:
    lea rsi, [rbp + {PATH}]
    cmp byte ptr [rsi], '/'
    jne 85f
    call outrigger_gate_scan
    mov r15d, 1
    ret
85:
    mov eax, 2
86:
    ret

    // rsi: a path. eax: 0 if its names are those of local files, 1 if it may be in /proc or /dev, 2 if it may lead to a tree, or to the
    // mirror. rdi and rsi: its last name.
outrigger_gate_scan:
    xor eax, eax
    // r8d: the next name may be one of the root directory.
    mov r8d, 1
20:
    movzx ecx, byte ptr [rsi]
    cmp cl, '/'
    jne 21f
    inc rsi
    jmp 20b
21:
    mov rdi, rsi
    test cl, cl
    jz 36f
    cmp cl, '.'
    je 32f
    lea r9, [rip + 96f]
    mov r10, rsi
22:
    movzx ecx, byte ptr [r9]
    test cl, cl
    jz 35f
    inc r9
    cmp cl, [r10]
    jne 23f
    inc r10
    jmp 22b
23:
    test r8d, r8d
    jz 30f
    xor edx, edx
    lea r9, [rip + outrigger_gate_start + {FACTS} + {NAMES}]
24:
    cmp byte ptr [r9], 0
    je 30f
    mov r10, rsi
25:
    movzx ecx, byte ptr [r9]
    test cl, cl
    jz 28f
    cmp cl, [r10]
    jne 26f
    inc r9
    inc r10
    jmp 25b
26:
    cmp byte ptr [r9], 0
    je 27f
    inc r9
    jmp 26b
27:
    inc r9
    inc edx
    jmp 24b
28:
    movzx ecx, byte ptr [r10]
    test cl, cl
    jz 29f
    cmp cl, '/'
    jne 27b
29:
    cmp edx, 2
    jae 35f
    mov eax, 1
30:
    xor r8d, r8d
31:
    movzx ecx, byte ptr [rsi]
    test cl, cl
    jz 36f
    cmp cl, '/'
    je 20b
    inc rsi
    jmp 31b
32:
    movzx ecx, byte ptr [rsi + 1]
    test cl, cl
    jz 33f
    cmp cl, '/'
    je 33f
    cmp cl, '.'
    jne 30b
    movzx ecx, byte ptr [rsi + 2]
    test cl, cl
    jz 34f
    cmp cl, '/'
    jne 30b
34:
    mov r8d, 1
    inc rsi
33:
    inc rsi
    jmp 20b
35:
    mov eax, 2
36:
    ret

    // stat(2) of what was copied.
92:
    mov edi, r13d
    lea rsi, [rbp + {PATH}]
    lea rdx, [rbp + {STAT}]
    mov eax, {NEWFSTATAT}
    jmp 90f
    // Whether the path itself is there, and can be read.
91:
    mov edi, r13d
    mov rsi, r12
    lea rdx, [rbp + {STAT}]
    mov r10d, {AT_SYMLINK_NOFOLLOW}
    mov eax, {NEWFSTATAT}
    // The instruction that the filter allows.
90:
    syscall
outrigger_gate_allowed:
    ret
95:
    .ascii "/proc/thread-self/fd/"
96:
    .asciz "outrigger-run-"
outrigger_gate_end:
    .popsection
