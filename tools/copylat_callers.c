/* SPDX-License-Identifier: MIT */
/*
 * copylat_callers.c - what a copy takes when several threads make copies of their
 * own at the same time, through one mapping and through one each.
 *
 * Each thread has a region of its own, so what they share is the library, the CPUs
 * and the link. Bare loops share the last two only.
 */
#include "copylat_modes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CALLERS_MAX 16
#define REGION 65536u
#define ROW 64u		/* copies between two looks at whether it is over */

static const int callers[] = { 1, 2, 4, 8, 14 };
static const size_t sizes[] = { 8, 64, 256, 4096 };

#define NCALLERS (sizeof(callers) / sizeof(callers[0]))
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

/* Who copies. A NULL loop: the library. */
static const struct {
	bool read;
	const char *who;
	const char *loop;	/* of bench_loops; of 8 bytes it is "plain" */
	bool apart;		/* each has a mapping of its own */
} ways[] = {
	{ false, "gdrcopy", NULL, false },
	{ false, "gdrcopy, a mapping each", NULL, true },
	{ false, "avx2", "avx2", false },
	{ false, "movdir64b", "movdir64b", false },
	{ true, "gdrcopy", NULL, false },
	{ true, "gdrcopy, a mapping each", NULL, true },
	{ true, "avx2", "avx2", false },
};

#define NWAYS (sizeof(ways) / sizeof(ways[0]))

struct caller {
	_Alignas(128) struct bench_op op;
	bench_run *run;
	size_t copies;
};

static _Atomic bool go, over;
static _Atomic int ready;

static void *copy_until_over(void *arg)
{
	struct caller *c = arg;

	c->run(&c->op, ROW);	/* a thread's first copy takes longer */
	atomic_fetch_add(&ready, 1);
	while (!atomic_load(&go))
		;
	do {
		c->run(&c->op, ROW);
		c->copies += ROW;
	} while (!atomic_load_explicit(&over, memory_order_relaxed));
	return NULL;
}

static bench_run *run_of(const struct copylat *c, size_t way, size_t size)
{
	const char *name = size == 8 ? "plain" : ways[way].loop;

	if (!ways[way].loop)
		return ways[way].read ? bench_gdr_read : bench_gdr_write;
	for (const struct bench_loop *l = bench_loops; l->name; l++) {
		struct bench_op op = c->base;

		op.size = size;
		if (l->read == ways[way].read && !strcmp(l->name, name) &&
		    copylat_allowed(c->map, l, &op))
			return bench_loop_of(l, size);
	}
	return NULL;
}

/*
 * Fresh bytes in n regions of the side that the copies read, others in the other side.
 * gpu is what is in GPU memory then.
 */
static void fresh(const struct copylat *c, uint8_t *gpu, int n)
{
	static uint64_t seed = 1;

	bench_fill(gpu, (size_t)n * REGION, seed++);
	bench_fill(c->base.host, (size_t)n * REGION, seed++);
	bench_gpu_put(c->gpu, c->base.addr, gpu, (size_t)n * REGION);
}

/* Compares both sides of what each caller moved. */
static void verify(const struct copylat *c, uint8_t *gpu, size_t way, size_t size, int n)
{
	bench_gpu_get(c->gpu, gpu, c->base.addr, (size_t)n * REGION);
	for (int i = 0; i < n; i++)
		if (memcmp((uint8_t *)c->base.host + (size_t)i * REGION,
			   gpu + (size_t)i * REGION, size))
			bench_die("%s of %zu bytes by caller %d of %d, %s: wrong bytes",
				  ways[way].read ? "read" : "write", size, i + 1, n, ways[way].who);
}

