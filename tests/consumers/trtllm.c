/* SPDX-License-Identifier: MIT */
/*
 * trtllm.c - what TensorRT-LLM's load balancer for mixtures of experts does with GDRCopy:
 * it opens, asks for the versions and closes, then opens for the rest of the process. Each layer
 * has weights and counters in memory of cuMemAlloc. Threads write the weights by
 * gdr_copy_to_mapping, part by part, and read and write the counters through the mapping, while
 * other layers come and go. The library is never closed.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "load.h"
#include "tap.h"

enum { LAYERS = 8, ROUNDS = 4, COUNTERS = 64, PART = 40000, WEIGHTS = 3 * PART };

static struct consumer_gdr gdr;
static struct cuda_dl cu;
static struct tap tap;
static gdr_t g;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* around all but copies */

struct shared {
	cu_ptr mem, data;
	gdr_mh_t mh;
	void *map;
	size_t length;
};

static int get(struct shared *s, size_t size)
{
	gdr_info_t info;
	int rc;

	s->length = (size + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	if (cu.mem_alloc(&s->mem, s->length + GPU_PAGE_OFFSET))
		return -1;
	s->data = (s->mem + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	pthread_mutex_lock(&lock);
	rc = gdr.pin(g, s->data, s->length, 0, 0, &s->mh) || gdr.map(g, s->mh, &s->map, s->length) ||
	     gdr.info(g, s->mh, &info) || info.va != s->data;
	pthread_mutex_unlock(&lock);
	return rc;
}

static int put(struct shared *s)
{
	int rc;

	pthread_mutex_lock(&lock);
	rc = gdr.unmap(g, s->mh, s->map, s->length) || gdr.unpin(g, s->mh);
	pthread_mutex_unlock(&lock);
	return rc || cu.mem_free(s->mem);
}

static int move_weights(const struct shared *w, uint8_t value)
{
	uint8_t part[PART], got[WEIGHTS], want[WEIGHTS];
	int i, rc = 0;

	memset(part, value, sizeof(part));
	memset(want, value, sizeof(want));
	for (i = 0; i < WEIGHTS / PART; i++)
		rc |= gdr.to(w->mh, (char *)w->map + i * PART, part, PART);
	return rc || cu.from_gpu(got, w->data, sizeof(got)) || memcmp(got, want, sizeof(want)) ||
	       gdr.from(w->mh, got, w->map, sizeof(got)) || memcmp(got, want, sizeof(want));
}

static int count(const struct shared *c, uint32_t value)
{
	volatile uint32_t *map = c->map;
	uint32_t got[COUNTERS];
	int i, bad = 0;

	for (i = 0; i < COUNTERS; i++)
		map[i] = value + (uint32_t)i;
	__sync_synchronize();
	for (i = 0; i < COUNTERS; i++)
		bad |= map[i] != value + (uint32_t)i;
	bad |= cu.from_gpu(got, c->data, sizeof(got)) != 0;
	for (i = 0; i < COUNTERS; i++)
		bad |= got[i] != value + (uint32_t)i;
	return bad;
}

/* One layer, from its start to its end, again and again. NULL if all was right. */
static void *layer(void *arg)
{
	long n = (long)arg, bad = 0;
	struct shared weights, counters;
	cu_ctx ctx;

	if (cu.primary_retain(&ctx, 0) || cu.ctx_set(ctx))
		return (void *)1;
	for (int i = 0; i < ROUNDS && !bad; i++) {
		bad = get(&weights, WEIGHTS) || get(&counters, COUNTERS * sizeof(uint32_t));
		bad = bad || move_weights(&weights, (uint8_t)(n * ROUNDS + i + 1)) ||
		      count(&counters, (uint32_t)(n * 1000 + i)) || put(&counters) || put(&weights);
	}
	return (void *)bad;
}

int main(void)
{
	int major[2] = { 0 }, minor[2] = { 0 }, right = 0;
	pthread_t threads[LAYERS];
	long i;

	consumer_functions(consumer_load(), &gdr);
	consumer_cuda(&cu);
	g = gdr.open();
	if (!tap_ok(&tap, g != NULL, "gdr_open, for the versions"))
		return tap_done(&tap);
	gdr.runtime_version(&major[0], &minor[0]);
	gdr.driver_version(g, &major[1], &minor[1]);
	tap_ok(&tap, major[0] == 2 && minor[0] >= 1 && major[1] == 2 && minor[1] >= 1, "both of 2.1 or later");
	tap_is(&tap, gdr.close(g), 0, "gdr_close");
	g = gdr.open();
	if (!tap_ok(&tap, g != NULL, "gdr_open, for the rest of the process"))
		return tap_done(&tap);
	for (i = 0; i < LAYERS; i++)
		if (pthread_create(&threads[i], NULL, layer, (void *)i))
			return 1;
	for (i = 0; i < LAYERS; i++) {
		void *bad;

		pthread_join(threads[i], &bad);
		right += !bad;
	}
	tap_is(&tap, right, LAYERS, "layers whose weights and counters CUDA sees");
	return tap_done(&tap);
}
