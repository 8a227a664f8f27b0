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

// LINE16 and LINE32 ask for the line at off, KEEP16 and KEEP32 store it. All registers are
// free: Go sets X15 again after a call of assembly.
#define LINE16(off, a, b, c, d) \
	MOVNTDQA off(SI), a; \
	MOVNTDQA off+16(SI), b; \
	MOVNTDQA off+32(SI), c; \
	MOVNTDQA off+48(SI), d
#define KEEP16(off, a, b, c, d) \
	MOVOU a, off(DI); \
	MOVOU b, off+16(DI); \
	MOVOU c, off+32(DI); \
	MOVOU d, off+48(DI)
#define LINE32(off, a, b) \
	VMOVNTDQA off(SI), a; \
	VMOVNTDQA off+32(SI), b
#define KEEP32(off, a, b) \
	VMOVDQU a, off(DI); \
	VMOVDQU b, off+32(DI)

// Four lines are asked for before the first is used.
//
// func loadLinesSSE(p *byte, va uintptr, n int)
TEXT ·loadLinesSSE(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), DI
	MOVQ va+8(FP), SI
	MOVQ n+16(FP), CX
four:
	CMPQ CX, $256
	JLT  rest
	LINE16(0, X0, X1, X2, X3)
	LINE16(64, X4, X5, X6, X7)
	LINE16(128, X8, X9, X10, X11)
	LINE16(192, X12, X13, X14, X15)
	KEEP16(0, X0, X1, X2, X3)
	KEEP16(64, X4, X5, X6, X7)
	KEEP16(128, X8, X9, X10, X11)
	KEEP16(192, X12, X13, X14, X15)
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JMP  four
rest:
	CMPQ CX, $0
	JEQ  done
	LINE16(0, X0, X1, X2, X3)
	KEEP16(0, X0, X1, X2, X3)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, CX
	JMP  rest
done:
	RET

// Eight lines are asked for before the first is used.
//
// func loadLinesAVX2(p *byte, va uintptr, n int)
TEXT ·loadLinesAVX2(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), DI
	MOVQ va+8(FP), SI
	MOVQ n+16(FP), CX
eight:
	CMPQ CX, $512
	JLT  rest
	LINE32(0, Y0, Y1)
	LINE32(64, Y2, Y3)
	LINE32(128, Y4, Y5)
	LINE32(192, Y6, Y7)
	LINE32(256, Y8, Y9)
	LINE32(320, Y10, Y11)
	LINE32(384, Y12, Y13)
	LINE32(448, Y14, Y15)
	KEEP32(0, Y0, Y1)
	KEEP32(64, Y2, Y3)
	KEEP32(128, Y4, Y5)
	KEEP32(192, Y6, Y7)
	KEEP32(256, Y8, Y9)
	KEEP32(320, Y10, Y11)
	KEEP32(384, Y12, Y13)
	KEEP32(448, Y14, Y15)
	ADDQ $512, SI
	ADDQ $512, DI
	SUBQ $512, CX
	JMP  eight
rest:
	CMPQ CX, $0
	JEQ  done
	LINE32(0, Y0, Y1)
	KEEP32(0, Y0, Y1)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, CX
	JMP  rest
done:
	VZEROUPPER
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
