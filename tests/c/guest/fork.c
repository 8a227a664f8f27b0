// SPDX-License-Identifier: MIT
/*
 * guest/fork.c - forks before, during and after the library's start.
 *
 * CUDA refuses to work in a child that was forked after cuInit, and
 * gdr_mem_alloc calls cuInit. So where a child must do everything, its parent
 * has opened the library but allocated nothing.
 */
#include "common.h"
#include "every.h"

static bool va_is_mapped(uintptr_t va)
{
	unsigned char vec;

	return mincore((void *)(va & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1)), 1, &vec) == 0 ||
	       errno != ENOMEM;
}

#define CHILD_S 20.0	/* a child that takes longer hangs */
#define THREADS 8

/*
 * Each child that works in full starts CUDA; with a real driver that takes it a
 * second, and there are fewer.
 */
static int children(void)
{
	int n = guest_long ? 1000 : 60;

	return scaled(on_doubles() ? n : n / 10);
}

/* What the parent had when it forked. */
struct parent {
	gdr_t g;
	struct buffer b;
	gdr_cache_t cache;
};

/* Makes a buffer and a cache for it. */
static void furnish(struct parent *p)
{
	make_buffer(p->g, &p->b, 64 * KIB);
	expect_is(gdr_cache_open(p->g, MIB, 0, &p->cache), 0);
}

/* All that a child can do that its parent could. */
static void work_in_full(void *unused)
{
	struct parent own = { .g = open_or_fail() };
	gdr_mh_t mh;
	void *va;

	furnish(&own);
	check_copies(&own.b, 1);
	expect_is(gdr_cache_get(own.cache, own.b.dptr, own.b.size, &mh, &va), 0);
	expect_is(gdr_cache_put(own.cache, mh), 0);
	expect_is(gdr_cache_close(own.cache), 0);
	drop_buffer(own.g, &own.b);
	expect_is(gdr_close(own.g), 0);
}

/* What a child can do once its parent has initialised CUDA. */
static void work_without_cuda(void *unused)
{
	gdr_t g = open_or_fail();
	int v = -1, major = 0, minor = 0;
	gdr_mh_t mh;
	int rc;

	expect_is(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
	expect(v == 0 || v == 1);
	expect_is(gdr_driver_get_version(g, &major, &minor), 0);
	expect_is(major, 2);
	rc = gdr_pin_buffer(g, 0x7f0000000000, 4096, 0, 0, &mh);
	if (rc <= 0)
		note("gdr_pin_buffer in a child without CUDA gives %d", rc);
	expect(rc > 0);
	expect_is(gdr_close(g), 0);
}

static void expect_inherited_refused(const struct parent *p)
{
	const struct args a = {
		.g = p->g, .mh = p->b.mh, .mem = p->b.mem, .cache = p->cache, .mapped = p->b.mh, .addr = p->b.dptr,
		.size = 4096, .va = p->b.va,
	};
	int minor;

	for (size_t i = 0; i < EVERY; i++) {
		int rc = every[i].call == call_gdr_close ? EACCES : every[i].call(&a);

		if (rc != EACCES)
			note("%s gives %d", every[i].name, rc);
		expect_is(rc, EACCES);
	}
	/* Before a look at the size, or at pointers. */
	expect_is(gdr_copy_to_mapping(p->b.mh, p->b.va, out.bytes, 0), EACCES);
	expect_is(gdr_copy_from_mapping(p->b.mh, out.bytes, p->b.va, 0), EACCES);
	expect_is(gdr_pin_buffer(p->g, p->b.dptr, 4096, 0, 0, NULL), EACCES);
	expect_is(gdr_copy_to_mapping(p->b.mh, NULL, NULL, 8), EACCES);
	/* No handle is needed. */
	gdr_runtime_get_version(NULL, &minor);
	expect_is(minor, 6);
}

/* The same once the child has a core of its own, and across the two. */
static void expect_mixed_refused(const struct parent *p, gdr_t own)
{
	unsigned char bytes[64];
	unsigned long dptr;
	void *va;

	expect_inherited_refused(p);
	expect_is(gdr_unpin_buffer(own, p->b.mh), EACCES);
	expect_is(gdr_map(own, p->b.mh, &va, 4096), EACCES);
	expect_is(gdr_get_info(own, p->b.mh, bytes), EACCES);
	expect_is(gdr_mem_free(own, p->b.mem), EACCES);
	expect_is(gdr_mem_get_device_ptr(own, p->b.mem, &dptr, NULL), EACCES);
	expect_is(gdr_unpin_buffer(p->g, (gdr_mh_t){ 0 }), EACCES);
	/* A forged handle is not an inherited one. */
	expect_is(gdr_unpin_buffer(own, (gdr_mh_t){ 12345 }), EINVAL);
	expect_is(gdr_copy_to_mapping((gdr_mh_t){ 12345 }, bytes, bytes, 8), EINVAL);
	expect_is(gdr_copy_to_mapping((gdr_mh_t){ ~0ul }, bytes, bytes, 8), EINVAL);
}

/* An exit handler of the parent's may close it in the child. */
static void expect_inherited_closed(const struct parent *p)
{
	long fds = count_fds();

	expect_is(gdr_close(p->g), 0);
	expect_is(gdr_close(p->g), 0);
	expect_is(count_fds(), fds);
}

static void refused_child(void *parent)
{
	long threads = count_threads();

	expect(!va_is_mapped((uintptr_t)((struct parent *)parent)->b.va));
	expect_inherited_refused(parent);
	expect_inherited_closed(parent);
	expect_inherited_refused(parent);
	expect_is(count_threads(), threads);
	expect_is(threads, 1);
}

/* The parent's own goes on, beside what the children do with it. */
static void with_handles(void *child)
{
	struct parent p = { .g = open_or_fail() };

	furnish(&p);
	check_copies(&p.b, 1);
	for (int i = 0; i < 10; i++)
		expect(in_child("with inherited handles", child, &p, CHILD_S));
	check_copies(&p.b, 2);
	drop_buffer(p.g, &p.b);
	expect_is(gdr_close(p.g), 0);
}

/* CUDA is up in the parent, so only in the parent: but nothing may hang. */
static void no_cuda_child(void *parent)
{
	struct parent *p = parent;
	gdr_t own = open_or_fail();
	gdr_mem_t mem;
	gdr_mh_t mh;
	int rc;

	rc = gdr_pin_buffer(own, p->b.dptr, p->b.size, 0, 0, &mh);
	expect(rc > 0 && rc != EACCES);
	expect_is(gdr_mem_alloc(own, 0, 64 * KIB, 0, &mem), ENODEV);
	expect_mixed_refused(p, own);
	expect_inherited_closed(p);
	expect_is(gdr_close(own), 0);
	expect_is(gdr_close(own), EINVAL);
	expect_inherited_refused(p);
	work_without_cuda(NULL);
}

/* Each generation opens, forks the next one, and works again after it. */
static void generation(void *left)
{
	uintptr_t n = (uintptr_t)left;
	gdr_t g = open_or_fail();

	if (n > 1)
		expect(in_child("a next generation", generation, (void *)(n - 1), CHILD_S * n));
	else
		whole_life(g, n);
	expect_is(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &(int){ 0 }), 0);
	expect_is(gdr_close(g), 0);
}

