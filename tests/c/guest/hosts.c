// SPDX-License-Identifier: MIT
/*
 * guest/hosts.c - hosts that do what hosts are allowed to do, and that a library
 * with a runtime in it may trip over: they close all descriptors, change their environment, filter system calls.
 */
#include "api.h"
#include "cuda.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#define VICTIMS 8
#define FRESH 77	/* an errno that nothing sets */

static _Atomic bool stop;

/* All but the standard streams. */
static void close_all_fds(void)
{
#ifdef SYS_close_range
	if (!syscall(SYS_close_range, 3, ~0u, 0))
		return;
#endif
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
}

static void *copy_until_stopped(void *buffer)
{
	unsigned char in[4096];
	struct buffer *b = buffer;

	while (!atomic_load(&stop))
		gdr_copy_from_mapping(b->mh, in, b->va, sizeof(in));
	return NULL;
}

/*
 * Unmaps while two threads copy, for which the core sleeps: a runtime of Go's own
 * would use its epoll there.
 */
static void unmap_often(gdr_t g, struct buffer *b, int rounds, void (*each)(void *), void *arg)
{
	for (int i = 0; i < rounds; i++) {
		pthread_t t[2];
		void *va;

		atomic_store(&stop, false);
		start_threads(t, 2, copy_until_stopped, b);
		sleep_us(300);
		if (each)
			each(arg);
		expect_is(gdr_unmap(g, b->mh, b->va, b->size), 0);
		atomic_store(&stop, true);
		join_threads(t, 2);
		expect_is(gdr_map(g, b->mh, &va, b->size), 0);
		b->va = va;
	}
}

/* Makes a buffer; false: a backend that lost its descriptors says so. */
static bool buffer_or_errno(gdr_t g, struct buffer *b)
{
	gdr_mem_t mem;
	int rc = gdr_mem_alloc(g, 0, 64 * KIB, 0, &mem);

	if (rc) {
		note("without its descriptors this backend answers %s", strerror(rc));
		return false;
	}
	expect_is(gdr_mem_free(g, mem), 0);
	make_buffer(g, b, 64 * KIB);
	return true;
}

