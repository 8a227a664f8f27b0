// SPDX-License-Identifier: MIT
/*
 * guest/loader.c - gdr_open inside the dynamic loader, beside it, and in children of
 * parents that were inside it.
 */
#include "api.h"

#define CHILD_S 20.0
#define AT_ONCE_S 2.0	/* a child that takes longer, times PATIENCE, waits for something */

static _Atomic bool stop, in_constructor, may_open;
static bool constructor_waits, destructor_waits, plugin_opens = true;

static void be_in_the_loader(void)
{
	atomic_store(&in_constructor, true);
	while (!atomic_load(&may_open))
		sleep_us(1000);
}

/* The plugin's constructor calls it, by its name. It opens if the answer is true. */
bool guest_plugin_starts(void)
{
	if (constructor_waits)
		be_in_the_loader();
	return plugin_opens;
}

void guest_plugin_ends(void)
{
	if (destructor_waits)
		be_in_the_loader();
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

/*
 * The C library's, for the library too: a slow load of libcuda has the loader until the
 * plugin's constructor returns.
 */
static _Atomic bool slow_load;

void *dlopen(const char *file, int mode)
{
	void *(*real)(const char *, int);

	*(void **)&real = dlsym(RTLD_NEXT, "dlopen");
	if (file && !strcmp(file, "libcuda.so.1") && atomic_exchange(&slow_load, false))
		plugin();
	return real(file, mode);
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

static void *open_first(void *g)
{
	*(gdr_t *)g = open_or_fail();
	return NULL;
}

/* Who is in the loader first is left to chance. */
static void constructor_and_thread(void)
{
	gdr_t g = NULL, inner;
	pthread_t opener;

	start_thread(&opener, 0, open_first, &g);
	inner = load_plugin();
	expect_is(pthread_join(opener, NULL), 0);
	expect(g && inner);
	whole_life(g, 1);
	whole_life(inner, 2);
	expect_is(gdr_close(g), 0);
	expect_is(gdr_close(inner), 0);
}

static void *load_plugin_thread(void *g)
{
	*(gdr_t *)g = load_plugin();
	return NULL;
}

/* The same, where the opener surely waits for a loader that a constructor holds. */
static void thread_waits_for_constructor(void)
{
	gdr_t g = NULL, inner = NULL;
	pthread_t opener, loader;

	constructor_waits = true;
	start_thread(&loader, 0, load_plugin_thread, &inner);
	wait_in_constructor();
	start_thread(&opener, 0, open_first, &g);
	sleep_us(100000);
	atomic_store(&may_open, true);
	expect_is(pthread_join(opener, NULL), 0);
	expect_is(pthread_join(loader, NULL), 0);
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

/* Where the driver's library is still to be loaded: it opens, or says why not. */
static void open_or_busy(void *unused)
{
	gdr_t g = gdr_open();

	if (!g) {
		expect_is(errno, EBUSY);
		expect(!gdr_open());
		expect_is(errno, EBUSY);
	}
}

static void fork_among(void *(*busy)(void *), void (*child)(void *), double limit)
{
	pthread_t t[2];
	int failed = 0;

	start_threads(t, 2, busy, NULL);
	for (int i = 0; i < scaled(100) && failed < 3; i++)
		failed += !in_child("of a parent in the loader", child, NULL, limit);
	atomic_store(&stop, true);
	join_threads(t, 2);
	expect_is(failed, 0);
}

/* The first gdr_open of all is the child's. */
static void fork_among_first(void *busy)
{
	fork_among(busy, open_or_busy, AT_ONCE_S);
}

static void walking_parent(void)
{
	gdr_t g;

	g = open_or_fail();
	fork_among(walk_libraries, work_in_full, CHILD_S);
	work_in_full(NULL);
	expect_is(gdr_close(g), 0);
}

static void loading_parent(void)
{
	gdr_t g;

	if (!getenv("GDR_TEST_DOUBLES"))
		skip_case("a real cuInit loads libraries itself, in a child whose parent was loading");
	g = open_or_fail();
	fork_among(load_libraries, work_in_full, CHILD_S);
	work_in_full(NULL);
	expect_is(gdr_close(g), 0);
}

/* The constructor's thread has the loader at each of these forks, and does not survive them. */
static void parent_in_constructor(void)
{
	gdr_t inner = NULL, g;
	pthread_t loader;

	constructor_waits = true;
	start_thread(&loader, 0, load_plugin_thread, &inner);
	wait_in_constructor();
	for (int i = 0; i < 5; i++)
		expect(in_child("before the first gdr_open", open_or_busy, NULL, AT_ONCE_S));
	atomic_store(&may_open, true);
	expect_is(pthread_join(loader, NULL), 0);
	g = open_or_fail();
	expect_is(gdr_close(g), 0);
	expect_is(gdr_close(inner), 0);
}

/*
 * A thread that enters the loader when the library has looked: a fork handler of the
 * program's, which runs after those of all libraries, has it enter.
 */

static void (*last_before_fork)(void), (*first_after_fork)(void);
static pthread_t loader;

static void run_last(void)
{
	if (last_before_fork)
		last_before_fork();
}

static void run_first(void)
{
	if (first_after_fork)
		first_after_fork();
}

static void add_handlers(void)
{
	pthread_atfork(run_last, run_first, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = add_handlers;

static void *use_plugin(void *lib)
{
	expect_is(dlclose(lib ? lib : plugin()), 0);
	return NULL;
}

static void *loaded_plugin;

static void enter_loader(void)
{
	atomic_store(&in_constructor, false);
	atomic_store(&may_open, false);
	start_thread(&loader, 0, use_plugin, loaded_plugin);
	wait_in_constructor();
}

static void leave_loader(void)
{
	atomic_store(&may_open, true);
	expect_is(pthread_join(loader, NULL), 0);
}

/* The answer is EBUSY, and EBUSY to the child's own child. */
static void busy(void *unused)
{
	expect(!gdr_open());
	expect_is(errno, EBUSY);
}

static void busy_family(void *unused)
{
	last_before_fork = first_after_fork = NULL;
	busy(unused);
	expect(in_child("of a child that was refused", busy, NULL, AT_ONCE_S));
}

static void opens(void *unused)
{
	expect(gdr_open() != NULL);
}

static void fork_as_thread_enters(bool leaves)
{
	first_after_fork = leaves ? leave_loader : NULL;
	last_before_fork = enter_loader;
	expect(in_child("of a parent whose thread enters the loader", busy_family, NULL, AT_ONCE_S));
	last_before_fork = first_after_fork = NULL;
	if (!leaves)
		leave_loader();
}

static void entering_parent(void)
{
	constructor_waits = true;
	plugin_opens = false;
	fork_as_thread_enters(false);
	expect(in_child("when it has left", opens, NULL, AT_ONCE_S));
}

static void entering_and_leaving_parent(void)
{
	constructor_waits = true;
	plugin_opens = false;
	fork_as_thread_enters(true);
	expect(in_child("when it has left", opens, NULL, AT_ONCE_S));
}

/* The parent has loaded libcuda and found no function in it: its gdr_open failed in between. */
static void entering_half_open_parent(void)
{
	setenv("GDRCOPY_COPY", "neither", 1);
	expect(!gdr_open());
	expect_is(errno, EINVAL);
	unsetenv("GDRCOPY_COPY");
	entering_parent();
}

static void unloading_parent(void)
{
	plugin_opens = false;
	destructor_waits = true;
	loaded_plugin = plugin();
	fork_as_thread_enters(false);
	loaded_plugin = plugin();
	fork_as_thread_enters(true);
	expect(in_child("when it has left", opens, NULL, AT_ONCE_S));
}

static _Atomic bool fork_begins;

static void begin_fork(void)
{
	atomic_store(&fork_begins, true);
}

/* The load ends some time after the fork began, or would have been made. */
static void *end_load(void *unused)
{
	while (!atomic_load(&fork_begins))
		sleep_us(1000);
	sleep_us(100000);
	atomic_store(&may_open, true);
	return unused;
}

/* A fork waits for the library's own load of libcuda: so the child has it, and is not refused. */
static void fork_in_own_load(void)
{
	pthread_t opener, ender;
	gdr_t g = NULL;

	constructor_waits = true;
	plugin_opens = false;
	atomic_store(&slow_load, true);
	expect_is(pthread_atfork(begin_fork, NULL, NULL), 0);
	start_thread(&opener, 0, open_first, &g);
	wait_in_constructor();
	start_thread(&ender, 0, end_load, NULL);
	expect(in_child("of a parent that loads libcuda", opens, NULL, CHILD_S));
	expect_is(pthread_join(ender, NULL), 0);
	expect_is(pthread_join(opener, NULL), 0);
	expect_is(gdr_close(g), 0);
}

/*
 * A fork that the C library does not see, so that it frees no lock. (It does not free
 * malloc's either, which dlopen takes: so here nobody loads.)
 */
static void raw_forks(void)
{
	pthread_t t[2];
	gdr_t g;

	g = open_or_fail();
	start_threads(t, 2, walk_libraries, NULL);
	for (int i = 0; i < scaled(50); i++) {
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
	atomic_store(&stop, true);
	join_threads(t, 2);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "a library's constructor opens", NULL, 60, 0, open_in_constructor, NULL },
	{ "the same in a forked child", constructor_in_child, 60, 0 },
	{ "a constructor and another thread open at once", constructor_and_thread, 60, 0 },
	{ "a first gdr_open waits for a loader that a constructor holds", thread_waits_for_constructor, 60, 0 },
	{ "a fork while threads walk the list of libraries", walking_parent, 120, 0 },
	{ "the same before the first gdr_open", NULL, 240, 0, fork_among_first, walk_libraries },
	{ "a fork while threads load libraries", loading_parent, 120, 0 },
	{ "the same before the first gdr_open, loading", NULL, 240, 0, fork_among_first, load_libraries },
	{ "a fork while a constructor runs", parent_in_constructor, 60, 0 },
	{ "a thread enters the loader as the process forks", entering_parent, 60, 0 },
	{ "the same, and leaves it before the fork returns", entering_and_leaving_parent, 60, 0 },
	{ "a thread enters it after a gdr_open that failed", entering_half_open_parent, 60, 0 },
	{ "the same, unloading", unloading_parent, 60, 0 },
	{ "a fork waits for the library's own load of libcuda", fork_in_own_load, 60, 0 },
	{ "raw clone while threads walk it", raw_forks, 120, 0 },
	{ 0 }
};
