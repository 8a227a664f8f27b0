// SPDX-License-Identifier: MIT
/*
 * guest/limits.c - hosts that have little left, or that run by other rules: of
 * threads, of address space, of mappings, of memory that may be locked, with
 * real-time policies, or without any GPU.
 *
 * What the library cannot have is an errno, and nothing else has changed then.
 */
#include "cuda.h"

#include <linux/capability.h>
#include <sched.h>

#define NOBODY 65533
#define MORE_RSS_KIB (20 * 1024)
#define AHEAD_KIB (8 * 1024)	/* of capi/guest/reserve.c: ready for Go once a call has taken something */
#define GO_THREADS 10	/* of capi/guest/threads.h: there may be a few more */
#define GO_THREADS_MAX 24

/*
 * A user with no other process: the kernel counts by user, and not for root. It still reads what
 * root reads: the library and the doubles may lie below a folder of root's alone.
 */
static void become_somebody(unsigned int uid)
{
	struct __user_cap_header_struct self = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct read[2] = { { .effective = 1 << CAP_DAC_READ_SEARCH, .permitted = 1 << CAP_DAC_READ_SEARCH } };

	if (geteuid())
		skip_case("only root can become another user");
	expect_is(prctl(PR_SET_KEEPCAPS, 1), 0);
	expect_is(setgid(NOBODY), 0);
	expect_is(setuid(uid), 0);
	expect_is(syscall(SYS_capset, &self, read), 0);
}

static void set_limit(int what, rlim_t n)
{
	struct rlimit l = { n, n };

	expect_is(setrlimit(what, &l), 0);
}

/* This thread and the library's. */
static void expect_go_threads(void)
{
	long n = count_threads() - 1;

	if (n < GO_THREADS || n > GO_THREADS_MAX)
		note("%ld threads of the library's", n);
	expect(n >= GO_THREADS && n <= GO_THREADS_MAX);
}

/* gdr_open either works or says why not. */
static void open_or_errno(void)
{
	gdr_t g;

	errno = 0;
	g = gdr_open();
	if (g) {
		expect_is(gdr_close(g), 0);
		return;
	}
	if (errno != EAGAIN)
		expect_is(errno, ENOMEM);
	/* What is lacking may be memory for the core, whose runtime then runs. */
	if (count_threads_settled(1) != 1)
		expect_go_threads();
}

/* A thread too few is no start, and none of the next gdr_open's failures. */
static void few_threads(void)
{
	struct rlimit was, low;
	gdr_t g;

	expect_is(getrlimit(RLIMIT_NPROC, &was), 0);
	become_somebody(54398);
	low = was;
	for (int room = 0; room < GO_THREADS; room++) {
		low.rlim_cur = 1 + room;
		expect_is(setrlimit(RLIMIT_NPROC, &low), 0);
		errno = 0;
		expect(!gdr_open());
		expect_is(errno, EAGAIN);
		expect_is(count_threads_settled(1), 1);
	}
	expect_is(setrlimit(RLIMIT_NPROC, &was), 0);
	g = open_or_fail();
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
}

static gdr_t shared;
static _Atomic bool go;

static void *many_lives(void *unused)
{
	while (!atomic_load(&go))
		sleep_us(1000);
	for (int i = 0; i < scaled(100); i++) {
		gdr_mem_t mem;
		int rc = gdr_mem_alloc(shared, 0, 64 * KIB, 0, &mem);

		expect(rc >= 0);
		if (!rc)
			expect_is(gdr_mem_free(shared, mem), 0);
	}
	return NULL;
}

/* The limit comes after the open: what the runtime may need, it has. */
static void no_more_threads(void *unused)
{
	pthread_t t[8];

	become_somebody(54321);
	shared = open_or_fail();
	start_threads(t, 8, many_lives, NULL);
	set_limit(RLIMIT_NPROC, 1);
	atomic_store(&go, true);
	join_threads(t, 8);
	count_threads_settled(1 + GO_THREADS);
	expect_go_threads();
	expect_is(gdr_close(shared), 0);
}

static void threads_used_up(void)
{
	if (geteuid())
		skip_case("only root can become another user");
	for (int i = 0; i < scaled(8); i++)
		expect(in_child("at the limit of threads", no_more_threads, NULL, 60));
}

static void open_with_space(void *mib)
{
	set_limit(RLIMIT_AS, *(long *)mib * MIB);
	open_or_errno();
}

static void little_space(void)
{
	for (int i = 0; i < scaled(5); i++)
		for (long mib = 64; mib <= 4096; mib = mib * 5 / 4)
			expect(in_child("with little address space", open_with_space, &mib, 20));
}

/* What is reached after the open. */

