// SPDX-License-Identifier: MIT
/*
 * copy/tsan.c - the data plane under ThreadSanitizer.
 *
 * It is built from capi/data.c and the copy routines themselves, and has the
 * other half of the protocol of slot.h, which is Go in the library, in C: it
 * makes mappings and takes them down while other threads copy. What it takes
 * down it then writes to with plain stores, so ThreadSanitizer reports every
 * copy that is not over by then.
 *
 * membarrier(2) orders other threads from outside, which ThreadSanitizer does
 * not know of; so this runs the protocol as it is where there is none
 * (gdr_table.fenced is 1, and copies fence by themselves). ThreadSanitizer
 * does not know that fence either, but the processor does; the orders that it
 * checks are those of the stores and loads with release and acquire.
 *
 * Each copy routine that this CPU can run takes its turn. "portable" is the one
 * whose every access is seen: ThreadSanitizer does not look into assembly.
 * GDRCOPY_COPY_IMPL picks one.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "copy/copy.h"
#include "front_double.h"
#include "gdrapi_ext.h"
#include "tap.h"

#define BUFFERS 4
#define COPIERS 6	/* the last two copy in pieces */
#define PART 512	/* bytes of a buffer that are one copier's */
#define BYTES (COPIERS * PART)
#define TYPES 3		/* WC, caching, device */

/* The table, with few slots behind it. */

static struct gdr_table table;
static struct gdr_slot slots[BUFFERS];
static struct gdr_hazard hazards[GDR_HAZARD_COUNT];	/* taken from the end */

/*
 * One buffer. h is what copiers find; it names a mapping that may be over.
 * The bytes are the copiers' while it is mapped and the owner's after that.
 */
struct buffer {
	unsigned char *bytes;
	_Atomic uint64_t h;
	uint32_t index, generation;
	_Atomic long copies;
};

static struct buffer buffers[BUFFERS];
static _Atomic bool stop;
static _Atomic long done, many, refused, wrong;

static void publish(struct buffer *b, uint32_t type)
{
	struct gdr_slot *slot = &slots[b->index];
	uint64_t h;

	b->generation++;
	h = (uint64_t)1 << GDR_HANDLE_EPOCH_SHIFT |
	    (uint64_t)b->generation << GDR_HANDLE_INDEX_BITS | b->index;
	slot->va = (uintptr_t)b->bytes;
	slot->len = BYTES;
	slot->type = type;
	atomic_store_explicit(&slot->key, h, memory_order_seq_cst);
	atomic_store(&b->h, h);
}

static void retract(struct buffer *b)
{
	uint64_t h = atomic_load(&b->h);
	uint32_t used;

	atomic_store(&slots[b->index].key, 0);
	used = atomic_load(&table.hazards_used);
	for (uint32_t i = GDR_HAZARD_COUNT - used; i < GDR_HAZARD_COUNT; i++)
		for (int l = 0; l < GDR_HAZARD_LEVELS; l++) {
			uint64_t first = atomic_load(&hazards[i].busy[l]), busy = first;

			/* A copy of many pieces may say meanwhile that it does not have h. */
			while (gdr_copy_has(&hazards[i], busy, h) &&
			       (busy == first || (gdr_is_many(first) &&
						  busy >> GDR_MANY_SHIFT == first >> GDR_MANY_SHIFT))) {
				sched_yield();
				busy = atomic_load(&hazards[i].busy[l]);
			}
		}
}

/* The owner of a buffer: maps it, and takes it away in the midst of copies. */
static void *own(void *arg)
{
	struct buffer *b = arg;
	uint32_t round = 0;

	while (!atomic_load(&stop)) {
		long before = atomic_load(&b->copies);

		publish(b, GDR_MAPPING_TYPE_WC + round++ % TYPES);
		atomic_store(&table.mixed, round & 1);
		for (int i = 0; i < 200 && atomic_load(&b->copies) < before + 20; i++)
			sched_yield();
		retract(b);
		/* Now no copy may touch it. */
		memset(b->bytes, 0xee, BYTES);
	}
	return NULL;
}

static void *copy(void *arg)
{
	size_t at = (uintptr_t)arg * PART;
	unsigned char out[PART], in[PART];
	unsigned int round = (uintptr_t)arg;

	while (!atomic_load(&stop)) {
		struct buffer *b = &buffers[round++ % BUFFERS];
		gdr_mh_t mh = { atomic_load(&b->h) };
		size_t n = 1 + round * 37 % PART;
		int rc;

		memset(out, round, n);
		rc = gdr_copy_to_mapping(mh, b->bytes + at, out, n);
		if (!rc)
			rc = gdr_copy_from_mapping(mh, in, b->bytes + at, n);
		/* One copy may be refused after one that was not. */
		if (!rc && memcmp(in, out, n))
			atomic_fetch_add(&wrong, 1);
		if (rc && rc != EINVAL)
			atomic_fetch_add(&wrong, 1);
		atomic_fetch_add(rc ? &refused : &done, 1);
		atomic_fetch_add(&b->copies, 1);
	}
	return NULL;
}

