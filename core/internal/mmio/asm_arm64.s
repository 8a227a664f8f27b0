#include "textflag.h"

// func store(va uintptr, v uint64, size int)
TEXT ·store(SB), NOSPLIT, $0-24
	MOVD va+0(FP), R0
	MOVD v+8(FP), R1
	MOVD size+16(FP), R2
	CMP  $8, R2
	BEQ  eight
	CMP  $4, R2
	BEQ  four
	CMP  $2, R2
	BEQ  two
	MOVB R1, (R0)
	RET
eight:
	MOVD R1, (R0)
	RET
four:
	MOVW R1, (R0)
	RET
two:
	MOVH R1, (R0)
	RET

// func load(va uintptr) uint64
TEXT ·load(SB), NOSPLIT, $0-16
	MOVD va+0(FP), R0
	MOVD (R0), R1
	MOVD R1, ret+8(FP)
	RET

// func storeLines(va uintptr, p *byte, n int)
TEXT ·storeLines(SB), NOSPLIT, $0-24
	MOVD va+0(FP), R0
	MOVD p+8(FP), R1
	MOVD n+16(FP), R2
line:
	FLDPQ (R1), (F0, F1)
	FLDPQ 32(R1), (F2, F3)
	FSTPQ (F0, F1), (R0)
	FSTPQ (F2, F3), 32(R0)
	ADD   $64, R1
	ADD   $64, R0
	SUBS  $64, R2
	BNE   line
	RET

// Four lines are asked for before the first is used.
//
// func loadLines(p *byte, va uintptr, n int)
TEXT ·loadLines(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	MOVD va+8(FP), R1
	MOVD n+16(FP), R2
four:
	CMP   $256, R2
	BLT   rest
	FLDPQ (R1), (F0, F1)
	FLDPQ 32(R1), (F2, F3)
	FLDPQ 64(R1), (F4, F5)
	FLDPQ 96(R1), (F6, F7)
	FLDPQ 128(R1), (F16, F17)
	FLDPQ 160(R1), (F18, F19)
	FLDPQ 192(R1), (F20, F21)
	FLDPQ 224(R1), (F22, F23)
	FSTPQ (F0, F1), (R0)
	FSTPQ (F2, F3), 32(R0)
	FSTPQ (F4, F5), 64(R0)
	FSTPQ (F6, F7), 96(R0)
	FSTPQ (F16, F17), 128(R0)
	FSTPQ (F18, F19), 160(R0)
	FSTPQ (F20, F21), 192(R0)
	FSTPQ (F22, F23), 224(R0)
	ADD   $256, R1
	ADD   $256, R0
	SUB   $256, R2
	B     four
rest:
	CBZ   R2, done
	FLDPQ (R1), (F0, F1)
	FLDPQ 32(R1), (F2, F3)
	FSTPQ (F0, F1), (R0)
	FSTPQ (F2, F3), 32(R0)
	ADD   $64, R1
	ADD   $64, R0
	SUB   $64, R2
	B     rest
done:
	RET

// DSB ST
//
// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	DSB $14
	RET

// DSB SY
//
// func fullFence()
TEXT ·fullFence(SB), NOSPLIT, $0-0
	DSB $15
	RET

// DMB OSH
//
// func loadFence()
TEXT ·loadFence(SB), NOSPLIT, $0-0
	DMB $3
	RET

// func linesFence()
TEXT ·linesFence(SB), NOSPLIT, $0-0
	DMB $3
	RET

// DMB OSHLD
//
// func endFence()
TEXT ·endFence(SB), NOSPLIT, $0-0
	DMB $1
	RET
