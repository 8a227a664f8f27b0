/* SPDX-License-Identifier: MIT */
/*
 * ofi_nccl.c - what aws-ofi-nccl does with GDRCopy for NCCL's GIN: the lesser version of
 * library and driver must be 2.5 for gdr_pin_buffer_v2. A region of any address is widened to
 * pages, pinned with FORCE_PCIE, and without it where that fails. One thread reads, changes
 * and writes signals in it by copies of 8 bytes.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "load.h"
#include "tap.h"

enum { REGIONS = 8, SIGNALS = 512, ROUNDS = 4 };

static struct consumer_gdr gdr;
static struct cuda_dl cu;
static struct tap tap;
static gdr_t g;

struct region {
	cu_ptr mem, data;
	gdr_mh_t mh;
	void *map;
	size_t length;		/* pinned */
	char *va;		/* of data */
};

static int has_v2(void)
{
	int library[2], driver[2], lesser;

	gdr.runtime_version(&library[0], &library[1]);
	if (gdr.driver_version(g, &driver[0], &driver[1]))
		return 0;
	lesser = library[0] < driver[0] || (library[0] == driver[0] && library[1] < driver[1]);
	return (lesser ? library : driver)[0] > 2 || (lesser ? library : driver)[1] >= 5;
}

static int enter(struct region *r, size_t at)
{
	size_t size = SIGNALS * sizeof(uint64_t);
	cu_ptr begin;
	int rc;

	if (cu.mem_alloc(&r->mem, 4 * GPU_PAGE_SIZE) || cu.set8(r->mem, 0, 4 * GPU_PAGE_SIZE))
		return -1;
	r->data = ((r->mem + GPU_PAGE_OFFSET) & GPU_PAGE_MASK) + at;
	begin = r->data & GPU_PAGE_MASK;
	r->length = (r->data + size - begin + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	rc = gdr.pin_v2(g, begin, r->length, GDR_PIN_FLAG_FORCE_PCIE, &r->mh);
	if (rc)
		rc = gdr.pin_v2(g, begin, r->length, GDR_PIN_FLAG_DEFAULT, &r->mh);
	if (!rc)
		rc = gdr.map(g, r->mh, &r->map, r->length);
	r->va = (char *)r->map + (r->data - begin);
	return rc;
}

static int leave(struct region *r)
{
	return gdr.unmap(g, r->mh, r->map, r->length) || gdr.unpin(g, r->mh) || cu.mem_free(r->mem);
}

/* What a signal is before this round: in each round before, its number then was added. */
static uint64_t signal_before(uint64_t round, uint64_t i)
{
	return SIGNALS * round * (round - 1) / 2 + round * i;
}

/* The worker: each signal is read, and added to. */
static void *add_signals(void *arg)
{
	struct region *r = arg;
	long i, bad = 0;

	for (i = 0; i < ROUNDS * SIGNALS; i++) {
		char *at = r->va + i % SIGNALS * sizeof(uint64_t);
		uint64_t value = ~0ull;

		bad += gdr.from(r->mh, &value, at, sizeof(value)) != 0;
		bad += value != signal_before((uint64_t)(i / SIGNALS), (uint64_t)(i % SIGNALS));
		value += (uint64_t)i;
		bad += gdr.to(r->mh, at, &value, sizeof(value)) != 0;
	}
	return (void *)bad;
}

static int signals_right(const struct region *r)
{
	uint64_t got[SIGNALS], i;

	if (cu.from_gpu(got, r->data, sizeof(got)))
		return 0;
	for (i = 0; i < SIGNALS; i++)
		if (got[i] != signal_before(ROUNDS, i))
			return 0;
	return 1;
}

int main(void)
{
	static struct region r[REGIONS];
	int i, entered, right = 0, left = 0;
	void *bad = (void *)1;
	pthread_t worker;

	consumer_functions(consumer_load(), &gdr);
	consumer_cuda(&cu);
	g = gdr.open();
	if (!tap_ok(&tap, g && has_v2(), "gdr_open, of 2.5 or later"))
		return tap_done(&tap);
	for (entered = 0; entered < REGIONS; entered++)
		if (enter(&r[entered], (size_t)entered * 8192 + 8))
			break;
	tap_is(&tap, entered, REGIONS, "regions pinned and mapped");
	for (i = 0; i < entered; i++)
		if (!pthread_create(&worker, NULL, add_signals, &r[i]) && !pthread_join(worker, &bad) && !bad)
			right += signals_right(&r[i]);
	tap_is(&tap, right, REGIONS, "regions whose signals CUDA sees");
	for (i = 0; i < entered; i++)
		left += !leave(&r[i]);
	tap_is(&tap, left, REGIONS, "regions unmapped and unpinned");
	tap_is(&tap, gdr.close(g), 0, "gdr_close");
	return tap_done(&tap);
}
