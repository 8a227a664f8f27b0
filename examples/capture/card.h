/* SPDX-License-Identifier: MIT */
/*
 * card.h - the card that frames come from: a device, or a simulated card, which is a
 * process that has a frame ready each period, as the driver of a card would. It is no part
 * of what the example shows.
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

#include "card_uapi.h"

enum { CARD_SLOTS_MAX = 256 };

/* What both processes see. */
struct card_shared {
	_Atomic int64_t start_ns;	/* frame n is due at start_ns + n * period_ns; 0: not yet */
	_Atomic uint32_t taken;		/* slots that the reader has taken */
};

struct card {
	pid_t pid;			/* 0: a device */
	int fd;				/* frames, or a notice for each */
	size_t frame;			/* bytes; a multiple of 8 */
	uint32_t frames;
	int64_t period_ns;
	uint32_t slots;			/* 0: by read(2) */
	int priority;			/* of SCHED_FIFO, to be as punctual as a card; 0: none */
	unsigned char *ring;		/* the slots; NULL by read(2) */
	struct card_shared *shared;	/* NULL: a device */
};

/* CLOCK_MONOTONIC in ns. */
int64_t card_now(void);

/*
 * Starts the card's process; frame, frames, period_ns, slots and priority are set. It
 * waits for card_go. Must come before CUDA is initialised, for it forks. Returns 0 or an errno.
 */
int card_start(struct card *c);

/* Opens a device in its place; frame and slots are set. Returns 0 or an errno. */
int card_open(struct card *c, const char *device);

/* The first frame is due one period from now. A device begins when it is first read. */
void card_go(struct card *c);

/* Whether its frames are those of card_uapi.h, and it says when they are due. */
bool card_tells(const struct card *c);

/* When that frame was due, if it tells. */
int64_t card_due(const struct card *c, uint32_t number);

/* The reader has taken so many slots. A device sees it by the next read. */
void card_take(struct card *c, uint32_t slots);

/* Closes it, and ends the process if it has not ended. */
void card_stop(struct card *c);

#endif
