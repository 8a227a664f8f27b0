/* SPDX-License-Identifier: MIT */
/*
 * pplat_kernel.h - the GPU's side of gdrcopy_pplat: PTX text that the driver compiles,
 * so that no CUDA compiler is needed to build this.
 */
#ifndef PPLAT_KERNEL_H
#define PPLAT_KERNEL_H

/* Answers of the kernel that are not to a word. */
#define GAVE_UP 0xffffffffu	/* no word came: -1 */
#define BAD_DATA 0xfffffffeu	/* the data was not the word's: -2 */

/*
 * For n from 1 to rounds: waits for word n, up to limit clocks; reads or makes the data of
 * word n; answers n ^ SALT. Word i of that data is i ^ n. The first thread of a block waits
 * and answers. Its fences order the data of all: see, before they are read; show, after they
 * are made. Without data there is one thread, and no barrier.
 */
static const char pplat_kernel[] =
	".address_size 64\n"
	".visible .entry pingpong(.param .u64 pflag, .param .u64 panswer,\n"
	"	.param .u32 prounds, .param .u32 psalt, .param .u64 plimit,\n"
	"	.param .u64 pdata, .param .u32 pwords, .param .u32 pmake)\n"
	"{\n"
	"	.reg .pred p, first, late, bad, data, make, see, show;\n"
	"	.reg .b32 rounds, salt, words, n, me, all, block, i, want, got, diff;\n"
	"	.reg .b64 flag, answer, limit, buf, at, since, now;\n"
	"	ld.param.u64 flag, [pflag];\n"
	"	ld.param.u64 answer, [panswer];\n"
	"	ld.param.u32 rounds, [prounds];\n"
	"	ld.param.u32 salt, [psalt];\n"
	"	ld.param.u64 limit, [plimit];\n"
	"	ld.param.u64 buf, [pdata];\n"
	"	ld.param.u32 words, [pwords];\n"
	"	ld.param.u32 i, [pmake];\n"
	"	cvta.to.global.u64 flag, flag;\n"
	"	cvta.to.global.u64 answer, answer;\n"
	"	cvta.to.global.u64 buf, buf;\n"
	"	setp.ne.u32 make, i, 0;\n"
	"	setp.ne.u32 data, words, 0;\n"
	"	mov.u32 i, %tid.x;\n"
	"	setp.eq.u32 first, i, 0;\n"
	"	and.pred see, data, first;\n"
	"	and.pred show, make, see;\n"
	"	mov.u32 block, %ctaid.x;\n"
	"	mad.wide.u32 answer, block, 4, answer;\n"
	"	mov.u32 all, %ntid.x;\n"
	"	mad.lo.u32 me, block, all, i;\n"
	"	mov.u32 i, %nctaid.x;\n"
	"	mul.lo.u32 all, all, i;\n"
	"	mov.u32 n, 0;\n"
	"NEXT:\n"
	"	add.u32 n, n, 1;\n"
	"	setp.gt.u32 p, n, rounds;\n"
	"	@p bra DONE;\n"
	"	setp.ne.u32 late, n, n;\n"
	"	@!first bra MEET;\n"
	"	mov.u64 since, %clock64;\n"
	"SPIN:\n"
	"	ld.volatile.global.u32 got, [flag];\n"
	"	setp.eq.u32 p, got, n;\n"
	"	@p bra MEET;\n"
	"	mov.u64 now, %clock64;\n"
	"	sub.u64 now, now, since;\n"
	"	setp.ge.u64 late, now, limit;\n"
	"	@!late bra SPIN;\n"
	"	mov.u32 got, -1;\n"
	"	st.volatile.global.u32 [answer], got;\n"
	"	membar.sys;\n"
	"MEET:\n"
	"	@see membar.sys;\n"
	"	@data bar.red.or.pred late, 0, late;\n"
	"	@late bra DONE;\n"
	"	mov.u32 diff, 0;\n"
	"	mov.u32 i, me;\n"
	"WORD:\n"
	"	setp.ge.u32 p, i, words;\n"
	"	@p bra WORDS;\n"
	"	mad.wide.u32 at, i, 4, buf;\n"
	"	xor.b32 want, i, n;\n"
	"	mov.u32 got, want;\n"
	"	@make st.volatile.global.u32 [at], want;\n"
	"	@!make ld.volatile.global.u32 got, [at];\n"
	"	xor.b32 got, got, want;\n"
	"	or.b32 diff, diff, got;\n"
	"	add.u32 i, i, all;\n"
	"	bra WORD;\n"
	"WORDS:\n"
	"	setp.ne.u32 bad, diff, 0;\n"
	"	@data bar.red.or.pred bad, 0, bad;\n"
	"	@show membar.sys;\n"
	"	xor.b32 got, n, salt;\n"
	"	@bad mov.u32 got, -2;\n"
	"	@first st.volatile.global.u32 [answer], got;\n"
	"	@first membar.sys;\n"
	"	bra NEXT;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n";

#endif
