/* SPDX-License-Identifier: (GPL-2.0 OR MIT) */
/*
 * card_uapi.h - what the example's cards and the program have in common: what is in a
 * frame, and the requests of a driver. tests/kmod/card_sim.c is such a driver. Another
 * card has frames and requests of its own; a program has them in place of these.
 */
#ifndef CARD_UAPI_H
#define CARD_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define CARD_WORD_STEP 0x9e3779b97f4a7c15ULL
#define CARD_WORD_BACK 0xf1de83e19937733dULL	/* CARD_WORD_STEP times this is 1 */

/* What a frame has in it: each word tells its frame and its place. */
static inline __u64 card_word(__u32 number, __u64 index)
{
	return ((__u64)number + 1) * CARD_WORD_STEP + index;
}

/* The frame whose first word that is. Another word gives any number. */
static inline __u32 card_number(__u64 word)
{
	return (__u32)(word * CARD_WORD_BACK - 1);
}

struct card_info {
	__s64 start_ns;		/* CLOCK_MONOTONIC: frame n is due n periods later; 0: not begun */
	__s64 period_ns;
	__u32 frame;		/* bytes of a frame, a multiple of 8 */
	__u32 slots;		/* of the card's memory */
	__u32 lost;		/* frames that found no free slot */
	__u32 pad;
};

/*
 * From now on the card writes its frames into that dma-buf by DMA: a frame that is not
 * lost to the next of so many slots. A read of 4 bytes says that one is there. Before the
 * first frame, and once. Errors: EBADF, EINVAL (no dma-buf, or it has less room), EBUSY.
 */
struct card_dma {
	__s32 fd;
	__u32 slots;
	__u64 stride;		/* bytes from one slot to the next, a multiple of 8 */
};

#define CARD_IOC 0xDC
#define CARD_INFO _IOR(CARD_IOC, 1, struct card_info)
#define CARD_DMA _IOW(CARD_IOC, 2, struct card_dma)

#endif
