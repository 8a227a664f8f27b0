// SPDX-License-Identifier: MIT

#include "textflag.h"

// As entry_amd64.s.

TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVD 0(RSP), R9         // argc
	CMP  $1, R9
	BNE  start
	MOVD $0, R0             // prlimit64(0, RLIMIT_AS, NULL, below the stack)
	MOVD $9, R1
	MOVD $0, R2
	SUB  $64, RSP, R3
	MOVD $261, R8
	SVC
	CBNZ R0, start
	SUB  $64, RSP, R3
	MOVD 0(R3), R9
	MOVD $0x60000000, R10
	CMP  R10, R9
	BHS  start
	MOVD $1, R0             // write(1, ...)
	MOVD ·littleSpaceText(SB), R1
	MOVD ·littleSpaceText+8(SB), R2
	MOVD $64, R8
	SVC
	MOVD $1, R0             // exit_group(1)
	MOVD $94, R8
	SVC
start:
	JMP  _rt0_arm64_linux(SB)
