// SPDX-License-Identifier: MIT
/*
 * libraries.c - several libraries of ours in one process, and another one in Go.
 *
 *	libraries OURS COPY GO	the library, a copy of its file, and golib
 *
 * A system's library and a wheel's meet like this. Each order of loading has a process of its
 * own. There threads pin, map and copy by each library at the same time, while others call
 * golib, and children are forked.
 */
#define _GNU_SOURCE
#include <gdrapi.h>

#include "tap.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OURS 2
#define THREADS 3		/* of each library */
#define PINS 60			/* of each thread */
#define CHILDREN 4
#define BYTES (1 << 20)

struct library {
	const char *path;
	void *lib;
	typeof(gdr_open) *open;
	typeof(gdr_close) *close;
	typeof(gdr_pin_buffer) *pin;
	typeof(gdr_unpin_buffer) *unpin;
	typeof(gdr_map) *map;
	typeof(gdr_unmap) *unmap;
	typeof(gdr_copy_to_mapping) *write;
	typeof(gdr_copy_from_mapping) *read;
	gdr_t g;
};

static struct library ours[OURS];
static long (*golib_sum)(long n);
static unsigned long long memory[2];	/* of a pool, which is found by a watched export, and plain */

static void *find(void *lib, const char *name)
{
	void *f = dlsym(lib, name);

	if (!f) {
		fprintf(stderr, "%s\n", dlerror());
		_exit(10);
	}
	return f;
}

static void *load(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		_exit(11);
	}
	return lib;
}

static void load_ours(struct library *l)
{
	l->lib = load(l->path);
	l->open = find(l->lib, "gdr_open");
	l->close = find(l->lib, "gdr_close");
	l->pin = find(l->lib, "gdr_pin_buffer");
	l->unpin = find(l->lib, "gdr_unpin_buffer");
	l->map = find(l->lib, "gdr_map");
	l->unmap = find(l->lib, "gdr_unmap");
	l->write = find(l->lib, "gdr_copy_to_mapping");
	l->read = find(l->lib, "gdr_copy_from_mapping");
}

/* One pin's life; each thread has a word of its own in the memory. */
static int cycle(const struct library *l, unsigned long long addr, long word)
{
	long got = 0;
	void *va = NULL;
	gdr_mh_t mh;
	int rc = l->pin(l->g, addr, BYTES, 0, 0, &mh);

	if (rc)
		return rc;
	rc = l->map(l->g, mh, &va, BYTES);
	if (!rc) {
		long *at = (long *)va + BYTES / 16 + word;

		rc = l->write(mh, at, &word, sizeof(word));
		rc = rc ? rc : l->read(mh, &got, at, sizeof(got));
		rc = rc ? rc : got != word ? EILSEQ : 0;
		rc = l->unmap(l->g, mh, va, BYTES) ?: rc;
	}
	return l->unpin(l->g, mh) ?: rc;
}

static void *pin_on(void *arg)
{
	static _Atomic long threads;
	long me = atomic_fetch_add(&threads, 1) + 1, rc = 0;

	for (int i = 0; i < PINS && !rc; i++)
		rc = cycle(arg, memory[i & 1], me);
	return (void *)rc;
}

static void *sum_on(void *arg)
{
	long wrong = 0;

	(void)arg;
	for (int i = 0; i < PINS; i++)
		wrong |= golib_sum(100) != 5050;
	return (void *)wrong;
}

/* Each library opens anew in a child, while others pin in the parent. */
static int fork_once(void)
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		alarm(60);
		for (int i = 0; i < OURS; i++) {
			gdr_t g = ours[i].open();

			if (!g || ours[i].close(g))
				_exit(1 + i);
		}
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return status;
}

static void get_memory(void)
{
	void *cuda = load("libcuda.so.1"), *ctx;
	int (*init)(unsigned int) = find(cuda, "cuInit");
	int (*retain)(void **, int) = find(cuda, "cuDevicePrimaryCtxRetain");
	int (*set)(void *) = find(cuda, "cuCtxSetCurrent");
	int (*pool)(unsigned long long *, size_t, void *) = find(cuda, "cuMemAllocAsync");
	int (*plain)(unsigned long long *, size_t) = find(cuda, "cuMemAlloc_v2");
	int (*wait)(void) = find(cuda, "cuCtxSynchronize");

	if (init(0) || retain(&ctx, 0) || set(ctx) || pool(&memory[0], 4 << 20, NULL) || plain(&memory[1], BYTES) || wait())
		_exit(12);
}

/* Returns 0, or which step failed. */
static int use_all(void)
{
	pthread_t thread[OURS][THREADS], sum;
	void *rc;

	get_memory();
	for (int i = 0; i < OURS; i++) {
		ours[i].g = ours[i].open();
		if (!ours[i].g)
			return 20 + i;
	}
	for (int i = 0; i < OURS * THREADS; i++)
		if (pthread_create(&thread[i % OURS][i / OURS], NULL, pin_on, &ours[i % OURS]))
			return 22;
	if (pthread_create(&sum, NULL, sum_on, NULL))
		return 22;
	for (int i = 0; i < CHILDREN; i++) {
		int status = fork_once();

		if (status) {
			fprintf(stderr, "# child %d: wait status %#x\n", i, status);
			return 23;
		}
	}
	for (int i = 0; i < OURS * THREADS; i++) {
		pthread_join(thread[i % OURS][i / OURS], &rc);
		if (rc) {
			fprintf(stderr, "# a pin by library %d: %s\n", i % OURS, strerror((long)rc));
			return 30 + i % OURS;
		}
	}
	pthread_join(sum, &rc);
	if (rc)
		return 32;
	for (int i = 0; i < OURS; i++)
		if (ours[i].close(ours[i].g))
			return 40 + i;
	return 0;
}

int main(int argc, char **argv)
{
	/* Indices of the arguments. */
	static const int order[][3] = { { 1, 2, 3 }, { 2, 1, 3 }, { 3, 1, 2 }, { 1, 3, 2 } };
	struct tap tap = { 0 };

	if (argc != 4) {
		fprintf(stderr, "usage: libraries OURS COPY GO\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
		int status = -1;
		pid_t child;

		fflush(stdout);
		child = fork();
		if (!child) {
			int n = 0;

			alarm(200);
			for (int j = 0; j < 3; j++) {
				if (order[i][j] == 3) {
					golib_sum = find(load(argv[3]), "golib_sum");
					continue;
				}
				ours[n].path = argv[order[i][j]];
				load_ours(&ours[n++]);
			}
			_exit(use_all());
		}
		waitpid(child, &status, 0);
		if (!tap_ok(&tap, !status, "libraries %d, %d, %d, in this order", order[i][0], order[i][1], order[i][2]))
			printf("# wait status %#x\n", status);
	}
	return tap_done(&tap);
}
