/* SPDX-License-Identifier: MIT */
/*
 * front_double.h - what a file of capi/ needs of the rest of the front, for a program
 * that is built from that file itself. There is one front, of one process: it is up,
 * with the epoch and the table that the program gives it. Nothing is logged: refused
 * calls are what the tests look for.
 */
#ifndef FRONT_DOUBLE_H
#define FRONT_DOUBLE_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "copy/slot.h"
#include "guest/front.h"
#include "guest/log.h"

struct gdr_front gdr_front;

static inline bool is_older(uint64_t handle)
{
	uint64_t epoch = handle >> GDR_HANDLE_EPOCH_SHIFT;

	return epoch && epoch < gdr_front.epoch;
}

int gdr_front_admit(uint64_t a, uint64_t b)
{
	return is_older(a) || is_older(b) ? EACCES : gdr_front_is_up() ? 0 : EINVAL;
}

void gdr_log(int level, const char *fmt, ...)
{
	(void)level;
	(void)fmt;
}

/* Publishes a mapping, as Go does; key 0 retracts it. */
static inline void slot_set(struct gdr_slot *s, uint64_t key, const void *va, uint64_t len, uint32_t type)
{
	uint64_t n = atomic_load(&s->state) & ~(uint64_t)(GDR_SLOT_COUNTS - 1);

	atomic_store(&s->state, n | GDR_SLOT_CHANGES);
	atomic_store(&s->key, key);
	atomic_store(&s->va, (uintptr_t)va);
	atomic_store(&s->len, len);
	atomic_store(&s->state, n + GDR_SLOT_COUNTS + type);
}

static inline void front_is_up(uint64_t epoch, struct gdr_slot *slots)
{
	atomic_store(&gdr_front.table.slots, (uintptr_t)slots);
	atomic_store(&gdr_front.table.last, GDR_SLOT_COUNT - 1);
	gdr_front.epoch = epoch;
	atomic_store(&gdr_front.up, 1);
}

#endif
