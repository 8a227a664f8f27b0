/* SPDX-License-Identifier: MIT */
/*
 * nixl.c - what NIXL's threads do with GDRCopy, through UCX: each thread has a UCX context of
 * its own, and so a gdr_t of its own. A buffer is pinned and mapped when it is first copied,
 * by each thread for itself, and stays so. The threads share the buffers, each its own part.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "load.h"
#include "tap.h"

enum { THREADS = 16, BUFFERS = 8, PART = 4096, SIZE = THREADS * PART, ROUNDS = 4 };

static struct consumer_gdr gdr;
static struct cuda_dl cu;
static struct tap tap;
static cu_ptr memory[BUFFERS], buffers[BUFFERS];
static cu_ctx context;
static pthread_barrier_t all;

struct mapping {
	gdr_mh_t mh;
	void *va;	/* NULL: not pinned yet */
};

static int pinned(gdr_t g, struct mapping *m, cu_ptr gpu)
{
	if (m->va)
		return 0;
	return gdr.pin(g, gpu, SIZE, 0, 0, &m->mh) || gdr.map(g, m->mh, &m->va, SIZE);
}

static int transfer(const struct mapping *m, long thread, unsigned int seed, cu_ptr gpu)
{
	unsigned char bytes[PART], got[PART];

	memset(bytes, (int)(seed * 37 + (unsigned int)thread), sizeof(bytes));
	if (gdr.to(m->mh, (char *)m->va + thread * PART, bytes, PART) ||
	    cu.from_gpu(got, gpu + (cu_ptr)thread * PART, PART) || memcmp(got, bytes, PART))
		return -1;
	memset(got, 0, sizeof(got));
	return gdr.from(m->mh, got, (char *)m->va + thread * PART, PART) || memcmp(got, bytes, PART) ? -1 : 0;
}

static int leave(gdr_t g, struct mapping *m)
{
	int i, bad = 0;

	for (i = 0; i < BUFFERS; i++)
		bad += m[i].va && (gdr.unmap(g, m[i].mh, m[i].va, SIZE) || gdr.unpin(g, m[i].mh));
	return bad + (gdr.close(g) != 0);
}

/* The value is what went wrong. */
static void *agent(void *arg)
{
	struct mapping m[BUFFERS] = { 0 };
	long thread = (long)arg, bad = 0;
	unsigned int i;
	gdr_t g;

	pthread_barrier_wait(&all);
	g = gdr.open();
	if (!g || cu.ctx_set(context))
		return (void *)1;
	for (i = 0; i < ROUNDS * BUFFERS; i++) {
		int b = (int)((i + (unsigned int)thread) % BUFFERS);

		bad += pinned(g, &m[b], buffers[b]) || transfer(&m[b], thread, i, buffers[b]);
	}
	return (void *)(bad + leave(g, m));
}

int main(void)
{
	pthread_t threads[THREADS];
	int made = 0, right = 0, freed = 0;
	void *bad;
	long i;

	consumer_functions(consumer_load(), &gdr);
	consumer_cuda(&cu);
	if (cu.ctx_get(&context) || pthread_barrier_init(&all, NULL, THREADS))
		return 1;
	for (i = 0; i < BUFFERS; i++) {
		made += !cu.mem_alloc(&memory[i], SIZE + GPU_PAGE_SIZE);
		buffers[i] = (memory[i] + GPU_PAGE_OFFSET) & GPU_PAGE_MASK;
	}
	tap_is(&tap, made, BUFFERS, "buffers");
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, agent, (void *)i))
			return 1;
	for (i = 0; i < THREADS; i++)
		right += !pthread_join(threads[i], &bad) && !bad;
	tap_is(&tap, right, THREADS, "threads whose copies CUDA sees, each with its own gdr_t");
	for (i = 0; i < BUFFERS; i++)
		freed += !cu.mem_free(memory[i]);
	tap_is(&tap, freed, BUFFERS, "buffers freed");
	return tap_done(&tap);
}
