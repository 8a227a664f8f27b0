// SPDX-License-Identifier: MIT
/*
 * ext/host.c - gdr_host_register in a host that makes no calls of CUDA's.
 */
#include "guest/common.h"

enum { PAGES = 8, THREADS = 4 };

static void *new_pages(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	expect(p != MAP_FAILED);
	return p;
}

static size_t page(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* A function of the driver that the process has loaded by now, or NULL. */
static void *of_driver(const char *name)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	return lib ? dlsym(lib, name) : NULL;
}

/* What the driver says of a host address: 1 is page-locked memory. */
static bool is_locked(const void *p)
{
	int (*attribute)(void *value, int attribute, uint64_t ptr);
	int type = 0;

	*(void **)&attribute = of_driver("cuPointerGetAttribute");
	expect(attribute != NULL);
	return attribute(&type, 2, (uintptr_t)p) == 0 && type == 1;
}

static void is_locked_while_registered(void)
{
	gdr_t g = open_or_fail();
	char *p = new_pages(PAGES * page());
	size_t n = PAGES * page() - 200;

	expect_is(gdr_host_register(g, p + 100, n, 0), 0);
	expect(is_locked(p + 100) && is_locked(p + 99 + n));
	memset(p, 1, PAGES * page());
	expect_is(gdr_host_unregister(g, p + 100), 0);
	expect(!is_locked(p + 100) && !is_locked(p + 99 + n));
	expect_is(gdr_host_register(g, p, PAGES * page(), 0), 0);
	expect_is(gdr_host_unregister(g, p), 0);
	expect_is(gdr_close(g), 0);
}

static void refuses(void)
{
	gdr_t g = open_or_fail(), other = open_or_fail();
	char *p = new_pages(PAGES * page());

	expect_is(gdr_host_register(g, NULL, page(), 0), EINVAL);
	expect_is(gdr_host_register(g, p, 0, 0), EINVAL);
	expect_is(gdr_host_register(g, p, SIZE_MAX, 0), EINVAL);
	expect_is(gdr_host_register(g, p, page(), 1), EINVAL);
	expect_is(gdr_host_register(NULL, p, page(), 0), EINVAL);
	expect_is(gdr_host_unregister(g, p), EINVAL);
	expect_is(gdr_host_unregister(g, NULL), EINVAL);
	expect_is(munmap(p + 4 * page(), page()), 0);
	expect(gdr_host_register(g, p, PAGES * page(), 0) != 0);
	expect_is(gdr_host_register(g, p, 4 * page(), 0), 0);
	expect_is(gdr_host_register(g, p, 4 * page(), 0), EEXIST);
	expect_is(gdr_host_register(other, p + page(), page(), 0), EEXIST);
	expect_is(gdr_host_unregister(other, p), EINVAL);
	expect_is(gdr_host_unregister(g, p + page()), EINVAL);
	expect_is(gdr_host_unregister(g, p), 0);
	expect_is(gdr_host_unregister(g, p), EINVAL);
	expect_is(gdr_close(other), 0);
	expect_is(gdr_host_register(other, p, page(), 0), EINVAL);
	expect_is(gdr_close(g), 0);
}

static void close_ends_all(void)
{
	gdr_t g = open_or_fail(), other = open_or_fail();
	char *p = new_pages(PAGES * page());

	for (int i = 0; i < PAGES; i++)
		expect_is(gdr_host_register(i < 6 ? g : other, p + i * page(), page(), 0), 0);
	expect_is(gdr_close(g), 0);
	for (int i = 0; i < PAGES; i++)
		expect(is_locked(p + i * page()) == (i >= 6));
	expect_is(gdr_close(other), 0);
	expect(!is_locked(p + 7 * page()));
}

static void context_stays(void)
{
	gdr_t g = open_or_fail();
	char *p = new_pages(page());
	int (*current)(void **ctx);
	void *ctx = NULL;

	expect_is(gdr_host_register(g, p, page(), 0), 0);
	*(void **)&current = of_driver("cuCtxGetCurrent");
	expect(current != NULL);
	expect_is(current(&ctx), 0);
	expect(ctx == NULL);
	expect_is(gdr_host_unregister(g, p), 0);
	expect_is(current(&ctx), 0);
	expect(ctx == NULL);
}