/* The soft limit of what there is to have: what the process has now, or all again. */
static void limit(int what, bool to_now)
{
	const char *line = what == RLIMIT_AS ? "VmSize:" : "VmData:";
	struct rlimit l;

	expect_is(getrlimit(what, &l), 0);
	l.rlim_cur = to_now ? proc_number("/proc/self/status", line) * KIB : l.rlim_max;
	expect_is(setrlimit(what, &l), 0);
}

/* A thread's pins: as many as there is room for, then an errno, and all of them go again. */
static _Atomic int ready;

struct pins {
	gdr_t g;
	unsigned long dptr;
	gdr_mh_t *mh;
	gdr_t *more;
	long most, made, opened;
	int rc;
};

static void *pin_all(void *arg)
{
	struct pins *p = arg;

	/* The driver's thread-local data is made at its first call, or the C library aborts. */
	expect_is(gdr_pin_buffer(p->g, p->dptr, 64 * KIB, 0, 0, &p->mh[0]), 0);
	expect_is(gdr_unpin_buffer(p->g, p->mh[0]), 0);
	atomic_fetch_add(&ready, 1);
	while (!atomic_load(&go))
		sleep_us(100);
	for (p->made = 0; p->made < p->most && !p->rc; p->made += !p->rc)
		p->rc = gdr_pin_buffer(p->g, p->dptr, 64 * KIB, 0, 0, &p->mh[p->made]);
	/* The descriptors that a backend takes for pins may end before the memory does. */
	if (p->rc == EMFILE)
		while (p->opened < p->most && (p->more[p->opened] = gdr_open()))
			p->opened++;
	if (p->rc == EMFILE && p->opened < p->most)
		p->rc = errno;
	for (long i = 0; i < p->opened; i++)
		expect_is(gdr_close(p->more[i]), 0);
	for (long i = 0; i < p->made; i++)
		expect_is(gdr_unpin_buffer(p->g, p->mh[i]), 0);
	return NULL;
}

static void *populated(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	expect(mem != MAP_FAILED);
	return mem;
}

#define NO_MMAP -1	/* beside RLIMIT_* */
#define PINNERS 8

