// SPDX-License-Identifier: MIT

#include "textflag.h"

// The program's entry (tools/tools.mk), before the Go runtime's. The runtime dies where
// there is little address space: below 750 MiB always, below 1.5 GiB now and then. So
// without arguments, and with less than diagnose.littleSpace, the finding is printed here.

#define SPACE $0x60000000

TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVQ SP, R12
	CMPQ 0(R12), $1         // argc
	JNE  start
	MOVL $302, AX           // prlimit64(0, RLIMIT_AS, NULL, below the stack)
	XORL DI, DI
	MOVL $9, SI
	XORL DX, DX
	LEAQ -64(R12), R10
	SYSCALL
	TESTQ AX, AX
	JNE  start
	MOVQ -64(R12), CX
	CMPQ CX, SPACE
	JCC  start
	MOVL $1, AX             // write(1, ...)
	MOVL $1, DI
	MOVQ ·littleSpaceText(SB), SI
	MOVQ ·littleSpaceText+8(SB), DX
	SYSCALL
	MOVL $231, AX           // exit_group(1)
	MOVL $1, DI
	SYSCALL
start:
	JMP  _rt0_amd64_linux(SB)
