// SPDX-License-Identifier: MIT
/*
 * guest/footprint.c - what the library costs a host that does not use it just now.
 *
 * This program is linked to the library, as UCX is.
 */
#include "cuda.h"
#include "every.h"

#include <fenv.h>
#include <sched.h>
#include <sys/stat.h>

/* CPU time of this process. */
static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

extern char **environ;

static void expect_no_start(void)
{
	expect_is(count_threads(), 1);
	for (int sig = 1; sig <= 64; sig++) {
		struct sigaction sa;

		if (sigaction(sig, NULL, &sa))
			continue;
		expect(sa.sa_handler == SIG_DFL || sa.sa_handler == SIG_IGN);
	}
}

/* The loader starts nothing before main; nor does a call, for without a gdr_open no handle is good. */
static void linked(void)
{
	const unsigned long forged[] = { 0, 1, 1ul << 52, ~0ul };
	int major = 0;

	expect(dlopen("libgdrapi.so.2", RTLD_NOW | RTLD_NOLOAD) != NULL);
	expect_no_start();
	gdr_runtime_get_version(&major, NULL);
	expect_is(major, 2);
	for (size_t i = 0; i < sizeof(forged) / sizeof(forged[0]); i++)
		for (size_t f = 0; f < EVERY; f++)
			expect_is(every[f].call(&(struct args){
				.g = (gdr_t)forged[i], .mh = { forged[i] }, .mem = { forged[i] }, .cache = { forged[i] },
				.mapped = { forged[i] }, .addr = 4096, .size = 4096, .va = &major,
			}), EINVAL);
	expect_no_start();
}

/* What a process has one of, and a runtime that thinks it is alone may set. */
struct modes {
	struct rlimit limits[RLIM_NLIMITS];
	cpu_set_t cpus;
	char name[16], cwd[PATH_MAX];
	long environment;	/* a sum over its text */
	int dumpable, slack, nice, scheduler, rounding, exceptions, flags[3];
	mode_t mask;
};