/* The same in many pieces, of all buffers: each copier has its part of each. */
static void *copy_pieces(void *arg)
{
	size_t at = (uintptr_t)arg * PART;
	unsigned char out[BUFFERS][PART], in[BUFFERS][PART];
	unsigned int round = (uintptr_t)arg;

	while (!atomic_load(&stop)) {
		gdr_piece_t to[BUFFERS], from[BUFFERS];
		int rc;

		for (int i = 0; i < BUFFERS; i++) {
			gdr_mh_t mh = { atomic_load(&buffers[i].h) };
			size_t n = 1 + (round + i) * 37 % PART;

			memset(out[i], round + i, n);
			to[i] = (gdr_piece_t){ mh, buffers[i].bytes + at, out[i], n };
			from[i] = (gdr_piece_t){ mh, buffers[i].bytes + at, in[i], n };
		}
		rc = gdr_copy_to_mapping_v(to, BUFFERS);
		if (!rc)
			rc = gdr_copy_from_mapping_v(from, BUFFERS);
		for (int i = 0; !rc && i < BUFFERS; i++)
			if (memcmp(in[i], out[i], to[i].size))
				atomic_fetch_add(&wrong, 1);
		if (rc && rc != EINVAL)
			atomic_fetch_add(&wrong, 1);
		atomic_fetch_add(rc ? &refused : &many, 1);
		round++;
	}
	return NULL;
}

/* Threads that make one copy each and end: records change hands. */
static void *copy_once(void *arg)
{
	unsigned char b[8] = { 0 };
	gdr_mh_t mh = { atomic_load(&buffers[0].h) };

	(void)arg;
	/* A size of 0 takes a record, too, and touches nobody's part. */
	gdr_copy_to_mapping(mh, b, b, 0);
	return NULL;
}

static void *many_short_threads(void *unused)
{
	(void)unused;
	while (!atomic_load(&stop)) {
		pthread_t t;

		if (pthread_create(&t, NULL, copy_once, NULL))
			break;
		pthread_join(t, NULL);
	}
	return NULL;
}

static void set_up(void)
{
	table.fenced = 1;
	front_is_up(&table, 1, slots, hazards);
	for (uint32_t i = 0; i < BUFFERS; i++) {
		buffers[i].index = i;
		buffers[i].bytes = aligned_alloc(4096, 4096);
		if (!buffers[i].bytes)
			exit(2);
	}
}

static void run_all(const struct timespec *length)
{
	pthread_t owners[BUFFERS], copiers[COPIERS], comer;

	atomic_store(&stop, false);
	done = many = refused = wrong = 0;
	for (int i = 0; i < BUFFERS; i++)
		pthread_create(&owners[i], NULL, own, &buffers[i]);
	for (uintptr_t i = 0; i < COPIERS; i++)
		pthread_create(&copiers[i], NULL, i < COPIERS - 2 ? copy : copy_pieces, (void *)i);
	pthread_create(&comer, NULL, many_short_threads, NULL);
	nanosleep(length, NULL);
	atomic_store(&stop, true);
	for (int i = 0; i < BUFFERS; i++)
		pthread_join(owners[i], NULL);
	for (int i = 0; i < COPIERS; i++)
		pthread_join(copiers[i], NULL);
	pthread_join(comer, NULL);
}

static void test(struct tap *t, const struct copy_impl *impl, const struct timespec *length)
{
	/* A hang is a failure: SIGALRM ends the program. */
	alarm(length->tv_sec + 240);
	front.impl = impl;
	run_all(length);
	printf("# %s: %ld copies done, %ld of many pieces, %ld refused, %u records\n", impl->name,
	       atomic_load(&done), atomic_load(&many), atomic_load(&refused), atomic_load(&table.hazards_used));
	tap_ok(t, done > 0 && many > 0 && refused > 0, "%s: some copies were done, and some refused", impl->name);
	tap_is(t, wrong, 0, "wrong bytes or errors");
	tap_ok(t, atomic_load(&table.hazards_used) <= 64, "records are used again");
}

int main(int argc, char **argv)
{
	bool is_long = argc > 1 && !strcmp(argv[1], "--long");
	struct timespec length = { is_long ? 60 : 3, 0 };
	const char *name = getenv("GDRCOPY_COPY_IMPL");
	struct tap t = { 0, 0, 0 };

	set_up();
	for (size_t i = 0; copy_impls[i]; i++)
		if (copy_impls[i]->usable() && (!name || !strcmp(name, copy_impls[i]->name)))
			test(&t, copy_impls[i], &length);
	/* ThreadSanitizer itself ends the program with 66 if it saw a race. */
	return tap_done(&t);
}
