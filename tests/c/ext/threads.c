// SPDX-License-Identifier: MIT
/*
 * ext/threads.c - GDRCOPY_READ_THREADS, GDRCOPY_WRITE_THREADS and
 * gdr_set_copy_threads in a host.
 *
 * The library starts no more threads than the CPUs that it may use, less one,
 * so how many a case expects depends on the machine. copy/pool.c tests many.
 */
#include "ext/copies.h"

#include <sched.h>

#define BYTES (1 * MIB)
#define COPIERS 4
#define WANTED 8

static _Atomic bool no_threads;

/* The C library's, for the library too: it may be told that there are no threads left. */
int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

	if (atomic_load(&no_threads))
		return EAGAIN;
	*(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
	return create(t, attr, f, arg);
}

static long cpus(void)
{
	cpu_set_t set;

	expect_is(sched_getaffinity(0, sizeof(set), &set), 0);
	return CPU_COUNT(&set);
}

/* Threads that copies are shared by, when n are wanted. */
static long workers_for(long n)
{
	return (n < cpus() ? n : cpus()) - 1;
}

/* The sum of what of says of each thread that has the library's name for them. */
static long sum_workers(long (*of)(const char *tid))
{
	DIR *d = opendir("/proc/self/task");
	long n = 0;

	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); )
		if (is_named(e->d_name, "gdrcopy"))
			n += of(e->d_name);
	closedir(d);
	return n;
}

static long one(const char *tid)
{
	return 1;
}

static long count_workers(void)
{
	return sum_workers(one);
}

/* A thread takes its name when it first runs. */
static void expect_workers(long want)
{
	for (int i = 0; i < 400 && count_workers() < want; i++)
		sleep_us(5000);
	expect_is(count_workers(), want);
}

static void want_threads(const char *reads, const char *writes)
{
	expect_is(setenv("GDRCOPY_READ_THREADS", reads, 1), 0);
	expect_is(setenv("GDRCOPY_WRITE_THREADS", writes, 1), 0);
}

static void check_sizes(struct buffer *b)
{
	check_these(b, (const size_t[]){ 1, 64, 4095, 4096, 4097, 16384, 65535, 65536, 65537, 500001, BYTES - 200, 0 });
}

static void none_unless_asked(void)
{
	struct buffer b;
	gdr_t g;

	unsetenv("GDRCOPY_READ_THREADS");
	unsetenv("GDRCOPY_WRITE_THREADS");
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	check_sizes(&b);
	sleep_us(20000);
	expect_is(count_workers(), 0);
	expect_is(gdr_set_copy_threads(1, 1), 0);
	check_sizes(&b);
	sleep_us(20000);
	expect_is(count_workers(), 0);
}

static void by_environment(void)
{
	struct buffer b;
	gdr_t g;

	want_threads("8", "2");
	g = open_or_fail();
	expect_is(count_workers(), 0);
	make_buffer(g, &b, BYTES);
	expect_workers(workers_for(8));
	check_sizes(&b);
	expect_workers(workers_for(8));
}

/* env_test has what is bad. */
static void bad_environment(void)
{
	static const char *const bad[] = { "GDRCOPY_READ_THREADS", "GDRCOPY_DMA_WRITE", "GDRCOPY_COPY" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv(bad[i], "0", 1);
		errno = 0;
		expect(gdr_open() == NULL);
		expect_is(errno, EINVAL);
		setenv(bad[i], "", 1);
	}
	open_or_fail();
}

static void by_call(void)
{
	struct buffer b;
	gdr_t g;

	want_threads("64", "64");
	expect_is(gdr_set_copy_threads(0, 1), EINVAL);
	expect_is(gdr_set_copy_threads(1, 65), EINVAL);
	expect_is(gdr_set_copy_threads(1, 1), 0);
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	sleep_us(20000);
	expect_is(count_workers(), 0);
	expect_is(gdr_set_copy_threads(2, 1), 0);
	expect_workers(workers_for(2));
	check_sizes(&b);
	expect_is(gdr_set_copy_threads(1, WANTED), 0);
	expect_workers(workers_for(WANTED));
	check_sizes(&b);
	expect_is(gdr_set_copy_threads(1, 0), EINVAL);
	expect_is(gdr_set_copy_threads(1, 1), 0);
	check_sizes(&b);
}

static long waits_of(const char *tid)
{
	char path[300], line[100];
	long n = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", tid);
	f = fopen(path, "re");
	expect(f != NULL);
	while (n < 0 && fgets(line, sizeof(line), f))
		sscanf(line, "voluntary_ctxt_switches: %ld", &n);
	fclose(f);
	expect(n >= 0);
	return n;
}