/* One figure: n threads for the budget. */
static void time_callers(const struct copylat *c, const struct bench_map *maps, size_t way,
			 size_t size, int n)
{
	static uint8_t gpu[CALLERS_MAX * REGION];
	static struct caller caller[CALLERS_MAX];
	uint64_t budget = (uint64_t)c->gpu->opts->budget_ms * 1000000u, t0, ns;
	bench_run *run = run_of(c, way, size);
	pthread_t threads[CALLERS_MAX];
	size_t copies = 0;

	if (!run)
		return;
	atomic_store(&go, false);
	atomic_store(&over, false);
	atomic_store(&ready, 0);
	fresh(c, gpu, n);
	for (int i = 0; i < n; i++) {
		const struct bench_map *m = ways[way].apart ? &maps[i] : c->map;

		caller[i] = (struct caller){ .op = c->base, .run = run };
		caller[i].op.size = size;
		caller[i].op.mh = m->mh;
		caller[i].op.dev = m->p + c->gpu->opts->offset + (size_t)i * REGION;
		caller[i].op.host = (uint8_t *)c->base.host + (size_t)i * REGION;
		bench_rc(pthread_create(&threads[i], NULL, copy_until_over, &caller[i]),
			 "pthread_create");
	}
	while (atomic_load(&ready) < n)
		usleep(100);
	t0 = bench_monotonic_ns();
	atomic_store(&go, true);
	usleep((useconds_t)(budget / 1000));
	atomic_store(&over, true);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	ns = bench_monotonic_ns() - t0;
	for (int i = 0; i < n; i++) {
		bench_rc(caller[i].op.rc, "a copy");
		copies += caller[i].copies;
	}
	verify(c, gpu, way, size, n);
	bench_row(c->result, &(struct bench_row){
		.op = ways[way].read ? "read" : "write", .who = ways[way].who, .mode = "callers",
		.size = size, .threads = n, .batch = ROW, .samples = copies / ROW, .moves = true,
		.p0 = (double)ns / (double)copies, .p50 = (double)ns / (double)copies,
	});
}

static size_t steps_callers(const struct bench_opts *o)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	size_t k = 0;

	(void)o;
	while (k < NCALLERS && callers[k] <= cpus)
		k++;
	return k * NSIZES * NWAYS;
}

static void run_callers(const struct copylat *c)
{
	static struct bench_map maps[CALLERS_MAX];
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	for (int i = 0; i < CALLERS_MAX; i++)
		bench_map_make(c->gpu, &maps[i], c->buf);
	for (size_t k = 0; k < NCALLERS && callers[k] <= cpus; k++)
		for (size_t s = 0; s < NSIZES; s++)
			for (size_t w = 0; w < NWAYS; w++) {
				progress("%d callers, %zu bytes", callers[k], sizes[s]);
				time_callers(c, maps, w, sizes[s], callers[k]);
			}
	for (int i = 0; i < CALLERS_MAX; i++)
		bench_map_drop(c->gpu, &maps[i]);
}

static const struct bench_row *find(const struct bench_result *r, size_t way, size_t size, int n)
{
	for (size_t i = 0; i < r->nrows; i++)
		if (r->rows[i].size == size && r->rows[i].threads == n &&
		    !strcmp(r->rows[i].who, ways[way].who) &&
		    !strcmp(r->rows[i].op, ways[way].read ? "read" : "write"))
			return &r->rows[i];
	return NULL;
}

static void print_callers(const struct bench_result *r, const struct bench_opts *o)
{
	(void)o;
	bench_facts(r, stdout);
	for (size_t w = 0; w < NWAYS; w++) {
		printf("\n%s by %s: what one copy takes its caller, and millions a second of all\n%9s",
		       ways[w].read ? "reads" : "writes", ways[w].who, "bytes");
		for (size_t k = 0; k < NCALLERS; k++)
			printf("    %2d callers     ", callers[k]);
		putchar('\n');
		for (size_t s = 0; s < NSIZES; s++) {
			printf("%9zu", sizes[s]);
			for (size_t k = 0; k < NCALLERS; k++) {
				const struct bench_row *row = find(r, w, sizes[s], callers[k]);
				char text[32];

				if (!row) {
					printf(" %9s %8s", "-", "-");
					continue;
				}
				bench_ns_text(text, sizeof(text), row->p50 * callers[k]);
				printf(" %9s %8.2f", text, 1000 / row->p50);
			}
			putchar('\n');
		}
	}
}

const struct copylat_mode copylat_callers = {
	.run = run_callers, .print = print_callers, .room = CALLERS_MAX * REGION,
	.steps = steps_callers, .name = "--mode callers",
	.unused = (const char[]){ OPT_SIZE, OPT_WRITES, OPT_READS, OPT_EVICTED, 0 },
};
