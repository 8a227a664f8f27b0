// SPDX-License-Identifier: MIT
/*
 * guest/hosts.c - hosts that do what hosts are allowed to do, and that a library
 * with a runtime in it may trip over: they close all descriptors, change their environment, filter system calls.
 */
#include "api.h"
#include "cuda.h"

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

/* Uses the library; a backend that lost its descriptors says so. */
static void work_or_errno(gdr_t g)
{
	gdr_mem_t mem;
	int rc = gdr_mem_alloc(g, 0, 64 * KIB, 0, &mem);

	if (rc) {
		note("without its descriptors this backend answers %s", strerror(rc));
		return;
	}
	expect_is(gdr_mem_free(g, mem), 0);
	for (int i = 0; i < scaled(100); i++)
		whole_life(g, i);
}

/* files: the host has files at the numbers that the library may have had. */
static void fds_closed(void *files)
{
	static const char text[] = "precious data";
	gdr_t g = open_or_fail();
	int victims[VICTIMS];

	close_all_fds();
	for (int i = 0; files && i < VICTIMS; i++) {
		victims[i] = memfd_create("victim", 0);
		expect_is(write(victims[i], text, sizeof(text)), sizeof(text));
	}
	work_or_errno(g);
	for (int i = 0; files && i < VICTIMS; i++) {
		char now[2 * sizeof(text)];

		expect_is(pread(victims[i], now, sizeof(now), 0), sizeof(text));
		expect(!memcmp(now, text, sizeof(text)));
	}
	expect_is(gdr_close(g), 0);
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
	gdr_t g;

	setenv("GDRCOPY_COPY_IMPL", "nothing", 1);
	for (int i = 0; i < 2; i++) {
		errno = 0;
		expect(!gdr_open());
		expect_is(errno, EINVAL);
	}
	unsetenv("GDRCOPY_COPY_IMPL");
	g = open_or_fail();
	whole_life(g, 1);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "all descriptors are closed", NULL, 60, 0, fds_closed, NULL },
	{ "their numbers are the host's files", NULL, 60, 0, fds_closed, (void *)true },
	{ "handlers and limits that change during the open", changed_meanwhile, 120, 0 },
	{ "the environment changes", environment_changes, 60, 0 },
	{ "settings that are wrong, and then right", wrong_settings, 60, 0 },
	{ "errno is as it was after success", errno_is_kept, 60, 0 },
	{ "a privileged program takes nothing from its environment", privileged, 60, 0 },
	{ 0 }
};