/* How often the library's threads have waited. */
static long count_waits(void)
{
	return sum_workers(waits_of);
}

/* What is asked for writes counts for no read. */
static void reads_alone(void)
{
	static unsigned char host[BYTES];
	struct buffer b;
	long before;
	gdr_t g;

	if (workers_for(2) < 1)
		skip_case("on one CPU no thread is wanted");
	setenv("GDRCOPY_COPY_SPIN", "0", 1);
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	expect_is(gdr_set_copy_threads(2, 1), 0);
	expect_workers(1);
	/* A thread's first copy is made alone. */
	expect_is(gdr_copy_from_mapping(b.mh, host, b.va, 1), 0);
	for (before = count_waits(); before < 1; before = count_waits())
		sleep_us(1000);
	expect_is(gdr_copy_from_mapping(b.mh, host, b.va, BYTES), 0);
	while (count_waits() == before)
		sleep_us(1000);
	expect_is(gdr_set_copy_threads(1, 2), 0);
	before = count_waits();
	for (int i = 0; i < 20; i++)
		expect_is(gdr_copy_from_mapping(b.mh, host, b.va, BYTES), 0);
	sleep_us(20000);
	expect(count_waits() < before + 10);	/* it may have been on its way to sleep */
}

/* The call tells, and copies go on; a later call may find that there are some. */
static void no_thread_is_left(void)
{
	struct buffer b;
	gdr_t g;

	if (workers_for(2) < 1)
		skip_case("on one CPU no thread is wanted");
	unsetenv("GDRCOPY_READ_THREADS");
	unsetenv("GDRCOPY_WRITE_THREADS");
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	atomic_store(&no_threads, true);
	expect_is(gdr_set_copy_threads(2, 1), ENOMEM);
	check_sizes(&b);
	atomic_store(&no_threads, false);
	expect_is(count_workers(), 0);
	expect_is(gdr_set_copy_threads(2, 1), 0);
	expect_workers(workers_for(2));
	check_sizes(&b);
}

struct copier {
	struct buffer *b;
	size_t at;
	_Atomic bool *quit;
	_Atomic long copies;
};

static void *copy_own_part(void *arg)
{
	struct copier *c = arg;
	size_t part = BYTES / COPIERS;

	while (!atomic_load(c->quit)) {
		check_copy(c->b, 4096 + c->copies * 997 % (part - 4200), c->at + 1 + c->copies % 90,
			   c->copies);
		atomic_fetch_add(&c->copies, 1);
	}
	return NULL;
}

static void concurrent_callers(void)
{
	struct copier c[COPIERS];
	pthread_t t[COPIERS];
	_Atomic bool quit = false;
	struct buffer b;
	gdr_t g;

	want_threads("64", "64");
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	for (int i = 0; i < COPIERS; i++) {
		c[i] = (struct copier){ .b = &b, .at = i * (BYTES / COPIERS), .quit = &quit };
		start_thread(&t[i], 0, copy_own_part, &c[i]);
	}
	for (int i = 0; i < COPIERS; i++)
		while (atomic_load(&c[i].copies) < scaled(100))
			sleep_us(1000);
	atomic_store(&quit, true);
	join_threads(t, COPIERS);
}

/* CUDA is lost to this child, so it has no memory to copy to; but threads. */
static void child_of_user(void *arg)
{
	struct buffer *parents = arg;
	unsigned char byte;

	expect_is(count_workers(), 0);
	expect_is(gdr_copy_from_mapping(parents->mh, &byte, parents->va, BYTES), EACCES);
	open_or_fail();
	expect_is(gdr_copy_from_mapping(parents->mh, &byte, parents->va, BYTES), EACCES);
	expect_is(gdr_set_copy_threads(WANTED, WANTED), 0);
	expect_workers(workers_for(WANTED));
}

static void child_of_opener(void *unused)
{
	struct buffer b;
	gdr_t g;

	expect_is(count_workers(), 0);
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	expect_workers(workers_for(WANTED));
	check_sizes(&b);
}

