/* SPDX-License-Identifier: MIT */
/*
 * card.h - a simulated capture card: a process that has a frame ready each period, as the
 * driver of a card would. It is no part of what the example shows.
 *
 * By read(2), frames come out of a pipe. By mmap(2), the card fills the slots of a memfd
 * in turn, and a pipe gives 4 bytes for each, as the interrupts of a UIO device are read.
 */
#ifndef CARD_H
#define CARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { CARD_SLOTS_MAX = 256 };

/* What both processes see. */
struct card_shared {
	_Atomic int64_t start_ns;	/* frame n is due at start_ns + n * period_ns; 0: not yet */
	_Atomic uint32_t taken;		/* slots that the reader has taken */
	_Atomic uint32_t lost;		/* frames that found no free slot */
	uint32_t number[CARD_SLOTS_MAX];	/* of the frame in each slot */
};

struct card {
	pid_t pid;
	int fd;				/* frames, or a notice for each */
	size_t frame;			/* bytes; a multiple of 8 */
	uint32_t frames;
	int64_t period_ns;
	uint32_t slots;			/* 0: by read(2) */
	int priority;			/* of SCHED_FIFO, to be as punctual as a card; 0: none */
	unsigned char *ring;		/* the slots; NULL by read(2) */
	struct card_shared *shared;
};

/* CLOCK_MONOTONIC in ns. */
int64_t card_now(void);

/* What a frame has in it: each word tells its frame and its place. */
static inline uint64_t card_word(uint32_t number, size_t index)
{
	return ((uint64_t)number + 1) * 0x9e3779b97f4a7c15ull + index;
}

/*
 * Starts the card's process; frame, frames, period_ns, slots and priority are set. It
 * waits for card_go. Must come before CUDA is initialised, for it forks. Returns 0 or an errno.
 */
int card_start(struct card *c);

/* The first frame is due one period from now. */
void card_go(struct card *c);

/* When that frame was due. */
int64_t card_due(const struct card *c, uint32_t number);

/* Ends the process, if it has not ended. */
void card_stop(struct card *c);

#endif
