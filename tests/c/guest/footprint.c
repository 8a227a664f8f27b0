// SPDX-License-Identifier: MIT
/*
 * guest/footprint.c - what the library costs a host that does not use it just now.
 */
#include "cuda.h"

#include <sched.h>

/* CPU time of this process. */
static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* What a process has one of, and a runtime that thinks it is alone may set. */
struct modes {
	struct rlimit limits[RLIM_NLIMITS];
	cpu_set_t cpus;
	char name[16];
	int dumpable, slack;
};

static void look(struct modes *m)
{
	memset(m, 0, sizeof(*m));
	for (int i = 0; i < RLIM_NLIMITS; i++)
		expect_is(getrlimit(i, &m->limits[i]), 0);
	expect_is(sched_getaffinity(0, sizeof(m->cpus), &m->cpus), 0);
	expect_is(prctl(PR_GET_NAME, m->name), 0);
	m->dumpable = prctl(PR_GET_DUMPABLE);
	m->slack = prctl(PR_GET_TIMERSLACK);
}

static void expect_same(const struct modes *before)
{
	struct modes now;

	look(&now);
	for (int i = 0; i < RLIM_NLIMITS; i++) {
		if (now.limits[i].rlim_cur != before->limits[i].rlim_cur)
			note("limit %d is %lu, was %lu", i, (unsigned long)now.limits[i].rlim_cur,
			     (unsigned long)before->limits[i].rlim_cur);
		expect(now.limits[i].rlim_cur == before->limits[i].rlim_cur);
		expect(now.limits[i].rlim_max == before->limits[i].rlim_max);
	}
	expect(CPU_EQUAL(&now.cpus, &before->cpus));
	expect(!strcmp(now.name, before->name));
	expect_is(now.dumpable, before->dumpable);
	expect_is(now.slack, before->slack);
}

static void open_in_child(void *before)
{
	gdr_t g = open_or_fail();

	expect_same(before);
	expect_is(gdr_close(g), 0);
}

static void modes(void)
{
	struct rlimit files;
	struct modes before;
	gdr_t g;

	/* Not the highest one that is allowed, as in most hosts. */
	expect_is(getrlimit(RLIMIT_NOFILE, &files), 0);
	expect(files.rlim_max > 256);
	files.rlim_cur = 256;
	expect_is(setrlimit(RLIMIT_NOFILE, &files), 0);
	look(&before);
	g = open_or_fail();
	expect_same(&before);
	expect(in_child("a child that opens anew", open_in_child, &before, 20));
	if (on_doubles())
		whole_life(g, 1);
	expect_is(gdr_close(g), 0);
	expect_same(&before);
}

/*
 * CPU time so far of the library's threads, by their name. A real driver's threads
 * ("cuda-EvtHandlr", "[vkps] Update" of driver 580.159.04) wake when they like:
 * they do not count.
 */
static double library_seconds(void)
{
	DIR *d = opendir("/proc/self/task");
	double seconds = 0;
	int n = 0;

	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); ) {
		pid_t tid = atoi(e->d_name);
		struct timespec t;

		if (tid <= 0 || !is_named(e->d_name, "gdrapi"))
			continue;
		n++;
		/* The clock of pthread_getcpuclockid, which wants a pthread_t. */
		if (!clock_gettime(~tid * 8 | 6, &t))
			seconds += t.tv_sec + t.tv_nsec / 1e9;
	}
	closedir(d);
	expect(n > 0);
	return seconds;
}

/* Seconds. 0 is what is seen; a thread that woke every 10 ms took 0.041 in 3 s. */
#define IDLE_LIMIT 0.0005

/* Of the process where no real driver is up; reading the clocks takes 0.0003. */
#define TICK 0.01