/* What was lacking is there again. */
static void pin_again(gdr_t g, unsigned long dptr)
{
	gdr_mh_t mh;

	expect_is(gdr_pin_buffer(g, dptr, 64 * KIB, 0, 0, &mh), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
	expect_is(gdr_close(open_or_fail()), 0);
}

/* So many that no table of them is one small piece of memory. Opens stand for pins, which take descriptors. */
static void many_handles(void)
{
	long n = 0;

	if (backend_is("rm"))
		skip_case("270,000 opens take minutes where each asks the driver");
	open_with_context();
	while (n++ < 270000)
		open_or_fail();
	limit(RLIMIT_DATA, true);
	while (n < 1000000 && gdr_open())
		n++;
	expect(n < 1000000);
	expect_is(errno, ENOMEM);
	limit(RLIMIT_DATA, false);
	expect_is(gdr_close(open_or_fail()), 0);
}

static void pin_to_the_end(void *end)
{
	int what = *(int *)end;
	long most = scaled(60000) / PINNERS;
	struct pins p[PINNERS];
	pthread_t t[PINNERS];
	struct buffer b;
	gdr_t g = open_with_context();
	gdr_mh_t *mh = populated(PINNERS * most * sizeof(*mh));
	gdr_t *more = populated(PINNERS * most * sizeof(*more));

	alloc_buffer(g, &b, 64 * KIB);
	for (int i = 0; i < PINNERS; i++) {
		p[i] = (struct pins){ g, b.dptr, mh + i * most, more + i * most, most };
		start_thread(&t[i], 0, pin_all, &p[i]);
	}
	while (atomic_load(&ready) < PINNERS)
		sleep_us(100);
	if (what == NO_MMAP)
		refuse_call(SYS_mmap);
	else
		limit(what, true);
	atomic_store(&go, true);
	join_threads(t, PINNERS);
	for (int i = 0; i < PINNERS; i++) {
		note("%ld pins, %ld more opens, then errno %d", p[i].made, p[i].opened, p[i].rc);
		expect(!on_doubles() || p[i].rc == ENOMEM || (!p[i].rc && p[i].made == most) || p[i].opened == most);
	}
	if (what != NO_MMAP) {
		limit(what, false);
		pin_again(g, b.dptr);
	}
	expect_is(gdr_mem_free(g, b.mem), 0);
	expect_is(gdr_close(g), 0);
}

static long max_maps(void)
{
	long n = 65530;
	FILE *f = fopen("/proc/sys/vm/max_map_count", "re");

	if (f && fscanf(f, "%ld", &n) != 1)
		n = 65530;
	if (f)
		fclose(f);
	return n;
}

/* Leaves room for some mappings. */
static void use_maps_up(long leave)
{
	long want = (max_maps() - count_maps() - leave) / 2, page = sysconf(_SC_PAGESIZE);
	char *p = mmap(NULL, 2 * want * page, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	expect(p != MAP_FAILED);
	for (long i = 0; i < want; i++)
		if (mprotect(p + 2 * i * page, page, PROT_READ))
			break;
}

static void open_with_maps(void *leave)
{
	use_maps_up(*(long *)leave);
	open_or_errno();
}

static void few_maps(void)
{
	if (max_maps() > 1000000)
		skip_case("vm.max_map_count is too high to be reached");
	for (int i = 0; i < scaled(1); i++)
		for (long leave = 0; leave < 250; leave += 10)
			expect(in_child("with few mappings", open_with_maps, &leave, 20));
}

/* What is there can be unmapped where no mapping can be made. */
static void unmap_with_no_maps(void)
{
	struct buffer b;
	gdr_t g;

	if (max_maps() > 1000000)
		skip_case("vm.max_map_count is too high to be reached");
	g = open_with_context();
	make_buffer(g, &b, 64 * KIB);
	expect(is_shared(b.va));
	use_maps_up(0);
	expect_is(gdr_unmap(g, b.mh, b.va, b.size), 0);
	expect(!is_shared(b.va));
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	expect_is(gdr_close(g), 0);
}

/* The private memory that can be read. mlockall fills it, on a kernel without a zero page with memory. */
static long readable_kib(void)
{
	unsigned long from, to;
	char line[4096], mode[5];
	long kib = 0;
	FILE *f = fopen("/proc/self/maps", "re");

	expect(f != NULL);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 && mode[0] == 'r' && mode[3] == 'p')
			kib += (to - from) / KIB;
	fclose(f);
	return kib;
}

/* All memory is locked, or later what there is then: what the library only reserves is not filled. */
static void locked(void *later)
{
	struct buffer b;
	struct rlimit l;
	gdr_cache_t c;
	long before, readable, more = MORE_RSS_KIB + (later ? AHEAD_KIB : 0);
	gdr_t g;

	needs_doubles("the memory of a real driver is its own");
	expect_is(getrlimit(RLIMIT_MEMLOCK, &l), 0);
	if (geteuid() && l.rlim_cur != RLIM_INFINITY)
		skip_case("a user may lock %lu KiB (ulimit -l), not all", (unsigned long)l.rlim_cur / KIB);
	if (mlockall(later ? MCL_CURRENT : MCL_CURRENT | MCL_FUTURE))
		skip_case("mlockall: %s", strerror(errno));
	before = rss_kib();
	readable = readable_kib();
	g = open_or_fail();
	expect_is(gdr_cache_open(g, MIB, 0, &c), 0);
	if (later) {
		expect(readable_kib() < readable + more);
		expect_is(mlockall(MCL_CURRENT), 0);
	}
	note("RSS %ld KiB, and %ld KiB after the open; readable %ld, and %ld", before, rss_kib(), readable, readable_kib());
	expect(rss_kib() < before + more);
	make_buffer(g, &b, 64 * KIB);
	check_copies(&b, 1);
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* An unmap leaves nothing that a later mlockall would fill. */
static void unmap_leaves_nothing(void)
{
	gdr_t g = open_or_fail();
	struct buffer b;
	long before = 0;

	needs_doubles("the memory of a real driver is its own");
	for (int i = 0; i < 3; i++) {
		make_buffer(g, &b, 64 * MIB);
		drop_buffer(g, &b);
		if (i == 0)
			before = readable_kib();
	}
	expect(readable_kib() < before + 1024);
	expect_is(gdr_close(g), 0);
}

/* Each of the library's threads: normal policy and timer slack, all CPUs that the process had. */
static void check_threads(const cpu_set_t *all)
{
	DIR *d = opendir("/proc/self/task");
	char slack[64];
	int n = 0;

	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); ) {
		cpu_set_t cpus;

		if (e->d_name[0] == '.' || !is_named(e->d_name, "gdrapi"))
			continue;
		n++;
		snprintf(slack, sizeof(slack), "/proc/%.16s/timerslack_ns", e->d_name);
		expect_is(proc_number(slack, ""), 50000);
		expect_is(sched_getscheduler(atoi(e->d_name)), SCHED_OTHER);
		expect_is(sched_getaffinity(atoi(e->d_name), sizeof(cpus), &cpus), 0);
		expect(CPU_EQUAL(&cpus, all));
	}
	closedir(d);
	expect(n >= GO_THREADS && n < GO_THREADS_MAX);
}

