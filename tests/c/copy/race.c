// SPDX-License-Identifier: MIT
/*
 * copy/race.c - copies that race with unmaps and maps, under ThreadSanitizer, which sees C
 * alone: this program does Go's part, in the order of core/buffer.go. Each mapping has a
 * pattern of its own, so a byte in another one's memory shows.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "copies.h"
#include "front_double.h"
#include "gdrapi_ext.h"
#include "tap.h"

enum { MAPPINGS = 16, SIZE = 16384, COPIERS = 4, ROUNDS = 4000, EPOCH = 1 };

/* The GPU's memory has no owner: several may write the same bytes. */
static __attribute__((no_sanitize("thread"))) void move(void *dst, const void *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((volatile unsigned char *)dst)[i] = ((const volatile unsigned char *)src)[i];
}

static struct copy_impl impl = { .to = move, .from = move };
static struct gdr_slot slots[MAPPINGS + 1];
static unsigned char *memory[MAPPINGS];	/* of the "GPU": what a mapping shows */
static void *_Atomic va[MAPPINGS];
static int fds[MAPPINGS];
static _Atomic int over, wrong, answers[2];

static gdr_mh_t mh(int i)
{
	return (gdr_mh_t){ (uint64_t)EPOCH << GDR_HANDLE_EPOCH_SHIFT | 1u << GDR_HANDLE_INDEX_BITS | (unsigned int)(1 + i) };
}

static void *copy_all_the_time(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;
	unsigned char host[SIZE], pattern;

	while (!atomic_load(&over)) {
		int i = rand_r(&seed) % MAPPINGS, rc;
		size_t n = 65 + rand_r(&seed) % 2000, at = rand_r(&seed) % (SIZE - n);
		unsigned char *dev = (unsigned char *)atomic_load(&va[i]) + at;

		pattern = (unsigned char)(i + 1);
		if (rand_r(&seed) % 2) {
			memset(host, pattern, n);
			rc = gdr_copy_to_mapping(mh(i), dev, host, n);
		} else {
			rc = gdr_copy_from_mapping(mh(i), host, dev, n);
			for (size_t k = 0; !rc && k < n; k++)
				wrong += host[k] && host[k] != pattern;
		}
		if (rc && rc != EINVAL)
			wrong++;
		answers[rc == 0]++;
	}
	return NULL;
}

/* What core/buffer.go and core/internal/sys/rest.go do; the range rests until the program ends. */
static void unmap(int i)
{
	void *made = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	slot_set(&slots[1 + i], 0, NULL, 0, 0);
	if (mremap(made, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, atomic_load(&va[i])) == MAP_FAILED)
		wrong++;
}

static void map(int i, uint64_t size)
{
	void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);

	atomic_store(&va[i], at);
	slot_set(&slots[1 + i], mh(i).h, at, size, GDR_MAPPING_TYPE_WC);
}

int main(void)
{
	struct tap t = { 0, 0, 0 };
	pthread_t threads[COPIERS];
	unsigned int seed = 1;
	long bad = 0;

	gdr_front_use(&impl);
	for (int i = 0; i < MAPPINGS; i++) {
		fds[i] = memfd_create("gpu", 0);
		if (ftruncate(fds[i], SIZE))
			return 1;
		memory[i] = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fds[i], 0);
		map(i, SIZE);
	}
	front_is_up(EPOCH, slots);
	for (uintptr_t i = 0; i < COPIERS; i++)
		pthread_create(&threads[i], NULL, copy_all_the_time, (void *)(i + 1));
	for (int n = 0; n < ROUNDS; n++) {
		int i = rand_r(&seed) % MAPPINGS;

		unmap(i);
		map(i, n % 3 ? SIZE : 4096);
	}
	atomic_store(&over, 1);
	for (int i = 0; i < COPIERS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < MAPPINGS; i++)
		for (size_t k = 0; k < SIZE; k++)
			bad += memory[i][k] && memory[i][k] != i + 1;
	tap_ok(&t, !wrong, "copies beside unmaps are 0 or EINVAL, and read their own mapping (%d done, %d refused)",
	       answers[1], answers[0]);
	tap_ok(&t, !bad, "no byte in another mapping's memory");
	return tap_done(&t);
}
