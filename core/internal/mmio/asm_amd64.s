#include "textflag.h"

// func store(va uintptr, v uint64, size int)
TEXT ·store(SB), NOSPLIT, $0-24
	MOVQ va+0(FP), DI
	MOVQ v+8(FP), AX
	MOVQ size+16(FP), CX
	CMPQ CX, $8
	JEQ  eight
	CMPQ CX, $4
	JEQ  four
	CMPQ CX, $2
	JEQ  two
	MOVB AX, (DI)
	RET
eight:
	MOVQ AX, (DI)
	RET
four:
	MOVL AX, (DI)
	RET
two:
	MOVW AX, (DI)
	RET

// func load(va uintptr) uint64
TEXT ·load(SB), NOSPLIT, $0-16
	MOVQ va+0(FP), SI
	MOVQ (SI), AX
	MOVQ AX, ret+8(FP)
	RET

// func storeLines(va uintptr, p *byte, n int)
TEXT ·storeLines(SB), NOSPLIT, $0-24
	MOVQ va+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
line:
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	SUBQ   $64, CX
	JNE    line
	RET

// Four lines are asked for before the first is used.
//
// func loadLines(p *byte, va uintptr, n int)
TEXT ·loadLines(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), DI
	MOVQ va+8(FP), SI
	MOVQ n+16(FP), CX
four:
	CMPQ     CX, $256
	JLT      rest
	MOVNTDQA (SI), X0
	MOVNTDQA 16(SI), X1
	MOVNTDQA 32(SI), X2
	MOVNTDQA 48(SI), X3
	MOVNTDQA 64(SI), X4
	MOVNTDQA 80(SI), X5
	MOVNTDQA 96(SI), X6
	MOVNTDQA 112(SI), X7
	MOVNTDQA 128(SI), X8
	MOVNTDQA 144(SI), X9
	MOVNTDQA 160(SI), X10
	MOVNTDQA 176(SI), X11
	MOVNTDQA 192(SI), X12
	MOVNTDQA 208(SI), X13
	MOVNTDQA 224(SI), X14
	MOVOU    X0, (DI)
	MOVNTDQA 240(SI), X0
	MOVOU    X1, 16(DI)
	MOVOU    X2, 32(DI)
	MOVOU    X3, 48(DI)
	MOVOU    X4, 64(DI)
	MOVOU    X5, 80(DI)
	MOVOU    X6, 96(DI)
	MOVOU    X7, 112(DI)
	MOVOU    X8, 128(DI)
	MOVOU    X9, 144(DI)
	MOVOU    X10, 160(DI)
	MOVOU    X11, 176(DI)
	MOVOU    X12, 192(DI)
	MOVOU    X13, 208(DI)
	MOVOU    X14, 224(DI)
	MOVOU    X0, 240(DI)
	ADDQ     $256, SI
	ADDQ     $256, DI
	SUBQ     $256, CX
	JMP      four
rest:
	CMPQ     CX, $0
	JEQ      done
	MOVNTDQA (SI), X0
	MOVNTDQA 16(SI), X1
	MOVNTDQA 32(SI), X2
	MOVNTDQA 48(SI), X3
	MOVOU    X0, (DI)
	MOVOU    X1, 16(DI)
	MOVOU    X2, 32(DI)
	MOVOU    X3, 48(DI)
	ADDQ     $64, SI
	ADDQ     $64, DI
	SUBQ     $64, CX
	JMP      rest
done:
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func fullFence()
TEXT ·fullFence(SB), NOSPLIT, $0-0
	MFENCE
	RET

// func loadFence()
TEXT ·loadFence(SB), NOSPLIT, $0-0
	LFENCE
	RET

// func linesFence()
TEXT ·linesFence(SB), NOSPLIT, $0-0
	MFENCE
	RET

// func endFence()
TEXT ·endFence(SB), NOSPLIT, $0-0
	LFENCE
	RET

// func features() uint32
TEXT ·features(SB), NOSPLIT, $0-4
	MOVL $1, AX
	XORL CX, CX
	CPUID
	MOVL CX, ret+0(FP)
	RET