static void silent_middle(void *unused)
{
	expect(in_child("the child of a child that did not open", work_in_full, NULL, CHILD_S));
	work_in_full(NULL);
}

static void grandchildren(void)
{
	gdr_t g;

	generation((void *)6);
	g = open_or_fail();
	expect(in_child("a child that opens after its own child", silent_middle, NULL, 3 * CHILD_S));
	expect_is(gdr_close(g), 0);
}

/* Fork with threads of the parent inside the library. */

static _Atomic bool stop;

/* CUDA stays down. */
static void *busy_without_cuda(void *unused)
{
	while (!atomic_load(&stop))
		work_without_cuda(NULL);
	return NULL;
}

static void busy_parent(void)
{
	gdr_t g = open_or_fail();
	pthread_t t[THREADS];
	int failed = 0;

	start_threads(t, THREADS, busy_without_cuda, NULL);
	sleep_us(20000);
	for (int i = 0; i < children() && failed < 3; i++)
		failed += !in_child("with 8 threads inside", work_in_full, NULL, CHILD_S);
	atomic_store(&stop, true);
	join_threads(t, THREADS);
	expect_is(failed, 0);
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
}

/* Fork while the first gdr_open runs in another thread. */

static void *first_open(void *g)
{
	*(gdr_t *)g = open_or_fail();
	return NULL;
}

/* delay is in units of 10 us; a start takes 1 to 3 ms. */
static void race_trial(void *delay)
{
	double until = seconds_now() + (uintptr_t)delay * 10e-6;
	gdr_t g = NULL;
	pthread_t t;
	bool ok;

	start_thread(&t, 0, first_open, &g);
	while (seconds_now() < until)
		;
	ok = in_child("in the middle of a start", work_in_full, NULL, CHILD_S);
	expect_is(pthread_join(t, NULL), 0);
	expect(ok);
	whole_life(g, 5);
	expect_is(gdr_close(g), 0);
}

/* libcuda is loaded before: a fork in the middle of any load may leave the child no loader. */
static void starting_parent(void)
{
	int failed = 0;

	expect_is(gdr_close(open_or_fail()), 0);
	for (int i = 0; i < children() && failed < 5; i++) {
		if (in_child("a trial", race_trial, (void *)(uintptr_t)(i * 7 % 400), 2 * CHILD_S))
			continue;
		note("with a delay of %d us", i * 7 % 400 * 10);
		failed++;
	}
	expect_is(failed, 0);
}

/* Fork on a thread that is inside the library. */