static void fork_idle_and_busy(void)
{
	_Atomic bool quit = false;
	struct copier c;
	struct buffer b;
	pthread_t t;
	gdr_t g;

	want_threads("8", "8");
	g = open_or_fail();
	expect(in_child("no pool yet", child_of_opener, NULL, 30));
	expect_is(gdr_set_copy_threads(WANTED, WANTED), 0);
	expect(in_child("nothing mapped yet", child_of_opener, NULL, 30));
	make_buffer(g, &b, BYTES);
	check_sizes(&b);
	expect(in_child("parent idle", child_of_user, &b, 30));
	c = (struct copier){ .b = &b, .at = 0, .quit = &quit };
	start_thread(&t, 0, copy_own_part, &c);
	for (int i = 0; i < 5; i++) {
		while (atomic_load(&c.copies) < 3 * i)
			sleep_us(100);
		expect(in_child("parent busy", child_of_user, &b, 30));
	}
	atomic_store(&quit, true);
	expect_is(pthread_join(t, NULL), 0);
	check_sizes(&b);
}

/* Copies until the mapping goes. */
static void *copy_until_gone(void *arg)
{
	struct buffer *b = arg;
	unsigned char *host = malloc(BYTES);
	int rc;

	expect(host != NULL);
	do
		rc = gdr_copy_from_mapping(b->mh, host, b->va, BYTES);
	while (!rc);
	free(host);
	expect_is(rc, EINVAL);
	return NULL;
}

static void unmap_under_copies(void)
{
	gdr_t g;

	want_threads("64", "64");
	g = open_or_fail();
	for (long i = 0; i < scaled(50); i++) {
		pthread_t t[2];
		struct buffer b;

		make_buffer(g, &b, BYTES);
		start_threads(t, 2, copy_until_gone, &b);
		sleep_us(i * 37 % 1000);
		expect_is(gdr_unmap(g, b.mh, b.va, b.size), 0);
		join_threads(t, 2);
		b.va = NULL;
		drop_buffer(g, &b);
	}
}

/* No signal of the host's is taken by one of the threads. */
static void signals_stay_away(void)
{
	char path[300], line[256];
	uint64_t blocked, faults = 0;
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
	struct buffer b;
	long seen = 0;
	gdr_t g;
	DIR *d;

	for (size_t i = 0; i < sizeof(sigs) / sizeof(sigs[0]); i++)
		faults |= 1ull << (sigs[i] - 1);
	want_threads("2", "1");
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	expect_workers(workers_for(2));
	d = opendir("/proc/self/task");
	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); ) {
		bool ours = false;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", e->d_name);
		f = fopen(path, "re");
		while (f && fgets(line, sizeof(line), f)) {
			if (!strcmp(line, "Name:\tgdrcopy\n"))
				ours = true;
			if (!ours || sscanf(line, "SigBlk: %lx", &blocked) != 1)
				continue;
			seen++;
			expect_is(blocked & faults, 0);
			/* Nobody blocks these, and 32 and 33 are the C library's. */
			blocked |= 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31;
			expect_is(~blocked & ~faults, 0);
		}
		if (f)
			fclose(f);
	}
	closedir(d);
	expect_is(seen, workers_for(2));
}

static void idle_is_idle(void)
{
	struct buffer b;
	double before;
	gdr_t g;

	want_threads("64", "64");
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	check_sizes(&b);
	sleep_us(200000);
	before = cpu_seconds();
	sleep_us(1000000);
	/* A thread that did not sleep would have taken a second. */
	expect(cpu_seconds() - before < 0.2);
}

/* Under GDRCOPY_COPY=auto a number that the host has set stays. */
static void numbers_under_auto(void)
{
	struct buffer b;
	gdr_t g;

	expect_is(setenv("GDRCOPY_COPY", "auto", 1), 0);
	want_threads("1", "1");
	g = open_or_fail();
	make_buffer(g, &b, BYTES);
	check_sizes(&b);
	expect_is(count_workers(), 0);
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "no thread unless asked", none_unless_asked, 30, 0 },
	{ "threads by the environment", by_environment, 30, 0 },
	{ "a bad word in the environment", bad_environment, 30, 0 },
	{ "threads by gdr_set_copy_threads", by_call, 30, 0 },
	{ "threads for reads alone", reads_alone, 30, 0 },
	{ "no thread is left", no_thread_is_left, 30, 0 },
	{ "callers at the same time", concurrent_callers, 60, 300 },
	{ "a fork while idle, and while busy", fork_idle_and_busy, 120, 0 },
	{ "gdr_unmap under shared copies", unmap_under_copies, 60, 300 },
	{ "the host's signals", signals_stay_away, 30, 0 },
	{ "numbers that are set, under auto", numbers_under_auto, 30, 0 },
	{ "idle threads sleep", idle_is_idle, 30, 0 },
	{ 0 }
};