static void look(struct modes *m)
{
	memset(m, 0, sizeof(*m));
	for (int i = 0; i < RLIM_NLIMITS; i++)
		expect_is(getrlimit(i, &m->limits[i]), 0);
	expect_is(sched_getaffinity(0, sizeof(m->cpus), &m->cpus), 0);
	expect_is(prctl(PR_GET_NAME, m->name), 0);
	expect(getcwd(m->cwd, sizeof(m->cwd)) != NULL);
	for (char **e = environ; *e; e++)
		for (const char *p = *e; *p; p++)
			m->environment = m->environment * 31 + *p;
	m->dumpable = prctl(PR_GET_DUMPABLE);
	m->slack = prctl(PR_GET_TIMERSLACK);
	m->nice = getpriority(PRIO_PROCESS, 0);
	m->scheduler = sched_getscheduler(0);
	m->rounding = fegetround();
	m->exceptions = fetestexcept(FE_ALL_EXCEPT);
	for (int fd = 0; fd < 3; fd++)
		m->flags[fd] = fcntl(fd, F_GETFL);
	m->mask = umask(077);
	umask(m->mask);
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
	expect(!strcmp(now.cwd, before->cwd));
	expect_is(now.environment, before->environment);
	expect_is(now.dumpable, before->dumpable);
	expect_is(now.slack, before->slack);
	expect_is(now.nice, before->nice);
	expect_is(now.scheduler, before->scheduler);
	expect_is(now.rounding, before->rounding);
	expect_is(now.exceptions, before->exceptions);
	for (int fd = 0; fd < 3; fd++)
		expect_is(now.flags[fd], before->flags[fd]);
	expect_is(now.mask, before->mask);
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
	expect_is(fesetround(FE_UPWARD), 0);
	feclearexcept(FE_ALL_EXCEPT);
	look(&before);
	g = open_or_fail();
	expect_same(&before);
	expect(in_child("a child that opens anew", open_in_child, &before, 20));
	/* Of the wait for it. */
	feclearexcept(FE_ALL_EXCEPT);
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

static void idle(void *with_buffer)
{
	long seconds = scaled(guest_long ? 10 : 3);
	double all, library;
	struct buffer b;
	gdr_t g = open_or_fail();

	if (with_buffer) {
		make_buffer(g, &b, 64 * KIB);
		check_copies(&b, 1);
	}
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
	expect(all < TICK || (with_buffer && !on_doubles()));
	if (with_buffer)
		drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* Of the library alone, so only where the driver is the simulated one. */
static void memory_of_open(void)
{
	long before, opened, lived;
	gdr_t g;

	if (!backend_is("dmabuf"))
		skip_case("measured on dma-buf (GDRCOPY_BACKEND=dmabuf)");
	needs_doubles("a real libcuda brings memory of its own");
	/* The first reading allocates what the next ones use again. */
	rss_kib();
	before = rss_kib();
	g = open_or_fail();
	opened = rss_kib();
	whole_life(g, 1);
	lived = rss_kib();
	note("RSS %ld KiB, %ld KiB after gdr_open, %ld KiB after a buffer's life",
	     before, opened, lived);
	expect(opened - before < 8 * 1024);
	expect_is(gdr_close(g), 0);
}

#define SAMPLES 100

/* With a real driver, as many cycles as fit into some seconds. */
static long affordable(void (*cycle)(void *), void *arg, long times)
{
	const double seconds = 4 * guest_scale * (guest_long ? 10 : 1);
	double start, each;
	long n = 0;

	if (on_doubles())
		return times;
	/* The first starts the driver. */
	cycle(arg);
	start = seconds_now();
	while (n < 20 || seconds_now() < start + 0.1) {
		cycle(arg);
		n++;
	}
	each = (seconds_now() - start) / n;
	n = seconds / each;
	note("%.1f us a cycle, so %ld cycles", each * 1e6, n < times ? n : times);
	return n < SAMPLES ? SAMPLES : n < times ? n : times;
}

/*
 * What the collector makes RSS swing: 140 KiB was seen with doubles. So few cycles
 * as with a real driver may all lie before the first collection, at 4 MB of heap.
 */
static long slack_kib(void)
{
	return (on_doubles() ? 1 : 8) * 1024;
}

/*
 * Many calls, and what they leave behind. RSS is sampled: the least of the last
 * fifth may not pass the least of the middle fifth by more than slack_kib. The
 * greatest would tell of the collector alone, which may be late on a busy
 * machine; what is lost is in the least, too.
 */
static void cycles(void (*cycle)(void *), void *arg, long wanted, const char *what)
{
	long middle = LONG_MAX, last = LONG_MAX, most = 0, start, fds, threads;
	long times = affordable(cycle, arg, wanted);

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
		if (s >= SAMPLES * 8 / 10 && kib < last)
			last = kib;
		else if (s >= SAMPLES * 4 / 10 && s < SAMPLES * 6 / 10 && kib < middle)
			middle = kib;
		if (kib > most)
			most = kib;
	}
	note("%ld %s: RSS %ld KiB at first, at least %ld in the middle and %ld at the end, %ld at most",
	     times, what, start, middle, last, most);
	expect(last <= middle + slack_kib());
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

struct many {
	void (*cycle)(void *target);
	long times, long_times;
	const char *what;
};

static void with_target(void *many)
{
	const struct many *m = many;
	struct target t = { .g = open_with_context() };

	alloc_buffer(t.g, &t.b, 64 * KIB);
	cycles(m->cycle, &t, scaled(guest_long ? m->long_times : m->times), m->what);
	expect_is(gdr_mem_free(t.g, t.b.mem), 0);
	expect_is(gdr_close(t.g), 0);
}

static void opens(void)
{
	cycles(open_close, NULL, scaled(guest_long ? 400000 : 15000), "open/close");
}

const struct guest_case cases[] = {
	{ "linking starts nothing", linked, 60, 0 },
	{ "limits, modes and the environment stay as they were", modes, 60, 0 },
	{ "no CPU time when idle after gdr_open", NULL, 60, 0, idle, NULL },
	{ "no CPU time when idle with a mapping", NULL, 60, 0, idle, (void *)true },
	{ "gdr_open takes less than 8 MB", memory_of_open, 60, 0 },
	{ "pin and unpin: memory stays flat", NULL, 240, 7200, with_target,
	  &(struct many){ pin_unpin, 25000, 10000000, "pin/unpin" } },
	{ "pin, map, copy, unmap, unpin: the same", NULL, 240, 3600, with_target,
	  &(struct many){ map_copy_unmap, 15000, 500000, "pin/map/copy/unmap/unpin" } },
	{ "open and close: the same", opens, 240, 3600 },
	{ "gdr_mem_alloc and gdr_mem_free: the same", NULL, 240, 3600, with_target,
	  &(struct many){ alloc_free, 15000, 400000, "gdr_mem_alloc/gdr_mem_free" } },
	{ "refused calls: the same", NULL, 240, 3600, with_target,
	  &(struct many){ refused, 40000, 5000000, "refused calls" } },
	{ 0 }
};