/* The C library does not see it. */
static pid_t raw_fork(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/* in_child, by another way than fork. */
static bool in_child_by(pid_t (*make)(void), const char *what, void (*fn)(void *), void *arg)
{
	pid_t pid = make();

	if (!pid) {
		fn(arg);
		_exit(0);
	}
	return pid > 0 && child_ok(what, wait_child(pid, CHILD_S));
}

static struct parent inside;
static _Atomic int forked, lost;

static void *open_twice(void *unused)
{
	work_without_cuda(NULL);
	work_without_cuda(NULL);
	return NULL;
}

/* The thread that forked does so before, after, or beside one that never was inside. */
static void inside_child(void *how)
{
	pthread_t t;

	expect_is(gdr_unpin_buffer(inside.g, inside.b.mh), EACCES);
	if ((uintptr_t)how % 3) {
		start_thread(&t, 0, open_twice, NULL);
		if ((uintptr_t)how % 3 == 1)
			expect_is(pthread_join(t, NULL), 0);
	}
	open_twice(NULL);
	if ((uintptr_t)how % 3 == 2)
		expect_is(pthread_join(t, NULL), 0);
	expect(in_child_by(raw_fork, "a child of that child", work_without_cuda, NULL));
}

static void fork_inside(pid_t (*make)(void))
{
	uintptr_t how = atomic_load(&forked);

	lost += !in_child_by(make, "of a thread that is inside", inside_child, (void *)how);
	atomic_store(&forked, how + 1);
}

static __thread bool forks_in_mmap;

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	static __typeof__(mmap) *next;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "mmap");
	if (forks_in_mmap) {
		forks_in_mmap = false;
		fork_inside(fork);
	}
	return next(addr, len, prot, flags, fd, off);
}

static void fork_in_hook(void)
{
	void *va;

	inside.g = open_or_fail();
	furnish(&inside);
	for (int i = 0; i < 6; i++) {
		expect_is(gdr_unmap(inside.g, inside.b.mh, inside.b.va, inside.b.size), 0);
		forks_in_mmap = true;
		expect_is(gdr_map(inside.g, inside.b.mh, &va, inside.b.size), 0);
		expect(!forks_in_mmap);
		inside.b.va = va;
		check_copies(&inside.b, i);
	}
	expect_is(lost, 0);
	drop_buffer(inside.g, &inside.b);
	expect_is(gdr_close(inside.g), 0);
}

static void fork_on_signal(int sig)
{
	fork_inside(raw_fork);	/* the thread may have locks of the C library */
}

static void *busy_with_buffers(void *parent)
{
	struct parent *p = parent;

	while (!atomic_load(&stop)) {
		struct buffer b = p->b;
		gdr_mh_t mh;
		void *va;

		expect_is(gdr_cache_get(p->cache, b.dptr, b.size, &mh, &va), 0);
		expect_is(gdr_cache_put(p->cache, mh), 0);
		expect_is(gdr_cache_flush(p->cache), 0);
		map_buffer(p->g, &b);
		check_copies(&b, b.mh.h);
		expect_is(gdr_unmap(p->g, b.mh, b.va, b.size), 0);
		expect_is(gdr_unpin_buffer(p->g, b.mh), 0);
	}
	return NULL;
}

/* SIGABRT comes through to a thread that is inside, on the stack that it has there. */
static void fork_in_handler(void *flags)
{
	struct sigaction act = { .sa_handler = fork_on_signal, .sa_flags = SA_RESTART | (int)(intptr_t)flags };
	int times = scaled(guest_long ? 180 : 20);
	pthread_t t;

	if (!backend_is("rm"))
		skip_case("a pin asks CUDA, which may have a lock at the fork");
	inside.g = open_or_fail();
	alloc_buffer(inside.g, &inside.b, 64 * KIB);
	expect_is(gdr_cache_open(inside.g, MIB, 0, &inside.cache), 0);
	expect_is(sigaction(SIGABRT, &act, NULL), 0);
	start_thread(&t, 0, busy_with_buffers, &inside);
	for (int i = 0; i < times; i++) {
		sleep_us(1000 + i * 37 % 400);
		expect_is(pthread_kill(t, SIGABRT), 0);
		while (atomic_load(&forked) <= i)
			sleep_us(200);
	}
	atomic_store(&stop, true);
	join_threads(&t, 1);
	expect_is(lost, 0);
	whole_life(inside.g, 1);
	expect_is(gdr_close(inside.g), 0);
}

const struct guest_case cases[] = {
	{ "fork after the open: every function refuses inherited handles", NULL, 120, 0, with_handles, refused_child },
	{ "with CUDA up in the parent: the child opens, and gets errors", NULL, 120, 0, with_handles, no_cuda_child },
	{ "grandchildren", grandchildren, 240, 0 },
	{ "8 parent threads inside: children work in full", busy_parent, 240, 1800 },
	{ "the runtime is just starting", starting_parent, 240, 1800 },
	{ "a thread that is inside forks in a hook of mmap", fork_in_hook, 120, 0 },
	{ "a thread that is inside forks in a handler", NULL, 120, 900, fork_in_handler, 0 },
	{ "the same, on another stack", NULL, 120, 900, fork_in_handler, (void *)SA_ONSTACK },
	{ 0 }
};