static void fds_closed(void)
{
	gdr_t g = open_or_fail();
	struct buffer b;

	close_all_fds();
	if (!buffer_or_errno(g, &b))
		return;
	unmap_often(g, &b, scaled(100), NULL, NULL);
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* The host's files, at the numbers that the library may have had. */
static void fds_are_files(void)
{
	static const char text[] = "precious data";
	gdr_t g = open_or_fail();
	int victims[VICTIMS];
	struct buffer b;
	bool works;

	close_all_fds();
	for (int i = 0; i < VICTIMS; i++) {
		victims[i] = memfd_create("victim", 0);
		expect_is(write(victims[i], text, sizeof(text)), sizeof(text));
	}
	works = buffer_or_errno(g, &b);
	if (works)
		unmap_often(g, &b, scaled(100), NULL, NULL);
	for (int i = 0; i < VICTIMS; i++) {
		char now[2 * sizeof(text)];

		expect_is(pread(victims[i], now, sizeof(now), 0), sizeof(text));
		expect(!memcmp(now, text, sizeof(text)));
	}
	if (works)
		drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

static void ring(void *fd)
{
	uint64_t one = 1;

	expect_is(write(*(int *)fd, &one, sizeof(one)), sizeof(one));
}

/* The host's epoll, at such a number: its events are its own. */
static void fds_are_epolls(void)
{
	static char object[256];
	struct epoll_event e = { EPOLLIN | EPOLLET, { .ptr = object } }, got;
	gdr_t g = open_or_fail();
	int event, epolls[VICTIMS];
	struct buffer b;

	close_all_fds();
	event = eventfd(0, 0);
	for (int i = 0; i < VICTIMS; i++) {
		epolls[i] = epoll_create1(0);
		expect_is(epoll_ctl(epolls[i], EPOLL_CTL_ADD, event, &e), 0);
	}
	if (!buffer_or_errno(g, &b))
		return;
	for (int i = 0; i < scaled(100); i++) {
		unmap_often(g, &b, 1, ring, &event);
		for (int k = 0; k < VICTIMS; k++) {
			expect_is(epoll_wait(epolls[k], &got, 1, 0), 1);
			expect(got.data.ptr == object);
		}
	}
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* More threads than one: a runtime that an ancestor started would wait for its own. */
static void *open_often(void *unused)
{
	for (int i = 0; i < 25; i++)
		expect_is(gdr_close(open_or_fail()), 0);
	return unused;
}

/*
 * A generation's limit covers all that follow it. It is longer than theirs, so
 * that the parent of one that hangs is the one that says so.
 */
static double generation_limit(int left)
{
	return 30 + left;
}

/* Each generation closes what it inherits, opens, and forks the next. */
static void generation(void *left)
{
	int more = *(int *)left - 1;
	pthread_t t[4];
	gdr_t g;

	close_all_fds();
	g = open_or_fail();
	start_threads(t, 4, open_often, NULL);
	join_threads(t, 4);
	expect_is(gdr_close(g), 0);
	if (more)
		expect(in_child("a generation", generation, &more, generation_limit(more)));
}

static void generations(void)
{
	int depth = 64;

	for (int i = 0; i < scaled(2); i++)
		expect(in_child("the first generation", generation, &depth,
				generation_limit(depth)));
}

static void nothing(int sig)
{
}

static _Atomic bool go;

/* Another thread changes what belongs to the process while the runtime starts. */
static void *change_process(void *delay_us)
{
	struct rlimit l = { 512, 4096 };
	struct sigaction act = { .sa_handler = nothing };
	double end;

	while (!atomic_load(&go))
		;
	end = seconds_now() + *(int *)delay_us * 1e-6;
	while (seconds_now() < end)
		;
	for (int sig = 1; sig < 32; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			expect_is(sigaction(sig, &act, NULL), 0);
	expect_is(setrlimit(RLIMIT_NOFILE, &l), 0);
	return NULL;
}

static void open_meanwhile(void *delay_us)
{
	struct sigaction act;
	struct rlimit l;
	pthread_t t;
	gdr_t g;

	start_thread(&t, 0, change_process, delay_us);
	sleep_us(500);
	atomic_store(&go, true);
	g = open_or_fail();
	expect_is(pthread_join(t, NULL), 0);
	for (int sig = 1; sig < 32; sig++) {
		if (sig == SIGKILL || sig == SIGSTOP)
			continue;
		expect_is(sigaction(sig, NULL, &act), 0);
		expect(act.sa_handler == nothing);
		expect_is(act.sa_flags & SA_ONSTACK, 0);
	}
	expect_is(getrlimit(RLIMIT_NOFILE, &l), 0);
	expect_is(l.rlim_cur, 512);
	expect_is(gdr_close(g), 0);
}

static void changed_meanwhile(void)
{
	for (int i = 0; i < scaled(100); i++) {
		int delay_us = i % 50 * 60;

		expect(in_child("of a start", open_meanwhile, &delay_us, 20));
	}
}

/* A thread's first copy, in a handler that interrupted malloc. */
static struct buffer signalled;
static _Atomic bool ready, copied;

static void copy_in_handler(int sig)
{
	unsigned char in[64];

	if (gdr_copy_from_mapping(signalled.mh, in, signalled.va, sizeof(in)))
		_exit(5);
	atomic_store(&copied, true);
}

static void *allocate(void *unused)
{
	atomic_store(&ready, true);
	while (!atomic_load(&copied)) {
		void *p[32];

		for (int i = 0; i < 32; i++)
			p[i] = malloc(2000 + 64 * i);
		for (int i = 0; i < 32; i++)
			free(p[i]);
	}
	return NULL;
}

static void first_copy_in_malloc(void)
{
	struct sigaction act = { .sa_handler = copy_in_handler };
	pthread_key_t key;

	/* The C library has room for the first 32 in each thread. */
	for (int i = 0; i < 40; i++)
		expect_is(pthread_key_create(&key, NULL), 0);
	make_buffer(open_or_fail(), &signalled, 64 * KIB);
	expect_is(sigaction(SIGUSR1, &act, NULL), 0);
	for (int i = 0; i < scaled(1000); i++) {
		pthread_t t;

		atomic_store(&ready, false);
		atomic_store(&copied, false);
		start_thread(&t, 0, allocate, NULL);
		while (!atomic_load(&ready))
			;
		sleep_us(i * 37 % 200);
		expect_is(pthread_kill(t, SIGUSR1), 0);
		expect_is(pthread_join(t, NULL), 0);
	}
}

static void *one_copy(void *b)
{
	check_copies(b, 1);
	return NULL;
}

/* Many threads that copy once, in a process without a free pthread key. */
static void no_keys(void)
{
	struct buffer b;
	pthread_key_t key;

	/* A real driver takes some keys when it starts. */
	hold_context();
	while (!pthread_key_create(&key, NULL))
		;
	make_buffer(open_or_fail(), &b, 64 * KIB);
	for (int i = 0; i < 5000; i++)
		run_thread(64 * KIB, one_copy, &b);
}

static void *change_environment(void *unused)
{
	char name[32];

	while (!atomic_load(&stop)) {
		for (int i = 0; i < 4096; i++) {
			snprintf(name, sizeof(name), "GUEST_HOSTS_%d", i);
			setenv(name, "a value that takes some room in the environment", 1);
		}
		for (int i = 0; i < 4096; i++) {
			snprintf(name, sizeof(name), "GUEST_HOSTS_%d", i);
			unsetenv(name);
		}
	}
	return NULL;
}

/* The environment may change at any time after the open. */
static void environment_changes(void)
{
	gdr_t g = open_or_fail();
	unsigned char in[64];
	double end = seconds_now() + scaled(2);
	struct buffer b;
	gdr_mh_t bad;
	pthread_t t;

	make_buffer(g, &b, 64 * KIB);
	bad.h = b.mh.h ^ 1ull << 20;
	start_thread(&t, 0, change_environment, NULL);
	while (seconds_now() < end)
		for (int i = 0; i < 1000; i++) {
			expect_is(gdr_copy_from_mapping(bad, in, b.va, sizeof(in)), EINVAL);
			expect_is(gdr_unpin_buffer(g, bad), EINVAL);
		}
	atomic_store(&stop, true);
	expect_is(pthread_join(t, NULL), 0);
}

static _Atomic(gdr_t) newest;

static void *open_caches(void *unused)
{
	while (!atomic_load(&stop)) {
		gdr_cache_t c;
		int rc = gdr_cache_open(atomic_load(&newest), MIB, 0, &c);

		if (rc != ENOMEM && rc != EINVAL)
			expect_is(rc, 0);
	}
	return NULL;
}

/* Caches are opened on a gdr_t while it is closed: none is left. */
static void caches_of_closed(void)
{
	double end = seconds_now() + scaled(2);
	gdr_t keep = open_or_fail(), g;
	pthread_t t[4];
	gdr_cache_t c;
	int places = 0;

	atomic_store(&newest, open_or_fail());
	start_threads(t, 4, open_caches, NULL);
	while (seconds_now() < end) {
		g = atomic_load(&newest);
		atomic_store(&newest, open_or_fail());
		expect_is(gdr_close(g), 0);
	}
	atomic_store(&stop, true);
	join_threads(t, 4);
	expect_is(gdr_close(atomic_load(&newest)), 0);
	while (!gdr_cache_open(keep, MIB, 0, &c))
		places++;
	expect_is(places, 64);
}

/* The call succeeds, and errno is as it was. */
#define KEEPS_ERRNO(call) do {		\
	errno = FRESH;			\
	expect_is(call, 0);		\
	expect_is(errno, FRESH);	\
} while (0)

static void errno_is_kept(void)
{
	unsigned char bytes[4096] = { 0 }, info[64];
	int major, minor, flag;
	unsigned long dptr;
	gdr_cache_t c;
	gdr_mem_t mem;
	gdr_mh_t mh;
	void *va;
	gdr_t g;

	errno = FRESH;
	g = open_or_fail();
	expect_is(errno, FRESH);
	KEEPS_ERRNO(gdr_set_copy_policy(GDR_COPY_POLICY_AUTO));
	KEEPS_ERRNO(gdr_driver_get_version(g, &major, &minor));
	KEEPS_ERRNO(gdr_mem_alloc(g, 0, 64 * KIB, 0, &mem));
	KEEPS_ERRNO(gdr_mem_get_device_ptr(g, mem, &dptr, NULL));
	KEEPS_ERRNO(gdr_pin_buffer(g, dptr, 64 * KIB, 0, 0, &mh));
	KEEPS_ERRNO(gdr_map(g, mh, &va, 64 * KIB));
	KEEPS_ERRNO(gdr_get_info(g, mh, info));
	KEEPS_ERRNO(gdr_get_callback_flag(g, mh, &flag));
	KEEPS_ERRNO(gdr_copy_to_mapping(mh, va, bytes, sizeof(bytes)));
	KEEPS_ERRNO(gdr_copy_from_mapping(mh, bytes, va, sizeof(bytes)));
	KEEPS_ERRNO(gdr_cache_open(g, MIB, 0, &c));
	KEEPS_ERRNO(gdr_cache_flush(c));
	KEEPS_ERRNO(gdr_cache_close(c));
	KEEPS_ERRNO(gdr_unmap(g, mh, va, 64 * KIB));
	KEEPS_ERRNO(gdr_unpin_buffer(g, mh));
	KEEPS_ERRNO(gdr_mem_free(g, mem));
	KEEPS_ERRNO(gdr_close(g));
}

/* The file of the library that this program has, and that of a program beside it. */
static void find_files(char library[PATH_MAX], char program[PATH_MAX])
{
	Dl_info info;
	ssize_t n = readlink("/proc/self/exe", program, PATH_MAX - 1);

	expect(n > 0);
	program[n] = '\0';
	expect(strrchr(program, '/') != NULL);
	strcpy(strrchr(program, '/') + 1, "secure_host");
	expect(dladdr((void *)gdr_runtime_get_version, &info) && realpath(info.dli_fname, library));
}

/* What a privileged program's caller has set does not count. */
static void privileged(void)
{
	char library[PATH_MAX], program[PATH_MAX], copy[PATH_MAX], line[256];
	char *argv[] = { copy, library, NULL };
	char *envp[] = { "GDRCOPY_ENABLE_LOGGING=1", "GDRCOPY_LOG_LEVEL=1", "GDRCOPY_BACKEND=none", NULL };
	int log = memfd_create("log", MFD_CLOEXEC), status;
	pid_t pid;

	if (geteuid())
		skip_case("only root can make a program privileged");
	find_files(library, program);
	copy_library(program, copy);
	expect(log >= 0);
	expect_is(chown(copy, 65533, 65533), 0);
	expect_is(chmod(copy, 06755), 0);
	pid = fork();
	if (!pid) {
		dup2(log, STDERR_FILENO);
		execve(copy, argv, envp);
		_exit(2);
	}
	status = wait_child(pid, 30);
	unlink(copy);
	if (WIFEXITED(status) && (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 4))
		skip_case("privileged programs cannot be made here, or cannot read the library");
	expect(child_ok("a privileged program", status));
	expect_is(pread(log, line, sizeof(line), 0), 0);
}

/* What the environment asks for wrongly is EINVAL, and nothing is spoilt. */
static void wrong_settings(void)
{
	static const char *const names[] = { "GDRCOPY_COPY_IMPL", "GDRCOPY_COPY", "GDRCOPY_DMA_READ" };
	gdr_t g;

	for (int i = 0; i < 6; i++) {
		setenv(names[i / 2], "nothing", 1);
		errno = 0;
		expect(!gdr_open());
		expect_is(errno, EINVAL);
		unsetenv(names[i / 2]);
	}
	g = open_or_fail();
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "all descriptors are closed", fds_closed, 60, 0 },
	{ "their numbers are the host's files", fds_are_files, 60, 0 },
	{ "their numbers are the host's epolls", fds_are_epolls, 60, 0 },
	{ "64 generations, each without descriptors", generations, 200, 0 },
	{ "handlers and limits that change during the open", changed_meanwhile, 120, 0 },
	{ "a thread's first copy in a handler inside malloc", first_copy_in_malloc, 60, 0 },
	{ "66,000 threads, no pthread key left", no_keys, 120, 0 },
	{ "the environment changes", environment_changes, 60, 0 },
	{ "caches of a gdr_t that is closed meanwhile", caches_of_closed, 60, 0 },
	{ "settings that are wrong, and then right", wrong_settings, 60, 0 },
	{ "errno is as it was after success", errno_is_kept, 60, 0 },
	{ "a privileged program takes nothing from its environment", privileged, 60, 0 },
	{ 0 }
};
