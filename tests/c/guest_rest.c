// SPDX-License-Identifier: MIT
/*
 * guest_rest.c - what the library costs a host that does not use it just now.
 *
 * This program is linked to the library, as UCX is.
 */
#include "guest_common.h"

/* Of the process: utime + stime in clock ticks, as /proc counts them. */
static long cpu_ticks(void)
{
	unsigned long user = 0, sys = 0;
	char line[1024], *p;
	FILE *f = fopen("/proc/self/stat", "re");

	expect(f && fgets(line, sizeof(line), f));
	fclose(f);
	/* The name in parentheses may hold anything. */
	p = strrchr(line, ')');
	expect(p && sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
			   &user, &sys) == 2);
	return user + sys;
}

/* The same to the microsecond. */
static double cpu_seconds(void)
{
	struct rusage r;

	expect_is(getrusage(RUSAGE_SELF, &r), 0);
	return r.ru_utime.tv_sec + r.ru_stime.tv_sec +
	       (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

/* What the loader did for a linked program, before main. */
static void linked(void)
{
	int major = 0;

	expect(dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_NOLOAD) != NULL);
	expect_is(count_threads(), 1);
	for (int sig = 1; sig <= 64; sig++) {
		struct sigaction sa;

		if (sigaction(sig, NULL, &sa))
			continue;
		expect(sa.sa_handler == SIG_DFL || sa.sa_handler == SIG_IGN);
	}
	gdr_runtime_get_version(&major, NULL);
	expect_is(major, 2);
	expect_is(count_threads(), 1);
}

static void idle(bool with_buffer)
{
	int seconds = guest_long ? 10 : 3;
	struct buffer b;
	gdr_t g = open_or_fail();
	double cpu;
	long ticks;

	if (with_buffer) {
		make_buffer(g, &b, 64 * KIB);
		check_copies(&b, 1);
	}
	/* What a start leaves to do is done soon after it. */
	sleep_us(1000000);
	ticks = cpu_ticks();
	cpu = cpu_seconds();
	sleep_us(seconds * 1000000l);
	note("%.6f s of CPU time in %d s", cpu_seconds() - cpu, seconds);
	expect_is(cpu_ticks() - ticks, 0);
	if (with_buffer)
		drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

static void idle_open(void)
{
	idle(false);
}

static void idle_mapped(void)
{
	idle(true);
}

/* Of the library alone, so only where the driver is the simulated one. */
static void memory_of_open(void)
{
	const char *backend = getenv("GDRCOPY_BACKEND");
	long before, opened, lived;
	gdr_t g;

	if (!backend || strcmp(backend, "dmabuf"))
		skip_case("measured on dma-buf (GDRCOPY_BACKEND=dmabuf)");
	/* The first reading allocates what the next ones use again. */
	rss_kib();
	before = rss_kib();
	g = open_or_fail();
	opened = rss_kib();
	if (!on_doubles())
		skip_case("a real libcuda brings memory of its own");
	whole_life(g, 1);
	lived = rss_kib();
	note("RSS %ld KiB, %ld KiB after gdr_open, %ld KiB after a buffer's life",
	     before, opened, lived);
	expect(opened - before < 8 * 1024);
	expect_is(gdr_close(g), 0);
}

/*
 * Many calls, and what they leave behind. RSS is sampled: the greatest of the
 * last tenth may not pass the greatest of the middle by more than slack.
 */
#define SAMPLES 100

static void cycles(void (*cycle)(void *), void *arg, long times, const char *what)
{
	const long slack_kib = 1024;	/* what the collector's cycle makes RSS swing */
	long middle = 0, last = 0, start, fds = 0, threads;

	/* The core's heap grows to the size at which it is first collected. */
	for (long i = 0; i < times / 4; i++)
		cycle(arg);
	fds = count_fds();
	threads = count_threads();
	start = rss_kib();
	for (int s = 0; s < SAMPLES; s++) {
		long kib;

		for (long i = 0; i < times / SAMPLES; i++)
			cycle(arg);
		kib = rss_kib();
		if (s >= SAMPLES * 9 / 10 && kib > last)
			last = kib;
		else if (s >= SAMPLES * 4 / 10 && s < SAMPLES * 6 / 10 && kib > middle)
			middle = kib;
	}
	note("%ld %s: RSS %ld KiB at first, %ld KiB in the middle, %ld KiB at the end",
	     times, what, start, middle, last);
	expect(last <= middle + slack_kib);
	expect_is(count_fds(), fds);
	expect(count_threads() <= threads + 2);
}

struct target {
	gdr_t g;
	struct buffer b;
};

static void pin_unpin(void *target)
{
	struct target *t = target;
	gdr_mh_t mh;

	expect_is(gdr_pin_buffer(t->g, t->b.dptr, t->b.size, 0, 0, &mh), 0);
	expect_is(gdr_unpin_buffer(t->g, mh), 0);
}

static void map_copy_unmap(void *target)
{
	struct target *t = target;
	struct buffer b = t->b;

	map_buffer(t->g, &b);
	check_copies(&b, 1);
	expect_is(gdr_unmap(t->g, b.mh, b.va, b.size), 0);
	expect_is(gdr_unpin_buffer(t->g, b.mh), 0);
}

static void open_close(void *unused)
{
	(void)unused;
	expect_is(gdr_close(open_or_fail()), 0);
}

static void alloc_free(void *target)
{
	struct target *t = target;
	struct buffer b;

	alloc_buffer(t->g, &b, 64 * KIB);
	expect_is(gdr_mem_free(t->g, b.mem), 0);
}

static void refused(void *target)
{
	struct target *t = target;
	gdr_mh_t mh;
	int v;

	expect_is(gdr_pin_buffer(t->g, 0, 0, 0, 0, &mh), EINVAL);
	expect_is(gdr_unpin_buffer(t->g, (gdr_mh_t){ 1 }), EINVAL);
	expect_is(gdr_get_attribute(t->g, GDR_ATTR_MAX, &v), EINVAL);
	expect_is(gdr_close((gdr_t)0x10), EINVAL);
}

static void with_target(void (*cycle)(void *), long times, const char *what)
{
	struct target t = { .g = open_or_fail() };

	alloc_buffer(t.g, &t.b, 64 * KIB);
	cycles(cycle, &t, times, what);
	expect_is(gdr_mem_free(t.g, t.b.mem), 0);
	expect_is(gdr_close(t.g), 0);
}

static void pins(void)
{
	with_target(pin_unpin, guest_long ? 10000000 : 100000, "pin/unpin");
}

static void maps(void)
{
	with_target(map_copy_unmap, guest_long ? 500000 : 60000, "pin/map/copy/unmap/unpin");
}

static void allocs(void)
{
	with_target(alloc_free, guest_long ? 400000 : 60000, "gdr_mem_alloc/gdr_mem_free");
}

static void refusals(void)
{
	with_target(refused, guest_long ? 5000000 : 150000, "refused calls");
}

static void opens(void)
{
	cycles(open_close, NULL, guest_long ? 400000 : 60000, "open/close");
}

static const struct guest_case cases[] = {
	{ "linking starts nothing", linked, 60, 0 },
	{ "no CPU time when idle after gdr_open", idle_open, 60, 0 },
	{ "no CPU time when idle with a mapping", idle_mapped, 60, 0 },
	{ "gdr_open takes less than 8 MB", memory_of_open, 60, 0 },
	{ "pin and unpin: memory stays flat", pins, 240, 7200 },
	{ "pin, map, copy, unmap, unpin: the same", maps, 240, 3600 },
	{ "open and close: the same", opens, 240, 3600 },
	{ "gdr_mem_alloc and gdr_mem_free: the same", allocs, 240, 3600 },
	{ "refused calls: the same", refusals, 240, 3600 },
	{ NULL, NULL, 0, 0 }
};

int main(int argc, char **argv)
{
	return guest_main(argc, argv, cases);
}