/* Real-time, on one CPU, with timers that may be late: the library's threads are not so. */
static void real_time(void)
{
	struct sched_param p = { .sched_priority = 50 };
	cpu_set_t all, one;
	int cpu = 0;
	gdr_t g;

	expect_is(sched_getaffinity(0, sizeof(all), &all), 0);
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	expect_is(sched_setaffinity(0, sizeof(one), &one), 0);
	expect_is(prctl(PR_SET_TIMERSLACK, 1000000000ul), 0);
	if (sched_setscheduler(0, SCHED_FIFO, &p))
		skip_case("sched_setscheduler: %s", strerror(errno));
	g = open_or_fail();
	whole_life(g, 1);
	check_threads(&all);
	expect_is(sched_getscheduler(0), SCHED_FIFO);
	expect_is(sched_getaffinity(0, sizeof(all), &all), 0);
	expect(CPU_EQUAL(&all, &one));
	expect_is(gdr_close(g), 0);
}

/* The program after exec, with no driver to be found, or a backend asked for whose device is not there. */
static void without_gpu(void)
{
	static const char *const backends[] = { "", "rm", "gdrdrv" };
	struct rlimit l = { 512 * MIB, 512 * MIB };
	void *cuda = dlopen("libcuda.so.1", RTLD_LAZY);
	double start;

	if (cuda || !access("/dev/nvidiactl", F_OK) || !access("/dev/gdrdrv", F_OK))
		skip_case("this machine has a driver");
	expect_is(setrlimit(RLIMIT_AS, &l), 0);
	catch_log();
	start = seconds_now();
	for (int i = 0; i < 99; i++) {
		setenv("GDRCOPY_BACKEND", backends[i % 3], 1);
		errno = 0;
		expect(!gdr_open());
		expect_is(errno, ENODEV);
	}
	note("%.0f us each", (seconds_now() - start) * 1e6 / 99);
	expect_is(count_threads(), 1);
	expect(logged("no GPU here") && logged("there is no /dev/nvidiactl") && logged("there is no /dev/gdrdrv"));
}

static void no_gpu(void)
{
	clearenv();
	run_anew("without a GPU");
}

/* The program anew, with a libcuda that is no library. */
static void with_broken_cuda(void)
{
	const char *folder = getenv("LD_LIBRARY_PATH");
	char path[64];

	catch_log();
	errno = 0;
	expect(!gdr_open());
	expect_is(errno, ENODEV);
	snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
	expect(!unlink(path) && !rmdir(folder));
	expect(logged("cannot load the CUDA driver") && logged("file too short") && !logged("no GPU here"));
}

static void broken_cuda(void)
{
	char folder[] = "/tmp/guest_limits.XXXXXX", path[64];

	if (!access("/dev/nvidiactl", F_OK) || !access("/dev/gdrdrv", F_OK))
		skip_case("this machine has a driver");
	expect(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
	expect_is(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
	clearenv();
	setenv("LD_LIBRARY_PATH", folder, 1);
	run_anew("with a broken libcuda");
}

/* A sandbox that refuses to say whether a node is there: it may be. */
static void nodes_not_told(void)
{
	needs_doubles("CUDA asks for nodes, too");
#ifdef SYS_access
	refuse_call(SYS_access);	/* of C; Go asks by faccessat, which every machine has */
	whole_life(open_or_fail(), 1);
#else
	skip_case("this machine has no access(2)");
#endif
}

const struct guest_case cases[] = {
	{ "no GPU: ENODEV, and nothing is started", no_gpu, 60, 0 },
	{ "without a GPU", without_gpu },
	{ "a libcuda that does not load is no lack of one", broken_cuda, 60, 0 },
	{ "with a broken libcuda", with_broken_cuda },
	{ "a sandbox without access(2)", nodes_not_told, 60, 0 },
	{ "room for few threads, and then for all", few_threads, 120, 0 },
	{ "no more threads after the open", threads_used_up, 240, 0 },
	{ "little address space", little_space, 120, 0 },
	{ "address space used up after the open", NULL, 120, 0, pin_to_the_end, &(int){ RLIMIT_AS } },
	{ "memory to write to used up after the open", NULL, 120, 0, pin_to_the_end, &(int){ RLIMIT_DATA } },
	{ "mmap refused after the open", NULL, 120, 0, pin_to_the_end, &(int){ NO_MMAP } },
	{ "memory to write to used up by 270,000 handles", many_handles, 120, 0 },
	{ "few mappings", few_maps, 120, 0 },
	{ "an unmap with no mapping left", unmap_with_no_maps, 60, 0 },
	{ "all memory is locked", NULL, 60, 0, locked, NULL },
	{ "memory is locked after the open", NULL, 60, 0, locked, (void *)true },
	{ "an unmap leaves no memory", unmap_leaves_nothing, 60, 0 },
	{ "SCHED_FIFO on one CPU, timer slack of 1 s", real_time, 60, 0 },
	{ 0 }
};