static void forked(void)
{
	gdr_t g = open_or_fail();
	char *p = new_pages(page());
	int status;

	expect_is(gdr_host_register(g, p, page(), 0), 0);
	if (!fork()) {
		if (gdr_host_register(g, p + 1, 1, 0) != EACCES || gdr_host_unregister(g, p) != EACCES)
			_exit(1);
		/* The parent has initialised CUDA. */
		g = gdr_open();
		_exit(g && gdr_host_register(g, p, page(), 0) != ENODEV);
	}
	expect(wait(&status) > 0);
	expect_is(status, 0);
	expect(is_locked(p));
	expect_is(gdr_host_unregister(g, p), 0);
	expect_is(gdr_close(g), 0);
}

/* All GPUs hidden: CUDA finds none. */
static void without_a_gpu(void)
{
	char *p = new_pages(page());
	gdr_t g;

	if (!on_doubles())
		skip_case("a real GPU is there");
	setenv("CUDA_SIM_DEVICES", "0", 1);
	g = gdr_open();
	if (!g)
		skip_case("this backend does not open without a CUDA device");
	expect_is(gdr_host_register(g, p, page(), 0), ENODEV);
}

/* The host resets the GPU, and the registrations are gone. */
static void reset_by_the_host(void)
{
	gdr_t g = open_or_fail();
	char *p = new_pages(2 * page());
	int (*reset)(int device);

	expect_is(gdr_host_register(g, p, page(), 0), 0);
	expect_is(gdr_host_register(g, p + page(), page(), 0), 0);
	*(void **)&reset = of_driver("cuDevicePrimaryCtxReset_v2");
	expect(reset != NULL);
	expect_is(reset(0), 0);
	expect(!is_locked(p));
	expect_is(gdr_host_register(g, p, page(), 0), 0);
	expect(is_locked(p));
	expect_is(gdr_host_unregister(g, p), 0);
	expect_is(gdr_host_unregister(g, p + page()), EINVAL);
	expect_is(gdr_close(g), 0);
}

struct worker {
	gdr_t g;
	char *all;
	int index;
};

/* Pages of its own, and the one that all of them try to register. */
static void *register_often(void *arg)
{
	const struct worker *w = arg;
	char *own = w->all + (w->index + 1) * page();

	for (long i = 0; i < scaled(200); i++) {
		int rc = gdr_host_register(w->g, w->all, page(), 0);

		expect(rc == 0 || rc == EEXIST);
		expect_is(gdr_host_register(w->g, own, page(), 0), 0);
		if (!rc)
			expect_is(gdr_host_unregister(w->g, w->all), 0);
		expect_is(gdr_host_unregister(w->g, own), 0);
	}
	return NULL;
}

static void by_many_threads(void)
{
	struct worker w[THREADS];
	pthread_t t[THREADS];
	gdr_t g = open_or_fail();
	char *p = new_pages((THREADS + 1) * page());

	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ g, p, i };
		start_thread(&t[i], 0, register_often, &w[i]);
	}
	for (int i = 0; i < THREADS; i++)
		expect_is(pthread_join(t[i], NULL), 0);
	for (int i = 0; i <= THREADS; i++)
		expect(!is_locked(p + i * page()));
	expect_is(gdr_close(g), 0);
}

static const struct guest_case cases[] = {
	{ "memory is page-locked while it is registered", is_locked_while_registered, 30, 0 },
	{ "bad arguments", refuses, 30, 0 },
	{ "gdr_close ends all of a gdr_t", close_ends_all, 30, 0 },
	{ "the thread's context stays", context_stays, 30, 0 },
	{ "a forked child", forked, 30, 0 },
	{ "no GPU", without_a_gpu, 30, 0 },
	{ "a reset of the GPU", reset_by_the_host, 30, 0 },
	{ "threads at the same time", by_many_threads, 60, 300 },
	{ NULL, NULL, 0, 0 }
};

int main(int argc, char **argv)
{
	return guest_main(argc, argv, cases);
}