static void idle(void)
{
	long seconds = scaled(guest_long ? 10 : 3);
	double all, library;
	struct buffer b;
	gdr_t g = open_or_fail();

	make_buffer(g, &b, 64 * KIB);
	check_copies(&b, 1);
	/* What a start leaves to do is done soon after it. */
	sleep_us(1000000);
	library = library_seconds();
	all = cpu_seconds();
	sleep_us(seconds * 1000000l);
	all = cpu_seconds() - all;
	library = library_seconds() - library;
	note("%ld s: %.0f us of CPU time in the library's threads, %.0f us in the process",
	     seconds, library * 1e6, all * 1e6);
	expect(library <= IDLE_LIMIT);
	expect(all < TICK || !on_doubles());
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* Of the library alone, so only where the driver is the simulated one. */
static void memory_of_open(void)
{
	long before;
	gdr_t g;

	if (!backend_is("dmabuf"))
		skip_case("measured on dma-buf (GDRCOPY_BACKEND=dmabuf)");
	needs_doubles("a real libcuda brings memory of its own");
	/* The first reading allocates what the next one uses again. */
	rss_kib();
	before = rss_kib();
	g = open_or_fail();
	expect(rss_kib() - before < 8 * 1024);
	expect_is(gdr_close(g), 0);
}

#define SAMPLES 100

struct target {
	gdr_t g;
	struct buffer b;
};

/* Each call that takes something, with the call that gives it back, and calls that are refused. */
static void cycle(const struct target *t)
{
	struct buffer b = t->b;
	gdr_mh_t mh;
	int v;

	map_buffer(t->g, &b);
	expect_is(gdr_unmap(t->g, b.mh, b.va, b.size), 0);
	expect_is(gdr_unpin_buffer(t->g, b.mh), 0);
	alloc_buffer(t->g, &b, 64 * KIB);
	expect_is(gdr_mem_free(t->g, b.mem), 0);
	expect_is(gdr_close(open_or_fail()), 0);
	expect_is(gdr_pin_buffer(t->g, 0, 0, 0, 0, &mh), EINVAL);
	expect_is(gdr_unpin_buffer(t->g, (gdr_mh_t){ 1 }), EINVAL);
	expect_is(gdr_get_attribute(t->g, GDR_ATTR_MAX, &v), EINVAL);
	expect_is(gdr_close((gdr_t)0x10), EINVAL);
}

static long least_rss(const struct target *t, long samples, long each)
{
	long least = LONG_MAX;

	while (samples--) {
		for (long i = 0; i < each; i++)
			cycle(t);
		if (rss_kib() < least)
			least = rss_kib();
	}
	return least;
}

/*
 * RSS is sampled: the least of the last fifth may not pass the least of the third by more than
 * the collector makes it swing, which is 140 KiB with doubles. The greatest would tell of the
 * collector alone, which may be late on a busy machine; what is lost is in the least, too. With a
 * real driver there are few cycles, which may all lie before the first collection, at 4 MB of heap.
 */
static void cycles(void)
{
	long each = scaled(on_doubles() ? (guest_long ? 4000 : 150) : (guest_long ? 100 : 10));
	long middle, last, slack_kib = (on_doubles() ? 1 : 8) * 1024, fds, threads;
	struct target t = { .g = open_with_context() };

	alloc_buffer(t.g, &t.b, 64 * KIB);
	/* The core's heap grows to the size at which it is first collected. */
	least_rss(&t, SAMPLES * 2 / 5, each);
	fds = count_fds();
	threads = count_threads();
	middle = least_rss(&t, SAMPLES / 5, each);
	least_rss(&t, SAMPLES / 5, each);
	last = least_rss(&t, SAMPLES / 5, each);
	note("%ld cycles: at least %ld KiB of RSS in the middle and %ld at the end", SAMPLES * each, middle, last);
	expect(last <= middle + slack_kib);
	expect_is(count_fds(), fds);
	expect(count_threads() <= threads + 2);
	expect_is(gdr_mem_free(t.g, t.b.mem), 0);
	expect_is(gdr_close(t.g), 0);
}

const struct guest_case cases[] = {
	{ "limits and modes stay as they were", modes, 60, 0 },
	{ "no CPU time when idle with a mapping", idle, 60, 0 },
	{ "gdr_open takes less than 8 MB", memory_of_open, 60, 0 },
	{ "calls that take, give back, or are refused: memory stays flat", cycles, 240, 7200 },
	{ 0 }
};
