// SPDX-License-Identifier: MIT
/*
 * guest/loader.c - gdr_open inside the dynamic loader, beside it, and in children of
 * parents that had loaded libcuda and were inside it.
 */
#include "api.h"

#define CHILD_S 20.0
#define AT_ONCE_S 2.0	/* a child that takes longer, times PATIENCE, waits for something */

/* More than the stacks of the library's threads: they get larger ones here. */
static __thread volatile char storage[320 * KIB];

static _Atomic bool stop, in_constructor, may_open;
static bool constructor_waits;

/* The plugin's constructor calls it, by its name, before it opens. */
void guest_plugin_starts(void)
{
	if (!constructor_waits)
		return;
	atomic_store(&in_constructor, true);
	while (!atomic_load(&may_open))
		sleep_us(1000);
}

static void wait_in_constructor(void)
{
	while (!atomic_load(&in_constructor))
		sleep_us(1000);
}

static void *plugin(void)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 32);
	void *lib;

	expect(n > 0);
	path[n] = '\0';
	strcpy(strrchr(path, '/') + 1, "guest_plugin.so");
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		note("%s", dlerror());
	expect(lib != NULL);
	return lib;
}

static gdr_t load_plugin(void)
{
	void *lib = plugin();
	gdr_t *g = find(lib, "plugin_g");

	if (!*g)
		note("gdr_open in the constructor: %s", strerror(*(int *)find(lib, "plugin_errno")));
	return *g;
}

static void work_in_full(void *unused)
{
	storage[0]++;
	gdr_t g = open_or_fail();

	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
}

static void open_in_constructor(void *unused)
{
	gdr_t g = load_plugin();

	expect(g != NULL);
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
	work_in_full(unused);
}

static void constructor_in_child(void)
{
	gdr_t g;

	expect(in_child("which loads a library that opens", open_in_constructor, NULL, AT_ONCE_S));
	g = open_or_fail();
	expect(in_child("of a parent that has opened", open_in_constructor, NULL, AT_ONCE_S));
	expect_is(gdr_close(g), 0);
}

static void *open_first(void *unused)
{
	return open_or_fail();
}

static void *load_plugin_thread(void *unused)
{
	return load_plugin();
}

/* The opener waits for a loader that a constructor holds. */
static void thread_waits_for_constructor(void)
{
	pthread_t opener, loader;
	void *g, *inner;

	constructor_waits = true;
	start_thread(&loader, 0, load_plugin_thread, NULL);
	wait_in_constructor();
	start_thread(&opener, 0, open_first, NULL);
	sleep_us(100000);
	atomic_store(&may_open, true);
	expect_is(pthread_join(opener, &g), 0);
	expect_is(pthread_join(loader, &inner), 0);
	expect(g && inner);
	whole_life(g, 1);
	whole_life(inner, 2);
	expect_is(gdr_close(g), 0);
	expect_is(gdr_close(inner), 0);
}

/* Threads of the parent inside the loader at the fork. */

static int visit(struct dl_phdr_info *info, size_t size, void *unused)
{
	return 0;
}

static void *walk_libraries(void *unused)
{
	while (!atomic_load(&stop))
		dl_iterate_phdr(visit, NULL);
	return NULL;
}

static void *load_libraries(void *unused)
{
	while (!atomic_load(&stop)) {
		void *lib = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL);

		expect(lib != NULL);
		expect_is(dlclose(lib), 0);
	}
	return NULL;
}

/* with: what the parent's threads do at each fork. */
static void parent_in_loader(void *with)
{
	pthread_t t[2];
	int failed = 0;
	gdr_t g;

	if (with == load_libraries && !on_doubles())
		skip_case("a real cuInit loads libraries itself, in a child whose parent was loading");
	g = open_or_fail();
	start_threads(t, 2, with, NULL);
	for (int i = 0; i < scaled(50) && failed < 3; i++)
		failed += !in_child("of a parent in the loader", work_in_full, NULL, CHILD_S);
	atomic_store(&stop, true);
	join_threads(t, 2);
	expect_is(failed, 0);
	work_in_full(NULL);
	expect_is(gdr_close(g), 0);
}

/*
 * A fork that the C library does not see, so that it frees no lock. (It does not free
 * malloc's either, which dlopen takes: so here nobody begins to load.)
 */
static void fork_raw(void)
{
	pid_t pid;

	fflush(stdout);
	pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	expect(pid >= 0);
	if (!pid) {
		gdr_t own = gdr_open();

		_exit(own && !gdr_close(own) ? 0 : 1);
	}
	expect(child_ok("raw clone", wait_child(pid, AT_ONCE_S)));
}

static int load_and_stop(struct dl_phdr_info *info, size_t size, void *unused)
{
	load_plugin();
	return 1;
}

static void *load_in_walk(void *unused)
{
	dl_iterate_phdr(load_and_stop, NULL);
	return NULL;
}

/* Both of the loader's locks are held. The child has its parent's answers, and asks the loader nothing. */
static void raw_fork_beside_constructor(void)
{
	pthread_t loader;
	gdr_t g = open_or_fail();

	constructor_waits = true;
	start_thread(&loader, 0, load_in_walk, NULL);
	wait_in_constructor();
	fork_raw();
	atomic_store(&may_open, true);
	join_threads(&loader, 1);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "a library's constructor opens in a forked child", constructor_in_child, 60, 0 },
	{ "a first gdr_open waits for a loader that a constructor holds", thread_waits_for_constructor, 60, 0 },
	{ "a fork while threads walk the list of libraries", NULL, 120, 0, parent_in_loader, walk_libraries },
	{ "a fork while threads load libraries", NULL, 120, 0, parent_in_loader, load_libraries },
	{ "raw clone while a constructor waits", raw_fork_beside_constructor, 60, 0 },
	{ 0 }
};
